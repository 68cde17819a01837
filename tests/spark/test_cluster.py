"""Preparation by two real executors, which write to an S3 server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from pbg_tasks.errors import ConflictError, FormatError, InputError
from pbg_tasks.formats import tables as table_files
from pbg_tasks.formats.entities import read_relation_names
from pbg_tasks.prepare.spark import buckets, open_tables, session
from pbg_tasks.storage import open_store
from pbg_tasks.tasks.context import RunContext
from pbg_tasks.tasks.files import open_directory
from pbg_tasks.tasks.nightly import on_spark
from pbg_tasks.tasks.nightly.bucket import bucket
from pbg_tasks.tasks.nightly.chain import run_chain
from pbg_tasks.tasks.nightly.partition import partition
from pbg_tasks.tasks.nightly.plan import plan
from pbg_tasks.tasks.nightly.validate import validate
from tests.prepare.random_graphs import RandomGraph
from tests.rotation import of_today
from tests.spark import tables
from tests.tasks.conftest import Workplace, ring
from tests.two_engines import PARTS, by_duckdb, by_spark, compared

pytestmark = pytest.mark.timeout(1800)
PARQUET, CSV = 22, 11
"""Seeds of graphs of these formats. The first has weights, relations from the data, and a type without partitions."""


def test_nights_on_cluster_have_bytes_of_duckdb(cluster, s3_bucket, tmp_path, monkeypatch):
    monkeypatch.setattr(table_files, "ROWS_OF_A_FILE", 50)
    graph = RandomGraph(tmp_path / "graph", 600, PARQUET, plain=True)
    graph.document["split"] = {"valid": 0.1, "test": 0.1, "salt": "sé'\\${env:HOME}"}  # Spark knows such variables
    keys = [graph.write(day) for day in range(2)]
    runs = {engine: cold_night(graph, keys[0], f"{s3_bucket}/{engine}", engine) for engine in ("duckdb", "spark")}
    assert contents(runs["spark"]) == contents(runs["duckdb"])

    # The warm night goes on from what the tasks stored.
    before = {name: on_spark.stored_files(runs["spark"], open_directory(runs["spark"], name)) for name in PARTS}
    here, _ = by_duckdb(graph, keys[0], tmp_path / "duckdb", None)
    relations = read_relation_names(here / "entities")
    here, expected = by_duckdb(graph, keys[1], tmp_path / "duckdb", here)
    noted = note_rows_of_bucket(monkeypatch, tmp_path)
    there, found = by_spark(graph, keys[1], s3_bucket, before | {"relations": relations})
    results = dict(compared(here, expected, there, found))
    assert len(results) > 20
    assert {"snapshot/16-of-16.edge_hashes.parquet", "entities/4-of-4.entity_ids_t0.parquet"} <= results.keys()
    assert [name for name, equal in results.items() if not equal] == []
    assert rows_noted(noted) == graph.edges, "edges were read more than once"


def note_rows_of_bucket(monkeypatch, directory):
    """Let ``bucket`` note the staged rows that executors read.

    Returns:
        The file of their numbers.
    """
    noted, read = directory / "rows-read.txt", buckets.read_staged

    def read_noted(opened, spec, staged, view, query, columns, relations):
        read(opened, spec, staged, view, query, columns, relations)
        opened.view("drawn", opened.session.table("drawn").mapInArrow(noting(noted), columns))

    monkeypatch.setattr(buckets, "read_staged", read_noted)
    return noted


def noting(noted):
    """Return work of executors that notes how many rows it passes on."""

    def note(batches):
        for batch in batches:
            with noted.open("a") as file:
                file.write(f"{batch.num_rows}\n")
            yield batch

    return note


def rows_noted(noted):
    return sum(int(line) for line in noted.read_text().split())


def test_kept_table_is_computed_when_it_is_named(cluster, tmp_path):
    noted = tmp_path / "rows-computed.txt"
    with open_tables("kept") as opened:
        numbers = opened.session.sql("SELECT id FROM range(3)")
        opened.table("kept", numbers.mapInArrow(noting(noted), "id long"))
        assert rows_noted(noted) == 3
        assert opened.rows("WITH a AS (SELECT id FROM kept) SELECT count(*) FROM a JOIN kept USING (id)") == [(3,)]
        with pytest.raises(RuntimeError, match="table other: no later query would find it"):
            opened.table("other", "WITH a AS (SELECT 1) SELECT * FROM a")
    assert rows_noted(noted) == 3


def test_error_of_reader_keeps_its_class(cluster):
    def damaged(batches):  # here, because executors cannot import this module
        yield from batches
        raise FormatError("a.parquet: damaged")

    with pytest.raises(FormatError, match=r"^a\.parquet: damaged$"), open_tables("damaged") as opened:
        opened.spread([(1,)], "number long", damaged, "number long").collect()


@pytest.mark.rotated(2)
@pytest.mark.parametrize("form", of_today(["iceberg", "delta", "changes"], days=3))
def test_tables_on_cluster_have_bytes_of_duckdb(cluster, s3_bucket, tmp_path, form):
    """A task reads a data file; one task folds a log."""
    snapshots, key, files = tables.MADE[form](tmp_path, s3_bucket)
    document = {
        "graph": "g",
        "snapshots": snapshots,
        "columns": {"lhs": "head"},
        "split": {"valid": 0.1, "test": 0.1},
        "model": {
            "entities": {"n": {"num_partitions": 2}},
            "relations": [{"name": "r", "lhs": "n", "rhs": "n"}],
            "dimension": 4,
        },
        "resources": {"memory_gb": 1, "threads": 2},
    }
    graph = SimpleNamespace(root=tmp_path, document=document)
    runs = {engine: cold_night(graph, key, f"{s3_bucket}/{engine}", engine, validate) for engine in ("duckdb", "spark")}
    assert contents(runs["spark"], "validate") == contents(runs["duckdb"], "validate")
    staged = [name for name in open_directory(runs["spark"], "snapshot").names if name.startswith("edges-")]
    assert len(staged) == files > 0


@pytest.mark.rotated(2)
@pytest.mark.parametrize("partitions", [2, 3])
def test_release_of_several_files_is_continued(cluster, tmp_path, monkeypatch, partitions):
    """With other partitions, ids begin anew, and entities are matched by name."""
    monkeypatch.setattr(table_files, "ROWS_OF_A_FILE", 25)
    place, runs = Workplace(tmp_path), {}
    place.write_spec({"num_epochs": 1}, train={"delta": {"sample": 0.3}})
    place.snapshot("d1", ring(60))
    run_chain(place.spec, "d1")
    place.snapshot("d2", ring(65, first=5))
    for engine in ("duckdb", "spark"):
        resources = {"memory_gb": 1, "threads": 1, "engine": engine}
        entities = {"n": {"num_partitions": partitions}}
        place.write_spec({"num_epochs": 1, "entities": entities}, train={"delta": {"sample": 0.3}}, resources=resources)
        runs[engine] = RunContext.open(plan(place.spec, "d2")["run"])
        for task in (validate, partition, bucket):
            task(runs[engine].url)
    assert contents(runs["spark"]) == contents(runs["duckdb"])
    assert runs["spark"].require("validate")["difference"]["edges"]["exact"]
    assert runs["spark"].require("partition")["data_gate"]["checks"][0]["value"] == round(5 / 60, 6)


def test_tasks_leave_session_of_application_as_it_was(cluster):
    log4j, logger = cluster._jvm.org.apache.logging.log4j, session._PLAN_LOGGER
    log4j.core.config.Configurator.setLevel(logger, log4j.Level.INFO)
    cluster.sql("SELECT 1 AS own").createOrReplaceTempView("ids")
    with open_tables("one") as one, open_tables("other") as other:
        assert str(log4j.LogManager.getLogger(logger).getLevel()) == "ERROR"
        for opened, number in ((one, 2), (other, 3)):
            opened.table("ids", f"SELECT {number} AS own")
        assert (one.rows("SELECT own FROM ids"), other.rows("SELECT own FROM ids")) == ([(2,)], [(3,)])
        one.made("rows", [(1,)], "number long")
    assert str(log4j.LogManager.getLogger(logger).getLevel()) == "INFO"
    assert cluster.sql("SELECT own FROM ids").collect() == [(1,)]
    assert cluster.conf.get("spark.sql.parser.escapedStringLiterals") == "true"
    assert type(cluster).getActiveSession().conf.get("spark.sql.parser.escapedStringLiterals") == "true"


@pytest.mark.usefixtures("spark")
def test_lost_driver_and_last_task_of_own_application():
    """The application is of another process, as a driver is lost once."""
    done = subprocess.run([sys.executable, "-c", OWN], capture_output=True, text=True, check=False, timeout=300)
    assert done.stdout.splitlines() == ["false", "[(1,)]", "[Row(number=5)]", "None", "StorageError"], done.stderr[
        -2000:
    ]
    assert "WARN WindowExec: No Partition Defined" in done.stderr
    assert "Truncated the string representation of a plan" not in done.stderr
    assert "has been deprecated" not in done.stderr
    assert "FutureWarning" not in done.stderr  # of pandas, of which tasks use nothing


OWN = """
import os, signal
from pyspark import SparkContext
from pbg_tasks.errors import StorageError
from pbg_tasks.prepare.spark import open_tables

