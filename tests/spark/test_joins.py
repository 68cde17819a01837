"""Joins on Spark, by the size of their tables."""

from __future__ import annotations

import pytest

from pbg_tasks.config import GraphSpec
from pbg_tasks.config.loading import parse
from pbg_tasks.prepare.spark import ids, open_tables

pytestmark = pytest.mark.timeout(1800)
SPEC = parse(
    GraphSpec,
    {
        "graph": "g",
        "store": "/nowhere",
        "snapshots": {"location": "/nowhere/{snapshot}/*.parquet"},
        "model": {
            "entities": {"n": {"num_partitions": 2}},
            "relations": [{"name": "knows", "lhs": "n", "rhs": "n"}],
            "dimension": 4,
        },
    },
    source="spec",
)


def same(batches):
    """Return rows as they are."""
    yield from batches


def test_join_sends_relations_and_no_edges(cluster):
    """Spark's guess of what Python returns goes by the input."""
    with open_tables("joins") as opened:
        few = opened.session.sql("SELECT 'knows' AS rel FROM range(3)")
        opened.view("raw", few.mapInArrow(same, "rel string"))
        matches = ids.make_relations(opened, SPEC, None)
        of_edges, of_relations = (
            str(opened.rows(f"EXPLAIN SELECT raw.rel FROM raw {join}")[0][0])
            for join in ("JOIN raw AS other ON other.rel = raw.rel", f"LEFT JOIN relations ON {matches}")
        )
    assert "Broadcast" not in of_edges
    assert "BroadcastHashJoin" in of_relations
