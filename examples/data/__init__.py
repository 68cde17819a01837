"""Scripts that convert public data sets for the specs in ``examples/graphs``."""
