"""Small tools that need nothing else from the library, and every use of undocumented parts of other libraries.

Only `dali`, `fsspec`, `multiprocessing` and `torch` use undocumented parts; scripts/check checks that. Each of their
functions says what it relies on and why there is no public way; a test in tests/base fails when that changes.
"""
