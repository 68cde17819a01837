"""Specs and reports of two snapshots."""

from __future__ import annotations

import duckdb

from pbg_tasks.config import GraphSpec
from pbg_tasks.config.base import parse
from pbg_tasks.prepare.difference import find_edges, write_edge_hashes

FIELDS = ("lhs", "rel", "rhs", "weight", "lhs_type", "rhs_type")


def make_spec(**columns):
    model = {
        "entities": {"n": {"num_partitions": 1}},
        "relations": [{"name": "only", "lhs": "n", "rhs": "n"}],
        "dimension": 4,
        **({"dynamic_relations": True, "global_emb": False} if columns.get("rel", "rel") else {}),
    }
    fields = {"graph": "g", "store": "s", "snapshots": {"location": "{snapshot}"}, "columns": columns, "model": model}
    return parse(GraphSpec, fields, source="t")


def find(rows, directory, *, before=None, spec=None):
    """Report on rows of (lhs, rel, rhs, lhs_type, rhs_type)."""
    directory.mkdir(exist_ok=True)
    with duckdb.connect(config={"threads": "1"}) as connection:
        connection.execute(f"CREATE TEMP TABLE raw ({', '.join(f'{field} VARCHAR' for field in FIELDS)})")
        if rows:
            padded = [(*row, None, None)[:5] for row in rows]
            connection.executemany("INSERT INTO raw VALUES (?, ?, ?, NULL, ?, ?)", padded)
        found = find_edges(connection, spec or make_spec(), before)
        write_edge_hashes(connection, directory)
    return found
