"""Deltas: few rows written, the model seen, earlier releases kept."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pbg_tasks.config.exports import Export, ExportOptions
from pbg_tasks.errors import ConfigError, FormatError, QualityGateError, StorageError
from pbg_tasks.publish.sinks import open_sink, sink_options
from pbg_tasks.publish.sinks.lance import LanceTables
from pbg_tasks.storage import open_store
from pbg_tasks.storage.s3_settings import s3_settings
from pbg_tasks.tasks.exchange.export import export
from pbg_tasks.tasks.exchange.fill import complete_tables, serve
from tests.sinks.spaces import DIMENSION, fill, in_space, night

ROWS = 200
DELTA = {"moved_above": 0.01}


@pytest.fixture(autouse=True)
def _one_space(monkeypatch, scratch):
    in_space(monkeypatch.setattr)


@pytest.fixture
def first():
    """Vectors of the first night, by name."""
    rng = np.random.default_rng(0)
    return {f"e{number}": rng.normal(size=DIMENSION) for number in range(ROWS)}


def later(rows, *, moved=(), gone=(), new=(), seed=1):
    """Return the next night.

    All vectors move a little, some far, and names come and go.
    """
    rng = np.random.default_rng(seed)
    found = {name: vector * (1 + 1e-4 * rng.normal()) for name, vector in rows.items() if name not in gone}
    return found | {name: rng.normal(size=DIMENSION) for name in (*moved, *new)}


def read(destination, **settings):
    """Return the vectors that readers find, by name; check the numbers."""
    import lancedb

    found = json.loads(open_store(str(destination)).get("_pbg/pbg/current.json").data)
    served = found["tables"]["pbg_user"]
    table = lancedb.connect(str(destination), storage_options=settings or None).open_table(served["table"])
    table.checkout(served["version"])
    rows = table.to_arrow().sort_by("row")
    assert rows["row"].to_pylist() == list(range(len(rows)))
    return dict(zip(rows["id"].to_pylist(), np.array(rows["vector"].to_pylist(), np.float32), strict=True))


def assert_near(found, rows, *, exact=()):
    """Compare what readers find with a model."""
    assert found.keys() == rows.keys()
    for name, vector in rows.items():
        wanted = vector.astype(np.float32)
        assert np.linalg.norm(found[name] - wanted) <= 0.01 * np.linalg.norm(wanted)
        assert name not in exact or np.array_equal(found[name], wanted)


@pytest.mark.parametrize(
    ("moved", "gone", "new", "written"),
    [
        (["e3", "e90"], [], ["n0", "n1", "n2"], 5),
        (["e3"], ["e0", "e50", "e199"], ["n0", "n1", "n2"], 4),
        ([], ["e5", "e6", "e7", "e8"], [], 4),  # the last four rows take the places
        (["e1"], ["e198", "e199"], [], 1),
        (["e3"], ["e0", "e1"], [f"n{number}" for number in range(20)], 21),
        ([], [], [], 0),
    ],
)
def test_few_rows_are_written(tmp_path, first, moved, gone, new, written):
    fill(night(tmp_path / "a", first), tmp_path / "lance", **DELTA)
    second = later(first, moved=moved, gone=gone, new=new)
    measured = fill(night(tmp_path / "b", second), tmp_path / "lance", **DELTA)
    assert (measured["written_rows"], measured["kept_rows"]) == (written, len(second) - written)
    assert measured["tables"]["user"]["recall"] >= 0.99
    assert_near(read(tmp_path / "lance"), second, exact=[*moved, *new])


def test_slow_moves_do_not_add_up(tmp_path, first):
    rows = first
    for step in range(5):
        rows = {name: vector * 1.004 for name, vector in rows.items()}
        fill(night(tmp_path / f"{step}", rows), tmp_path / "lance", **DELTA)
        assert_near(read(tmp_path / "lance"), rows)


def test_zero_writes_every_vector_that_differs(tmp_path, first):
    fill(night(tmp_path / "a", first), tmp_path / "lance", moved_above=0)
    second = first | {"e7": first["e7"] * 1.0001}
    assert fill(night(tmp_path / "b", second), tmp_path / "lance", moved_above=0)["written_rows"] == 1
    found = read(tmp_path / "lance")
    assert all(np.array_equal(found[name], vector.astype(np.float32)) for name, vector in second.items())


def test_low_recall_of_delta_advises_smaller_share(tmp_path, first):
    fill(night(tmp_path / "a", first), tmp_path / "lance", moved_above=1)
    rng = np.random.default_rng(2)
    second = {name: vector + 0.5 * rng.normal(size=DIMENSION) for name, vector in first.items()}
    with pytest.raises(QualityGateError, match="give sink lancedb a smaller moved_above, options for"):
        fill(night(tmp_path / "b", second), tmp_path / "lance", moved_above=1)


def test_earlier_release_is_served_again(tmp_path, first):
    fill(night(tmp_path / "a", first), tmp_path / "lance", **DELTA)
    before = read(tmp_path / "lance")
    fill(night(tmp_path / "b", later(first, moved=["e1"], gone=["e2"])), tmp_path / "lance", **DELTA)
    with open_sink("lancedb", str(tmp_path / "lance"), sink_options("lancedb", {})) as tables:
        (oldest,) = [record for record in tables.records("pbg").values() if record.number == 1]
        serve(tables, "pbg", complete_tables(tables, "pbg", oldest.manifest_sha256))
    found = read(tmp_path / "lance")
    assert list(found) == list(before)
    assert all(np.array_equal(found[name], vector) for name, vector in before.items())


def test_bases_stay_until_nothing_needs_them(tmp_path, first):
    rows, written, dropped = first, [], []
    for step in range(7):
        rows = later(rows, moved=[f"e{step}"], seed=step)
        measured = fill(night(tmp_path / f"{step}", rows), tmp_path / "lance", keep=1, whole_every=3, **DELTA)
        written.append(measured["written_rows"])
        dropped.append(len(measured["dropped"]))
        assert_near(read(tmp_path / "lance"), rows, exact=[f"e{step}"])
    assert written == [ROWS, 1, 1, ROWS, 1, 1, ROWS]
    assert dropped == [0, 0, 0, 0, 3, 0, 0]  # the last one of the first three was kept, and so were its bases
    assert len(list((tmp_path / "lance").glob("*.lance"))) == 4


@pytest.mark.parametrize("why", ["space", "moved", "option"])
def test_table_is_written_whole(tmp_path, first, monkeypatch, capsys, why):
    fill(night(tmp_path / "a", first), tmp_path / "lance", **DELTA)
    options = DELTA | ({"index_from": 5000} if why == "option" else {})
    if why == "space":
        in_space(monkeypatch.setattr, "other")
    second = later(first, moved=list(first)[:101] if why == "moved" else ["e1"])
    measured = fill(night(tmp_path / "b", second), tmp_path / "lance", **options)
    assert (measured["written_rows"], measured["kept_rows"]) == (ROWS, 0)
    differ = f"101 of {ROWS} rows differ from those served, more than half: all are written"
    assert (differ in capsys.readouterr().err) is (why == "moved")
    assert_near(read(tmp_path / "lance"), second, exact=second)


def test_replaced_rows_are_in_the_index(tmp_path, first):
    import lancedb

    options = DELTA | {"index_from": 100}
    fill(night(tmp_path / "a", first), tmp_path / "lance", **options)
    second = later(first, moved=["e1", "e2"], new=["n"])
    measured = fill(night(tmp_path / "b", second), tmp_path / "lance", **options)
    table = lancedb.connect(str(tmp_path / "lance")).open_table(measured["tables"]["user"]["table"])
    assert table.index_stats("vector_idx").num_unindexed_rows == 0
    assert measured["written_rows"] == 3


def test_index_follows_large_deltas(tmp_path, first):
    """LanceDB fails to rebalance the index of a clone of a clone."""
    import lancedb

    options, rows = DELTA | {"index_from": 100}, first
    fill(night(tmp_path / "a", rows), tmp_path / "lance", **options)
    for step in range(3):
        moved = [f"e{number}" for number in range(step * 20, step * 20 + 20)]
        rows = later(rows, moved=moved, new=[f"n{step}.{number}" for number in range(20)], seed=step)
        measured = fill(night(tmp_path / f"{step}", rows), tmp_path / "lance", **options)
        table = lancedb.connect(str(tmp_path / "lance")).open_table(measured["tables"]["user"]["table"])
        assert (measured["written_rows"], table.index_stats("vector_idx").num_unindexed_rows) == (40, 0)
        assert measured["tables"]["user"]["recall"] >= 0.95
        assert_near(read(tmp_path / "lance"), rows, exact=moved)


def test_table_without_index_loses_another_programs(tmp_path, first, monkeypatch):
    """The pointer names no index, and adding rows to one may fail."""
    import lancedb

    real = LanceTables.replace

    def indexed(self, table, numbers, rows):
        real(self, table, numbers, rows)
        config = lancedb.index.IvfFlat(distance_type="cosine", num_partitions=2)
        self._database.open_table(table).create_index("vector", config=config)

    options = DELTA | {"index": "none"}
    fill(night(tmp_path / "a", first), tmp_path / "lance", **options)
    monkeypatch.setattr(LanceTables, "replace", indexed)
    second = later(first, moved=["e1"])
    measured = fill(night(tmp_path / "b", second), tmp_path / "lance", **options)
    table = lancedb.connect(str(tmp_path / "lance")).open_table(measured["tables"]["user"]["table"])
    assert (measured["written_rows"], list(table.list_indices())) == (1, [])
    assert_near(read(tmp_path / "lance"), second, exact=["e1"])


def test_wrong_row_of_delta_is_not_served(tmp_path, first, monkeypatch):
    fill(night(tmp_path / "a", first), tmp_path / "lance", **DELTA)
    before, real = read(tmp_path / "lance"), LanceTables.replace
    damaged = lambda self, table, numbers, rows: real(self, table, numbers, rows._replace(vectors=rows.vectors * 1.1))  # noqa: E731
    monkeypatch.setattr(LanceTables, "replace", damaged)
    second = night(tmp_path / "b", later(first, moved=["e1"]))
    with pytest.raises(FormatError, match="has another vector of 'e1' than the model"):
        fill(second, tmp_path / "lance", **DELTA)
    assert read(tmp_path / "lance").keys() == before.keys()
    assert np.array_equal(read(tmp_path / "lance")["e1"], before["e1"])


def killed(data, destination, options, batches):
    """Export in a process that is killed after some batches."""
    command = [sys.executable, "-m", "tests.sinks.spaces", str(data.checkpoint), str(destination), json.dumps(options)]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=root) as process:
        for _ in range(batches):
            assert process.stdout.readline() == b"batch\n"
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL


def test_killed_fills_go_on(tmp_path, first):
    out, small = tmp_path / "lance", DELTA | {"batch_mb": 4 * DIMENSION * 2 / 1e6}
    one = night(tmp_path / "a", first)
    killed(one, out, small, 20)
    assert not list(out.glob("_pbg/*/current.json"))
    again = fill(one, out, **small | {"batch_mb": 1})
    assert again["resumed_rows"] >= 2 * 19
    assert again["resumed_rows"] + again["written_rows"] == ROWS
    before = read(out)
    new = [f"n{number}" for number in range(20)]
    second = later(first, moved=list(first)[:40], gone=list(first)[100:130], new=new)
    other = night(tmp_path / "b", second)
    killed(other, out, small, 10)
    assert read(out).keys() == before.keys()  # readers see no half of a release
    again = fill(other, out, **small | {"batch_mb": 1})
    assert 0 < again["written_rows"] <= 70 - 2 * 9
    assert_near(read(out), second, exact=[*list(first)[:40], *new])
    assert fill(other, out, **small)["written_rows"] == 0


def test_delta_in_s3_is_the_model(tmp_path, first, s3_bucket, monkeypatch):
    fill(night(tmp_path / "a", first), s3_bucket, **DELTA)
    second = later(first, moved=["e1"], gone=["e2"], new=["n"])
    data = night(tmp_path / "b", second)
    measured = fill(data, s3_bucket, **DELTA)
    assert (measured["written_rows"], measured["kept_rows"]) == (2, ROWS - 2)
    assert fill(data, s3_bucket, **DELTA)["kept_rows"] == ROWS
    monkeypatch.delenv("AWS_ALLOW_HTTP")  # of the export's process
    settings = s3_settings()
    keys = {"aws_access_key_id": settings.key, "aws_secret_access_key": settings.secret, "allow_http": "true"}
    keys |= {"aws_region": settings.region, "aws_endpoint": settings.endpoint}
    assert_near(read(s3_bucket, **keys), second, exact=["e1", "n"])


def test_endpoint_that_copies_do_not_know_is_reported(tmp_path, first, s3_bucket, monkeypatch):
    fill(night(tmp_path / "a", first), s3_bucket, **DELTA)
    config = tmp_path / "config"
    config.write_text(f"[default]\nendpoint_url = {os.environ['AWS_ENDPOINT_URL']}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    measured = fill(night(tmp_path / "b", later(first, moved=["e1"])), s3_bucket, **DELTA)
    assert (measured["written_rows"], measured["kept_rows"], measured["served"]) == (ROWS, 0, True)
    assert "the endpoint of AWS_ENDPOINT_URL" in measured["not_copied"]["user"]


@pytest.mark.parametrize("when", ["before the copy", "half-way", "before the same night", "before the next night"])
def test_table_whose_base_is_gone_is_written_whole(tmp_path, first, monkeypatch, when):
    out, real = tmp_path / "lance", LanceTables.copy
    fill(night(tmp_path / "a", first), out, **DELTA)
    (base,) = out.glob("*.lance")
    second = later(first, moved=["e1"])
    data = night(tmp_path / "b", second)

    def without_base(self, *found):
        if when == "before the copy":
            shutil.rmtree(base)
        real(self, *found)
        if when == "half-way":
            shutil.rmtree(base)

    with monkeypatch.context() as patch:
        patch.setattr(LanceTables, "copy", without_base)
        if when == "half-way":
            with pytest.raises(StorageError):
                fill(data, out, **DELTA)
        else:
            measured = fill(data, out, **DELTA)
    if when != "before the copy":
        if "night" in when:
            shutil.rmtree(base)
        if when == "before the next night":
            second = later(second, moved=["e2"])
            data = night(tmp_path / "c", second)
        measured = fill(data, out, **DELTA)
    assert list(measured["not_copied"]) == (["user"] if when == "before the copy" else [])
    assert measured["written_rows"] == ROWS
    assert_near(read(out), second, exact=second)


@pytest.mark.parametrize("sink", ["milvus", "pgvector", "qdrant"])
def test_sink_without_copies_refuses_the_key(sink):
    place = "postgresql://127.0.0.1:9/db" if sink == "pgvector" else "https://127.0.0.1:9"
    message = f"sink {sink} has no option 'moved_above', because .* each release is written whole"
    with pytest.raises(ConfigError, match=message):
        export(sink, "/nowhere", place, options=ExportOptions(options=DELTA))
    with pytest.raises(ValueError, match=message):
        Export.model_validate({"format": sink, "destination": place, "options": DELTA})
