"""Root attributes that PBG writes into every checkpoint file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from pbg_tasks.errors import FormatError
from pbg_tasks.formats.guard import FORMAT_VERSION, open_foreign

if TYPE_CHECKING:
    from pathlib import Path

    import h5py

    from pbg_tasks.config import ConfigSchema

CONFIG = "config/json"


@dataclass(frozen=True, slots=True)
class IterationInfo:
    """Iteration of a file: the one that had just finished."""

    num_epochs: int
    epoch_idx: int
    num_edge_paths: int
    edge_path_idx: int
    edge_path: str
    num_edge_chunks: int
    edge_chunk_idx: int


def write_metadata(file: h5py.File, config: ConfigSchema, iteration: IterationInfo) -> None:
    """Write ``format_version``, ``config/json`` and ``iteration/*``.

    The "/" is part of the attribute's name.
    """
    file.attrs["format_version"] = np.int64(FORMAT_VERSION)
    file.attrs[CONFIG] = json.dumps(config.to_pbg(), indent=4)
    for name, value in asdict(iteration).items():
        file.attrs[f"iteration/{name}"] = value if isinstance(value, str) else np.int64(value)


def read_iteration(path: Path) -> IterationInfo | None:
    """Read the iteration of a checkpoint file.

    None is returned when the file does not name one (readers of PBG do not need it).

    Raises:
        FormatError: damaged, not PBG's, or a number is none.
    """
    values: dict[str, Any] = {}
    with open_foreign(path) as file:
        for item in fields(IterationInfo):
            value = file.attrs.get(f"iteration/{item.name}")
            if value is None:
                return None
            try:
                values[item.name] = str(value) if item.name == "edge_path" else int(value)
            except (TypeError, ValueError):
                raise FormatError(f"{path}: attribute iteration/{item.name} is {value!s:.40}, not a number") from None
    return IterationInfo(**values)
