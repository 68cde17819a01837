"""Nights that fall slowly, and the best of the last ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from pbg_tasks.errors import QualityGateError
from pbg_tasks.publish import Channel
from pbg_tasks.tasks.approval import approve
from pbg_tasks.tasks.context import RunContext
from pbg_tasks.tasks.nightly.chain import run_chain
from pbg_tasks.tasks.nightly.plan import plan
from pbg_tasks.tasks.release.releases import gc, rollback
from tests.tasks.conftest import ring

CHANCE = {"min_over_popularity": {}, "min_over_start": {}}
"""Limits that are not under test here."""
GATES = CHANCE | {"max_trend_drop": {"warn": 0.13, "block": 0.2}, "max_mrr_drop": 0.2, "min_common_edges": 100}
SPLIT = {"valid": 0.02, "test": 0.2}
INDEPENDENT = {"nights": {"walk": "independent"}}


class Nights:
    """Nights of chosen quality.

    It comes from their epochs, or from their rate on a warm start.
    """

    def __init__(self, place, *, walk, gates=None, **sections):
        self.place, self.walk, self.gates, self.sections = place, walk, GATES | (gates or {}), sections

    def __call__(self, day, quality, *, rows=None, **gates):
        """Do a night, and return its results, refused or not."""
        model = {"entities": {"n": {"num_partitions": 1}}, "dimension": 16}
        if self.walk == "independent":
            model["num_epochs"], more = quality, INDEPENDENT
        else:
            model |= {"num_epochs": 30, "lr": quality}
            more = {"train": {"warm_epochs": 4}}
        self.place.write_spec(model, gates=self.gates | gates, split=SPLIT, **self.sections, **more)
        self.place.snapshot(day, ring(300) if rows is None else rows)
        try:
            url, refused = run_chain(self.place.spec, day)["run"], None
        except QualityGateError as error:
            url, refused = plan(self.place.spec, day)["run"], str(error)
        return Night(url, refused)


class Night:
    def __init__(self, url, refused):
        run = RunContext.open(url)
        self.url, self.refused = url, refused
        self.eval, self.gate = run.require("eval"), run.require("gate")

    def check(self, name):
        return next((each for each in self.gate["checks"] if each["name"] == name), None)

    @property
    def trend(self):
        return self.check("max_trend_drop")

    def ratio(self, key):
        """Return the MRR as a multiple of another release's."""
        return self.eval[key]["candidate"]["filtered"]["mrr"] / self.eval[key]["current"]["filtered"]["mrr"]


@pytest.fixture
def independent(place):
    return Nights(place, walk="independent")


SLOW_FALLS = {"independent": [14, 10, 8, 6], "chain": [0.8, 1.2, 1.6, 2.4]}
"""Epochs of independent nights, and rates of warm ones.

Each night is worse than the one before by less than a fifth.
"""


def check_slow_fall(place, walk, **sections):
    """Check nights of which each is a little worse than the last."""
    nights = Nights(place, walk=walk, **sections)
    if walk == "chain":
        nights("d0", 0.1)
    first, second, third, fourth = (nights(f"d{n}", each) for n, each in enumerate(SLOW_FALLS[walk], 1))
    best = first.eval["against"]["release"] + 1 if walk == "chain" else 1
    for night in (second, third, fourth):
        assert 0.8 < night.ratio("against") < 0.97
        assert night.check("max_mrr_drop")["passed"]
        assert night.eval["best"]["release"] == best
    assert not second.trend["warned"]
    assert "candidate" not in second.eval["best"]  # the release before is the best: it was compared once
    assert (third.refused, third.trend["passed"], third.trend["warned"]) == (None, True, True)
    assert (fourth.trend["passed"], fourth.trend["value"]) == (False, pytest.approx(1 - fourth.ratio("best"), abs=1e-6))
    edges, mrr = fourth.eval["best"]["edges"], fourth.eval["best"]["current"]["filtered"]["mrr"]
    assert f"release {best}, the best of the last 28 nights, has {mrr:.4f} on the same {edges} edges" in fourth.refused
    return nights, third, fourth


