"""Other loaders' interfaces on this library: a script runs after its import line alone was changed."""
