"""The root attributes that PBG writes into every checkpoint file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from pbg_tasks.formats.guard import FORMAT_VERSION

if TYPE_CHECKING:
    import h5py

    from pbg_tasks.config import ConfigSchema

CONFIG = "config/json"


@dataclass(frozen=True, slots=True)
class IterationInfo:
    """The iteration a file belongs to: the one that was just finished."""

    num_epochs: int
    epoch_idx: int
    num_edge_paths: int
    edge_path_idx: int
    edge_path: str
    num_edge_chunks: int
    edge_chunk_idx: int


def write_metadata(file: h5py.File, config: ConfigSchema, iteration: IterationInfo) -> None:
    """Write ``format_version``, ``config/json`` and ``iteration/*``; the "/" is part of the attribute's name."""
    file.attrs["format_version"] = np.int64(FORMAT_VERSION)
    file.attrs[CONFIG] = json.dumps(config.to_pbg(), indent=4)
    for name, value in asdict(iteration).items():
        file.attrs[f"iteration/{name}"] = value if isinstance(value, str) else np.int64(value)