os.environ["PYSPARK_SUBMIT_ARGS"] = "--master local[1] --conf spark.ui.enabled=false pyspark-shell"
first, second = open_tables("first"), open_tables("second")
first.__enter__()
tables = second.__enter__()
first.__exit__(None, None, None)
tables.session.conf.set("spark.sql.maxPlanStringLength", "40")
print(tables.session.sparkContext.getConf().get("spark.ui.showConsoleProgress"))
print(tables.rows("SELECT row_number() OVER (ORDER BY id) FROM range(1)"))
print(tables.spread([(5,)], "number long", lambda batches: batches, "number long").collect())
second.__exit__(None, None, None)
print(SparkContext._active_spark_context)
try:
    with open_tables("lost") as tables:
        os.kill(SparkContext._gateway.jvm.java.lang.ProcessHandle.current().pid(), signal.SIGKILL)
        tables.rows("SELECT 1")
except StorageError as error:
    print(type(error).__name__)
"""


@pytest.mark.usefixtures("spark")
def test_submitted_tasks_share_one_application(tmp_path, monkeypatch):
    """YARN and Kubernetes have no second one for a driver."""
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    (tmp_path / "tasks.py").write_text(SUBMITTED)
    submit = [str(Path(sys.executable).with_name("spark-submit")), "--master", "local[1]", str(tmp_path / "tasks.py")]
    done = subprocess.run(submit, capture_output=True, text=True, check=False, timeout=300)
    first, second = done.stdout.split()
    assert first == second, done.stderr[-2000:]


SUBMITTED = """
from pbg_tasks.prepare.spark import open_tables

