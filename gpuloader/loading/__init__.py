"""Loading: the loader and its parts, from a reader's encoded batch to the batch that the training loop gets."""
