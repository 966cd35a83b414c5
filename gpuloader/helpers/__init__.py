"""Small helpers that need nothing else from the library: cores, limits of images, the process for Pillow."""
