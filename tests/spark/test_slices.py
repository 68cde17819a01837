"""Ranks of new names on Spark, range by range."""

from __future__ import annotations

import re

import pytest

from pbg_tasks.prepare.spark import ids, open_tables

pytestmark = pytest.mark.timeout(1800)
NAMES, PARTITIONS, SLICES = 4000, 2, 5


def test_names_are_ranked_slice_by_slice(cluster):
    """A partition has 2000 names, and a task ranks some 800."""
    with open_tables("slices") as opened:
        opened.session.conf.set("spark.sql.shuffle.partitions", str(SLICES))
        ids.read_ids(opened, "known", "n", None)
        opened.view("present", f"SELECT concat('n', id) AS name FROM range({NAMES})")
        ids._slice(opened, PARTITIONS)
        plan = "\n".join(str(row[0]) for row in opened.rows(f"EXPLAIN SELECT * FROM {ids._RANKED}"))
        sizes = opened.rows("SELECT partition, slice, count(*) FROM sliced GROUP BY partition, slice")
        ranked = opened.rows(f"SELECT partition, rank, name FROM {ids._RANKED}")
    assert re.search(r"rangepartitioning\(partition#\d+ ASC NULLS FIRST, name#\d+ ASC", plan), plan
    windows = re.findall(r"row_number\(\) windowspecdefinition\(([^)]*?), name#", plan)
    assert windows, plan
    assert all(re.fullmatch(r"partition#\d+, slice#\d+", keys) for keys in windows), windows
    assert sum(count for *_, count in sizes) == NAMES
    assert max(count for *_, count in sizes) < NAMES / SLICES * 1.5
    for partition in range(PARTITIONS):
        own = sorted((rank, name) for each, rank, name in ranked if each == partition)
        assert [name for _, name in own] == sorted(name for _, name in own)
        assert [rank for rank, _ in own] == list(range(1, len(own) + 1))
