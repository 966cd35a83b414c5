"""What tests are called by."""

import re


def named(parameter: object) -> str:
    """A parameter without addresses: those differ between the processes that share the tests."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(parameter))
