"""Partitions between ranks, in memory and in the store."""
