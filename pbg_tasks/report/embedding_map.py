"""Map of an embedding: a sample of its vectors in two dimensions."""

from __future__ import annotations

from typing import TYPE_CHECKING, NotRequired, TypedDict

import numpy as np

from pbg_tasks.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DIGITS = 4
_TINY = 1e-30


class MapPoint(TypedDict):
    """Entity of the sample; ``before`` is its place by the release before."""

    name: str
    at: tuple[float, float]
    before: tuple[float, float] | None


class MapDocument(TypedDict):
    """Map of a sample of entities, by type.

    ``shown`` is the share of the sample's variance that the two axes have; ``release`` the one of ``before``;
    ``left_out`` has the types whose files are too large beside those before them.
    """

    format: int
    types: dict[str, list[MapPoint]]
    entities: dict[str, int]
    shown: float
    release: int | None
    left_out: NotRequired[list[str]]


class Sampled(TypedDict):
    """Sample of a type: names, rows (N, D), and rows before.

    Rows of entities that the release before lacks are NaN.
    """

    names: Sequence[str]
    rows: np.ndarray
    before: np.ndarray | None
    entities: int


def map_document(samples: Mapping[str, Sampled], *, normalized: bool, release: int | None) -> MapDocument:
    """Project samples of all types onto the axes of most variance.

    The axes are those of tonight's vectors; the vectors of the release before are projected onto the same.

    Args:
        samples: by type, of one dimension.
        normalized: whether vectors are compared by their directions, so that lengths mean nothing.
        release: number of the release before.

    Raises:
        FormatError: rows are not finite.
    """
    for kind, sample in samples.items():
        if not np.isfinite(sample["rows"]).all():
            raise FormatError(f"sampled vectors of {kind} are not finite")
    if not samples:
        return {"format": 1, "types": {}, "entities": {}, "shown": 0.0, "release": None}
    rows = {kind: _prepared(sample["rows"], normalized) for kind, sample in samples.items()}
    everything = np.concatenate(list(rows.values()))
    mean = everything.mean(axis=0)
    covariance = np.cov((everything - mean).T) if len(everything) > 1 else np.zeros((everything.shape[1],) * 2)
    variances, directions = np.linalg.eigh(np.atleast_2d(covariance))
    axes = directions[:, ::-1][:, :2]
    axes = axes * np.where(axes[np.abs(axes).argmax(axis=0), np.arange(axes.shape[1])] < 0, -1.0, 1.0)  # no flips
    total = float(variances.sum())
    types: dict[str, list[MapPoint]] = {}
    for kind, sample in samples.items():
        places = (rows[kind] - mean) @ axes
        before = sample["before"]
        earlier = None if before is None else (_prepared(before, normalized) - mean) @ axes
        types[kind] = [
            {"name": name, "at": _place(places[at]), "before": None if earlier is None else _known(earlier[at])}
            for at, name in enumerate(sample["names"])
        ]
    return {
        "format": 1,
        "types": types,
        "entities": {kind: sample["entities"] for kind, sample in samples.items()},
        "shown": round(float(variances[-2:].sum()) / total, DIGITS) if total > 0 else 0.0,
        "release": release,
    }


def _prepared(rows: np.ndarray, normalized: bool) -> np.ndarray:  # noqa: FBT001 - of one caller
    found: np.ndarray = np.asarray(rows, np.float64)
    if normalized:
        found = found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), _TINY)
    return found


def _known(place: np.ndarray) -> tuple[float, float] | None:
    return _place(place) if np.isfinite(place).all() else None


def _place(place: np.ndarray) -> tuple[float, float]:
    x, y = [*(round(float(value), DIGITS) for value in place), 0.0][:2]
    return x, y
