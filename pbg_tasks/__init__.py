"""Train and publish embeddings of large multi-relation graphs, in PyTorch-BigGraph's formats."""

from __future__ import annotations

__version__ = "0.1.0"
