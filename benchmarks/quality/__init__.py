"""Quality on public data sets, through the commands a user has: ``python -m benchmarks.quality``."""
