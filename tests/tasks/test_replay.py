"""A release made again has the same bytes.

Otherwise the report names the files that differ.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pbg_tasks.checkpoint import ObjectRecord
from pbg_tasks.cli import app
from pbg_tasks.errors import ConfigError, InputError
from pbg_tasks.publish.collection import collect
from pbg_tasks.publish.retention import Retention
from pbg_tasks.storage import open_store
from pbg_tasks.tasks.nightly.chain import run_chain
from pbg_tasks.tasks.release.replay import _compare, replay, replay_release
from tests.tasks.conftest import ring


def test_night_of_chain_is_replayed_bit_for_bit(place):
    place.write_spec(model={"num_epochs": 1})
    place.snapshot("d1", ring(60))
    run_chain(place.spec, "d1")
    place.snapshot("d2", ring(70))
    second = run_chain(place.spec, "d2")
    assert second["warm_start"]
    elsewhere = place.root / "elsewhere"
    told = replay(second["release"]["directory"], into=str(elsewhere))
    assert told["equal"], told["files"]
    assert {"config.json", "model.v1.h5", "embeddings_n_0.v1.h5", "embeddings_n_1.v1.h5"} <= told["files"].keys()
    assert set(told["files"].values()) == {"equal"}

    run = Path(second["run"])
    for name in ("manifest.json", "model.v1.h5"):
        made, published = (root / "release" / name for root in (elsewhere / "runs" / run.name, run))
        assert made.read_bytes() == published.read_bytes()

    # the copied release counts as a run for the collection, and goes when no other run needs it
    copied = open_store(str(elsewhere))
    collect(copied, Retention(0, 0), grace=0.0)
    assert not list(copied.list("runs/"))
    collect(copied, Retention(0, 0), grace=0.0)

    # the release may be named by its number, too
    called = CliRunner().invoke(app, ["replay", str(place.spec), "2", "--json"])
    assert called.exit_code == 0, called.output
    assert json.loads(called.stdout) == told
    with pytest.raises(InputError, match="has no release 9"):
        replay_release(place.spec, 9)

    # everything that it needs must still exist unchanged
    place.snapshot("d2", ring(71))
    with pytest.raises(InputError, match="changed since the run was planned"):
        replay(str(run))
    (Path(place.store) / "runs" / next(p.name for p in run.parent.glob("d1-*")) / "release" / "manifest.json").unlink()
    with pytest.raises(InputError, match=r"continued release 1 \(d1-.*there no more"):
        replay(str(run))


def test_replay_that_would_find_results_is_refused(place):
    place.write_spec(model={"num_epochs": 1})
    place.snapshot("d1", ring(40))
    run = run_chain(place.spec, "d1")["run"]
    with pytest.raises(ConfigError, match="the run's own store"):
        replay(run, into=f"{place.store}/")
    elsewhere = place.root / "elsewhere"
    assert replay(run, into=str(elsewhere))["equal"]
    with pytest.raises(ConfigError, match=r"elsewhere/runs/d1-\w+: was made there before; name another store"):
        replay(run, into=str(elsewhere))
    link = place.root / "link"
    link.symlink_to(place.store)
    with pytest.raises(ConfigError, match="was made there before"):
        replay(run, into=str(link))
    made = elsewhere / "runs" / Path(run).name
    (made / "results" / "preserve.json").unlink()  # as left by an interrupted one
    assert replay(run, into=str(elsewhere))["equal"]


def test_files_that_differ_are_named():
    records = {name: ObjectRecord(sha256=digit * 64, size=1) for name, digit in (("a", "1"), ("b", "2"), ("c", "3"))}
    made = {"a": records["a"], "b": records["c"], "d": records["c"]}
    assert _compare(records, made) == {"a": "equal", "b": "different", "c": "missing", "d": "new"}


def test_run_of_several_ranks_is_refused(place):
    place.write_spec(model={"num_epochs": 1})
    place.snapshot("d1", ring(40))
    run = run_chain(place.spec, "d1")["run"]
    result = Path(run) / "results" / "train.json"
    result.write_text(json.dumps(json.loads(result.read_text()) | {"ranks": 2}))
    with pytest.raises(ConfigError, match="number of ranks is 2, so its bytes depend on timing"):
        replay(run)


def test_run_of_several_workers_is_refused(place):
    place.write_spec(model={"num_epochs": 1, "workers": 2})
    place.snapshot("d1", ring(40))
    with pytest.raises(ConfigError, match="workers is 2, so its bytes depend on timing"):
        replay(run_chain(place.spec, "d1")["run"])


def test_index_of_names_published_without_one_is_ignored():
    record = ObjectRecord(sha256="0" * 64, size=1)
    published = {"a": record, "entity_index_old.arrow": record}
    made = {"a": record, "entity_index_n.arrow": record, "entity_index_n.sha256": record}
    assert _compare(published, made) == {"a": "equal", "entity_index_old.arrow": "missing"}
