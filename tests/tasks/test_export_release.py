"""Exports that a graph spec lists: after the release, once, and shown."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from pbg_tasks.config import GraphSpec, RunSpec, load_graph_spec
from pbg_tasks.config.base import parse
from pbg_tasks.errors import ConfigError, ConflictError, QualityGateError
from pbg_tasks.publish.exchange.manifest import MANIFEST, MARK
from pbg_tasks.publish.skips import when_skipped
from pbg_tasks.tasks.context import RunContext
from pbg_tasks.tasks.exchange import export as exchange
from pbg_tasks.tasks.nightly.chain import TASKS, run_chain, run_task
from pbg_tasks.tasks.nightly.export_release import export_release, export_release_part
from pbg_tasks.tasks.nightly.plan import plan
from pbg_tasks.tasks.release.releases import rollback
from tests.operators.specs import small_spec
from tests.tasks.conftest import ring
from tests.tasks.exchanges import files


def test_night_makes_the_exports_of_its_spec(place):
    place.snapshot("d1", ring(40))
    place.write_spec(
        exports=[
            {"format": "npy"},
            {"format": "word2vec", "name": "gensim", "destination": f"{place.root}/vectors/{{snapshot}}/w2v"},
        ]
    )
    summary = run_chain(place.spec, "d1")
    run_id = summary["run"].rpartition("/")[2]
    assert summary["exports"] == {
        "npy": f"{place.store}/exports/npy/{run_id}",
        "gensim": f"{place.root}/vectors/d1/w2v",
    }
    manifest = json.loads((place.store / "exports" / "npy" / run_id / MANIFEST).read_text())
    assert manifest["source"]["url"] == summary["release"]["directory"]
    contract = manifest["source"]["contract"]
    assert (contract["space"], contract["dimensions"], contract["comparator"]) == (run_id, {"n": 8}, "l2")
    assert len(np.load(place.store / "exports" / "npy" / run_id / "n.npy")) == 40
    assert (place.root / "vectors" / "d1" / "w2v" / "n.txt").read_text().startswith("40 8\n")


def test_export_is_made_once_despite_a_crash(place):
    place.snapshot("d1", ring(40))
    place.write_spec(exports=[{"format": "npy", "destination": f"{place.root}/out/{{run}}"}])
    run = run_chain(place.spec, "d1")["run"]
    out = place.root / "out" / run.rpartition("/")[2]
    (out / "n.npy").write_bytes(b"half")
    export_release(run, "npy")
    assert (out / "n.npy").read_bytes() == b"half"  # done before, nothing to do
    (place.store / "runs" / run.rpartition("/")[2] / "results" / "export-npy.json").unlink()
    (out / MANIFEST).unlink()
    export_release(run, "npy")
    assert len(np.load(out / "n.npy")) == 40
    assert MANIFEST in files(out)


def test_only_published_run_is_exported(place):
    place.snapshot("d1", ring(40))
    place.write_spec(exports=[{"format": "npy"}])
    summary = run_chain(place.spec, "d1", publish=False)
    assert summary["exports"] == {}
    with pytest.raises(ConfigError, match="was not published"):
        export_release(summary["run"], "npy")
    with pytest.raises(ConfigError, match=r"its spec lists no export 'parquet'; it lists npy"):
        export_release(summary["run"], "parquet")


def test_parts_of_night_write_what_one_task_writes(place):
    place.snapshot("d1", ring(40))
    place.write_spec({"num_epochs": 1}, exports=[{"format": "npy", "parts": 2}])
    run = run_chain(place.spec, "d1")["run"]
    store, out = RunContext.open(run).store, place.store / "exports" / "npy" / run.rpartition("/")[2]
    result = f"runs/{run.rpartition('/')[2]}/results/export-npy"
    whole = {name: (out / name).read_bytes() for name in files(out)}
    assert {"n/part-00000.npy", "n/part-00001.npy"} < whole.keys()
    store.delete(f"{result}.json")
    assert export_release(run, "npy", parts=2)["types"]["n"]["rows"] == 40  # the export was complete
    shutil.rmtree(out)
    store.delete(f"{result}.json")
    assert export_release_part(run, "npy", "2/2")["part"] == "2/2"
    with pytest.raises(ConfigError, match=rf"part 1/2 .* run `pbg export-release {run} npy --part 1/2`"):
        export_release(run, "npy", parts=2)
    export_release_part(run, "npy", "1/2")
    export_release(run, "npy", parts=2)
    assert {name: (out / name).read_bytes() for name in files(out)} == whole
    assert not (out / "_parts").exists()
    assert "part" not in json.loads(store.get(f"{result}.json").data)


def test_sink_of_night_has_no_parts(place):
    place.snapshot("d1", ring(40))
    place.write_spec(exports=[{"format": "lancedb"}])
    run = plan(place.spec, "d1")["run"]
    with pytest.raises(ConfigError, match="export lancedb: sink lancedb is filled as a whole"):
        export_release(run, "lancedb", parts=3)
    with pytest.raises(ConfigError, match="export lancedb: sink lancedb is filled as a whole"):
        export_release_part(run, "lancedb", "1/3")


class Shared:
    """A graph whose nights export to one location for each snapshot."""

    def __init__(self, place):
        self.place, self.out = place, place.root / "out"
        for day in ("d1", "d2"):
            place.snapshot(day, ring(40))

    def release(self, snapshot, lr, **sections):
        """Publish a night without its exports; return its URL."""
        exports = [{"format": "npy", "destination": f"{self.out}/{{snapshot}}"}]
        self.place.write_spec({"num_epochs": 1, "lr": lr}, **{"exports": exports, **sections})
        run = plan(self.place.spec, snapshot)["run"]
        for task in TASKS:
            run_task(task, run)
        return run

    def source(self, snapshot="d1"):
        """Return the run of the complete export at the destination."""
        assert not (self.out / snapshot / MARK).exists()
        return json.loads((self.out / snapshot / MANIFEST).read_text())["source"]["url"].removesuffix("/release")


@pytest.fixture
def shared(place):
    return Shared(place)


def test_late_export_does_not_replace_newer_one(shared):
    late, redo = shared.release("d1", 0.1), shared.release("d1", 0.2)
    export_release(redo, "npy")
    with pytest.raises(ConflictError, match=r"'d1' was published again as release 2 \(d1-.*, whose export belongs at"):
        export_release(late, "npy")
    assert shared.source() == redo
    rollback(shared.place.spec)  # the late one is served again
    export_release(late, "npy")
    assert shared.source() == late


@pytest.mark.parametrize("standing", [False, True])
def test_export_of_redo_beside_slow_one_stays(shared, monkeypatch, standing):
    slow = shared.release("d1", 0.1)
    if standing:
        export_release(slow, "npy")
        RunContext.open(slow).store.delete(f"runs/{slow.rpartition('/')[2]}/results/export-npy.json")
    real, redone = exchange.deliver, []

    def deliver(*args, **kwargs):
        if not redone:
            redone.append(shared.release("d1", 0.2))
            export_release(redone[0], "npy")
        return real(*args, **kwargs)

    monkeypatch.setattr(exchange, "deliver", deliver)
    with pytest.raises(ConflictError, match="was published again as release 2"):
        export_release(slow, "npy")
    assert [shared.source()] == redone


def test_late_export_is_made_at_free_location(shared):
    late, newer = shared.release("d1", 0.1), shared.release("d2", 0.1)
    redo = shared.release("d1", 0.2)  # recorded only: the channel stays at the newer snapshot
    with pytest.raises(ConfigError, match="was not published"):
        export_release(redo, "npy")
    export_release(late, "npy")
    assert shared.source() == late
    again = shared.release("d2", 0.2, exports=[])
    assert shared.place.channel().current().release.run == again.rpartition("/")[2]
    export_release(newer, "npy")
    assert shared.source("d2") == newer


def test_refused_export_leaves_its_night_released(place, monkeypatch):
    place.snapshot("d1", ring(40))
    place.write_spec({"num_epochs": 1}, exports=[{"format": "npy"}])

    def write(*_):
        raise QualityGateError("the index finds too little")

    monkeypatch.setattr(exchange, "writer", lambda *_: write)
    with pytest.raises(QualityGateError, match="finds too little"):
        run_chain(place.spec, "d1")
    channel = place.channel()
    run = RunContext.within(channel.store, channel.current().release.run)
    assert run.refusal() is None
    assert when_skipped(channel, "d1") is None


@pytest.mark.parametrize(
    ("exports", "message"),
    [
        ([{"format": "glove"}], "exports.0.format"),
        ([{"format": "npy"}, {"format": "npy"}], "two exports have the same name"),
        ([{"format": "npy", "parts": 2}, {"format": "tsv", "name": "npy-1-of-2"}], "have the name of another export"),
        ([{"format": "npy", "escape": True}], "format npy has no option 'escape'"),
        ([{"format": "npy", "destination": "/data/out"}], r"destination must contain \{run\} or \{snapshot\}"),
        ([{"format": "npy", "types": ["thing"]}], "names entity type 'thing', which the model has not"),
        ([{"format": "npy", "name": "a/b"}], "exports.0.name"),
        ([{"format": "faiss", "min_recal": 0.9}], "did you mean 'min_recall'"),
    ],
)
def test_spec_with_wrong_exports_is_refused(tmp_path, exports, message):
    with pytest.raises(ConfigError, match=message):
        parse(GraphSpec, {**small_spec(tmp_path, "g"), "exports": exports}, source="g.yaml")


@pytest.mark.parametrize(
    "second",
    [
        {"destination": "/v/"},
        {"destination": "/v", "options": {"collection": "toy_production"}},  # as the other has by default
    ],
)
def test_exports_of_same_aliases_are_refused(place, second):
    exports = [{"format": "lancedb", "name": "b", "destination": "/v"}, {"format": "lancedb", "name": "c"} | second]
    place.write_spec(exports=[{"format": "lancedb"}, *exports])
    with pytest.raises(ConfigError, match=r"graph.yaml: exports 'b' and 'c' would move the same aliases"):
        load_graph_spec(place.spec)
    graph = small_spec(place.root, "toy") | {"exports": exports}
    assert parse(RunSpec, {"graph": graph, "snapshot": "d1", "files": []}, source="stored by an earlier version")


def test_exports_to_one_folder_are_refused(place):
    folder = f"{place.root}/out/{{snapshot}}"
    place.write_spec(
        exports=[{"format": "npy", "destination": folder}, {"format": "parquet", "destination": f"{folder}/"}]
    )
    with pytest.raises(ConfigError, match="exports 'npy' and 'parquet' have one destination, "):
        load_graph_spec(place.spec)


def test_destinations_of_an_export_are_expanded(place):
    place.write_spec(
        exports=[{"format": "faiss", "min_recall": 0.5}, {"format": "npy", "destination": "s3://b/x-{run}/y"}]
    )
    first, second = load_graph_spec(place.spec).exports
    assert first.place("/store/") == "/store/exports/faiss"
    assert first.resolve("/store/", run="r", snapshot="s") == "/store/exports/faiss/r"
    assert second.place("/store") == "s3://b/x-"
    assert second.resolve("/store", run="r", snapshot="s") == "s3://b/x-r/y"
    assert (first.name, first.min_recall, first.task) == ("faiss", 0.5, "export-faiss")
