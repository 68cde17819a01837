"""Parts of the preparation on Spark that take no Spark."""

from __future__ import annotations

import hashlib
import traceback

import duckdb
import pyarrow as pa
import pytest

from pbg_tasks.config import GraphSpec
from pbg_tasks.config.base import canonical_json, parse
from pbg_tasks.errors import ConfigError, FormatError, InputError, StorageError
from pbg_tasks.prepare import spark
from pbg_tasks.prepare.spark import session
from pbg_tasks.prepare.spark.files import Destination, Outcome, of_trace, raise_first, reported, watched
from pbg_tasks.prepare.spark.writing import WriteTable
from pbg_tasks.prepare.sql.spark import SPARK
from pbg_tasks.prepare.validate import NoEdgesError

DOCUMENT = {
    "graph": "g",
    "store": "s",
    "snapshots": {"location": "/d/{snapshot}"},
    "model": {
        "entities": {"n": {"num_partitions": 1}},
        "relations": [{"name": "r", "lhs": "n", "rhs": "n"}],
        "dimension": 4,
    },
    "resources": {"engine": "spark"},
}
MANY = {f"t{number}": {"num_partitions": 1} for number in range(128)}
MANY_RELATIONS = [{"name": name, "lhs": name, "rhs": name} for name in MANY]


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        (
            {"model": {**DOCUMENT["model"], "entities": {"n": {"num_partitions": 1, "featurized": True}}}},
            "model.entities.n.featurized is true",
        ),
        (
            {"model": {**DOCUMENT["model"], "entities": MANY, "relations": MANY_RELATIONS}},
            "model.entities has more than 127 types",
        ),
    ],
)
def test_spec_that_spark_lacks_is_refused(keys, named):
    document = {**DOCUMENT, **keys}
    with pytest.raises(ConfigError) as caught:
        parse(GraphSpec, document, source="graph.yaml")
    assert f"resources.engine is spark, and {named}" in str(caught.value)
    assert parse(GraphSpec, {**document, "resources": {"engine": "duckdb"}}, source="graph.yaml")


def test_default_engine_is_in_no_dump():
    plain = parse(GraphSpec, {**DOCUMENT, "resources": {}}, source="g")
    assert b"duckdb" not in canonical_json(plain.model_dump(mode="json"))
    assert b'"engine":"spark"' in canonical_json(parse(GraphSpec, DOCUMENT, source="g").model_dump(mode="json"))


def test_missing_java_and_pyspark_are_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(session, "find_spec", lambda _: None)
    assert [each.split()[0] for each in spark.lacking()] == ["pyspark", "Java"]
    with pytest.raises(ConfigError, match=r"pbg-tasks\[spark\].*Java 17"), spark.open_tables("test"):
        pytest.fail("opened")


def test_spark_connect_takes_packages_and_no_java(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("SPARK_REMOTE", "sc://elsewhere")
    monkeypatch.setattr(session, "find_spec", lambda name: None if name == "grpc_status" else True)
    with pytest.raises(ConfigError, match=r"missing here: grpc_status \(pip install 'pbg-tasks\[spark\]'\)$"):
        spark.open_tables("test").__enter__()


@pytest.mark.parametrize("error", [InputError("d/1.csv:18: bad"), NoEdgesError("none"), StorageError("gone")])
def test_error_of_executor_keeps_its_class(error):
    def work():
        yield Outcome("a", "0" * 64, 1)
        raise error

    rows = pa.Table.from_batches(list(reported(watched("b", work())))).to_pylist()
    with pytest.raises(type(error), match=str(error)):
        raise_first([Outcome(*row.values()) for row in rows])
    assert raise_first([Outcome(*rows[0].values())]) == [Outcome("a", "0" * 64, 1)]


@pytest.mark.parametrize(
    ("cause", "error", "kind"),
    [
        (None, FormatError("s/e.parquet: damaged"), FormatError),
        (OSError("cut"), NoEdgesError("none: 'a'"), NoEdgesError),
        (InputError("d/1.csv:18: bad"), KeyError("x"), None),
    ],
)
def test_error_in_trace_of_executor_is_found(cause, error, kind):
    error.__cause__ = cause
    trace = "".join(traceback.format_exception(error))
    found = of_trace(f"Job aborted: Task 0 in stage 1.0 failed 4 times: PythonException:\n{trace}\n\tat org.apache.x")
    assert (found and (type(found), str(found))) == (kind and (kind, str(error)))


def test_file_stored_twice_is_one_file(tmp_path):
    found = []
    for _ in range(2):
        (tmp_path / "out").mkdir(exist_ok=True)
        (tmp_path / "out" / "a").write_bytes(b"1")
        found.append(spark.Destination(str(tmp_path / "store"), "run/x").put(tmp_path / "out", "a"))
    assert found[0] == found[1]
    assert [path.name for path in (tmp_path / "store" / "run" / "x").iterdir()] == ["a"]


def test_text_of_spark_escapes_what_ends_it():
    assert SPARK.text("it's \\") == "'it\\'s \\\\'"


def test_written_table_ignores_how_rows_came(tmp_path):
    kinds = pa.schema({"name": pa.string(), "hash": pa.int64(), "file": pa.int32(), "kept": pa.bool_()})
    rows = pa.record_batch({"name": ["b", "a"], "hash": [-1, 7], "file": [0, 0], "kept": [True, True]}, kinds)
    none = pa.record_batch({"name": [None], "hash": [None], "file": [0], "kept": [False]}, kinds)
    together = pa.Table.from_batches([rows, none]).combine_chunks().to_batches()
    hashes = {_written(tmp_path / str(len(came)), came) for came in (together, [rows, none], [none, rows, none])}
    assert len(hashes) == 1
    target = tmp_path / "t"
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE empty (name VARCHAR, hash UBIGINT)")
        connection.execute(f"COPY (FROM empty ORDER BY ALL) TO '{target}' (FORMAT parquet, COMPRESSION zstd)")
    assert _written(tmp_path / "empty", [none]) == hashlib.sha256(target.read_bytes()).hexdigest()


def _written(root, batches):
    spec = parse(GraphSpec, DOCUMENT, source="graph.yaml")
    columns = {"name": "string", "hash": "uint64"}
    write = WriteTable(
        spec, ["t"], columns, "FROM listed ORDER BY ALL", "COMPRESSION zstd", Destination(str(root), "p")
    )
    ((outcome,),) = [report.to_pylist() for report in write(iter(batches))]
    assert not outcome["kind"]
    return outcome["sha256"]
