"""Shared parameters: ``model.v{N}.h5`` with the relations' operators and global embeddings (PBG 3.3)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import h5py
import numpy as np

from pbg_tasks.errors import FormatError
from pbg_tasks.formats.guard import open_foreign
from pbg_tasks.formats.metadata import IterationInfo, write_metadata
from pbg_tasks.formats.optimizer import adagrad_state, read_state, sums_of, write_state

if TYPE_CHECKING:
    from pathlib import Path

    from pbg_tasks.config import ConfigSchema

_OPERATOR = re.compile(r"relations/(\d+)/operator/(lhs|rhs)/(\w+)")
_GLOBAL = re.compile(r"entities/([^./]+)/global_embedding")
_SIDES = {"lhs": 0, "rhs": 1}
_PLAIN = "optimizer/plain"
# Before its 1.0, PBG kept affine matrices transposed under these names.
_LEGACY = {"rotation": "linear_transformation", "rotations": "linear_transformations"}


@dataclass(frozen=True, slots=True)
class ModelState:
    """Shared parameters and their Adagrad sums.

    Attributes:
        params: float32 arrays by PBG's path below ``model/``: ``relations/{idx}/operator/{lhs|rhs}/{param}`` or
            ``entities/{type}/global_embedding``. With dynamic relations the first axis is the relation.
        sums: accumulated squares, same keys and shapes; empty when the file holds none.
    """

    params: dict[str, np.ndarray]
    sums: dict[str, np.ndarray] = field(default_factory=dict)


def model_file_name(version: int) -> str:
    """Return the file of the shared parameters in one version."""
    return f"model.v{version}.h5"


def state_dict_key(path: str) -> str:
    """Return PBG's name of a parameter in its module: ``rhs_operators.0.real``, ``global_embs.emb_{type}``.

    Raises:
        FormatError: ``path`` is no parameter's path.
    """
    if operator := _OPERATOR.fullmatch(path):
        index, side, name = operator.groups()
        return f"{side}_operators.{index}.{name}"
    if embedding := _GLOBAL.fullmatch(path):
        return f"global_embs.emb_{embedding[1]}"
    raise FormatError(f"model/{path}: not a parameter of a relation or entity type")


def _order(path: str) -> tuple[int, int, int]:
    """Sort as PBG's optimizer counts parameters: left operators, right operators, global embeddings."""
    if operator := _OPERATOR.fullmatch(path):
        return _SIDES[operator[2]], int(operator[1]), 0
    return 2, 0, 0


def ordered(params: dict[str, np.ndarray]) -> list[str]:
    """Return the paths in PBG's order of parameters; within an operator and between types, their own order stays."""
    return sorted(params, key=_order)


def write_model(path: Path, state: ModelState, *, config: ConfigSchema, iteration: IterationInfo) -> None:
    """Write the shared parameters and, when there are sums, the optimizer's state."""
    lr = config.relation_lr if config.relation_lr is not None else config.lr
    paths = ordered(state.params)
    partial = path.with_suffix(".tmp.h5")
    with h5py.File(partial, "w", libver="earliest") as file:
        write_metadata(file, config, iteration)
        group = file.create_group("model", track_order=True)
        for name in paths:
            item = group.create_dataset(name, data=state.params[name], dtype=np.float32, track_times=False)
            item.attrs["state_dict_key"] = state_dict_key(name)
        if state.sums or not paths:
            sums = [np.asarray(state.sums[name], np.float32) for name in paths]
            write_state(file, adagrad_state(sums, lr))
            for name, value in zip(paths, sums, strict=True):
                file.create_dataset(f"{_PLAIN}/{name}", data=value, track_times=False)
    partial.replace(path)


def read_model(path: Path) -> ModelState:
    """Read the shared parameters.

    Raises:
        FormatError: damaged, foreign, or with parameters that no operator has.
    """
    with open_foreign(path) as file:
        group = file.get("model")
        if not isinstance(group, h5py.Group):
            raise FormatError(f"{path}: group 'model' is missing")
        names = _datasets(group)
        params = {name: group[name][...].astype(np.float32) for name in names}
        if _PLAIN in file:
            sums = {name: file[f"{_PLAIN}/{name}"][...] for name in names}
        else:
            listed = sums_of(read_state(file)) or []
            sums = dict(zip(ordered(params), listed, strict=True)) if listed else {}
    for name, value in sums.items():
        if value.shape != params[name].shape:
            raise FormatError(f"{path}: optimizer sums of {name!r} have shape {value.shape}, not {params[name].shape}")
    return ModelState(_renamed(params), _renamed(sums))


def _datasets(group: h5py.Group) -> list[str]:
    names: list[str] = []
    group.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
    for name in names:
        state_dict_key(name)
    return names


def _renamed(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    result = {}
    for path, value in arrays.items():
        parent, _, name = path.rpartition("/")
        if name in _LEGACY:
            result[f"{parent}/{_LEGACY[name]}"] = np.ascontiguousarray(np.swapaxes(value, -1, -2))
        else:
            result[path] = value
    return result
