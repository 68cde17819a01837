"""Optimizer state in checkpoint files, as PBG's blob and as datasets.

PBG keeps the bytes of ``torch.save`` in a one-dimensional opaque dataset. This package writes that blob so that PBG can
continue its checkpoints, and beside it the same numbers as plain datasets, which this package reads and PBG ignores. A
blob is read only from a file that has no plain datasets.
"""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pbg_tasks.errors import FormatError
from pbg_tasks.formats.guard import dataset
from pbg_tasks.formats.pickles import load_state
from pbg_tasks.formats.slices import read_part, write_dataset

if TYPE_CHECKING:
    from collections.abc import Sequence

    import h5py
    import torch

    from pbg_tasks.formats.guard import OpenFile

STATE_DICT = "optimizer/state_dict"
PLAIN_SUMS = "optimizer/plain/sum"
_BLOB_SLACK = 1 << 20  # for pickle, alignment and torch's own entries
_BLOB_BYTES_PER_NUMBER = 16


def row_adagrad_state(sums: np.ndarray, lr: float) -> dict[str, Any]:
    """Build the state of PBG's RowAdagrad, with one sum for each row.

    Args:
        sums: float32 (n,).
        lr: learning rate.

    Returns:
        PBG's dict. No program uses its ``step``, but PBG 1.0.0 requires it.
    """
    group = {"lr": lr, "lr_decay": 0, "weight_decay": 0, "params": [0]}
    return {"state": {0: {"step": 0, "sum": _tensor(sums)}}, "param_groups": [group]}


def adagrad_state(sums: Sequence[np.ndarray], lr: float) -> dict[str, Any]:
    """Build the state of torch's Adagrad over a model's parameters.

    Args:
        sums: float32 arrays, in the order of the model's parameters.
        lr: learning rate.

    Returns:
        PBG's dict; empty for a model without parameters, as in PBG's dummy optimizer.
    """
    if not sums:
        return {}
    import torch

    group = {
        "lr": lr,
        "lr_decay": 0,
        "eps": 1e-10,
        "weight_decay": 0,
        "initial_accumulator_value": 0,
        "foreach": None,
        "maximize": False,
        "differentiable": False,
        "fused": None,
        "params": list(range(len(sums))),
    }
    state = {index: {"step": torch.tensor(0.0), "sum": _tensor(value)} for index, value in enumerate(sums)}
    return {"state": state, "param_groups": [group]}


def write_state(file: h5py.File, state: dict[str, Any]) -> None:
    """Write a state dict as PBG's blob; equal states give equal bytes."""
    import torch

    buffer = io.BytesIO()
    torch.save(state, buffer)
    write_dataset(file, STATE_DICT, np.frombuffer(buffer.getbuffer(), dtype="V1"))


def read_row_sums(file: OpenFile, rows: int) -> np.ndarray | None:
    """Read RowAdagrad's sums of a partition.

    They are float32 (rows,), or None when the file has none.

    Raises:
        FormatError: of another shape, negative or not finite, or the blob is not a plain state dict.
    """
    if PLAIN_SUMS in file:
        return plain_sums(file, PLAIN_SUMS, (rows,))
    listed = blob_sums(file, [(rows,)])
    return listed[0] if listed else None


def plain_sums(file: OpenFile, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Read one plain dataset of sums, float32 of ``shape``.

    Raises:
        FormatError: missing, of another shape, negative or not finite.
    """
    item = dataset(file, name, kinds="f", shape=shape)
    sums = read_part(item) if len(shape) == 1 else item.whole()
    return _checked(sums.astype(np.float32, copy=False), shape, f"{file.name}: {name}")


def blob_sums(file: OpenFile, shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray] | None:
    """Read the sums of PBG's blob in the order of the parameters.

    Args:
        file: a checkpoint file.
        shapes: of the parameters.

    Returns:
        float32 arrays of ``shapes``; None when there is no blob or it holds no state yet.

    Raises:
        FormatError: the blob is too large, not a plain state dict, or of other shapes. Nothing of it is executed.
    """
    if STATE_DICT not in file:
        return None
    source = f"{file.name}: {STATE_DICT}"
    item = dataset(file, STATE_DICT, kinds="V", shape=(None,))
    limit = _BLOB_SLACK + sum(math.prod(shape) for shape in shapes) * _BLOB_BYTES_PER_NUMBER
    if item.size > limit:
        raise FormatError(f"{source}: {item.size} bytes, more than the {limit} that the file's parameters can need")
    sums = file.sums(read_part(item), shapes, source)
    if sums is None:
        return None
    checked = zip(sums, shapes, strict=True)
    return [_checked(value, shape, f"{source}, parameter {index}") for index, (value, shape) in enumerate(checked)]


def state_sums(blob: bytes, shapes: Sequence[tuple[int, ...]], *, source: str) -> list[np.ndarray] | None:
    """Read the sums in a blob, in the order of the parameters.

    Their values are not checked.

    Args:
        blob: bytes of ``torch.save``.
        shapes: of the parameters.
        source: name of the blob in messages.

    Returns:
        float32 arrays of ``shapes``; None when it holds no state yet.

    Raises:
        FormatError: it is not a plain state dict, or of other shapes. Nothing of it is executed.
    """
    whole = load_state(blob, source=source)
    state = whole.get("state", {}) if isinstance(whole, dict) else None
    if not isinstance(state, dict):
        raise FormatError(f"{source}: not an optimizer's state dict")
    if not state or not shapes:
        return None
    if set(state) != set(range(len(shapes))):
        raise FormatError(f"{source}: holds {len(state)} parameters' state, the file has {len(shapes)} parameters")
    return [_sum(state[index], shape, f"{source}, parameter {index}") for index, shape in enumerate(shapes)]


def _tensor(sums: np.ndarray) -> torch.Tensor:
    import torch

    return torch.from_numpy(np.ascontiguousarray(sums, dtype=np.float32))


def _sum(entry: object, shape: tuple[int, ...], where: str) -> np.ndarray:
    value = entry.get("sum") if isinstance(entry, dict) else None
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
        raise FormatError(f"{where}: no tensor 'sum'")
    if value.shape != shape:
        raise FormatError(f"{where}: sums of shape {value.shape}, expected {shape}")
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(value, np.float32)


def _checked(sums: np.ndarray, shape: tuple[int, ...], where: str) -> np.ndarray:
    if sums.size and not (sums.min() >= 0 and np.isfinite(sums.max())):
        raise FormatError(f"{where}: sums of squares {shape} that are negative or not finite")
    return sums
