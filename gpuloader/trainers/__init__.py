"""The parts of Lightning's data modules and callbacks, for both of its packages."""
