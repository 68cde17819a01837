"""Joins, tasks and plans on Spark, by the size of their tables."""

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


def test_each_file_of_table_has_task(cluster):
    """There are more files than executors, and one without a row."""

    def counted(batches):  # here, because executors cannot import this module
        rows = pa.Table.from_batches(list(batches)).to_pydict()
        (file,) = set(rows["file"])
        outcome = {"name": str(file), "sha256": "", "size": sum(rows["kept"]), "figures": "", "kind": "", "message": ""}
        yield pa.RecordBatch.from_pylist([outcome])

    counted.schema, counted.names = {"number": "int64"}, range(8)
    with open_tables("files") as opened:
        found = opened.write("SELECT id AS number FROM range(63)", counted, "CAST(floor(number / 9) AS INTEGER)")
    assert {name: file.size for name, file in found.items()} == {str(file): 9 * (file < 7) for file in range(8)}


def test_plan_grows_by_one_with_each_kept_table(cluster):
    """A plan's text has those of all kept tables below."""
    with open_tables("levels") as opened:
        opened.session.conf.set("spark.sql.maxPlanStringLength", str(1 << 24))  # the whole of it
        opened.table("level_0", "SELECT id AS key FROM range(100)")
        sizes = []
        for level in range(1, 9):
            opened.table(f"level_{level}", f"SELECT key + 1 AS key FROM level_{level - 1} GROUP BY key + 1")
            plan = opened.session.table(f"level_{level}")._jdf.queryExecution().executedPlan()
            sizes.append(plan.treeString().count("InMemoryRelation"))
    assert sizes == list(range(2, 10))


def test_tasks_of_join_follow_from_size_of_files(cluster):
    def partitions(opened):
        joined = "SELECT one.id FROM range(9) AS one JOIN range(9) AS other ON one.id = other.id"
        return opened.session.sql(joined)._jdf.rdd().getNumPartitions()

    with open_tables("sizes") as opened:
        most = partitions(opened)
        assert most > 1
        for size, tasks in ((0, most), (1, 1), ((4 << 20) + 1, 2), (1 << 50, most)):
            opened.expect(size)
            assert partitions(opened) == tasks
