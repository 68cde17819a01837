"""Split: the edges that are held out of training.

The choice is stable, by pair of entities, and no later night reverses it. The hash is over the *unordered* pair of an
edge's ends, so all edges between two entities are treated alike and no held-out edge has its inverse in training. Of a
held-out pair one edge is kept for ranking. A candidate pair of which an end has no other training edge goes back to
training, and is recorded: an edge that was trained is never held out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.formats.names import RETURNED as RETURNED  # noqa: PLC0414 - for users of this module
from pbg_tasks.prepare.connection import load_table
from pbg_tasks.prepare.sql import DUCKDB, quoted
from pbg_tasks.prepare.sql import split as text
from pbg_tasks.prepare.sql.edges import draws

if TYPE_CHECKING:
    from pathlib import Path

    import duckdb

    from pbg_tasks.config import GraphSpec

NAMES = ("train", "valid", "test")


def settle(
    connection: duckdb.DuckDBPyConnection, spec: GraphSpec, returned_before: Path | None, out: Path
) -> dict[str, int]:
    """Settle the candidates, and write the pairs that stay in training.

    The candidates are of table ``edges``; the pairs stay in training for ever.

    Args:
        connection: holds ``edges`` with ``candidate``, ``lhs_id``, ``rhs_id``, and ``lhs_key``, ``rhs_key`` where it is
            a candidate; the table ``held_out`` (least_id and greatest_id of the chosen pairs) is made.
        spec: where its split draws nothing, ``edges`` is not read.
        returned_before: the list of the release this run continues.
        out: directory for the list of this run.

    Returns:
        Numbers of pairs that were held out and that returned to training in this snapshot.

    Raises:
        FormatError: ``returned_before`` is missing or damaged.
    """
    load_table(connection, "returned_before", {"least_key": "VARCHAR", "greatest_key": "VARCHAR"}, returned_before)
    steps = ", ".join(f"{name} AS ({query})" for name, query in text.STEPS.items())
    candidates = f"WITH {steps} {text.CANDIDATES}" if draws(spec) else text.no_candidates(DUCKDB)
    connection.execute(f"CREATE OR REPLACE TEMP TABLE candidates AS {candidates}")
    connection.execute(f"CREATE OR REPLACE TEMP TABLE held_out AS {text.HELD_OUT}")
    target = quoted(str(out / RETURNED))
    # DuckDB writes that columns have no nulls where it knows so: always of a table, of a union only in some nights.
    connection.execute(f"CREATE OR REPLACE TEMP TABLE returned AS {text.RETURNED}")
    connection.execute(f"COPY (FROM returned ORDER BY ALL) TO {target} (FORMAT parquet, COMPRESSION zstd)")
    connection.execute("DROP TABLE returned")
    (row,) = connection.execute(text.SETTLED).fetchall()
    return {"held_out_pairs": int(row[0]), "returned_pairs": int(row[1])}
