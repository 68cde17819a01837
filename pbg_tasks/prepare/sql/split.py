"""Text of the split: candidates, and the pairs held out."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pbg_tasks.config import GraphSpec
    from pbg_tasks.prepare.sql.dialect import Dialect

TRAIN, VALID, TEST = 0, 1, 2

STEPS = {
    "pairs": f"""
        SELECT DISTINCT least(lhs_id, rhs_id) AS least_id, greatest(lhs_id, rhs_id) AS greatest_id,
            least(lhs_key, rhs_key) AS least_key, greatest(lhs_key, rhs_key) AS greatest_key
        FROM edges WHERE candidate <> {TRAIN}
    """,
    "asked": "SELECT least_id AS id FROM pairs UNION SELECT greatest_id FROM pairs",
    "trained_ends": f"""
        SELECT id FROM asked WHERE id IN (
            SELECT lhs_id FROM edges WHERE candidate = {TRAIN} AND lhs_id <> rhs_id
            UNION ALL SELECT rhs_id FROM edges WHERE candidate = {TRAIN} AND lhs_id <> rhs_id
        )
    """,
}
"""Steps to ``candidates``, by the names under which later ones read them.

They are the drawn pairs of ``edges``, the ends of these, and those of the ends that have a training edge.
"""
CANDIDATES = """
    SELECT pairs.*, before.least_key IS NOT NULL OR one.id IS NULL OR other.id IS NULL AS returned
    FROM pairs
        LEFT JOIN returned_before AS before
            ON before.least_key = pairs.least_key AND before.greatest_key = pairs.greatest_key
        LEFT JOIN trained_ends AS one ON one.id = least_id
        LEFT JOIN trained_ends AS other ON other.id = greatest_id
"""
"""Drawn pairs of ``edges``.

They are ``returned``, that is go back to training, where one of their ends has no other training edge, and where they
did in an earlier night.
"""
HELD_OUT = "SELECT least_id, greatest_id FROM candidates WHERE NOT returned"
RETURNED = (
    "SELECT least_key, greatest_key FROM returned_before UNION "
    "SELECT least_key, greatest_key FROM candidates WHERE returned"
)
SETTLED = "SELECT count(*) FILTER (WHERE NOT returned), count(*) FILTER (WHERE returned) FROM candidates"


def key(side: str) -> str:
    """Return the expression of an end's key: its type and its name."""
    return f"concat({side}_type, chr(30), {side})"


def candidate(sql: Dialect, spec: GraphSpec) -> str:
    """Return the expression that draws an edge's split from its ends' keys.

    The last 8 bytes of the MD5 of ``salt US least US greatest`` (US is the byte 31), little-endian, are taken as a
    fraction of 2**64: below ``test`` the pair is a test candidate, below ``test + valid`` a valid one.
    """
    split, (entity, *others) = spec.split, spec.model.entities
    # Keys of one type begin alike, so their names are in the same order; to make the keys takes a fifth of all.
    lead = "" if others else f", {sql.text(entity)}, chr(30)"
    lhs, rhs = (key("lhs"), key("rhs")) if others else ("lhs", "rhs")
    before, between = f"concat({sql.text(split.salt)}, chr(31){lead})", f"concat(chr(31){lead})"
    # One call: each `||` would make a text of its own. Constants are joined once.
    text = f"concat({before}, least({lhs}, {rhs}), {between}, greatest({lhs}, {rhs}))"
    test, valid = (int(share * 2**64) for share in (split.test, split.test + split.valid))

    # TEST is below both limits, VALID below one. Written as a sum, unlike a CASE, DuckDB computes the hash only once an
    # edge.
    def limits(drawn: str) -> str:
        return f"(CAST({sql.below(drawn, test)} AS TINYINT) + CAST({sql.below(drawn, valid)} AS TINYINT))"

    return sql.once(sql.md5_tail(text), limits)


def no_candidates(sql: Dialect) -> str:
    """Return ``candidates`` where nothing is drawn."""
    return f"""
        SELECT CAST(NULL AS {sql.number}) AS least_id, CAST(NULL AS {sql.number}) AS greatest_id,
            CAST(NULL AS STRING) AS least_key, CAST(NULL AS STRING) AS greatest_key, false AS returned
        WHERE false
    """
