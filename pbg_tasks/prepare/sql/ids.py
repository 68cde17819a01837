"""Text of the ids: names of a type, their partitions and offsets.

New entities are ordered by the binary order of their names, so that the same snapshot gives the same ids.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from pbg_tasks.formats import tables

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pbg_tasks.prepare.sql.dialect import Dialect

FATES = """
    SELECT count(*), count(*) FILTER (WHERE unseen = 1), count(*) FILTER (WHERE unseen > 1),
        (SELECT count(*) FROM known), (SELECT count(*) FILTER (WHERE unseen = 0) FROM known)
    FROM ids
"""
"""Counts: of all ids, of those that this snapshot lacks but not the one before, of those that both lack; of those known
before, and of those that the snapshot before had.
"""


KEPT = """
    SELECT count(*) FILTER (WHERE now.name IS NOT NULL), count(*) FILTER (WHERE now.name IS NULL)
    FROM known LEFT JOIN (SELECT name FROM ids WHERE unseen = 0) AS now ON now.name = known.name WHERE known.unseen = 0
"""
"""Counts of the entities known before that ``ids`` of another night have, and have not."""


def unseen(sql: Dialect, index: int, source: str, nights: int) -> str:
    """Return ``(type, partition, offset)`` of ids in ``source``.

    They are those that some nights in a row have not seen.
    """
    return (
        f"SELECT {index} AS type, CAST(partition AS BIGINT) AS partition, {sql.offset} FROM {source} "
        f"WHERE unseen >= {nights}"
    )


def relation_words(sql: Dialect, rows: str) -> str:
    """Return ``relations(id, name, lhs_type, rhs_type, word)`` of rows without the word.

    A word is 64 bits that follow from the name and the types.
    """
    return f"SELECT *, {sql.md5_head('concat_ws(chr(31), name, lhs_type, rhs_type)')} AS word FROM {rows}"


def present(
    sql: Dialect, entity: str, matches: str, least: int, separator: str | None, *, whole: Collection[str]
) -> str:
    """Return ``present(name)``: a type's names that occur often enough.

    Args:
        sql: dialect.
        entity: the type.
        matches: condition that joins ``raw`` and ``relations``.
        least: number of occurrences.
        separator: between features, whose names they then are; None: names are those of entities.
        whole: sides of which every edge has an end of the type, so that no join has to choose them.
    """

    def names(side: str) -> str:
        return side if separator is None else f"unnest({sql.features(side, separator)})"

    def rows(side: str) -> str:
        return (
            "raw"
            if side in whole
            else f"raw JOIN relations ON {matches} WHERE relations.{side}_type = {sql.text(entity)}"
        )

    ends = " UNION ALL ".join(f"SELECT {names(side)} AS name FROM {rows(side)}" for side in ("lhs", "rhs"))
    often = f" HAVING count(*) >= {least}" if least > 1 else ""  # without the count, a fifth less time
    return f"SELECT name FROM ({ends}) GROUP BY name{often}"


def misplaced(sql: Dialect, partitions: int) -> str:
    """Return the number of known names that another number of partitions placed.

    With another number at least about half of all names would be elsewhere, so that the first few suffice.
    """
    return (
        f"SELECT count(*) FROM known WHERE {sql.offset} < 64 "
        f"AND partition <> {sql.modulo(sql.md5_tail('name'), partitions)}"
    )


def fresh(sql: Dialect, partitions: int) -> str:
    """Return ``fresh(name, partition)``: names that are not known yet."""
    return f"""
        SELECT name, {sql.modulo(sql.md5_tail("name"), partitions)} AS partition
        FROM present {sql.anti_join} known USING (name)
    """


def ids(sql: Dialect, snapshot: str, ranked: str) -> str:
    """Return ``ids``: those known before, and the new ones after them.

    Args:
        sql: dialect.
        snapshot: key of this one.
        ranked: relation ``(name, partition, rank)`` of the new names, with ranks from 1 by name in their partition.
    """
    seen = sql.text(snapshot)
    return f"""
        SELECT known.name, partition, {sql.offset}, first_seen,
            if(present.name IS NULL, last_seen, {seen}) AS last_seen,
            CAST(if(present.name IS NULL, unseen + 1, 0) AS INTEGER) AS unseen
        FROM known LEFT JOIN present ON present.name = known.name
        UNION ALL
        SELECT name, ranked.partition, coalesce(size, 0) + rank - 1, {seen}, {seen}, 0
        FROM {ranked} AS ranked LEFT JOIN (SELECT partition, count(*) AS size FROM known GROUP BY partition) AS sizes
            ON sizes.partition = ranked.partition
    """


def number(sql: Dialect, counts: Sequence[int]) -> str:
    """Return the number of a row of ``ids`` in their order.

    Args:
        sql: dialect.
        counts: ids of each partition.
    """
    return f"({sql.item([0, *accumulate(counts)], 'partition')} + {sql.offset})"


def file(sql: Dialect, counts: Sequence[int]) -> str:
    """Return the number of the file of a row; see ``number``."""
    return f"CAST(floor({number(sql, counts)} / {tables.ROWS_OF_A_FILE}) AS INTEGER)"


RANKED = "(SELECT name, partition, row_number() OVER (PARTITION BY partition ORDER BY name) AS rank FROM fresh)"
"""Ranks of the table ``fresh`` for ``ids``, where an engine has all names of a partition in one place."""
