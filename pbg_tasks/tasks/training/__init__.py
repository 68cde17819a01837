"""Training of a run or a directory, by one process or gang."""
