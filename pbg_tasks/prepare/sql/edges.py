"""Text of the edges: ends as numbers, splits, buckets and order.

An id packs type, partition (16 bits) and offset (40 bits) into one number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.prepare.sql.split import TRAIN, candidate, key

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pbg_tasks.config import GraphSpec
    from pbg_tasks.prepare.sql.dialect import Dialect

TYPE_BITS, PARTITION_BITS = 56, 40
MARKED = ("mark", "candidate")
"""Further columns of ``placed`` where edges have the column ``mark``."""

UNTRAINED = f"""
    WITH elsewhere AS (
        SELECT lhs_id AS id FROM placed WHERE split <> {TRAIN} OR split IS NULL
        UNION SELECT rhs_id FROM placed WHERE split <> {TRAIN} OR split IS NULL
    )
    SELECT count(*) FROM elsewhere
    WHERE NOT EXISTS (SELECT 1 FROM placed WHERE lhs_id = elsewhere.id AND split = {TRAIN})
        AND NOT EXISTS (SELECT 1 FROM placed WHERE rhs_id = elsewhere.id AND split = {TRAIN})
"""
"""Number of entities without a training edge.

Each is an end of other edges, which are few: to count the edges of all entities would take five times as long.
"""


def draws(spec: GraphSpec) -> bool:
    """Return whether any edge is drawn to be held out."""
    return spec.split.valid > 0 or spec.split.test > 0


def entity_ends(sql: Dialect, index: int, entity: str, source: str) -> str:
    """Return one type's ``(type, id, name)``, of ids in ``source``."""
    packed = sql.packed((str(index), TYPE_BITS), ("partition", PARTITION_BITS), (sql.offset, 0))
    return f"SELECT {sql.text(entity)} AS type, {packed} AS id, name FROM {source}"


def bag_ends(sql: Dialect, index: int, entity: str) -> str:
    """Return a featurized type's ``(type, id, name)``.

    An end of it is a bag; its number takes the offset's place.
    """
    packed = sql.packed((str(index), TYPE_BITS), ("number", 0))
    name = sql.text(entity)
    return f"SELECT {name} AS type, {packed} AS id, cell AS name FROM bags WHERE bags.type = {name}"


def ends(sql: Dialect, types: Iterable[str]) -> str:
    """Return ``ends(type, name, id, word)`` of all types together.

    A word is 64 bits that follow from the name.
    """
    return f"SELECT type, name, id, {sql.md5_head('name')} AS word FROM ({' UNION ALL '.join(types)})"


def mark(sql: Dialect, table: str = "") -> str:
    """Return the hash that identifies an edge over nights."""
    columns = (f"{table}{column}" for column in ("lhs", "rel", "rhs", "lhs_type", "rhs_type"))
    return sql.md5_head(f"concat_ws(chr(31), {', '.join(columns)})")


def drawn(sql: Dialect, spec: GraphSpec, matches: str, *, marked: bool) -> str:
    """Return ``drawn``: edges by name, with relation, weight, drawn split.

    Each row of it follows from one of ``raw``. With ``marked``, they also have the column ``mark``. Only candidates
    have keys and their relation's name, because text would be most of the table.
    """
    typed = f"""
        SELECT relations.id AS rel, relations.word, relations.lhs_type, relations.rhs_type, raw.lhs, raw.rhs,
            coalesce(raw.rel, '') AS rel_name, CAST(raw.weight AS FLOAT) AS weight
            {f", {mark(sql, 'raw.')} AS mark" if marked else ""}
        FROM raw JOIN relations ON {matches}
    """
    return f"""
        SELECT rel, word, lhs_type, rhs_type, lhs, rhs, weight, candidate,
            if(candidate <> {TRAIN}, rel_name, NULL) AS rel_name,
            if(candidate <> {TRAIN}, {key("lhs")}, NULL) AS lhs_key,
            if(candidate <> {TRAIN}, {key("rhs")}, NULL) AS rhs_key{", mark" if marked else ""}
        FROM (SELECT *, {candidate(sql, spec)} AS candidate FROM ({typed}) AS typed) AS drawn
    """


