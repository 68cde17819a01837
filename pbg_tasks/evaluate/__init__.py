"""Evaluation: ranking of held-out edges, drift, and gates."""
