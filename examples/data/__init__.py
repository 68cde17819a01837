"""Scripts that turn public data sets into what the specs in ``examples/graphs`` read."""
