"""Reason for which torch has no GPU."""

from __future__ import annotations

import torch


def missing_gpu() -> str:
    """Return why torch has no GPU here, for an error."""
    why = "finds no GPU on this machine" if torch.version.cuda else "was built without CUDA"
    return f"torch {torch.__version__} {why}"
