"""Relations of edges, and the types of their ends."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from pbg_tasks.errors import InputError
from pbg_tasks.prepare.sql import DUCKDB
from pbg_tasks.prepare.sql.ids import relation_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    import duckdb

    from pbg_tasks.config import GraphSpec


def relation_rows(spec: GraphSpec, names: list[str] | None) -> list[tuple[int, str | None, str, str]]:
    """Return ``(id, name, lhs_type, rhs_type)`` of the relations.

    Args:
        spec: its config's relations, in order, have ids from 0.
        names: with dynamic relations, their names in the order of their ids; None matches any name.
    """
    if spec.model.relations_from_data:
        (only,) = spec.model.relations
        listed: Sequence[str | None] = [None] if names is None else names
        return [(index, name, only.lhs, only.rhs) for index, name in enumerate(listed)]
    named = spec.columns.rel is not None
    return [(i, r.name if named else None, r.lhs, r.rhs) for i, r in enumerate(spec.model.relations)]


def matching(spec: GraphSpec, rows: Sequence[tuple[int, str | None, str, str]]) -> str:
    """Return the condition that joins an edge of ``raw`` to its relation.

    It has only equalities, for a hash join.
    """
    pairs = {"lhs_type": "lhs_type", "rhs_type": "rhs_type"} if spec.columns.lhs_type is not None else {}
    if rows and rows[0][1] is not None:
        pairs["name"] = "rel"
    return " AND ".join(f"relations.{ours} = raw.{theirs}" for ours, theirs in pairs.items()) or "true"


def whole_sides(spec: GraphSpec, entity: str) -> list[str]:
    """Return the sides on which all relations have an entity type."""
    types = {"lhs": {each.lhs for each in spec.model.relations}, "rhs": {each.rhs for each in spec.model.relations}}
    return [side for side, found in types.items() if found == {entity}]


def make_relations(connection: duckdb.DuckDBPyConnection, spec: GraphSpec, names: list[str] | None = None) -> str:
    """Make the table ``relations(id, name, lhs_type, rhs_type, word)``.

    A name is null where any name matches. A word is 64 bits that follow from the name and the types.

    Args:
        connection: in which the table is made.
        spec: as in ``relation_rows``.
        names: same.

    Returns:
        The condition of ``matching``.
    """
    rows = relation_rows(spec, names)
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE relations "
        "(id INTEGER, name VARCHAR, lhs_type VARCHAR, rhs_type VARCHAR, word UBIGINT)"
    )
    if rows:
        listed_rows = "SELECT unnest(?) AS id, unnest(?)::VARCHAR AS name, unnest(?) AS lhs_type, unnest(?) AS rhs_type"
        columns = [list(column) for column in zip(*rows, strict=True)]
        connection.execute(f"INSERT INTO relations {relation_words(DUCKDB, f'({listed_rows})')}", columns)
    return matching(spec, rows)


def unknown_relation(
    connection: duckdb.DuckDBPyConnection, spec: GraphSpec, where: str, row: tuple[str | None, ...]
) -> InputError:
    """Return the error for an edge that no relation fits.

    Its message has the reason. The edge is ``(rel, lhs_type, rhs_type)``.
    """
    rel, lhs_type, rhs_type = row
    types = sorted(spec.model.entities)
    columns = spec.columns
    for key, column, found in (("lhs", columns.lhs_type, lhs_type), ("rhs", columns.rhs_type, rhs_type)):
        if found is not None and found not in types:
            return InputError(
                f"{where}: unknown entity type {found!r} in column {column!r} (columns.{key}_type)"
                f"{_near(found, types)}; add the type to model.entities, and to model.relations an entry with it"
            )
    known = [name for (name,) in connection.execute("SELECT name FROM relations ORDER BY id").fetchall()]
    if rel is None or rel in known or None in known:
        return InputError(f"{where}: relation {rel!r} does not go from {lhs_type!r} to {rhs_type!r} in model.relations")
    return InputError(
        f"{where}: unknown relation {rel!r}{_near(rel, known)}; name it in model.relations, or set "
        "model.dynamic_relations: true to take the relations from the column"
    )


def _near(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else f" (known: {', '.join(known[:20])})"
