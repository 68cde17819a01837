"""Rows that move on purpose.

Releases in other partitions, releases without vanished entities, and adopted checkpoints.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from pbg_tasks import Model
from pbg_tasks.errors import ConfigError, ConflictError, FormatError, InputError
from pbg_tasks.formats.embeddings import read_embeddings
from pbg_tasks.formats.entities import read_entity_names
from pbg_tasks.formats.entity_sets import EntitySet
from pbg_tasks.formats.model import read_model
from pbg_tasks.prepare.ids import partition_of
from pbg_tasks.publish import Channel
from pbg_tasks.storage import open_store
from pbg_tasks.tasks.context import RunContext
from pbg_tasks.tasks.nightly.chain import run_chain, run_task
from pbg_tasks.tasks.nightly.plan import plan
from pbg_tasks.tasks.release.adopt import adopt
from pbg_tasks.tasks.release.moved_release import store_release
from pbg_tasks.tasks.release.releases import rollback
from pbg_tasks.tasks.release.repartition import repartition
from pbg_tasks.tasks.release.replay import replay_release
from tests.tasks.conftest import ring


def rows_by_name(directory, version, partitions):
    """Return (embedding bytes, optimizer sum) of every entity.

    Checks that its partition is that of its name.
    """
    found = {}
    for part in range(partitions):
        embeddings, sums = read_embeddings(directory / f"embeddings_n_{part}.v{version}.h5")
        names = read_entity_names(directory, "n", part, count=len(embeddings))
        assert all(partition_of(name, partitions) == part for name in names)
        assert (directory / f"entity_count_n_{part}.txt").read_text() == f"{len(names)}\n"
        found |= {name: (row.tobytes(), value) for name, row, value in zip(names, embeddings, sums, strict=True)}
    return found


def model(partitions):
    return {"entities": {"n": {"num_partitions": partitions}}}


def sample(release):
    """Return the names of a release's ranking candidates.

    A moved release stands for the one that was ranked.
    """
    data = (release.parent / "candidates").read_bytes()
    chosen = EntitySet.from_bytes(data)
    return {
        read_entity_names(release, "n", part)[offset]
        for part, offset in zip(chosen.partition["n"].tolist(), chosen.offset["n"].tolist(), strict=True)
    }


@pytest.mark.parametrize(("before", "after"), [(2, 3), (4, 1)])
def test_every_row_moves_exactly_and_nights_continue(place, before, after):
    place.write_spec(model(before), eval={"max_candidates": 30})
    place.snapshot("d1", ring(60))
    first = Path(run_chain(place.spec, "d1", epochs=2)["release"]["directory"])
    place.write_spec(model(after), eval={"max_candidates": 30})
    moved = repartition(place.spec)
    release = Path(moved["directory"])
    assert (moved["moved"], moved["was"], moved["release"]) == (True, 1, 2)
    with pytest.raises(InputError, match="there is no training that could be replayed"):
        replay_release(place.spec, 2)
    assert moved["entities"] == {"n": 60}
    assert rows_by_name(release, 2, after) == rows_by_name(first, 2, before)
    ours, theirs = (read_model(directory / "model.v2.h5") for directory in (release, first))
    for kept, given in ((ours.params, theirs.params), (ours.sums, theirs.sums)):
        assert kept.keys() == given.keys()
        assert all(np.array_equal(kept[name], given[name]) for name in given)
    assert json.loads((release / "config.json").read_text())["entities"]["n"]["num_partitions"] == after
    for name in ("returned.parquet", "edge_hashes.parquet"):
        assert (release / name).read_bytes() == (first / name).read_bytes()
    assert len(sample(first)) == 30
    assert sample(release) == sample(first)
    # the same move again finds it done
    assert repartition(place.spec) == {
        "task": "repartition",
        "channel": "production",
        "release": 2,
        "partitions": {"n": after},
        "moved": False,
    }
    # a night of no epochs keeps every vector, and its gate compares with the night before the move
    place.snapshot("d2", ring(60, seed=1))
    night = run_chain(place.spec, "d2", epochs=0)
    assert night["warm_start"]
    assert sample(Path(night["release"]["directory"])) == sample(first)
    assert next(check["value"] for check in night["gate"]["checks"] if check["name"] == "max_mrr_drop") is not None
    assert night["entities"] == {"total": 60, "new": 0, "kept": 60, "gone": 0, "returned": 0, "absent": 0}
    again = rows_by_name(Path(night["release"]["directory"]), 0, after)
    assert {name: row for name, (row, _) in again.items()} == {
        name: row for name, (row, _) in rows_by_name(first, 2, before).items()
    }


def test_plan_with_other_partitions_suggests_the_migration(place, capsys):
    place.snapshot("d1", ring(40))
    run_chain(place.spec, "d1", epochs=1)
    place.write_spec(model(3))
    place.snapshot("d2", ring(40))
    assert plan(place.spec, "d2")["warm_start"] is False
    assert "`pbg repartition`" in capsys.readouterr().err


def test_plan_with_other_entity_types_names_them(place, capsys):
    def spec(*relations):
        types = dict.fromkeys(name for _, *ends in relations for name in ends)
        place.write_spec(
            {
                "entities": {name: {"num_partitions": 1} for name in types},
                "relations": [dict(zip(("name", "lhs", "rhs"), each, strict=True)) for each in relations],
                "dynamic_relations": False,
            }
        )

    buys, made = ("buys", "user", "item"), ("made by", "item", "brand")
    rows = [(f"u{i}", "buys", f"i{(i + step) % 40}") for i in range(40) for step in (0, 1, 5)]
    spec(buys)
    place.snapshot("d1", rows)
    run_chain(place.spec, "d1", epochs=1)
    spec(buys, made)
    place.snapshot("d2", [*rows, *((f"i{i}", "made by", f"b{i % 4}") for i in range(40))])
    previous = RunContext.open(plan(place.spec, "d2")["run"]).spec.previous
    assert not previous.keep_ids
    assert previous.reason == "the entity types differ from release 1's (brand is new): ids and vectors start anew"
    assert f"warning: {previous.reason}" in capsys.readouterr().err
    spec(("knows", "user", "user"))
    place.snapshot("d2", [(f"u{i}", "knows", f"u{(i + 1) % 40}") for i in range(40)])
    previous = RunContext.open(plan(place.spec, "d2")["run"]).spec.previous
    assert "(item is gone)" in previous.reason


def test_compaction_drops_entities_unseen_for_some_nights(place):
    place.write_spec(vanished={"nights": 2})
    place.snapshot("d1", ring(50) + ring(6, first=100) + ring(7, first=200))
    run_chain(place.spec, "d1", epochs=1)
    place.snapshot("d2", ring(50) + ring(7, first=200))
    run_chain(place.spec, "d2", epochs=1)
    assert repartition(place.spec, compact=True)["moved"] is False  # one night is not two
    place.snapshot("d3", ring(50))
    before = Path(run_chain(place.spec, "d3", epochs=1)["release"]["directory"])
    moved = repartition(place.spec, compact=True)
    assert (moved["dropped"], moved["entities"]) == ({"n": 6}, {"n": 57})
    assert place.channel().current().release.data["entities"]["total"] == 57
    kept = rows_by_name(Path(moved["directory"]), 1, 2)
    everyone = rows_by_name(before, 1, 2)
    assert set(everyone) - set(kept) == {f"e{i}" for i in range(100, 106)}
    assert kept == {name: everyone[name] for name in kept}
    # a returning entity is new, at the end of its partition
    place.snapshot("d4", ring(50) + ring(6, first=100))
    fourth = run_chain(place.spec, "d4", epochs=1)
    assert fourth["entities"] == {"total": 63, "new": 6, "kept": 50, "gone": 0, "returned": 0, "absent": 7}


def test_repeated_day_does_not_undo_a_move(place):
    place.snapshot("d1", ring(40))
    run_chain(place.spec, "d1", epochs=1)
    place.snapshot("d2", ring(45))
    run_chain(place.spec, "d2", epochs=1)
    place.write_spec(model(3))
    repartition(place.spec)
    with pytest.raises(ConfigError, match=r"since release 3, of snapshot 'd2'; this night would continue release 1"):
        plan(place.spec, "d2", epochs=1)
    assert plan(place.spec, "d2", epochs=1, publish=False)["warm_start"] is False  # an experiment undoes nothing
    place.snapshot("d3", ring(50))
    assert run_chain(place.spec, "d3", epochs=1)["warm_start"]
    with pytest.raises(ConfigError, match="has had these partitions since release 3"):
        plan(place.spec, "d2", epochs=1)

    rollback(place.spec, to=1)
    repartition(place.spec)
    assert run_chain(place.spec, "d2", epochs=1)["warm_start"]


def test_move_to_other_partitions_than_specs_warns(place, capsys):
    place.snapshot("d1", ring(40))
    run_chain(place.spec, "d1", epochs=1)
    repartition(place.spec, partitions=2)
    assert "warning" not in capsys.readouterr().err
    repartition(place.spec, partitions=3)
    expected = f"warning: {place.spec}: model.entities.n.num_partitions is 2; write 3 before the next night"
    assert expected in capsys.readouterr().err


def test_move_rolled_back_from_names_its_return(place):
    channel = place.channel()
    place.snapshot("d1", ring(40))
    run_chain(place.spec, "d1", epochs=1)
    moved = repartition(place.spec, partitions=3)
    rollback(place.spec)
    with pytest.raises(ConflictError, match=r"back from release 2, .* `pbg rollback SPEC 2 --channel production`"):
        repartition(place.spec, partitions=3)
    assert channel.current().release.seq == 1
    rollback(place.spec, to=2)
    assert moved["directory"].endswith(channel.current().release.directory)
    assert repartition(place.spec, partitions=3)["moved"] is False


def test_move_replaces_no_redone_day(place, monkeypatch):
    channel, point = place.channel(), Channel._point
    place.snapshot("d1", ring(40))
    run_chain(place.spec, "d1", epochs=1)

    def late(*args, **how):
        monkeypatch.setattr(Channel, "_point", point)
        channel.publish({**channel.current().release.candidate(), "run": "d1-redone"}, planned_on=None)
        return point(*args, **how)

    monkeypatch.setattr(Channel, "_point", late)
    with pytest.raises(ConflictError, match="was moved while release 1 was: run this again"):
        repartition(place.spec, partitions=3)
    assert channel.current().release.run == "d1-redone"


@pytest.mark.parametrize("told", [True, False])
def test_sample_reduced_by_compaction_stays_in_use(place, told):
    """Include a version that did not store the sample's limit."""
    sections = {"vanished": {"nights": 1}, "eval": {"max_candidates": 50}}
    place.write_spec(**sections)
    place.snapshot("d1", ring(50) + ring(6, first=100))
    run_chain(place.spec, "d1", epochs=1)
    place.snapshot("d2", ring(50))
    second = Path(run_chain(place.spec, "d2", epochs=1)["run"])
    if not told:
        path = second / "candidates"
        path.write_bytes(replace(EntitySet.from_bytes(path.read_bytes()), limit=None).to_bytes())
    moved = Path(repartition(place.spec, compact=True)["directory"])
    assert len(sample(moved)) < 50
    place.snapshot("d3", ring(55))
    night = run_chain(place.spec, "d3", epochs=1)
    assert sample(Path(night["release"]["directory"])) == sample(moved)


