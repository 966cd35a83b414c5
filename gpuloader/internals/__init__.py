"""The undocumented parts of DALI, torch and fsspec that the library uses. Only this package uses
them; tests/internals checks that.

Each function says what it relies on and why there is no public way; a test for each fails when that changes.
"""
