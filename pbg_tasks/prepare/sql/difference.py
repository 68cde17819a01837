"""Text of the difference between two snapshots, in distinct edges by relation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.prepare.sql.edges import mark

if TYPE_CHECKING:
    from pbg_tasks.config import GraphSpec
    from pbg_tasks.prepare.sql.dialect import Dialect

COUNTS = """
    SELECT label, CAST(sum(times) AS BIGINT) AS rows, count(*) FILTER (WHERE times > 0), count(*) FILTER (WHERE old),
        count(*) FILTER (WHERE NOT old), count(*) FILTER (WHERE times = 0)
    FROM marks JOIN labels USING (id) GROUP BY label ORDER BY rows DESC, label
"""
HASHES = "SELECT label AS relation, hash FROM marks JOIN labels USING (id) WHERE times > 0"


def no_marks(sql: Dialect) -> str:
    """Return ``marks_before`` where there is no snapshot before."""
    return f"SELECT CAST(NULL AS STRING) AS relation, CAST(NULL AS {sql.number}) AS hash WHERE false"


def labels(sql: Dialect, spec: GraphSpec) -> str:
    """Return ``labels(id, label)`` of the relations of both snapshots."""
    return f"""
        SELECT CAST(row_number() OVER (ORDER BY label) AS INTEGER) AS id, label
        FROM (SELECT {_label(sql, spec)} AS label FROM raw UNION SELECT relation FROM marks_before)
    """


def marks(sql: Dialect, spec: GraphSpec) -> str:
    """Return ``marks(id, hash, times, old)``, a row for each distinct edge.

    It has the number of times that the edge is there, and whether it was there before. ``marks_before`` has each edge
    once, as ``HASHES`` do: joined, its edges cost two thirds of what counting them with the others would.
    """
    return f"""
        SELECT id, hash, coalesce(times, 0) AS times, old IS NOT NULL AS old
        FROM (
            SELECT id, hash, count(*) AS times
            FROM (SELECT id, {mark(sql)} AS hash FROM raw JOIN labels ON labels.label = {_label(sql, spec)})
            GROUP BY id, hash
        )
        FULL JOIN (SELECT id, hash, true AS old FROM marks_before JOIN labels ON labels.label = relation)
            USING (id, hash)
    """


def _label(sql: Dialect, spec: GraphSpec) -> str:
    name = "rel" if spec.columns.rel is not None else sql.text(spec.model.relations[0].name)
    return name if spec.columns.lhs_type is None else f"{name} || ' (' || lhs_type || ', ' || rhs_type || ')'"
