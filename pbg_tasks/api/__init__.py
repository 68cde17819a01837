"""Python interface: train a model, open one, query it by names.

``train`` takes edges in memory, and ``Model.open`` opens a trained model.
"""

from __future__ import annotations

from pbg_tasks.api.known_edges import KnownEdges
from pbg_tasks.api.model import Answer, Model
from pbg_tasks.api.names import UnknownNameError
from pbg_tasks.api.training import train
from pbg_tasks.config.contract import Contract

__all__ = ["Answer", "Contract", "KnownEdges", "Model", "UnknownNameError", "train"]
