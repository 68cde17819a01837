"""Text of the difference between two snapshots, in distinct edges by relation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.prepare.sql.edges import mark

if TYPE_CHECKING:
    from pbg_tasks.config import GraphSpec
    from pbg_tasks.prepare.sql.dialect import Dialect

COUNTS = """
    SELECT label, rows, now, before, now - common, before - common
    FROM (
        SELECT id, count(*) FILTER (WHERE NOT old) AS rows, count(*) FILTER (WHERE NOT old AND NOT again) AS now,
            count(*) FILTER (WHERE old) AS before, count(*) FILTER (WHERE old AND again) AS common
        FROM marks GROUP BY id
    ) JOIN labels USING (id) ORDER BY rows DESC, label
"""
HASHES = "SELECT label AS relation, hash FROM marks JOIN labels USING (id) WHERE NOT old AND NOT again"

DISTINCT = "SELECT count(*) FROM marks WHERE NOT old AND NOT again"
"""Number of the rows of ``HASHES``."""


def file(sql: Dialect, bits: int) -> str:
    """Return the number of the file of a row of ``HASHES``.

    It is the first bits of the hash, whatever the relation.
    """
    return f"CAST({sql.shifted('hash', 64 - bits)} AS INTEGER)" if bits else "0"


def no_marks(sql: Dialect) -> str:
    """Return ``marks_before`` where there is no snapshot before."""
    return f"SELECT CAST(NULL AS STRING) AS relation, CAST(NULL AS {sql.number}) AS hash WHERE false"


def labelled(sql: Dialect, spec: GraphSpec) -> str:
    """Return ``labelled(label, hash)``: an edge of each row of ``raw``."""
    return f"SELECT {_label(sql, spec)} AS label, {mark(sql)} AS hash FROM raw"


PRESENT = "SELECT DISTINCT label FROM labelled"
"""``present_labels``."""
LABELS = """
    SELECT CAST(row_number() OVER (ORDER BY label) AS INTEGER) AS id, label
    FROM (SELECT label FROM present_labels UNION SELECT relation FROM marks_before)
"""
"""``labels(id, label)`` of the relations of both snapshots.

Those of this one are ``present_labels``. Spark warns that one task orders them (``No Partition Defined``): they are
names of relations, one row each, which are few beside the edges.
"""


def marks(sql: Dialect) -> str:
    """Return ``marks(id, hash, old, again)``: the edges of both snapshots.

    An edge is ``old`` in the snapshot before, and there ``again`` where a row before it has the same edge. The new rows
    of an edge come first. ``marks_before`` has each edge once, as ``HASHES`` do. Sorted together, the edges cost two
    thirds of what counting tonight's and joining those before would.
    """
    return sql.repeated(
        """
            SELECT id, hash, false AS old FROM labelled JOIN labels USING (label)
            UNION ALL SELECT id, hash, true FROM marks_before JOIN labels ON labels.label = relation
        """,
        ("id", "hash"),
        "old",
    )


def _label(sql: Dialect, spec: GraphSpec) -> str:
    name = "rel" if spec.columns.rel is not None else sql.text(spec.model.relations[0].name)
    return name if spec.columns.lhs_type is None else f"{name} || ' (' || lhs_type || ', ' || rhs_type || ')'"
