"""Preparation of a snapshot for training, in four steps.

The snapshot is validated, entities get their ids, edges are held out, and the others are written by partition.
"""