for task in ("first", "second"):
    with open_tables(task) as tables:
        print(tables.session.sparkContext.applicationId)
"""


@pytest.mark.usefixtures("spark")
def test_application_that_does_not_begin_is_named():
    """Without a master, Spark ends it as here, after a minute."""
    done = subprocess.run([sys.executable, "-c", ENDED], capture_output=True, text=True, check=False, timeout=300)
    refused, unreachable, again = done.stdout.splitlines()
    check = "check spark.master (--master in PYSPARK_SUBMIT_ARGS), and that the master runs"
    ended = "no master answers there, or it ended the application"
    assert refused == f"Spark: no application began at local[1]: {ended}; {check}"
    assert unreachable.startswith("Spark: no application began at local[x]: org.apache.spark.SparkException: ")
    assert unreachable.endswith(f"; {check}")
    assert " at org.apache" not in unreachable
    assert again == "[(1,)]"


ENDED = """
import os
from pyspark import SparkContext
from pbg_tasks.errors import StorageError
from pbg_tasks.prepare.spark import open_tables

os.environ["PYSPARK_SUBMIT_ARGS"] = "--master local[1] --conf spark.ui.enabled=false pyspark-shell"
begin = SparkContext._do_init
def ended(context, *arguments):
    begin(context, *arguments)
    context._jsc.stop()
SparkContext._do_init = ended
try:
    with open_tables("dead"):
        pass
except StorageError as error:
    print(error)
SparkContext._do_init = begin
System = SparkContext._jvm.java.lang.System
System.setProperty("spark.master", "local[x]")
try:
    with open_tables("unreachable"):
        pass
except StorageError as error:
    print(error)
System.setProperty("spark.master", "local[1]")
with open_tables("again") as tables:
    print(tables.rows("SELECT 1"))
"""


def cold_night(graph, key, store, engine, *tasks):
    """Prepare a night by tasks, twice each; return the run."""
    tasks = tasks or (validate, partition, bucket)
    spec = graph.root / f"{engine}.yaml"
    resources = {**graph.document["resources"], "engine": engine}
    spec.write_text(yaml.safe_dump({**graph.document, "store": store, "resources": resources}))
    run = plan(spec, key)["run"]
    results = [task(run) for task in tasks]
    assert [task(run) for task in tasks] == results
    return RunContext.open(run)


def contents(run, *tasks):
    """Return a night's files, and the figures of its tasks."""
    results = [run.require(task) for task in tasks or ("validate", "partition", "bucket")]
    return (
        [dict(open_directory(run, name).records) for name in ("entities", "edges") if not tasks],
        {name: each for name, each in open_directory(run, "snapshot").records.items() if "edges" not in name},
        [{key: value for key, value in each.items() if key not in {"run", "seconds", "usage"}} for each in results],
    )


def test_bad_row_on_cluster_is_named_by_line(cluster, s3_bucket, tmp_path):
    graph = RandomGraph(tmp_path / "graph", 600, CSV, plain=True)
    key = graph.write(0)
    bad = next((graph.root / "days" / key).glob("1.*"))
    assert bad.suffix == ".csv"
    lines = bad.read_text().splitlines(keepends=True)
    lines[17] = lines[17].replace('"r', '"unknown', 1)
    bad.write_text("".join(lines))
    spec = tmp_path / "graph.yaml"
    document = {**graph.document, "store": s3_bucket}
    document["resources"] = {**document["resources"], "engine": "spark"}
    spec.write_text(yaml.safe_dump(document))
    run = plan(spec, key)["run"]
    with pytest.raises(InputError, match=r"1\.csv, line 18: unknown relation 'unknown"):
        validate(run)
    assert not list(open_store(s3_bucket).list(f"{RunContext.open(run).key('snapshot')}/manifest.json"))

    other = RunContext.open(plan(spec, graph.write(1))["run"])
    other.store.put_new(other.key("snapshot/edges-000000.parquet"), b"of another version")
    with pytest.raises(ConflictError, match=r"edges-000000\.parquet.*earlier try.*remove .*/snapshot and try again"):
        validate(other.url)
