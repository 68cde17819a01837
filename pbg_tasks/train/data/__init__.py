"""Partitions, edge files and starting vectors on their way into memory and back."""