def test_slow_fall_warns_then_blocks_independent_nights(place):
    _, third, fourth = check_slow_fall(place, "independent")
    page = (Path(fourth.url) / "report" / "index.html").read_text()
    assert fourth.trend["sentence"].split(":")[0] in page
    # The facts that lead the next nights to the best one are kept with the release; the comparison itself is not.
    metrics = place.channel().release(3).metrics
    assert metrics["changes"] == third.eval["changes"]
    assert [each["release"] for each in metrics["changes"]] == [2, 1]
    assert not {"best", "against"} & metrics.keys()


def test_slow_fall_warns_then_blocks_a_chain(place):
    check_slow_fall(place, "chain")


@pytest.mark.s3
def test_slow_fall_warns_then_blocks_on_s3(place, s3_bucket):
    check_slow_fall(place, "chain", store=f"{s3_bucket}/nights")


def test_both_ways_to_place_rows_rank_alike(place, monkeypatch):
    """Rows matched by name give the figures of rows in their places."""
    nights = Nights(place, walk="chain")
    nights("d0", 0.1)
    nights("d1", 0.8)
    monkeypatch.setattr("pbg_tasks.tasks.nightly.yardstick._best", lambda *_: 1)
    kept = nights("d2", 1.2).eval
    names = {"edges", "candidates", "candidate", "current", "difference", "relations"}
    assert names <= kept["best"].keys()
    assert kept["best"]["release"] == 1
    monkeypatch.setattr(
        "pbg_tasks.tasks.nightly.evaluation_parts.release_before",
        lambda run: Channel(run.store, "production").release(1),
    )
    monkeypatch.setattr("pbg_tasks.tasks.nightly.yardstick._best", lambda *_: 2)
    moved = nights("d2", 1.2, max_mrr_drop=0.9).eval  # another run of that night
    assert {name: moved["against"][name] for name in names} == {name: kept["best"][name] for name in names}
    assert {name: moved["best"][name] for name in names} == {name: kept["against"][name] for name in names}


def test_refused_night_does_not_become_the_best(place):
    nights, _, fourth = check_slow_fall(place, "independent")
    assert fourth.refused is not None
    fifth = nights("d5", 14)
    assert (fifth.refused, fifth.eval["against"]["release"], fifth.eval["best"]["release"]) == (None, 3, 1)
    assert fifth.trend["value"] < 0.05


def test_approved_fall_moves_the_yardstick(place):
    nights, _, fourth = check_slow_fall(place, "independent")
    approve(fourth.url, by="ada", reason="the fall is real")
    run_chain(place.spec, "d4")
    assert place.channel().release(4).data["fall_approved"]
    fifth = nights("d5", 6)
    assert (fifth.refused, fifth.trend, "best" in fifth.eval) == (None, None, False)
    assert nights("d6", 6).eval["best"]["release"] == 5


def test_bad_release_does_not_become_the_only_yardstick(independent):
    independent("d1", 14)
    bad = independent("d2", 2, max_mrr_drop=1.0, max_trend_drop={})
    assert bad.refused is None
    assert bad.ratio("against") < 0.5
    third = independent("d3", 6)
    assert third.check("max_mrr_drop")["passed"]
    assert third.ratio("against") > 1.5
    assert (third.trend["passed"], third.eval["best"]["release"]) == (False, 1)
    assert independent("d4", 14).refused is None


def test_bad_release_of_few_edges_stands_beside_another(place):
    """The next good night shares hardly an edge with that release."""
    lenient = {"data": {"min_volume": {}, "max_gone_entities": {}, "max_volume": {}, "max_degree_distance": {}}}
    nights = Nights(place, walk="independent", gates=lenient)
    nights("d1", 14)
    assert nights("d2", 14, rows=ring(25)).refused is None
    third = nights("d3", 6)
    few = third.check("max_mrr_drop")
    assert (few["passed"], few["value"], few["warned"]) == (True, None, True)
    assert (third.eval["best"]["release"], third.trend["passed"]) == (1, False)
    assert third.refused is not None


