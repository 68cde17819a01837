"""Scaling of training with ranks.

It is simulated with the real scheduler, and checked against real runs.
"""
