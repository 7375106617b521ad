"""Facts about this machine, each with its source."""
