"""Ranking held-out edges, and judging by it."""
