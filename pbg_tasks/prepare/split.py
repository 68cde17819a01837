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
from pbg_tasks.prepare.sql import md5_tail, quoted

if TYPE_CHECKING:
    from pathlib import Path

    import duckdb

    from pbg_tasks.config import Split

TRAIN, VALID, TEST = 0, 1, 2
NAMES = ("train", "valid", "test")


def candidate_sql(split: Split) -> str:
    """Return the SQL that draws an edge's split from its ends' keys.

    The keys are ``lhs_key`` and ``rhs_key``. The last 8 bytes of the MD5 of ``salt US least US greatest`` (US is the
    byte 31), little-endian, are taken as a fraction of 2**64: below ``test`` the pair is a test candidate, below ``test
    + valid`` a valid one.
    """
    drawn = md5_tail(
        f"{quoted(split.salt)} || chr(31) || least(lhs_key, rhs_key) || chr(31) || greatest(lhs_key, rhs_key)"
    )
    test, valid = (int(share * 2**64) for share in (split.test, split.test + split.valid))
    # TEST is below both limits, VALID below one. Written as a sum, unlike a CASE, DuckDB computes the hash only once an
    # edge.
    return f"(({drawn} < {test})::TINYINT + ({drawn} < {valid})::TINYINT)"


def draws(split: Split) -> bool:
    """Return whether any edge is drawn to be held out."""
    return split.valid > 0 or split.test > 0


def settle(
    connection: duckdb.DuckDBPyConnection, split: Split, returned_before: Path | None, out: Path
) -> dict[str, int]:
    """Settle the candidates, and write the pairs that stay in training.

    The candidates are of table ``edges``; the pairs stay in training for ever.

    Args:
        connection: holds ``edges`` with ``candidate``, ``lhs_id``, ``rhs_id``, and ``lhs_key``, ``rhs_key`` where it is
            a candidate; the table ``held_out`` (least_id and greatest_id of the chosen pairs) is made.
        split: without a draw, ``edges`` is not read.
        returned_before: the list of the release this run continues.
        out: directory for the list of this run.

    Returns:
        Numbers of pairs that were held out and that returned to training in this snapshot.

    Raises:
        FormatError: ``returned_before`` is missing or damaged.
    """
    load_table(connection, "returned_before", {"least_key": "VARCHAR", "greatest_key": "VARCHAR"}, returned_before)
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE candidates "
        "(least_id UBIGINT, greatest_id UBIGINT, least_key VARCHAR, greatest_key VARCHAR, returned BOOLEAN)"
    )
    if draws(split):
        _find_candidates(connection)
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE held_out AS SELECT least_id, greatest_id FROM candidates WHERE NOT returned"
    )
    connection.execute(
        "COPY (SELECT least_key, greatest_key FROM returned_before UNION "
        "SELECT least_key, greatest_key FROM candidates WHERE returned ORDER BY ALL) "
        f"TO {quoted(str(out / RETURNED))} (FORMAT parquet, COMPRESSION zstd)"
    )
    (row,) = connection.execute(
        "SELECT count(*) FILTER (NOT returned), count(*) FILTER (returned) FROM candidates"
    ).fetchall()
    return {"held_out_pairs": int(row[0]), "returned_pairs": int(row[1])}


def _find_candidates(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute(
        f"""
        INSERT INTO candidates
        WITH trained AS (
            SELECT lhs_id AS id FROM edges WHERE candidate = {TRAIN} AND lhs_id <> rhs_id
            UNION SELECT rhs_id FROM edges WHERE candidate = {TRAIN} AND lhs_id <> rhs_id
        ), pairs AS (
            SELECT DISTINCT least(lhs_id, rhs_id) AS least_id, greatest(lhs_id, rhs_id) AS greatest_id,
                least(lhs_key, rhs_key) AS least_key, greatest(lhs_key, rhs_key) AS greatest_key
            FROM edges WHERE candidate <> {TRAIN}
        )
        SELECT pairs.*, returned_before.least_key IS NOT NULL
            OR least_id NOT IN (SELECT id FROM trained) OR greatest_id NOT IN (SELECT id FROM trained)
        FROM pairs LEFT JOIN returned_before USING (least_key, greatest_key)
        """
    )
