"""Joins and tasks on Spark, by the size of their tables."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pbg_tasks.prepare.spark import open_tables

pytestmark = pytest.mark.timeout(1800)


def same(batches):
    """Return rows as they are."""
    yield from batches


def test_join_sends_no_table_that_python_reads(cluster):
    """Spark's guess of what Python returns goes by the input."""
    with open_tables("joins") as opened:
        few = opened.session.sql("SELECT 'knows' AS rel FROM range(3)")
        opened.view("read", few.mapInArrow(same, "rel string"))
        plan = str(opened.rows("EXPLAIN SELECT read.rel FROM read JOIN read AS other ON other.rel = read.rel")[0][0])
    assert "SortMergeJoin" in plan
    assert "Broadcast" not in plan


def test_each_row_of_driver_has_task(cluster):
    def counted(batches):  # here, because executors cannot import this module
        rows = sum(batch.num_rows for batch in batches)
        yield pa.RecordBatch.from_pydict({"rows": pa.array([rows], pa.int64())})

    rows = [(f"key {number}", number) for number in range(12)]
    with open_tables("tasks") as opened:
        for tasks, shares in ((None, [1] * 12), (3, [4] * 3)):
            spread = opened.spread(rows, "key string, size long", counted, "rows long", tasks=tasks)
            assert [row[0] for row in spread.collect()] == shares
