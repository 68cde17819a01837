"""The whole chain on a small graph, without a scheduler.

Nights, retries, kills, and rollbacks. The file is longer than others: all of it shares one small graph.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

from pbg_tasks.checkpoint import claim
from pbg_tasks.config.base import canonical_json
from pbg_tasks.config.run import run_id_of
from pbg_tasks.errors import ConfigError, ConflictError, FormatError, QualityGateError, TrainingDivergedError
from pbg_tasks.formats.embeddings import read_embeddings
from pbg_tasks.formats.entities import read_entity_names, read_relation_names
from pbg_tasks.tasks.context import RunContext
from pbg_tasks.tasks.nightly.chain import TASKS, run_chain, run_task
from pbg_tasks.tasks.nightly.plan import plan
from pbg_tasks.tasks.release.releases import rollback
from pbg_tasks.tasks.view.show import history, show, show_task
from pbg_tasks.tasks.view.tables import table
from tests.tasks.conftest import ring


def contents(root):
    """Hash every object of a store but locks."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(Path(root).rglob("*"))
        if path.is_file() and ".pbg" not in path.parts
    }


def test_second_night_continues_the_first(place):
    place.snapshot("d1", ring(120))
    first = run_chain(place.spec, "d1")
    assert first["finished"] == ["plan", *TASKS]
    assert first["entities"] == dict.fromkeys(("kept", "gone", "returned", "absent"), 0) | {"total": 120, "new": 120}
    edges = first["edges"]
    assert edges["train"] + edges["valid"] + edges["test"] + edges["dropped"] == edges["total"] == 360
    assert first["release"] == {
        "channel": "production",
        "release": 1,
        "directory": f"{place.store}/runs/{Path(first['run']).name}/release",
        "published": True,
        "rolled_back": False,
    }
    assert len(first["curve"]) == 3
    assert first["curve"][-1] < first["curve"][0]
    assert first["metrics"]["filtered"]["mrr"] > 2 * first["metrics"]["random"]["mrr"]

    # the next night ten entities are new and ten are gone
    place.snapshot("d2", [row for row in ring(120) if "e7" not in (row[0], row[2])] + ring(10, first=500))
    second = run_chain(place.spec, "d2", epochs=1)
    assert second["warm_start"] is True
    assert second["epochs"] == 1
    assert second["entities"] == {"total": 130, "new": 10, "kept": 119, "gone": 1, "returned": 0, "absent": 0}
    assert show_task(second["run"], "drift")["types"]["n"]["gone"] == 1
    assert second["curve"][0] < first["curve"][0]
    assert second["changes"]["since"] == "d1"
    assert second["changes"]["new_entities"] == 10
    mrr = second["against"]
    assert second["changes"]["filtered_mrr"] == round(mrr["candidate"] - mrr["current"], 8)
    assert [release["current"] for release in history(place.spec)] == [False, True]
    assert "d2" in table([first, second])


def test_release_is_plain_pbg_directory_with_names(place):
    place.snapshot("d1", ring(40))
    release = Path(run_chain(place.spec, "d1")["release"]["directory"])
    assert (release / "checkpoint_version.txt").read_text() == "3\n"
    config = json.loads((release / "config.json").read_text())
    assert (config["entity_path"], config["checkpoint_path"], config["num_epochs"]) == (".", ".", 3)
    counts = [int((release / f"entity_count_n_{p}.txt").read_text()) for p in range(2)]
    names = [read_entity_names(release, "n", p, count=counts[p]) for p in range(2)]
    assert sorted(names[0] + names[1]) == sorted(f"e{i}" for i in range(40))
    for partition, count in enumerate(counts):
        embeddings, sums = read_embeddings(release / f"embeddings_n_{partition}.v3.h5", count=count, dimension=8)
        assert np.isfinite(embeddings).all()
        assert (sums > 0).all()
    assert read_relation_names(release) == ["far", "next", "skip"]
    with h5py.File(release / "model.v3.h5") as model:
        assert model["model/relations/0/operator/lhs/translations"].shape == (3, 8)


