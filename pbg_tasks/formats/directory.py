"""Small files of a checkpoint directory: version, config and statistics.

They are in PBG's checkpoint format.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Self, TypedDict

from pbg_tasks.config import ConfigSchema
from pbg_tasks.config.base import parse
from pbg_tasks.config.legacy import modernize
from pbg_tasks.errors import ConfigError, FormatError
from pbg_tasks.formats.files import parse_natural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pbg_tasks.formats.metadata import IterationInfo

_PLACE = ("epoch_idx", "edge_path_idx", "edge_chunk_idx")


def checkpoint_version_bytes(version: int) -> bytes:
    """Return ``checkpoint_version.txt``: the number of complete iterations."""
    return f"{version}\n".encode()


def read_checkpoint_version(data: bytes | None, *, source: str) -> int:
    """Parse ``checkpoint_version.txt``.

    A missing (None) or empty file is version 0, as in PBG.

    Raises:
        FormatError: it does not hold a number.
    """
    text = (data or b"").decode("utf-8", "replace").strip()
    return parse_natural(text, source=source) if text else 0


def config_bytes(config: ConfigSchema) -> bytes:
    """Return ``config.json`` as PBG writes it."""
    return json.dumps(config.to_pbg(), indent=4).encode()


def read_config(data: bytes, *, source: str) -> ConfigSchema:
    """Parse ``config.json``.

    Raises:
        FormatError: it is not JSON or not a config.
    """
    try:
        return parse(ConfigSchema, modernize(json.loads(data), ConfigSchema, source=source), source=source)
    except ConfigError as error:
        raise FormatError(str(error)) from None
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{source}: not readable JSON: {error}") from None


@dataclass(frozen=True, slots=True)
class BucketStats:
    """Figures of a bucket's training, as means over its edges.

    Attributes:
        count: edges trained.
        loss: of both sides.
        reg: of the regularizer.
        violators_lhs: number of negatives on the left that score above their edge.
        violators_rhs: same on the right.
        seconds: that training took; PBG's file has no place for it.
    """

    count: int
    loss: float
    reg: float
    violators_lhs: float
    violators_rhs: float
    seconds: float = field(default=0.0, compare=False)


class EvalStatsDocument(TypedDict):
    """Number of edges, and metrics by name, as PBG writes them."""

    count: int
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True)
class EvalStats:
    """Ranking of held-out edges during training, as means.

    The means are over the edges and both sides.

    Attributes:
        count: edges.
        loss: of both sides, a mean over edges.
        pos_rank: rank of the edge among its negatives, from 1.
        mrr: mean of the reciprocals of these ranks.
        r1: share of ranks that are 1.
        r10: share of ranks up to 10.
        r50: share of ranks up to 50.
        auc: share of edges that score above a random negative.
    """

    count: int
    loss: float
    pos_rank: float
    mrr: float
    r1: float
    r10: float
    r50: float
    auc: float

    @classmethod
    def mean(cls, parts: Sequence[EvalStats]) -> Self:
        """Return the mean of several results, weighted by their edges."""
        count = sum(part.count for part in parts)
        return cls(count, *(_over_edges(parts, item.name) / max(count, 1) for item in fields(cls)[1:]))

    def to_json(self) -> EvalStatsDocument:
        """Return PBG's form."""
        metrics = asdict(self)
        return {"count": metrics.pop("count"), "metrics": metrics}


def _over_edges(parts: Sequence[EvalStats], name: str) -> float:
    """Return the sum of a figure over the edges of all parts."""
    return float(sum(getattr(part, name) * part.count for part in parts))


@dataclass(frozen=True, slots=True)
class IoStats:
    """Time that an iteration waited for reading and writing; not in PBG.

    Attributes:
        seconds: that the iteration took, up to its commit.
        waited: seconds of them in which nothing was trained, because data had to be read or stored first.
    """

    seconds: float
    waited: float

    def to_json(self) -> dict[str, float]:
        """Return both figures, and the share of the time that was waited."""
        share = self.waited / max(self.seconds, 1e-9)
        return {"seconds": round(self.seconds, 3), "waited": round(self.waited, 3), "share": round(share, 4)}


@dataclass(frozen=True, slots=True)
class StatsLine:
    """Line of ``training_stats.json``: a bucket's figures and its place.

    Attributes:
        lhs_partition: of the bucket.
        rhs_partition: of the bucket.
        index: number of the bucket, counted over the whole training.
        stats: the bucket's figures.
        epoch_idx: the iteration's epoch.
        edge_path_idx: the iteration's edge path.
        edge_chunk_idx: the iteration's chunk.
    """

    lhs_partition: int
    rhs_partition: int
    index: int
    stats: BucketStats
    epoch_idx: int
    edge_path_idx: int
    edge_chunk_idx: int


