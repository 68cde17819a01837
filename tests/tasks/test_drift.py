"""A night compared with the release before it.

On the same edges, by its vectors, and by the edges that explain a move.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from pbg_tasks.errors import QualityGateError
from pbg_tasks.formats.edges import read_edges
from pbg_tasks.formats.entities import read_relation_names
from pbg_tasks.storage import open_store
from pbg_tasks.tasks.context import RunContext
from pbg_tasks.tasks.nightly.chain import run_chain, run_task
from pbg_tasks.tasks.nightly.moved_vectors import MOST_MOVED, _lowest
from pbg_tasks.tasks.nightly.plan import plan
from pbg_tasks.tasks.release.adopt import adopt
from pbg_tasks.tasks.release.repartition import repartition
from pbg_tasks.tasks.view.tables import table
from tests.tasks.conftest import ring

QUICK = {"num_epochs": 1}


def model(partitions, **more):
    return QUICK | {"entities": {"n": {"num_partitions": partitions}}} | more


def results(summary, *tasks):
    run = RunContext.open(summary["run"])
    return [run.require(task) for task in tasks]


def check_of(gate, name):
    return next(check for check in gate["checks"] if check["name"] == name)


def test_first_night_has_nothing_to_drift_from(place):
    place.write_spec(model(1))
    place.snapshot("d1", ring(40))
    evaluated, drift, gate = results(run_chain(place.spec, "d1"), "eval", "drift", "gate")
    assert (drift["release"], drift["snapshot"], drift["types"], drift["most_moved"]) == (None, None, {}, [])
    assert gate["against_release"] is None
    assert not {"against", "coverage"} & evaluated.keys()


def test_drift_compares_with_the_evaluated_release(place):
    place.write_spec(model(1), nights={"walk": "independent"})
    urls = []
    for key in ("d1", "d2"):
        place.snapshot(key, ring(40))
        urls.append(plan(place.spec, key)["run"])
        for task in ("validate", "partition", "bucket", "train", "preserve", "eval"):
            run_task(task, urls[-1])
    for task in ("drift", "gate", "publish"):
        run_task(task, urls[0])  # the channel moves between the second night's evaluation and its drift
    assert run_task("drift", urls[1])["release"] is None
    assert run_task("gate", urls[1])["against_release"] is None


def test_night_of_chain_is_compared_with_previous(place, monkeypatch):
    place.write_spec(model(2, num_epochs=2))
    place.snapshot("d1", ring(60))
    first = run_chain(place.spec, "d1")
    # e3 meets many, e9 loses all but two edges, ten are new
    rows = [row for row in ring(60) if "e9" not in (row[0], row[2]) or row[1] == "next"]
    rows += [("e3", "far", f"e{i}") for i in range(20, 40)] + ring(10, first=500)
    place.snapshot("d2", rows)
    monkeypatch.setattr("pbg_tasks.tasks.nightly.moved_vectors.MOST_MOVED", 60)
    second = run_chain(place.spec, "d2")
    evaluated, drift, gate = results(second, "eval", "drift", "gate")

    found = drift["types"]["n"]
    assert (drift["release"], drift["snapshot"]) == (1, "d1")
    assert (found["common"], found["new"], found["gone"], found["aligned"]) == (60, 10, 0, False)
    assert 0 < found["cosine"]["p01"] <= found["cosine"]["p05"] <= found["cosine"]["median"] < 1
    assert found["overlap"]["queries"] == 60
    assert 0.2 < found["overlap"]["mean"] < 1
    assert {name: each["edges"] for name, each in drift["relations"].items()} == {
        name: sum(edges) for name, edges in written(second).items()
    }
    deciles = drift["degree_deciles"]["n"]
    assert sum(each["entities"] for each in deciles) == 60
    assert deciles[-1]["max_degree"] > 15

    # each entity is explained by its edges that came, went or stayed, as many as are shown
    before, after = ({tuple(row) for row in rows} for rows in (ring(60), rows))
    moved = drift["most_moved"]
    assert [each["cosine"] for each in moved] == sorted(each["cosine"] for each in moved)
    assert {each["entity"] for each in moved} == {f"e{i}" for i in range(60)}
    for each in moved:
        told = [(edge["change"], (edge["lhs"], edge["rel"], edge["rhs"])) for edge in each["edges"]]
        own = {row for row in before | after if each["entity"] in (row[0], row[2])}
        true = {("added" if row not in before else "kept" if row in after else "removed", row) for row in own}
        assert len(told) == min(len(true), 10)
        assert set(told) <= true
        assert each["changes"] == dict(Counter(change for change, _ in true))  # also beyond those that are listed
        assert [change == "kept" for change, _ in told] == sorted(change == "kept" for change, _ in told)

    against = evaluated["against"]
    assert against["candidates"] == {"n": 60}
    assert 0 < against["edges"] < evaluated["edges"]  # no edges of the new entities
    check = check_of(gate, "max_mrr_drop")
    assert (gate["against_release"], check["limit"]) == (1, 1)
    expected = 1 - against["candidate"]["filtered"]["mrr"] / against["current"]["filtered"]["mrr"]
    assert check["value"] == pytest.approx(expected, abs=1e-6)
    assert second["drift"] == {name: found[name]["mean"] for name in ("cosine", "overlap")}
    assert second["against"] == {name: against[name]["filtered"]["mrr"] for name in ("candidate", "current")}
    assert f"{second['drift']['cosine']:.4f}" in table([first, second])
    fallen = second | {"changes": second["changes"] | {"filtered_mrr": -0.00004}}
    assert "MRR -4e-05" in table([first, fallen])  # a tenth of the MRR of a large graph
    assert evaluated["coverage"]["n"] == {"new": 10, "trained": 10, "moved": 10, "covered": 10}
    # figures of a comparison with another release are not kept as this one's
    document = json.loads(next(place.store.rglob("channels/production/releases/00000002.json")).read_text())
    assert not {"against", "coverage"} & document["metrics"].keys()
    assert run_task("drift", second["run"]) == drift


def test_drift_takes_the_figures_of_eval(place):
    place.write_spec(model(2))
    for day, count in (("d1", 40), ("d2", 45)):
        place.snapshot(day, ring(count))
        url = run_chain(place.spec, day)["run"]
    evaluated, drift = results({"run": url}, "eval", "drift")
    vectors = sum(path.stat().st_size for path in (Path(url) / "release").glob("embeddings_*"))
    assert drift["usage"]["store_bytes_read"] < vectors < evaluated["usage"]["store_bytes_read"]
    # the result of an earlier version has none: then drift computes the same itself
    path = Path(url) / "results" / "eval.json"
    path.write_text(json.dumps({key: value for key, value in evaluated.items() if key != "drift"}))
    (Path(url) / "results" / "drift.json").unlink()
    alone = run_task("drift", url)
    assert alone["usage"]["store_bytes_read"] > vectors
    assert {key: alone[key] for key in evaluated["drift"]} == evaluated["drift"]


def written(summary):
    """Return the edges of each relation in each split's buckets.

    They are numbers.
    """
    run = Path(summary["run"])
    names = read_relation_names(run / "entities")
    found = {name: [] for name in names}
    for path in run.glob("edges/*/*.h5"):
        rel = read_edges(path).rel
        for number, name in enumerate(names):
            found[name].append(int((rel == number).sum()))
    return found


@pytest.mark.parametrize("after", [1, 3])
def test_partitions_on_either_side_change_nothing(place, after):
    """A night of no epochs after a migration has the same vectors.

    They are those of the release before the migration.
    """
    place.write_spec(model(2))
    place.snapshot("d1", ring(50))
    run_chain(place.spec, "d1")
    place.write_spec(model(after))
    # planned without a migration: ids start anew, and with them the vectors, so all is matched by names
    place.snapshot("d2", ring(50, seed=1))
    anew, drift = results(run_chain(place.spec, "d2", publish=False), "eval", "drift")
    assert (anew["against"]["release"], anew["against"]["candidates"]) == (1, {"n": 50})
    assert (anew["against"]["reason"], anew["against"].get("continued")) == (None, None)
    assert drift["types"]["n"]["common"] == 50
    assert drift["types"]["n"]["cosine"]["mean"] is None  # 50 vectors of 8 dimensions fit any rotation
    assert drift["types"]["n"]["overlap"]["mean"] < 0.9

    moved = repartition(place.spec)
    evaluated, drift = results(run_chain(place.spec, "d2", epochs=0), "eval", "drift")
    assert drift["release"] == moved["release"]
    found = drift["types"]["n"]
    assert (found["common"], found["cosine"]["p01"], found["overlap"]["p05"]) == (50, pytest.approx(1), 1)
    assert evaluated["against"]["difference"] == {"mrr": 0, "low": 0, "high": 0}
    assert evaluated["against"]["continued"] is True
    # the release of moved rows has the figures of the one before, on the same edges
    assert evaluated["against"]["current"] == anew["against"]["current"]
    assert drift["most_moved"][0]["edges"]


def test_independent_nights_are_matched_and_rotated(place):
    place.write_spec(model(1, dimension=4), nights={"walk": "independent"})
    place.snapshot("d1", ring(80))
    run_chain(place.spec, "d1")
    place.snapshot("d2", ring(70, seed=2))
    evaluated, drift = results(run_chain(place.spec, "d2"), "eval", "drift")
    found = drift["types"]["n"]
    assert (drift["release"], found["common"], found["new"], found["gone"], found["aligned"]) == (1, 70, 0, 10, True)
    assert found["cosine"]["mean"] is not None
    assert evaluated["against"]["candidates"] == {"n": 70}


def test_drift_without_cosine_is_put_in_words(place, capsys):
    """Too few common entities for a rotation leave only the overlap."""
    place.write_spec(model(1), nights={"walk": "independent"})
    for day in ("d1", "d2"):
        place.snapshot(day, ring(20))
        run_chain(place.spec, day)
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "drift: n: " in line]
    assert "None" not in line
    assert "drift: n: no cosine, as too few entities are in both or the dimension changed; share of" in line


def test_trained_edge_of_release_is_not_compared(place):
    """An independent night may hold out an edge another one trained.

    It had to train it for want of other edges of its end.
    """
    place.write_spec(model(1), nights={"walk": "independent"}, split={"valid": 0.02, "test": 0.45})
    path = [(f"e{i}", "next", f"e{i + 1}") for i in range(60)]  # every second pair is some end's last edge
    place.snapshot("d1", path)
    (bucket,) = results(run_chain(place.spec, "d1"), "bucket")
    assert bucket["returned_pairs"] > 10
    place.snapshot("d2", path + [(f"e{i}", "skip", f"e{(i * 7 + 3) % 61}") for i in range(61)])
    (evaluated,) = results(run_chain(place.spec, "d2"), "eval")
    assert 0 < evaluated["against"]["edges"] < evaluated["edges"]


def test_release_is_not_evaluated_on_possibly_trained_edges(place):
    place.write_spec(model(1))
    place.snapshot("d1", ring(50))
    run_chain(place.spec, "d1")
    place.write_spec(model(1), split={"valid": 0.02, "test": 0.1, "salt": "other"}, gates={"max_mrr_drop": 0.000001})
    place.snapshot("d2", ring(50))
    evaluated, gate = results(run_chain(place.spec, "d2", publish=False), "eval", "gate")
    assert evaluated["against"] == {"release": 1, "snapshot": "d1", "reason": "another split had held out other edges"}
    assert check_of(gate, "max_mrr_drop")["value"] is None

    url = plan(place.spec, "d2", publish=False)["run"]
    nights = str(place.root / "nights")
    place.write_spec(model(1), store=nights)
    adopt(f"{url}/checkpoint", f"{url}/entities", place.spec)
    evaluated, drift = results(run_chain(place.spec, "d1", epochs=0), "eval", "drift")
    assert "adopted" in evaluated["against"]["reason"]
    assert drift["types"]["n"]["cosine"]["mean"] == pytest.approx(1)  # its vectors are compared all the same
    assert drift["most_moved"][0]["edges"] == []  # the edges that it was trained on are unknown
    assert open_store(nights).head("channels/production/CURRENT.json") is not None


def test_night_that_moved_too_far_is_stopped(place):
    place.write_spec(model(1), gates={"max_mrr_drop": 1.0, "drift": {"min_overlap": {"warn": 1, "block": 0.999}}})
    place.snapshot("d1", ring(40))
    run_chain(place.spec, "d1")
    place.snapshot("d2", ring(40, seed=1))
    with pytest.raises(QualityGateError, match=r"n: share of nearest neighbours that were kept 0\.\d+, at least 0.999"):
        run_chain(place.spec, "d2")


def test_night_of_no_epochs_leaves_entities_uncovered(place):
    place.write_spec(model(1), gates={"max_mrr_drop": 1.0, "min_coverage": {"block": 0.5}})
    place.snapshot("d1", ring(40))
    run_chain(place.spec, "d1")
    place.snapshot("d2", ring(40) + ring(9, first=100))
    with pytest.raises(QualityGateError, match=r"0\.0% of 9 new entities of type n were reached by training"):
        run_chain(place.spec, "d2", epochs=0)


@pytest.mark.parametrize("entities", [0, 5, MOST_MOVED, 1000])
def test_lowest_figures_come_in_stable_order(entities):
    rng = np.random.default_rng(entities)
    figures = rng.integers(9, size=entities).astype(np.float32)  # many are equal
    figures[rng.random(entities) < 0.2] = np.nan
    there = np.flatnonzero(~np.isnan(figures))
    every = there[np.argsort(figures[there], kind="stable")]
    assert _lowest(figures, MOST_MOVED).tolist() == every[:MOST_MOVED].tolist()
