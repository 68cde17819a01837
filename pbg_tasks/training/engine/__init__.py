"""Engines that train a bucket in memory, with their training step."""
