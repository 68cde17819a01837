"""Shared parameters: ``model.v{N}.h5``, in PBG's checkpoint format.

They are the operators of relations and the global embeddings.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from pbg_tasks.errors import FormatError
from pbg_tasks.formats.files import creating
from pbg_tasks.formats.guard import dataset, open_foreign
from pbg_tasks.formats.metadata import CONFIG, write_metadata
from pbg_tasks.formats.names import model_file_name as model_file_name  # noqa: PLC0414 - for users of this module
from pbg_tasks.formats.optimizer import PLAIN_SUMS, adagrad_state, blob_sums, plain_sums, write_state

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.formats.guard import OpenFile
    from pbg_tasks.formats.metadata import IterationInfo

LOOPS = "relations_with_loops"
_OPERATOR = re.compile(r"relations/([0-9]{1,9})/operator/(lhs|rhs)/([^./]+)")
_GLOBAL = re.compile(r"entities/([^./]+)/global_embedding")
# Order in which PBG's operators define them; other names follow by the alphabet.
_PARAMS = ("linear_transformation", "linear_transformations", "real", "imag")
# Names under which PBG before its 1.0 kept affine matrices, transposed.
_LEGACY = {"rotation": "linear_transformation", "rotations": "linear_transformations"}


@dataclass(frozen=True, slots=True)
class ModelState:
    """Shared parameters and their Adagrad sums.

    Attributes:
        params: float32 arrays by PBG's path below ``model/``: ``relations/{idx}/operator/{lhs|rhs}/{param}`` or
            ``entities/{type}/global_embedding``. With dynamic relations the first axis is the relation.
        sums: accumulated squares, same keys and shapes; or empty: none are known.
        loops: int64, ids of the relations that have loops among the training edges, and not as rare exceptions
            (``training.engine.self_negatives``), ascending; None: unknown, as of PBG's models.
    """

    params: dict[str, np.ndarray]
    sums: dict[str, np.ndarray] = field(default_factory=dict)
    loops: np.ndarray | None = None

    def __post_init__(self) -> None:
        wanted = {name: value.shape for name, value in self.params.items()}
        if self.sums and {name: value.shape for name, value in self.sums.items()} != wanted:
            raise ValueError("the sums of a model must have the names and shapes of its parameters")


def state_dict_key(path: str) -> str:
    """Return PBG's name of a parameter in its module.

    It is ``rhs_operators.0.real`` or ``global_embs.emb_{type}``, for example.

    Raises:
        FormatError: ``path`` is no parameter's path.
    """
    if operator := _OPERATOR.fullmatch(path):
        index, side, name = operator.groups()
        return f"{side}_operators.{index}.{name}"
    if embedding := _GLOBAL.fullmatch(path):
        return f"global_embs.emb_{embedding[1]}"
    raise FormatError(f"model/{path}: not a parameter of a relation or entity type")


def parameter_order(paths: Iterable[str], entities: Sequence[str]) -> list[str]:
    """Sort paths in the order of PBG's optimizer.

    It counts left operators, right operators, then global embeddings.

    Args:
        paths: of parameters, below ``model/``.
        entities: the types in the order of the config.
    """

    def rank(path: str) -> tuple[int, int, int, str]:
        if operator := _OPERATOR.fullmatch(path):
            index, side, name = operator.groups()
            name = _LEGACY.get(name, name)
            position = _PARAMS.index(name) if name in _PARAMS else len(_PARAMS)
            return ("lhs", "rhs").index(side), int(index), position, name
        entity = path.split("/")[1]
        return 2, entities.index(entity) if entity in entities else len(entities), 0, entity

    return sorted(paths, key=rank)


def write_model(path: Path, state: ModelState, *, config: ConfigSchema, iteration: IterationInfo) -> None:
    """Write the shared parameters; equal arguments give equal bytes.

    When there are sums, the optimizer's state is written too.

    Raises:
        ResourceError: the disk is full; a file that was at ``path`` stays.
    """
    names = parameter_order(state.params, list(config.entities))
    lr = config.lr if config.relation_lr is None else config.relation_lr
    with creating(path, data_bytes=12 * sum(value.size for value in state.params.values())) as file:
        write_metadata(file, config, iteration)
        group = file.create_group("model", track_order=True)
        for name in names:
            item = group.create_dataset(name, data=state.params[name], dtype=np.float32, track_times=False)
            item.attrs["state_dict_key"] = state_dict_key(name)
        if state.sums or not names:
            write_state(file, adagrad_state([state.sums[name] for name in names], lr))
        if state.loops is not None:  # a dataset that PBG and earlier versions ignore
            file.create_dataset(LOOPS, data=state.loops, dtype=np.int64, track_times=False)
        for name in names if state.sums else ():
            data = state.sums[name]
            file.create_dataset(f"{PLAIN_SUMS}/{name}", data=data, dtype=np.float32, track_times=False)


def read_model(path: Path) -> ModelState:
    """Read the shared parameters.

    Matrices under PBG's names of before 1.0 are returned renamed and transposed. A file without the group ``model``
    holds none, as for PBG: such a file starts a training from vectors alone.

    Raises:
        FormatError: damaged, not PBG's, not finite, or with parameters that no relation or entity type has.
    """
    with open_foreign(path) as file:
        if "model" not in file.groups and ("model" in file.datasets or PLAIN_SUMS in file):
            raise FormatError(f"{path}: group 'model' is missing, but the file is more than empty; copy it again")
        names = sorted(name.removeprefix("model/") for name in file.datasets if name.startswith("model/"))
        params = {name: _parameter(file, name) for name in names}
        loops = dataset(file, LOOPS, kinds="iu", shape=(None,)).whole().astype(np.int64) if LOOPS in file else None
        return ModelState(_renamed(params), _renamed(_sums(file, params)), loops)


def _parameter(file: OpenFile, name: str) -> np.ndarray:
    state_dict_key(name)
    shape = file.datasets[f"model/{name}"].shape
    value = dataset(file, f"model/{name}", kinds="f", shape=shape).whole().astype(np.float32, copy=False)
    if not np.isfinite(value).all():
        raise FormatError(f"{file.name}: model/{name} holds numbers that are not finite")
    return value


def _sums(file: OpenFile, params: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    if PLAIN_SUMS in file:
        return {name: plain_sums(file, f"{PLAIN_SUMS}/{name}", value.shape) for name, value in params.items()}
    entities = _entity_order(file)
    names = parameter_order(params, entities)
    listed = blob_sums(file, [params[name].shape for name in names])
    unplaced = [name for name in params if _GLOBAL.fullmatch(name) and name.split("/")[1] not in entities]
    if listed and len(unplaced) > 1:
        raise FormatError(f"{file.name}: attribute {CONFIG!r} must list the entity types of {', '.join(unplaced)}")
    return dict(zip(names, listed, strict=True)) if listed else {}


def _entity_order(file: OpenFile) -> list[str]:
    """Return the entity types in the order of the file's own config.

    The order is needed because PBG's blob identifies parameters by number.
    """
    try:
        return list(json.loads(str(file.attrs[CONFIG]))["entities"])
    except (LookupError, TypeError, ValueError, RecursionError):
        return []


def _renamed(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    result = {}
    for path, value in arrays.items():
        parent, _, name = path.rpartition("/")
        if name in _LEGACY and value.ndim > 1:
            result[f"{parent}/{_LEGACY[name]}"] = np.ascontiguousarray(np.swapaxes(value, -1, -2))
        else:
            result[path] = value
    return result