def test_only_a_current_release_is_moved(place):
    with pytest.raises(InputError, match="no release yet"):
        repartition(place.spec)


def plain_checkpoint(place, partitions=1):
    """Train as PBG's own commands would.

    Returns the checkpoint and entity paths.
    """
    place.write_spec(model(partitions))
    place.snapshot("d0", ring(60))
    url = plan(place.spec, "d0")["run"]
    for task in ("validate", "partition", "bucket", "train"):
        run_task(task, url)
    (place.root / "edges" / "d0.tsv").unlink()  # it was no night
    return Path(url) / "checkpoint", Path(url) / "entities"


@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 3)])
def test_adopted_checkpoint_is_start_of_first_night(place, before, after):
    checkpoint, entities = plain_checkpoint(place, before)
    place.write_spec(model(after), store=str(place.root / "nights"))
    adopted = adopt(str(checkpoint), str(entities), place.spec)
    assert (adopted["release"], adopted["entities"], adopted["partitions"]) == (1, {"n": 60}, {"n": after})
    assert adopt(str(checkpoint), str(entities), place.spec) == adopted
    release = Path(adopted["directory"])
    theirs = {}
    for part in range(before):
        embeddings, sums = read_embeddings(checkpoint / f"embeddings_n_{part}.v3.h5")
        names = read_entity_names(entities, "n", part)
        theirs |= {name: (row.tobytes(), value) for name, row, value in zip(names, embeddings, sums, strict=True)}
    assert rows_by_name(release, 3, after) == theirs
    # the first night warm-starts: with no epochs, the same vectors for the same names
    place.snapshot("d1", ring(60, seed=3))
    night = run_chain(place.spec, "d1", epochs=0)
    assert (night["warm_start"], night["entities"]["kept"]) == (True, 60)
    there = rows_by_name(Path(night["release"]["directory"]), 0, after)
    assert {name: row for name, (row, _) in there.items()} == {name: row for name, (row, _) in theirs.items()}


