"""The small files of a checkpoint directory: version, config and statistics (PBG 3.3)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pbg_tasks.config import ConfigSchema
from pbg_tasks.config.base import parse
from pbg_tasks.errors import ConfigError, FormatError

if TYPE_CHECKING:
    from pbg_tasks.formats.metadata import IterationInfo


def read_checkpoint_version(data: bytes, *, source: str) -> int:
    """Parse ``checkpoint_version.txt``; an empty file is version 0, as in PBG.

    Raises:
        FormatError: it holds something else than a number.
    """
    text = data.decode("utf-8", "replace").strip()
    if not text:
        return 0
    if not text.isdecimal() or not text.isascii():
        raise FormatError(f"{source}: expected the number of a version, found {text[:40]!r}")
    return int(text)


def config_bytes(config: ConfigSchema) -> bytes:
    """Return ``config.json`` as PBG writes it."""
    return json.dumps(config.to_pbg(), indent=4).encode()


def read_config(data: bytes, *, source: str) -> ConfigSchema:
    """Parse ``config.json``.

    Raises:
        FormatError: it is not JSON or not a config.
    """
    try:
        return parse(ConfigSchema, json.loads(data), source=source)
    except (ValueError, ConfigError) as error:
        raise FormatError(f"{source}: not a readable config: {error}") from None


@dataclass(frozen=True, slots=True)
class BucketStats:
    """What training a bucket showed; all but ``count`` are means over its edges.

    Attributes:
        count: edges trained.
        loss: of both sides.
        reg: of the regularizer.
        violators_lhs: negatives on the left that score above their edge.
        violators_rhs: same on the right.
    """

    count: int
    loss: float
    reg: float
    violators_lhs: float
    violators_rhs: float


def stats_line(stats: BucketStats, lhs: int, rhs: int, index: int, iteration: IterationInfo) -> str:
    """Return the line of ``training_stats.json`` for one bucket; ``index`` counts buckets over the whole training."""
    entry: dict[str, Any] = {
        "lhs_partition": lhs,
        "rhs_partition": rhs,
        "index": index,
        "stats": {
            "count": stats.count,
            "metrics": {
                "loss": stats.loss,
                "reg": stats.reg,
                "violators_lhs": stats.violators_lhs,
                "violators_rhs": stats.violators_rhs,
            },
        },
        "epoch_idx": iteration.epoch_idx,
        "edge_path_idx": iteration.edge_path_idx,
        "edge_chunk_idx": iteration.edge_chunk_idx,
    }
    return json.dumps(entry)
