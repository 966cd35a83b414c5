"""The loader and its parts: from encoded images in shards to the batch in the training loop."""
