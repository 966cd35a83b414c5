"""Validates image files before decoding, and reads their sizes: headers, limits, formats."""
