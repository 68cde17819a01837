"""Training: the order of buckets, the loop, and its engine.

The package also manages the partitions that are in memory meanwhile.
"""
