"""Edge buckets, in PBG's edge format.

The file ``edges_{lhs}_{rhs}.h5`` has the datasets ``lhs``, ``rhs``, ``rel`` and perhaps ``weight``. PBG chunks every
dataset at 50 MiB and truncates weights to integers; here the layout fits the data and weights are float32, which PBG
reads.

An end whose type is featurized has the id -1 and a list of features instead: ``lhsd_offsets`` has the positions at
which each edge's list begins in ``lhsd_data`` (``rhsd_`` likewise). The list of any other end is empty.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from pbg_tasks.errors import FormatError
from pbg_tasks.formats.files import creating
from pbg_tasks.formats.guard import FORMAT_VERSION, dataset, open_foreign
from pbg_tasks.formats.slices import checked_layout, read_part, write_dataset

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path
    from types import TracebackType

    from pbg_tasks.formats.guard import OpenFile
    from pbg_tasks.formats.hdf5_header import Hdf5Header
    from pbg_tasks.formats.stored import Stored

_IDS = ("lhs", "rhs", "rel")
_SIDES = ("lhs", "rhs")
_TYPES: dict[str, np.dtype[Any]] = {**dict.fromkeys(_IDS, np.dtype(np.int64)), "weight": np.dtype(np.float32)}


@dataclass(frozen=True, slots=True)
class Features:
    """Features of one end of N edges.

    Attributes:
        offsets: int64 (N + 1,), from 0: edge n has the features ``data[offsets[n] : offsets[n + 1]]``.
        data: int64 (M,), rows of the featurized type.
    """

    offsets: np.ndarray
    data: np.ndarray

    def __post_init__(self) -> None:
        if not len(self.offsets) or self.offsets[0] != 0 or self.offsets[-1] != len(self.data):
            raise ValueError("the offsets of features must begin at 0 and end at their number")
        if (np.diff(self.offsets) < 0).any():
            raise ValueError("the offsets of features must not fall")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @classmethod
    def of(cls, lists: Sequence[Sequence[int]]) -> Self:
        """Make features from one list for each edge."""
        offsets = np.cumsum([0, *map(len, lists)], dtype=np.int64)
        return cls(offsets, np.array([feature for features in lists for feature in features], np.int64))

    @property
    def counts(self) -> np.ndarray:
        """Number of features of each edge, int64 (N,)."""
        return np.diff(self.offsets)

    def select(self, edges: np.ndarray) -> Features:
        """Return the features of some edges, in the given order."""
        counts = self.counts[edges]
        offsets = np.concatenate(([0], np.cumsum(counts)))
        within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
        return Features(offsets, self.data[np.repeat(self.offsets[:-1][edges], counts) + within])


@dataclass(frozen=True, slots=True)
class EdgeList:
    """Edges as offsets into two partitions.

    Attributes:
        lhs: int64 (N,), offset of the left-hand entity in its partition; -1 where its type is featurized.
        rhs: int64 (N,), offset of the right-hand entity in its partition; same.
        rel: int64 (N,), relation id.
        weight: float32 (N,), or None when every edge weighs 1.
        lhs_features: of the left-hand ends, or None when no type there is featurized.
        rhs_features: of the right-hand ends; same.
    """

    lhs: np.ndarray
    rhs: np.ndarray
    rel: np.ndarray
    weight: np.ndarray | None = None
    lhs_features: Features | None = None
    rhs_features: Features | None = None

    def __post_init__(self) -> None:
        shapes = {column.shape for column in (self.lhs, self.rhs, self.rel, self.weight) if column is not None}
        shapes |= {(len(features),) for features in (self.lhs_features, self.rhs_features) if features is not None}
        if shapes != {(len(self.lhs),)}:
            raise ValueError(f"the columns of edges must be vectors of one length, got shapes {sorted(shapes)}")

    def __len__(self) -> int:
        return len(self.lhs)

    def select(self, edges: np.ndarray) -> EdgeList:
        """Return some edges, in the given order.

        Args:
            edges: their numbers, or a flag for each edge.
        """
        numbers = np.flatnonzero(edges) if edges.dtype == bool else edges
        lhs_features, rhs_features = (
            None if features is None else features.select(numbers)
            for features in (self.lhs_features, self.rhs_features)
        )
        weight = None if self.weight is None else self.weight[numbers]
        return EdgeList(self.lhs[numbers], self.rhs[numbers], self.rel[numbers], weight, lhs_features, rhs_features)


def joined_columns(parts: Sequence[object], names: Iterable[str]) -> list[np.ndarray]:
    """Concatenate each column over lists of edges.

    Args:
        parts: at least one; its columns are attributes.
        names: of the columns.
    """
    return [np.concatenate([*map(attrgetter(name), parts)]) for name in names]


def edge_file_name(lhs: int, rhs: int) -> str:
    """Return the name of bucket (lhs, rhs)'s file."""
    return f"edges_{lhs}_{rhs}.h5"