@dataclass(frozen=True, slots=True)
class IterationLine:
    """Line of ``training_stats.json`` or ``training_io.json`` about an iteration.

    Attributes:
        place: epoch, edge path and chunk, from 0.
        io: time that the iteration took and waited; None where the line lacks it.
        held_out: figures of the iteration's held-out edges; same.
    """

    place: tuple[int, int, int]
    io: IoStats | None
    held_out: EvalStats | None


def stats_line(
    stats: BucketStats,
    lhs: int,
    rhs: int,
    index: int,
    iteration: IterationInfo,
    *,
    before: EvalStats | None = None,
    after: EvalStats | None = None,
) -> str:
    """Return the line of ``training_stats.json`` for a trained bucket.

    Args:
        stats: figures of the bucket.
        lhs: partition of its left-hand side.
        rhs: partition of its right-hand side.
        index: number of the bucket, counted over the whole training.
        iteration: its place.
        before: figures of its held-out edges before it was trained.
        after: same, after it was trained.
    """
    metrics = asdict(stats)
    count = metrics.pop("count")
    del metrics["seconds"]
    entry: dict[str, object] = {
        "lhs_partition": lhs,
        "rhs_partition": rhs,
        "index": index,
        "stats": {"count": count, "metrics": metrics},
    }
    for name, evaluated in (("eval_stats_before", before), ("eval_stats_after", after)):
        if evaluated is not None:
            entry[name] = evaluated.to_json()
    return json.dumps(entry | _place(iteration), allow_nan=False)


def iteration_line(held_out: EvalStats, index: int, iteration: IterationInfo) -> str:
    """Return the line of ``training_stats.json`` that ends an iteration.

    It is for iterations with held-out edges.

    Args:
        held_out: figures of these edges, over all buckets as each was trained.
        index: of its last bucket.
        iteration: its place.
    """
    # PBG 1.0.0 has no such lines and cannot resume when one has no ``stats``; later versions ignore the lines.
    entry: dict[str, object] = {"index": index, "stats": {"count": 0, "metrics": {}}}
    return json.dumps(_place(iteration) | entry | {"eval_stats_chunk_avg": held_out.to_json()}, allow_nan=False)


def io_line(io: IoStats, iteration: IterationInfo) -> str:
    """Return the line of ``training_io.json`` for an iteration."""
    return json.dumps(_place(iteration) | {"io": io.to_json()}, allow_nan=False)


def split_line(line: str) -> tuple[str | None, str | None]:
    """Split a line between ``training_stats.json`` and ``training_io.json``.

    Versions before the second file wrote ``io`` into the first, where it is a key that strict readers of PBG refuse.

    Args:
        line: a JSON object with a place, of either file.

    Returns:
        The line for each file; None where that file gets none.
    """
    entry = json.loads(line)
    if "io" not in entry:
        return line, None
    io = {key: entry[key] for key in _PLACE} | {"io": entry.pop("io")}
    return json.dumps(entry) if "eval_stats_chunk_avg" in entry else None, json.dumps(io)


def _place(iteration: IterationInfo) -> dict[str, int]:
    return {key: getattr(iteration, key) for key in _PLACE}


def parse_stats_line(line: str, *, source: str) -> StatsLine | None:
    """Parse a line of ``training_stats.json``.

    None is returned for a line about a whole iteration, of PBG or of this package.

    Raises:
        FormatError: it is not JSON, or a figure is missing or no number.
    """
    try:
        entry = json.loads(line)
        epoch_idx = int(entry["epoch_idx"])
        if "eval_stats_chunk_avg" in entry or "io" in entry:
            return None
        metrics = entry["stats"]["metrics"]
        stats = BucketStats(
            count=int(entry["stats"]["count"]),
            loss=float(metrics["loss"]),
            reg=float(metrics.get("reg", 0.0)),  # PBG 1.0.0 has no regularizer
            violators_lhs=float(metrics["violators_lhs"]),
            violators_rhs=float(metrics["violators_rhs"]),
        )
        return StatsLine(
            lhs_partition=int(entry["lhs_partition"]),
            rhs_partition=int(entry["rhs_partition"]),
            index=int(entry["index"]),
            stats=stats,
            epoch_idx=epoch_idx,
            edge_path_idx=int(entry["edge_path_idx"]),
            edge_chunk_idx=int(entry["edge_chunk_idx"]),
        )
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(f"{source}: not a line of training statistics ({error!r:.80}): {line[:80]!r}") from None


def parse_iteration_line(line: str) -> IterationLine | None:
    """Parse a line about a whole iteration, of either file.

    None is returned for any other line.
    """
    try:
        entry = json.loads(line)
        io, held_out = entry.get("io"), entry.get("eval_stats_chunk_avg")
        if io is None and held_out is None:
            return None
        return IterationLine(
            place=(int(entry["epoch_idx"]), int(entry["edge_path_idx"]), int(entry["edge_chunk_idx"])),
            io=None if io is None else IoStats(float(io["seconds"]), float(io["waited"])),
            held_out=None if held_out is None else EvalStats(count=int(held_out["count"]), **held_out["metrics"]),
        )
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
