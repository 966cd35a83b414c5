"""What is used of DALI, torch and fsspec that they do not promise. Nowhere else is: tests/internals fails on that.

Each function says what it relies on and why there is no public way; a test for each fails when that changes.
"""
