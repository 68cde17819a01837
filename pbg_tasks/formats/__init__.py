"""File formats: arrays to files and back, one module a format.

The formats of PyTorch-BigGraph (PBG) are followed exactly, so that PBG reads the files.
"""
