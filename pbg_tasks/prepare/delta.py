"""Edges to train of a night that continues another.

These are new edges, those of entities with many new edges, and a sample of the others. An edge is new where the
snapshot of the release before did not have it, or had it held out. It touches a change where new edges make up enough
of all edges of one of its ends. The sample of the others keeps the rest of the graph in place; every night draws
another.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from pbg_tasks.prepare.connection import loading
from pbg_tasks.prepare.sql import DUCKDB, table
from pbg_tasks.prepare.sql import delta as text

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import duckdb

    from pbg_tasks.config.graph import DeltaEpochs

_File = TypeVar("_File")


@dataclass(frozen=True, slots=True)
class Delta(Generic[_File]):
    """Inputs of the choice of edges to train.

    Attributes:
        rule: of the graph spec.
        before: the file ``EDGE_HASHES`` of the release before; None where it has none: then all edges are new.
        night: key of the snapshot; another draws another sample.
    """

    rule: DeltaEpochs
    before: _File | None
    night: str


def choose(connection: duckdb.DuckDBPyConnection, delta: Delta[Path]) -> dict[str, int]:
    """Make the table ``chosen``, rows of ``placed`` to train, and count them.

    Args:
        connection: with ``placed`` and its columns ``MARKED``, and the tables of ``settle``.
        delta: decides.

    Returns:
        Numbers of edges that are ``new``, ``touching``, and ``sampled``, each by the first reason that fits.

    Raises:
        FormatError: ``delta.before`` is damaged.
    """
    before = None if delta.before is None else table(delta.before)
    _make(connection, "back", text.back(DUCKDB))
    with nullcontext() if delta.before is None else loading(delta.before):
        _make(connection, "trained", text.trained(before))
    if delta.rule.touching is not None:
        _make(connection, "changed", text.changed(delta.rule.touching))
    _make(connection, "chosen", text.chosen(DUCKDB, delta.rule, delta.night))
    return reasons(connection.execute(text.WHY).fetchall())


def reasons(counts: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Return the numbers of edges by reason, of rows of ``sql.delta.WHY``."""
    found = dict(counts)
    return {why: int(found.get(why, 0)) for why in ("new", "touching", "sampled")}


def _make(connection: duckdb.DuckDBPyConnection, table: str, query: str) -> None:
    connection.execute(f"CREATE OR REPLACE TEMP TABLE {table} AS {query}")
