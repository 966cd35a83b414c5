"""Boxes, masks and points, which move with the pixels: pure functions."""
