"""Arrays to files and back, one module a format: PyTorch-BigGraph's own, to the letter."""
