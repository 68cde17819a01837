"""The Python interface: ``train`` a model on edges in memory, ``Model.open`` one and ask it by names."""

from __future__ import annotations

from pbg_tasks.api.known import KnownEdges
from pbg_tasks.api.model import Answer, Model
from pbg_tasks.api.names import UnknownNameError
from pbg_tasks.api.training import train

__all__ = ["Answer", "KnownEdges", "Model", "UnknownNameError", "train"]