@pytest.mark.rotated(3)
def test_ids_and_known_rows_stay_at_start(place):
    place.snapshot("d1", ring(60))
    first = Path(run_chain(place.spec, "d1")["release"]["directory"])
    place.snapshot("d2", ring(60)[:150] + ring(30, first=1000))
    second = Path(run_chain(place.spec, "d2", epochs=0)["release"]["directory"])
    for partition in range(2):
        before, after = (read_entity_names(directory, "n", partition) for directory in (first, second))
        assert after[: len(before)] == before
        old, old_sums = read_embeddings(first / f"embeddings_n_{partition}.v3.h5")
        new, new_sums = read_embeddings(second / f"embeddings_n_{partition}.v0.h5")
        np.testing.assert_array_equal(new[: len(old)], old)
        np.testing.assert_array_equal(new_sums[: len(old)], old_sums)
        assert (new_sums[len(old) :] == 0).all()


def test_doing_everything_twice_changes_nothing(place):
    place.snapshot("d1", ring(50))
    begun = time.monotonic()
    first = run_chain(place.spec, "d1")
    before, started = contents(place.store), time.monotonic()
    assert run_chain(place.spec, "d1") == first
    assert time.monotonic() - started < (started - begun) / 2  # of the same machine at the same load
    assert contents(place.store) == before


def test_other_bytes_of_earlier_try_name_remedy(place):
    place.snapshot("d1", ring(40))
    url = plan(place.spec, "d1")["run"]
    run_task("validate", url)
    store = RunContext.open(url).store
    key = RunContext.open(url).key("entities/entity_count_n_0.txt")
    store.put_new(key, b"9")  # as a try by another version of DuckDB might have left it
    with pytest.raises(ConflictError, match=r"n_0.txt exists already.*; an earlier .*would: .* remove .*/entities and"):
        run_task("partition", url)
    for info in list(store.list(key.rpartition("/")[0])):
        store.delete(info.key)
    assert run_task("partition", url)["entities"]["total"] == 40


@pytest.mark.rotated(3)
def test_two_stores_get_the_same_bytes(place):
    place.snapshot("d1", ring(50))
    found = []
    for name in ("a", "b"):
        place.store = place.root / name / "store"
        place.write_spec()
        run = Path(run_chain(place.spec, "d1")["run"])
        found.append({key: value for key, value in contents(run).items() if key.startswith(("entities/", "edges/"))})
        embeddings = [read_embeddings(path)[0] for path in sorted((run / "release").glob("embeddings_*"))]
        found[-1]["vectors"] = [array.tobytes() for array in embeddings]
    assert found[0] == found[1]


def test_each_task_needs_the_one_before(place):
    place.snapshot("d1", ring(50))
    run = plan(place.spec, "d1")["run"]
    for name in list(TASKS)[1:]:
        with pytest.raises(ConfigError, match="run it first"):
            run_task(name, run)


PATIENT = "import time; from pbg_tasks.training.engine.base import Engine as E; step = E.train_bucket\n"
SLOW = PATIENT + "E.train_bucket = lambda *a, **k: (time.sleep(0.2), step(*a, **k))[1]\n"


def start_training(run):
    code = SLOW + "import sys; sys.argv = ['pbg', 'train', sys.argv[1]]\nfrom pbg_tasks.cli import main; main()"
    return subprocess.Popen([sys.executable, "-c", code, run], stderr=subprocess.PIPE, text=True, env={**os.environ})


def wait_for(process, text):
    for line in process.stderr:
        if text in line:
            return
    raise AssertionError(f"ended without saying {text!r}")


def prepared(place, day="d1", **options):
    run = plan(place.spec, day, **options)["run"]
    for name in ("validate", "partition", "bucket"):
        run_task(name, run)
    return run