def edges(sql: Dialect, spec: GraphSpec, rows: str, *, marked: bool) -> str:
    """Return ``edges``: ids, relation, weight, the drawn split, a hash.

    The hash of the names orders and spreads the edges.

    Args:
        sql: dialect.
        spec: of the graph.
        rows: relation with the columns of ``drawn``.
        marked: whether they have the column ``mark``.
    """
    typed = len(spec.model.entities) > 1
    same_lhs, same_rhs = (f" AND {side[0]}.type = drawn.{side}_type" if typed else "" for side in ("lhs", "rhs"))
    spread = sql.xor(sql.xor("l.word", sql.shifted("r.word", 1)), sql.shifted("drawn.word", 2))
    return f"""
        SELECT drawn.rel, weight, l.id AS lhs_id, r.id AS rhs_id, candidate, rel_name, lhs_key, rhs_key,
            {spread} AS hash{", mark" if marked else ""}
        FROM {rows} AS drawn
            JOIN ends AS l ON l.name = drawn.lhs{same_lhs}
            JOIN ends AS r ON r.name = drawn.rhs{same_rhs}
    """


def placed(sql: Dialect, spec: GraphSpec, *, marked: bool) -> str:
    """Return ``placed``: each edge's split and bucket.

    The split, which is there where edges are drawn or marked, is null for a dropped edge. Buckets are numbered over
    splits, rows and columns.
    """
    partitioned = [index for index, entity in enumerate(spec.model.entities.values()) if entity.num_partitions > 1]
    rows, columns = spec.model.partitions("lhs"), spec.model.partitions("rhs")

    def place(side: str, shift: int, count: int) -> str:
        if count == 1:
            return "0"
        partition = f"CAST(({sql.shifted(f'{side}_id', PARTITION_BITS)} & 65535) AS INTEGER)"
        spread = sql.modulo(sql.shifted("hash", shift), count)
        return f"if({_of_types(sql, side, partitioned)}, {partition}, {spread})"

    settled = f"SELECT *, {TRAIN} AS split FROM edges"
    if draws(spec):
        settled += f"""
            WHERE candidate = {TRAIN}
            UNION ALL
            SELECT edges.*,
                CASE WHEN least_id IS NULL THEN {TRAIN}
                     WHEN row_number() OVER (PARTITION BY least_id, greatest_id
                                             ORDER BY rel_name, lhs_key, rhs_key, weight) = 1 THEN candidate END
            FROM edges LEFT JOIN held_out ON least_id = least(lhs_id, rhs_id) AND greatest_id = greatest(lhs_id, rhs_id)
            WHERE candidate <> {TRAIN}
        """
    bucket = f"(split * {rows} + {place('lhs', 0, rows)}) * {columns} + {place('rhs', 32, columns)}"
    kept = ["rel", "lhs_id", "rhs_id", "hash", *["weight"] * (spec.columns.weight is not None)]
    kept += ["split"] * (marked or draws(spec))  # each column of all edges costs time
    kept += [*MARKED * marked]
    return f"SELECT {', '.join(kept)}, CAST({bucket} AS INTEGER) AS bucket FROM ({settled})"


def sizes(table: str) -> str:
    """Return each bucket of a table like ``placed``, and its edges."""
    return f"SELECT bucket, count(*) FROM {table} GROUP BY bucket"


def files(sql: Dialect, spec: GraphSpec, table: str, *further: str) -> str:
    """Return the columns of the buckets' files.

    They are of a table like ``placed``, after further columns of it. Instead of an offset, a bag has -1 minus its
    number.
    """
    bagged = [index for index, entity in enumerate(spec.model.entities.values()) if entity.featurized]

    def end(side: str) -> str:
        offset = f"CAST(({side}_id & {(1 << PARTITION_BITS) - 1}) AS BIGINT)"
        return f"if({_of_types(sql, side, bagged)}, -1 - {offset}, {offset})" if bagged else offset

    columns = [*further, f"{end('lhs')} AS lhs", f"{end('rhs')} AS rhs", "CAST(rel AS BIGINT) AS rel"]
    columns += ["weight"] if spec.columns.weight is not None else []
    return f"SELECT {', '.join(columns)} FROM {table} WHERE bucket IS NOT NULL"


def file_columns(spec: GraphSpec) -> list[str]:
    """Return the names of the columns of the buckets' files."""
    return ["lhs", "rhs", "rel", *["weight"] * (spec.columns.weight is not None)]


def order(sql: Dialect, spec: GraphSpec) -> list[str]:
    """Return the order of edges in files.

    It is that of their buckets, and of their hashes in a bucket. Edges of one hash are in the order of what a file
    holds of them. To sort by all columns costs DuckDB half of what it costs to carry one along.
    """
    return ["bucket", sql.ordered("hash"), *file_columns(spec)]


def _of_types(sql: Dialect, side: str, types: Sequence[int]) -> str:
    return f"{sql.shifted(f'{side}_id', TYPE_BITS)} IN ({', '.join(map(str, types)) or '-1'})"
