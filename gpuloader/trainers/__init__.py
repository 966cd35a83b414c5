"""What Lightning's data modules and callbacks are made of, whichever of its two packages is installed."""