@pytest.mark.rotated(3)
def test_killed_training_loses_at_most_one_epoch(place):
    place.snapshot("d1", ring(80))
    run = prepared(place)
    with start_training(run) as process:
        wait_for(process, "epoch 1/3 committed")
        os.kill(process.pid, signal.SIGKILL)
    checkpoint = Path(run) / "checkpoint"
    assert json.loads((checkpoint / "HEAD.json").read_text())["version"] == 1
    result = run_task("train", run)
    assert result["version"] == 3
    assert result["edges_trained"] == 3 * sum(
        map(sum, json.loads((Path(run) / "results/bucket.json").read_text())["matrix"])
    )
    assert len((checkpoint / "training_stats.json").read_text().splitlines()) == 3 * 4
    assert len((checkpoint / "training_io.json").read_text().splitlines()) == 3

    # an uninterrupted training of the same run gives the same bits
    place.store = place.root / "other"
    place.write_spec()
    whole = prepared(place)
    run_task("train", whole)
    for partition in range(2):
        name = f"embeddings_n_{partition}.v3.h5"
        for one, other in zip(*(read_embeddings(Path(r) / "checkpoint" / name) for r in (run, whole)), strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.rotated(3)
def test_second_training_of_one_run_is_refused(place, monkeypatch):
    place.snapshot("d1", ring(80))
    run = prepared(place, epochs=15)
    monkeypatch.setattr(
        "pbg_tasks.tasks.training.gang.claim", lambda *place, **how: claim(*place, **how | {"patience": 7})
    )
    with start_training(run) as process:
        wait_for(process, "epoch 1/15 committed")
        with pytest.raises(ConflictError, match="is alive and owns this run"):
            run_task("train", run)
        assert process.poll() is None
        process.communicate()
    assert process.returncode == 0
    assert run_task("train", run)["version"] == 15


def test_divergence_commits_nothing(place):
    place.snapshot("d1", ring(80))
    place.write_spec(model={"lr": 1e30, "comparator": "dot", "loss_fn": "logistic"})
    run = prepared(place)
    with pytest.raises(TrainingDivergedError, match=r"epoch \d, bucket .*lr"):
        run_task("train", run)
    head = json.loads((Path(run) / "checkpoint" / "HEAD.json").read_text())
    version = head["version"]
    for path in (Path(run) / "checkpoint").glob(f"embeddings_*.v{version}.h5"):
        assert np.isfinite(read_embeddings(path)[0]).all()


def test_gate_keeps_a_bad_night_from_readers(place):
    place.snapshot("d1", ring(80))
    run_chain(place.spec, "d1")
    place.write_spec(gates={"min_mrr": 0.99})
    place.snapshot("d2", ring(80)[:200])
    for _ in range(2):  # the second try gives the same answer
        with pytest.raises(QualityGateError, match=r"filtered MRR 0\.\d+, at least 0.99 asked"):
            run_chain(place.spec, "d2")
    assert place.channel().current().release.snapshot == "d1"


def test_run_planned_without_publishing_is_not_published(place):
    place.snapshot("d1", ring(80))
    summary = run_chain(place.spec, "d1", publish=False)
    assert summary["release"] is None
    assert history(place.spec) == []


def test_rollback_serves_the_release_before(place):
    for day in ("d1", "d2"):
        place.snapshot(day, ring(80 + int(day[1])))
        run_chain(place.spec, day)
    started = time.monotonic()
    assert rollback(place.spec)["release"] == 1
    assert time.monotonic() - started < 5
    assert [release["current"] for release in history(place.spec)] == [True, False]


def test_other_model_starts_anew_and_keeps_ids(place, capsys):
    place.snapshot("d1", ring(60))
    place.snapshot("d2", ring(60))
    run_chain(place.spec, "d1")
    second = run_chain(place.spec, "d2", dimension=12, overrides=["model.comparator=dot"], publish=False)
    assert "vectors start anew (other dimension, comparator)\n" in capsys.readouterr().err
    assert second["warm_start"] is False
    assert second["entities"]["kept"] == 60
    third = run_chain(place.spec, "d2", partitions=3, publish=False)
    assert third["entities"]["new"] == 60


@pytest.mark.parametrize("split", [{"valid": 0.02, "test": 0.2}, {"valid": 0.02, "test": 0.1, "salt": "other"}])
def test_other_split_starts_vectors_anew(place, split):
    place.snapshot("d1", ring(60))
    place.snapshot("d2", ring(60))
    run_chain(place.spec, "d1")
    place.write_spec(split=split, gates={"max_mrr_drop": 0.000001})  # no compared night would pass it
    second = run_chain(place.spec, "d2", epochs=1, publish=False)
    (drop,) = (check for check in second["gate"]["checks"] if check["name"] == "max_mrr_drop")
    assert drop["value"] is None
    assert second["warm_start"] is False
    assert second["entities"]["kept"] == 60


@pytest.mark.rotated(3)
def test_other_number_of_candidates_draws_them_anew(place, capsys):
    def night(key, limit):
        place.write_spec(eval={"max_candidates": limit})
        place.snapshot(key, ring(60))
        run = run_chain(place.spec, key, epochs=1)["run"]
        return RunContext.open(run).require("eval")["candidates"]["n"], (Path(run) / "candidates").read_bytes()

    first, sample = night("d1", 30)
    assert first == 30
    assert night("d2", 30) == (30, sample)
    assert "not used again" not in capsys.readouterr().err
    fewer, drawn = night("d3", 10)
    assert fewer == 10
    said = (
        "the candidates of release 2 were drawn with eval.max_candidates 30, which is 10 now: they are not used again"
    )
    assert capsys.readouterr().err.count(said) == 1
    assert night("d4", 10) == (10, drawn)
    assert night("d5", 40)[0] == 40


def test_preserved_versions_are_kept_as_by_pbg(place):
    place.write_spec(model={"num_epochs": 5, "checkpoint_preservation_interval": 2})
    place.snapshot("d1", ring(60))
    checkpoint = Path(run_chain(place.spec, "d1")["run"]) / "checkpoint"
    assert sorted(path.name for path in checkpoint.glob("epoch_*")) == ["epoch_2", "epoch_4"]
    assert (checkpoint / "epoch_4" / "checkpoint_version.txt").read_text() == "4\n"
    assert (checkpoint / "epoch_4" / "embeddings_n_0.v4.h5").is_file()
    assert not list(checkpoint.glob("*.v4.h5"))


def test_training_continues_without_blocked_preserved_version(place, capsys):
    place.write_spec(model={"num_epochs": 2, "checkpoint_preservation_interval": 1})
    place.snapshot("d1", ring(60))
    run = plan(place.spec, "d1")["run"]
    for task in ("validate", "partition", "bucket"):
        run_task(task, run)
    other = Path(run) / "checkpoint" / "epoch_1" / "embeddings_n_0.v1.h5"
    other.parent.mkdir(parents=True)
    other.write_bytes(b"of someone else")
    with pytest.raises(ConflictError, match="epoch_1"):
        run_task("train", run)
    assert run_task("train", run)["version"] == 2
    assert "warning: no copy of version 1 is kept: " in capsys.readouterr().err
    assert other.read_bytes() == b"of someone else"
    assert (Path(run) / "checkpoint" / "epoch_2" / "manifest.json").is_file()


def test_hand_edited_run_spec_is_refused(place):
    place.snapshot("d1", ring(60))
    run = plan(place.spec, "d1")["run"]
    spec = Path(run) / "spec.json"
    spec.write_bytes(spec.read_bytes().replace(b'"dimension":8', b'"dimension":9'))
    with pytest.raises(FormatError, match="changed after it was planned"):
        run_task("validate", run)


def test_run_planned_with_fewer_keys_continues(place):
    place.snapshot("d1", ring(60))
    now = Path(plan(place.spec, "d1")["run"])
    document = json.loads((now / "spec.json").read_bytes())
    del document["accepted"], document["graph"]["gates"], document["graph"]["train"]["anchor"]
    data = canonical_json(document)
    before = now.with_name(run_id_of("d1", data))
    assert before != now
    now.rename(before)
    (before / "spec.json").write_bytes(data)
    for task in TASKS:
        run_task(task, str(before))
    assert RunContext.open(str(before)).spec_hash == hashlib.sha256(data).hexdigest()
    assert show(str(before))["release"]["release"] == 1
    place.snapshot("d2", ring(62))
    second = run_chain(place.spec, "d2")
    assert (second["release"]["release"], second["entities"]["kept"]) == (2, 60)


def test_snapshot_changed_since_planning_is_refused(place):
    place.snapshot("d1", ring(60))
    run = plan(place.spec, "d1")["run"]
    place.snapshot("d1", ring(61))
    with pytest.raises(Exception, match="changed since the run was planned"):
        run_task("validate", run)


def test_run_that_has_only_begun_is_shown(place):
    place.snapshot("d1", ring(60))
    summary = show(plan(place.spec, "d1")["run"])
    assert summary["finished"] == ["plan"]
    assert summary["metrics"] == {}
    assert "-" in table([summary])