def write_edges(path: Path, edges: EdgeList, *, checksums: bool = False) -> None:
    """Write a bucket that is in memory.

    Args:
        path: of the file.
        edges: of the bucket.
        checksums: whether datasets have a fletcher32 for each chunk; else they are contiguous.

    Raises:
        ResourceError: the disk is full; no file appears under ``path``.
    """
    names = _names(weighted=edges.weight is not None)
    columns = {name: getattr(edges, name).astype(_TYPES[name], copy=False) for name in names}
    for side, features in (("lhs", edges.lhs_features), ("rhs", edges.rhs_features)):
        if features is not None:
            columns |= {f"{side}d_offsets": features.offsets, f"{side}d_data": features.data}
    with creating(path, data_bytes=sum(column.nbytes for column in columns.values())) as file:
        file.attrs["format_version"] = np.int64(FORMAT_VERSION)
        for name, column in columns.items():
            write_dataset(file, name, column, checksums=checksums)


class EdgeFileWriter:
    """Writer of a bucket in pieces; the file appears only when whole.

    The bytes depend on the edges and not on the pieces into which they were cut.

    Args:
        path: of the file.
        count: number of edges of the bucket; the datasets are laid out at once.
        weighted: whether there is a ``weight`` dataset.
        checksums: as in ``write_edges``.
    """

    def __init__(self, path: Path, count: int, *, weighted: bool, checksums: bool = False) -> None:
        self._path, self._count = path, count
        self._weighted, self._checksums = weighted, checksums
        self._stack = ExitStack()
        self._written = 0

    def append(self, edges: EdgeList) -> None:
        """Add edges after those before.

        Raises:
            ValueError: they are more than announced, have weights in a bucket without them or the other way round, or
                have features.
        """
        if edges.lhs_features is not None or edges.rhs_features is not None:
            raise ValueError(f"{self._path}: edges with features are written whole, by write_edges")
        if self._weighted != (edges.weight is not None):
            raise ValueError(f"{self._path}: either all pieces of a bucket have weights or none has")
        stop = self._written + len(edges)
        if stop > self._count:
            raise ValueError(f"{self._path}: {self._count} edges were announced, and more came")
        for name, item in self._items.items():
            item[self._written : stop] = getattr(edges, name)
        self._written = stop

    def __enter__(self) -> Self:
        types = {name: _TYPES[name] for name in _names(weighted=self._weighted)}
        size = self._count * sum(kind.itemsize for kind in types.values())
        file = self._stack.enter_context(creating(self._path, data_bytes=size))
        self._stack.push(self._finish)
        file.attrs["format_version"] = np.int64(FORMAT_VERSION)
        shape = (self._count,)
        self._items = {
            name: file.create_dataset(
                name, shape, kind, track_times=False, **(checked_layout(shape, kind) if self._checksums else {})
            )
            for name, kind in types.items()
        }
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def _finish(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._written < self._count:
            raise ValueError(f"{self._path}: {self._count} edges were announced, and {self._written} came")


class EdgeFacts(NamedTuple):
    """Facts about the edges of a bucket's file.

    Attributes:
        edges: their number.
        weighted: whether they have weights.
    """

    edges: int
    weighted: bool


def edge_facts(file: Path | Hdf5Header) -> EdgeFacts:
    """Return the facts about a bucket's file without reading an edge.

    Raises:
        FormatError: the file is damaged or not a bucket's.
    """
    with open_foreign(file) as opened:
        items = _datasets(opened)
        return EdgeFacts(len(items["rel"]), "weight" in items)


def count_edges(path: Path) -> int:
    """Return the number of edges in a bucket's file; raises as ``edge_facts``."""
    return edge_facts(path).edges


def read_edges(path: Path, start: int = 0, stop: int | None = None) -> EdgeList:
    """Read edges ``start`` to ``stop`` of a bucket.

    Ids may be of any integer type, weights of any type of number.

    Raises:
        FormatError: the file is damaged or not a bucket's, a dataset is missing, of another length or type, an end has
            neither an id nor features, or both, or a weight is not a finite number of at least 0.
    """
    with open_foreign(path) as file, np.errstate(over="ignore"):  # a float64 beyond float32 becomes infinite
        items = _datasets(file)
        columns = {name: read_part(item, start, stop).astype(_TYPES[name], copy=False) for name, item in items.items()}
        lhs, rhs = (_read_features(file, side, len(items["rel"]), start, stop) for side in _SIDES)
    edges = EdgeList(**columns, lhs_features=lhs, rhs_features=rhs)
    for side in _SIDES:
        _check_ends(path, side, getattr(edges, side), getattr(edges, f"{side}_features"))
    if len(edges) and edges.rel.min() < 0:
        raise FormatError(f"{path}: dataset 'rel' holds a negative id")
    if edges.weight is not None:
        _check_weights(path, edges.weight, start)
    return edges


def _read_features(file: OpenFile, side: str, edges: int, start: int, stop: int | None) -> Features | None:
    name = f"{side}d_offsets"
    if name not in file:
        return None
    # PBG's writer makes fewer offsets where the first edges of a file have no features. They would be misread, so such
    # a file is refused.
    whole = dataset(file, name, kinds="iu", shape=(edges + 1,))
    stop = edges if stop is None else min(stop, edges)
    offsets = read_part(whole, start, stop + 1).astype(np.int64, copy=False) if edges else np.zeros(1, np.int64)
    data = dataset(file, f"{side}d_data", kinds="iu", shape=(None,))
    falls = bool((np.diff(offsets) < 0).any())
    if falls or offsets[0] < 0 or offsets[-1] > len(data) or (start == 0 and offsets[0] != 0):
        raise FormatError(f"{file.name}: {name} must rise from 0 to the length of {side}d_data ({len(data)})")
    features = read_part(data, int(offsets[0]), int(offsets[-1])).astype(np.int64, copy=False)
    return Features(offsets - offsets[0], features)


def _check_ends(path: Path, side: str, ids: np.ndarray, features: Features | None) -> None:
    """Refuse wrong negative ids, and ends with both id and features."""
    if not len(ids):
        return
    if features is None and ids.min() < 0:
        raise FormatError(f"{path}: dataset {side!r} holds a negative id, and there is no {side}d_offsets")
    if features is not None:
        wrong = np.flatnonzero((ids < -1) | ((ids >= 0) & (features.counts > 0)))
        if len(wrong):
            raise FormatError(f"{path}: the {side} end of edge {wrong[0]} of the piece has both an id and features")


def _check_weights(path: Path, weight: np.ndarray, start: int) -> None:
    """Refuse weights that are negative, infinite or NaN.

    Snapshots may not have them either. The comparisons are written so that NaN, which is neither below nor above any
    number, fails them.
    """
    if not len(weight) or (weight.min() >= 0 and weight.max() < np.inf):
        return
    row = int(np.flatnonzero(~((weight >= 0) & (weight < np.inf)))[0])
    raise FormatError(
        f"{path}: row {start + row} of dataset 'weight', counted from 0, is {weight[row]:g}, not a finite number of at "
        "least 0; mend the file, or import its edges again"
    )


def _datasets(file: OpenFile) -> dict[str, Stored]:
    count = len(dataset(file, "rel", kinds="iu", shape=(None,)))
    items = {name: dataset(file, name, kinds="iu", shape=(count,)) for name in _IDS}
    if "weight" in file:
        items["weight"] = dataset(file, "weight", kinds="iuf", shape=(count,))
    return items


def _names(*, weighted: bool) -> tuple[str, ...]:
    return (*_IDS, "weight") if weighted else _IDS