def test_best_with_few_common_edges_decides_nothing(independent):
    nights = independent
    nights("d1", 14)
    nights("d2", 10)
    third = nights("d3", 6, min_common_edges=100_000)
    assert third.refused is None
    assert (third.check("max_mrr_drop")["value"], third.eval["best"]["release"]) == (None, 1)
    assert (third.trend["value"], third.trend["warned"]) == (None, True)
    assert third.trend["sentence"] == (
        f"not compared with release 1, the best of the last 28 nights: only {third.eval['best']['edges']} held-out "
        "edges are between entities that both know, fewer than min_common_edges 100000"
    )
    refused = nights("d4", 6, min_common_edges=100_000, on_few_common_edges="block")
    assert not refused.trend["passed"]


def test_window_of_one_night_is_the_release_before(independent):
    for day, epochs in (("d1", 14), ("d2", 10), ("d3", 8)):
        night = independent(day, epochs, trend_nights=1)
    assert night.eval["best"]["release"] == 2
    assert not night.trend["warned"]
    assert "the best of the last 1 nights" in night.trend["sentence"]


@pytest.mark.parametrize("off", [{"trend_nights": 0}, {"trend_nights": None}, {"max_trend_drop": {}}])
def test_trend_switched_off_compares_with_one_release(independent, monkeypatch, off):
    independent("d1", 14)
    independent("d2", 10)
    monkeypatch.setattr("pbg_tasks.tasks.nightly.evaluate.bring_by_name", None)
    third = independent("d3", 8, **off)
    assert (third.refused, third.trend, "best" in third.eval) == (None, None, False)


def test_rising_nights_are_compared_once(independent, monkeypatch):
    monkeypatch.setattr("pbg_tasks.tasks.nightly.evaluate.bring_by_name", None)
    for day, epochs in (("d1", 6), ("d2", 8), ("d3", 14)):
        night = independent(day, epochs)
    assert night.eval["best"] == {"release": 2, "snapshot": "d2", "reason": None}
    assert night.trend["value"] < 0


def test_release_rolled_back_from_is_no_yardstick(place, independent):
    independent("d1", 8)
    independent("d2", 14)
    rollback(place.spec)
    third = independent("d3", 6)
    assert (third.eval["against"]["release"], third.eval["best"]["release"]) == (1, 1)
    assert third.refused is None


def test_removed_best_gives_way_to_the_next(place, independent):
    for day, epochs in (("d1", 14), ("d2", 10), ("d3", 8)):
        independent(day, epochs)
    removed = gc(str(place.store), keep_releases=2, grace_hours=0)
    assert removed["releases"]
    fourth = independent("d4", 6)
    assert (fourth.eval["against"]["release"], fourth.eval["best"]["release"]) == (3, 2)


@pytest.mark.parametrize(("damage", "words"), [("rm", "it was removed meanwhile"), ("cut", "it is damaged")])
def test_damaged_best_is_reported_and_lets_nights_pass(place, independent, damage, words):
    independent("d1", 14)
    independent("d2", 10)
    (run,) = (place.store / "runs").glob("d1-*")
    (path,) = (run / "release").glob("embeddings_n_0.*" if damage == "cut" else "manifest.json")
    data = path.read_bytes()
    path.unlink()  # it may share its bytes with another name
    if damage == "cut":
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    third = independent("d3", 8)
    assert third.refused is None
    assert words in third.eval["best"]["reason"]
    assert (third.trend["passed"], third.trend["warned"]) == (True, True)
    assert third.trend["sentence"].startswith("not compared with release 1, the best of the last 28 nights: it ")
    assert [each["release"] for each in third.eval["changes"]] == [2]
