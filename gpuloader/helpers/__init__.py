"""Small helpers that need nothing else of the library: cores, limits of images, the process that decodes JPEG 2000."""