def test_checkpoint_that_does_not_fit_is_refused(place):
    checkpoint, entities = plain_checkpoint(place)
    nights = {"store": str(place.root / "nights")}
    place.write_spec(model(1) | {"comparator": "cos", "dimension": 16}, **nights)
    with pytest.raises(ConfigError, match=r"n': 8} there and {'n': 16} here; comparator is l2 there and cos here"):
        adopt(str(checkpoint), str(entities), place.spec)
    place.write_spec(model(1), **nights)
    names = json.loads((entities / "entity_names_n_0.json").read_text())
    for bad, reason in ((names[:-1], "60"), ([names[0], *names[:-1]], "have the name"), (None, "missing")):
        path = entities / "entity_names_n_0.json"
        path.unlink() if bad is None else path.write_text(json.dumps(bad))
        with pytest.raises((FormatError, InputError), match=reason):
            adopt(str(checkpoint), str(entities), place.spec)
    (entities / "entity_names_n_0.json").write_text(json.dumps(names))
    (entities / "dynamic_rel_names.json").unlink()
    with pytest.raises(InputError, match="relations of a night are told apart by their names"):
        adopt(str(checkpoint), str(entities), place.spec)
    assert Channel(open_store(nights["store"]), "production").current().release is None


def test_only_an_empty_channel_adopts(place):
    checkpoint, entities = plain_checkpoint(place)
    place.snapshot("d1", ring(60))
    run_chain(place.spec, "d1", epochs=1)
    with pytest.raises(InputError, match="has release 1 already"):
        adopt(str(checkpoint), str(entities), place.spec)


