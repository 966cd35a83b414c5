"""Other loaders' interfaces on this library: a script runs after you change only its import line."""
