"""Loading: the loader and its parts, from a reader's encoded batch to what the training loop gets."""