def test_checkpoint_is_not_adopted_after_a_night(place, monkeypatch):
    checkpoint, entities = plain_checkpoint(place)
    place.write_spec(model(1), store=str(place.root / "nights"))
    place.snapshot("d1", ring(60))

    def late(*args, **how):
        run_chain(place.spec, "d1", epochs=1)
        return store_release(*args, **how)

    monkeypatch.setattr("pbg_tasks.tasks.release.adopt.store_release", late)
    with pytest.raises(InputError, match="has release 1 already"):
        adopt(str(checkpoint), str(entities), place.spec)
    assert Channel(open_store(str(place.root / "nights")), "production").numbers() == [1]


def candidates(summary):
    """Return the number of candidates that a run's edges were ranked against."""
    return RunContext.open(summary["run"]).require("eval")["candidates"]["n"]


def test_expired_entity_is_hidden_until_it_returns(place):
    place.write_spec(vanished={"rule": "expire", "nights": 2}, exports=[{"format": "parquet"}])
    place.snapshot("d1", ring(40) + ring(9, first=100))
    run_chain(place.spec, "d1")
    place.snapshot("d2", ring(40))
    second = run_chain(place.spec, "d2", epochs=1)
    assert candidates(second) == 49
    place.snapshot("d3", ring(40))
    third = run_chain(place.spec, "d3", epochs=1)
    assert third["entities"]["total"] == 49
    gone = {f"e{i}" for i in range(100, 109)}
    assert candidates(third) == 40

    def exported(run):
        tables = Path(run["exports"]["parquet"]).rglob("*.parquet")
        return {name for path in tables for name in pq.read_table(path).to_pydict().get("id", [])}

    assert gone < exported(second)
    assert not gone & exported(third)
    with Model.open(third["release"]["directory"]) as opened:
        found = {answer.name for answer in opened.neighbors("e3", k=60)}
        assert len(found) == 39
        assert not gone & found
        assert opened.embedding("e100").shape == (8,)  # a query by its name still finds it
    # moving keeps it hidden; an edge shows it again, with the vector that it had
    moved = repartition(place.spec, partitions=3)
    assert moved["entities"] == {"n": 49}
    with Model.open(moved["directory"]) as opened:
        assert {answer.name for answer in opened.neighbors("e3", k=60)} == found
    place.snapshot("d4", ring(40) + ring(9, first=100))
    place.write_spec(model(3), vanished={"rule": "expire", "nights": 2})
    fourth = run_chain(place.spec, "d4", epochs=0)
    assert fourth["entities"] == {"total": 49, "new": 0, "kept": 40, "gone": 0, "returned": 9, "absent": 0}
    assert candidates(fourth) == 49
    assert not (Path(fourth["release"]["directory"]) / "expired.parquet").exists()
