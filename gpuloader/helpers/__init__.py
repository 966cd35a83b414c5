"""Small helpers that know nothing of images: cores, late imports, progress bars, units."""
