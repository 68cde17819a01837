"""Quality on public data sets: ``python -m benchmarks.quality``.

It is measured through the commands that users have.
"""
