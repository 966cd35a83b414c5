"""Small helpers that need nothing else from the library: cores, child processes, late imports, texts."""
