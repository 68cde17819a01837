"""Edges to train of a night that continues another.

These are new edges, those of entities with many new edges, and a sample of the others. An edge is new where the
snapshot of the release before did not have it, or had it held out. It touches a change where new edges make up enough
of all edges of one of its ends. The sample of the others keeps the rest of the graph in place; every night draws
another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pbg_tasks.prepare.connection import loading
from pbg_tasks.prepare.split import TRAIN
from pbg_tasks.prepare.sql import md5_head, one_file, quoted

if TYPE_CHECKING:
    from pathlib import Path

    import duckdb

    from pbg_tasks.config.graph import DeltaEpochs

_CHANCES = 1 << 64


@dataclass(frozen=True, slots=True)
class Delta:
    """Inputs of the choice of edges to train.

    Attributes:
        rule: of the graph spec.
        before: ``EDGE_HASHES`` of the release before; None where it has none: then all edges are new.
        night: key of the snapshot; another draws another sample.
    """

    rule: DeltaEpochs
    before: Path | None
    night: str


def choose(connection: duckdb.DuckDBPyConnection, delta: Delta) -> dict[str, int]:
    """Make the table ``chosen``, rows of ``placed`` to train, and count them.

    Args:
        connection: with ``placed`` and its columns ``MARKED``, and the tables of ``settle``.
        delta: decides.

    Returns:
        Numbers of edges that are ``new``, ``touching``, and ``sampled``, each by the first reason that fits.

    Raises:
        FormatError: ``delta.before`` is damaged.
    """
    known = "false"
    if delta.before is not None:
        known = f"mark IN (SELECT hash FROM read_parquet({one_file(delta.before)}))"
    # Edges whose pair goes back to training only in this night were held out until now, so they are new.
    connection.execute(
        """
        CREATE OR REPLACE TEMP TABLE back AS
        SELECT least_id, greatest_id FROM candidates ANTI JOIN returned_before USING (least_key, greatest_key)
        WHERE returned
        """
    )
    with loading(*([delta.before] if delta.before is not None else [])):
        connection.execute(
            f"""
            CREATE OR REPLACE TEMP TABLE trained AS
            SELECT placed.*, NOT ({known}) OR (candidate <> {TRAIN} AND least_id IS NOT NULL) AS new
            FROM placed LEFT JOIN back
                ON least_id = least(lhs_id, rhs_id) AND greatest_id = greatest(lhs_id, rhs_id)
            WHERE split = {TRAIN}
            """
        )
    touching = "false"
    if delta.rule.touching is not None:
        connection.execute(
            f"""
            CREATE OR REPLACE TEMP TABLE changed AS
            SELECT id FROM (SELECT lhs_id AS id, new FROM trained UNION ALL SELECT rhs_id, new FROM trained)
            GROUP BY id HAVING avg(new::INTEGER) >= {delta.rule.touching}
            """
        )
        touching = "lhs_id IN (SELECT id FROM changed) OR rhs_id IN (SELECT id FROM changed)"
    drawn = md5_head(f"{quoted(delta.night)} || chr(31) || mark::VARCHAR")
    sampled = f"{drawn} < {int(delta.rule.sample * _CHANCES)}::UHUGEINT"
    connection.execute(
        f"""
        CREATE OR REPLACE TEMP TABLE chosen AS
        SELECT * FROM (
            SELECT *, CASE WHEN new THEN 'new' WHEN {touching} THEN 'touching' WHEN {sampled} THEN 'sampled' END AS why
            FROM trained
        ) WHERE why IS NOT NULL
        """
    )
    found = dict(connection.execute("SELECT why, count(*) FROM chosen GROUP BY why").fetchall())
    return {why: int(found.get(why, 0)) for why in ("new", "touching", "sampled")}
