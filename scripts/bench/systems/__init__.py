"""The systems that are measured: each module is one, and runs alone: `python -m systems.NAME --help`."""
