"""PBG's optimizer state: the bytes of ``torch.save`` in a one-dimensional opaque dataset (PBG 3.3).

We write that blob so that PBG continues our checkpoints, and the same numbers as plain datasets, which are what we read
back. A foreign blob is a pickle: its opcodes are searched for anything but plain tensors before torch may load it.
"""

from __future__ import annotations

import io
import pickletools
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np

from pbg_tasks.errors import FormatError

if TYPE_CHECKING:
    import h5py

STATE_DICT = "optimizer/state_dict"
_MAX_BLOB = 1 << 36
_ALLOWED = {
    "collections OrderedDict",
    "torch._utils _rebuild_tensor_v2",
    "torch FloatStorage",
    "torch DoubleStorage",
    "torch LongStorage",
    "torch IntStorage",
}


def write_state(file: h5py.File, state: dict[str, Any]) -> None:
    """Write an optimizer's state dict (plain dicts, numbers, tensors) as PBG's blob."""
    import torch

    buffer = io.BytesIO()
    torch.save(state, buffer)
    file.create_dataset(STATE_DICT, data=np.frombuffer(buffer.getvalue(), dtype="|V1"), track_times=False)


def read_state(file: h5py.File) -> dict[str, Any] | None:
    """Read a blob; None when there is none.

    Raises:
        FormatError: it is not a torch archive of plain tensors. Nothing of it is executed.
    """
    import torch

    item = file.get(STATE_DICT)
    if item is None:
        return None
    source = f"{file.filename}: {STATE_DICT}"
    if item.ndim != 1 or item.dtype.itemsize != 1 or item.size > _MAX_BLOB:
        raise FormatError(f"{source}: expected a one-dimensional dataset of bytes")
    blob = item[...].tobytes()
    _check_pickle(source, blob)
    try:
        state = torch.load(io.BytesIO(blob), map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for damaged archives
        raise FormatError(f"{source}: not readable: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(state, dict) or not isinstance(state.get("state"), dict):
        raise FormatError(f"{source}: not an optimizer's state dict")
    return state


def _check_pickle(source: str, blob: bytes) -> None:
    """Refuse a pickle that names anything but the few globals plain tensors need."""
    try:
        with zipfile.ZipFile(io.BytesIO(blob)) as archive:
            (name,) = (name for name in archive.namelist() if name.endswith("/data.pkl"))
            opcodes = list(pickletools.genops(archive.read(name)))
    except (zipfile.BadZipFile, ValueError, KeyError, RuntimeError) as error:
        raise FormatError(f"{source}: not a torch archive: {error}") from None
    for opcode, argument, _ in opcodes:
        if opcode.name in {"STACK_GLOBAL", "INST", "OBJ", "EXT1", "EXT2", "EXT4"}:
            raise FormatError(f"{source}: pickle opcode {opcode.name} is not allowed; the blob was not loaded")
        if opcode.name == "GLOBAL" and argument not in _ALLOWED:
            raise FormatError(f"{source}: pickle names {argument!r}, which is not allowed; the blob was not loaded")


def row_adagrad_state(sums: np.ndarray, lr: float) -> dict[str, Any]:
    """Build the state of PBG's RowAdagrad: one sum (float32 (n,)) for the rows of one table.

    ``step`` is not used by it; PBG 1.0.0 wants it there.
    """
    import torch

    group = {"lr": lr, "lr_decay": 0, "weight_decay": 0, "params": [0]}
    return {"state": {0: {"step": 0, "sum": torch.from_numpy(sums)}}, "param_groups": [group]}


def adagrad_state(sums: list[np.ndarray], lr: float) -> dict[str, Any]:
    """Build the state of torch's Adagrad over the model's parameters, in PBG's order."""
    import torch

    if not sums:
        return {}
    state = {
        index: {"step": torch.tensor(0.0), "sum": torch.from_numpy(np.ascontiguousarray(value))}
        for index, value in enumerate(sums)
    }
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
    return {"state": state, "param_groups": [group]}


def sums_of(state: dict[str, Any] | None) -> list[np.ndarray] | None:
    """Return the accumulated squares of a state dict in parameter order; None when it holds none."""
    if not state or not state["state"]:
        return None
    return [state["state"][index]["sum"].float().numpy() for index in sorted(state["state"])]
