"""Releases in LanceDB: filled, resumed, checked, switched, rolled back."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from pbg_tasks.config.exports import ExportOptions
from pbg_tasks.errors import ConfigError, ConflictError, QualityGateError, StorageError
from pbg_tasks.publish.sinks.lance import LanceTables
from pbg_tasks.storage import open_store
from pbg_tasks.storage.s3_settings import s3_settings
from pbg_tasks.tasks.exchange.export import export
from pbg_tasks.tasks.nightly.export_release import export_release
from pbg_tasks.tasks.release.releases import rollback
from tests.sink_story import COLLECTION, LanceReader, story
from tests.tasks.conftest import workplace
from tests.tasks.exchanges import model

BATCH = {"batch_mb": 0.0004}
"""Batches of some rows: 100 numbers are 400 bytes."""


@pytest.fixture
def trained(place):
    return model(place.root / "data")


def fill(data, destination, *, options=None, **more):
    return export(
        "lancedb", str(data.checkpoint), str(destination), options=ExportOptions(options=options or {}, **more)
    )


def served(destination, collection="pbg"):
    """Return what the pointer names, by alias."""
    return json.loads(open_store(str(destination)).get(f"_pbg/{collection}/current.json").data)["tables"]


def rows_of(destination, found, **options):
    """Return the rows of a served table in their order."""
    import lancedb  # after the sink, which asks for fewer messages

    table = lancedb.connect(str(destination), **options).open_table(found["table"])
    table.checkout(found["version"])
    return table.to_arrow().sort_by("row")


def vectors_of(rows):
    return np.array(rows["vector"].to_pylist(), np.float32)


def assert_is(data, destination, **options):
    """Compare the served tables with the model, through the client alone."""
    exported = export("npy", str(data.checkpoint), str(data.checkpoint) + "-npy", overwrite=True)["destination"]
    for entity in data.names:
        rows = rows_of(destination, served(destination)[f"pbg_{entity}"], **options)
        assert rows["id"].to_pylist() == json.loads(Path(f"{exported}/{entity}.json").read_text())
        assert np.array_equal(vectors_of(rows), np.load(f"{exported}/{entity}.npy"))


def test_filled_tables_are_the_model(trained, place, capsys):
    done = fill(trained, place.root / "lance")
    assert re.search(r"export lancedb: .*lance is complete after 0:\d\d, 2 tables", capsys.readouterr().err)
    assert_is(trained, place.root / "lance")
    assert {entity: found["rows"] for entity, found in done["types"].items()} == {
        entity: len(names) for entity, names in trained.names.items()
    }
    assert {found["recall"] for found in done["measured"]["tables"].values()} == {1.0}
    assert served(place.root / "lance")["pbg_item"]["metric"] == "dot"


def test_alias_of_gone_type_is_named(trained, place, capsys):
    out = place.root / "lance"
    assert fill(trained, out)["measured"]["left"] == []
    assert fill(trained, out, types=["user"])["measured"]["left"] == []
    assert "warning" not in capsys.readouterr().err
    relations = [{"name": "knows", "lhs": "user", "rhs": "user"}]
    later = model(place.root / "later", entities={"user": {"num_partitions": 1}}, relations=relations)
    before = served(out)["pbg_item"]
    assert fill(later, out)["measured"]["left"] == ["pbg_item"]
    assert "warning: export lancedb: pbg_item still show an earlier release, as the model" in capsys.readouterr().err
    assert served(out)["pbg_item"] == before


def test_tables_in_s3_are_the_model(trained, s3_bucket):
    fill(trained, s3_bucket)
    found = s3_settings()
    settings = {
        "aws_access_key_id": found.key,
        "aws_secret_access_key": found.secret,
        "aws_region": found.region,
        "aws_endpoint": found.endpoint,
        "allow_http": "true",
    }
    assert_is(trained, s3_bucket, storage_options=settings)
    assert fill(trained, s3_bucket)["measured"]["resumed_rows"] == 0  # without a manifest, the files may have changed


def test_compared_dimensions_alone_are_filled(place):
    data = model(
        place.root / "data",
        bias=True,
        comparator="cos",
        entities={"user": {"num_partitions": 1}},
        relations=[{"name": "knows", "lhs": "user", "rhs": "user", "operator": "none"}],
        sizes={"user": 30},
    )
    fill(data, place.root / "lance")
    found = served(place.root / "lance")["pbg_user"]
    assert (found["metric"], found["skipped_dimensions"]) == ("cosine", 1)
    export("npy", str(data.checkpoint), str(place.root / "npy"))
    rows = rows_of(place.root / "lance", found)
    assert np.array_equal(vectors_of(rows), np.load(place.root / "npy" / "user.npy")[:, 1:])


@pytest.fixture(scope="module")
def nights(tmp_path_factory):
    """Two released nights, after their story; the channel serves the second."""
    with workplace(tmp_path_factory.mktemp("nights")) as place:
        steps = list(story(place, LanceReader(place.root / "lance"), str(place.root / "lance"), 60))
        channel = place.channel()
        runs = [f"{place.store}/runs/{release.run}" for release in channel.releases()]
        yield SimpleNamespace(place=place, out=place.root / "lance", steps=steps, runs=runs)


def refill(nights, out, **more):
    """Export a night by hand into a place of its own."""
    options = ExportOptions(options=more.pop("options", {}), **more)
    return export("lancedb", f"{nights.runs[0]}/release", str(out), options=options)["measured"]


def count(out):
    return len(rows_of(out, served(out)["pbg_n"]))


def test_reader_sees_what_channel_serves(nights):
    assert [good for _, good in nights.steps] == [True] * 4


def test_second_try_goes_on_where_first_ended(nights, tmp_path, monkeypatch):
    real, written = LanceTables.add, []

    def add(self, table, start, rows):
        if len(written) == 2:
            raise StorageError("the store is gone")
        real(self, table, start, rows)
        written.append(len(rows.names))

    with monkeypatch.context() as patch:
        patch.setattr(LanceTables, "add", add)
        with pytest.raises(StorageError, match="the store is gone"):
            refill(nights, tmp_path, options=BATCH)
    assert not list(tmp_path.glob("_pbg/*/current.json"))  # readers see no half of a release
    again = refill(nights, tmp_path, options=BATCH)
    assert (again["resumed_rows"], again["written_rows"]) == (sum(written), 60 - sum(written))
    assert count(tmp_path) == 60
    assert refill(nights, tmp_path)["written_rows"] == 0  # it is there already


def test_other_names_get_a_table_of_theirs(nights, tmp_path):
    out, names = tmp_path / "lance", tmp_path / "names"
    refill(nights, out)
    before = rows_of(out, served(out)["pbg_n"])["id"].to_pylist()
    shutil.copytree(f"{nights.runs[0]}/release", names)
    for path in names.glob("entity_names_n_*.json"):
        path.write_text(json.dumps([f"label of {name}" for name in json.loads(path.read_bytes())]))
    export("lancedb", f"{nights.runs[0]}/release", str(out), entity_path=str(names))
    after = rows_of(out, served(out)["pbg_n"])["id"].to_pylist()
    assert after == [f"label of {name}" for name in before]


def test_record_has_contract_of_release(nights, tmp_path):
    refill(nights, tmp_path)
    (path,) = tmp_path.glob("_pbg/pbg/tables/*.json")
    record = json.loads(path.read_bytes())
    manifest = json.loads(Path(nights.runs[0], "release", "manifest.json").read_bytes())
    assert record.pop("contract") == manifest["contract"]
    path.write_text(json.dumps(record))  # as an earlier version wrote it
    assert refill(nights, tmp_path)["written_rows"] == 0


def test_of_two_writers_one_goes_on(nights, tmp_path, monkeypatch):
    real = LanceTables.add

    def add(self, table, start, rows):
        real(self, table, start, rows)
        with pytest.raises(ConflictError, match="another export writes into this table too"):
            real(self, table, start, rows)  # the other export

    monkeypatch.setattr(LanceTables, "add", add)
    assert (refill(nights, tmp_path, options=BATCH)["written_rows"], count(tmp_path)) == (60, 60)


def test_table_with_repeated_rows_is_refilled(nights, tmp_path, monkeypatch):
    real = LanceTables.add

    def add(self, table, start, rows):
        real(self, table, start, rows)
        found = self._database.open_table(table)
        found.add(found.to_arrow())  # as by an export that was killed

    with monkeypatch.context() as patch:
        patch.setattr(LanceTables, "add", add)
        with pytest.raises(ConflictError, match="has rows twice or lacks some"):
            refill(nights, tmp_path)
    again = refill(nights, tmp_path)
    assert (again["resumed_rows"], again["written_rows"], count(tmp_path)) == (0, 60, 60)


def test_rows_after_the_check_are_not_seen(nights, tmp_path):
    import lancedb

    refill(nights, tmp_path)
    lancedb.connect(str(tmp_path)).open_table(served(tmp_path)["pbg_n"]["table"]).delete("row < 5")
    assert count(tmp_path) == 60
    assert refill(nights, tmp_path)["written_rows"] == 0


def test_late_export_is_not_served(nights):
    before, served_before = nights.runs[0], served(nights.out, COLLECTION)
    shutil.rmtree(nights.out / f"{json.loads(result_of(before).read_text())['measured']['tables']['n']['table']}.lance")
    assert rollback(nights.place.spec, to=2)["sinks"] == {"lancedb": True}
    result_of(before).unlink()
    measured = export_release(before, "lancedb")["measured"]
    assert (measured["written_rows"], measured["served"]) == (60, False)
    assert served(nights.out, COLLECTION) == served_before


def result_of(run):
    return Path(run) / "results" / "export-lancedb.json"


def test_only_newest_tables_stay(nights, tmp_path):
    for number in range(4):
        measured = refill(nights, tmp_path, options={"keep": 1, "index_from": 1000 + number})
    assert len(list(tmp_path.glob("*.lance"))) == 2
    assert len(measured["dropped"]) == 1
    assert refill(nights, tmp_path, options={"keep": 1, "index_from": 1002})["written_rows"] == 0


def test_roll_back_without_tables_names_the_repair(nights, capsys, monkeypatch):
    monkeypatch.setattr(LanceTables, "records", lambda *_: {})
    there = served(nights.out, COLLECTION)
    assert rollback(nights.place.spec, to=1)["sinks"] == {"lancedb": False}
    assert rollback(nights.place.spec, to=2)["sinks"] == {"lancedb": False}
    assert served(nights.out, COLLECTION) == there
    assert re.search(
        r"lacks complete tables of release 1,.*`pbg export lancedb \S+ \S+ --option=index_from=500 "
        r"--option=collection=toy_production --queries=100` fills",
        capsys.readouterr().err,
    )


def test_poor_search_serves_nothing(place):
    data = model(place.root / "data", sizes={"user": 400, "item": 40})
    poor = {"index": "IVF_PQ", "index_from": 300, "partitions": 16, "nprobes": 1, "refine_factor": 1}
    with pytest.raises(QualityGateError, match=r"of user finds 0\.\d+ of the 10 nearest vectors, the floor is 1\.0"):
        fill(data, place.root / "lance", options=poor, min_recall=1.0)
    assert not list(place.root.glob("lance/_pbg/*/current.json"))


def test_missing_library_names_the_extra(trained, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "lancedb", None)
    with pytest.raises(
        ConfigError, match=r"sink lancedb needs the package lancedb .*pip install 'pbg-tasks\[lancedb\]'"
    ):
        fill(trained, tmp_path / "lance")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"options": {"indx": "none"}}, "unknown key 'indx'; did you mean 'index'"),
        ({"limit": 5}, "sink lancedb has no option 'limit'"),
    ],
)
def test_wrong_option_is_refused(trained, tmp_path, more, message):
    with pytest.raises(ConfigError, match=message):
        fill(trained, tmp_path / "lance", **more)
