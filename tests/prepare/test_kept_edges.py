"""Edges that stay, judged against the nights before."""

from __future__ import annotations

import pytest

from pbg_tasks.config import DataGates
from pbg_tasks.prepare.data_gate import Difference, judge_snapshot
from pbg_tasks.prepare.difference import EdgeChanges, RelationEdges
from pbg_tasks.prepare.kept_edges import NIGHTS, KeptEdges
from pbg_tasks.prepare.validate import SnapshotReport

REPORT = SnapshotReport(edges=1, self_loops=0, duplicates=0, relations={}, weights=None, columns={}, changes=None)
USUAL = KeptEdges(0.97, {"r": 0.96, "s": 0.98, "t": 0.97})


def relation(before, added, removed):
    now = before + added - removed
    return RelationEdges(now, now, before, added, removed)


def checked(relations, before=(USUAL,) * NIGHTS, apart=1, awaited=None, **limits):
    """Return the checks of this kind, by name."""
    edges = EdgeChanges.of_relations({name: relation(*counts) for name, counts in relations.items()})
    difference = Difference("d7", edges, {}, [], [], awaited)
    verdict = judge_snapshot(DataGates.model_validate(limits), REPORT, difference, kept=before, apart=apart)
    return {check.name: check for check in verdict.checks if check.name.startswith("min_kept")}


def state(check):
    return "blocked" if not check.passed else "warned" if check.warned else "passed"


DEFECTS = {
    "half of the edges lost": ((1000, 0, 500), "blocked", 0.5),
    "half of the ends shuffled": ((1000, 490, 490), "blocked", 0.51 / 1.49),
    "other ids of three in ten": ((1000, 395, 395), "blocked", 0.605 / 1.395),
    "a third lost": ((1000, 0, 340), "warned", 0.66),
    "usual": ((1000, 30, 30), "passed", 0.97 / 1.03),
    "grown to four times": ((1000, 3000, 0), "passed", 1.0),
}


@pytest.mark.parametrize(("counts", "expected", "share"), DEFECTS.values(), ids=DEFECTS)
def test_share_is_judged_by_usual_one(counts, expected, share):
    (check,) = checked({"r": counts}).values()
    assert state(check) == expected
    assert check.value == pytest.approx(share / 0.97, abs=1e-6)


def test_sentence_names_share_and_usual_one():
    (check,) = checked({"r": (1000, 700, 700)}).values()
    assert check.sentence == (
        "17.6% of the edges of 'd7' are still there (a replaced one counts twice), 0.18 times the usual 97.0% (median "
        "of the last 7 nights), at least 0.55 asked"
    )


def test_exchanged_small_relations_are_refused():
    found = checked({"r": (10_000, 100, 100), "s": (200, 200, 200), "t": (250, 200, 250)})
    assert state(found["min_kept_edges"]) == "passed"
    assert state(found["min_kept_by_relation"]) == "blocked"
    assert found["min_kept_by_relation"].sentence == (
        "0.0% of the edges of 'd7' of relation s are still there (a replaced one counts twice), 0.00 times the usual "
        "98.0% (median of the last 7 nights), at least 0.2 asked; likewise of t"
    )


@pytest.mark.parametrize(
    ("relations", "judged"),
    [
        ({"r": (5000, 0, 0), "s": (99, 99, 99)}, "passed"),
        ({"r": (20_000, 0, 0), "s": (199, 199, 199)}, "passed"),
        ({"r": (5000, 0, 0), "s": (100, 0, 100)}, "passed"),
        ({"r": (4000, 0, 0), "s": (100, 1, 100)}, "blocked"),
    ],
    ids=["few edges", "small part", "no edge left", "large enough"],
)
def test_small_and_gone_relations_are_left_out(relations, judged):
    assert state(checked(relations | {"t": (5000, 10, 10)})["min_kept_by_relation"]) == judged


def test_only_relation_is_judged_once():
    assert checked({"r": (1000, 900, 900)}).keys() == {"min_kept_edges"}


@pytest.mark.parametrize(
    "before",
    [(), (USUAL,) * (NIGHTS - 1), (KeptEdges(0.69, {}),) * NIGHTS, (USUAL,) * 3 + (KeptEdges(0.1, {}),) * 4],
    ids=["none", "too few", "seldom stay", "often differ"],
)
def test_nights_without_usual_share_are_not_judged(before):
    assert checked({"r": (1000, 990, 990)}, before) == {}


def test_night_like_an_earlier_one_warns():
    before = [USUAL] * (NIGHTS - 1) + [KeptEdges(0.3, {})]
    (check,) = checked({"r": (1000, 0, 720)}, before).values()
    assert state(check) == "warned"
    assert check.sentence.endswith("asked; this only warns, because one of those nights kept 30.0%")
    (check,) = checked({"r": (1000, 0, 740)}, before).values()
    assert state(check) == "blocked"


@pytest.mark.parametrize(("removed", "expected"), [(300, "warned"), (500, "blocked")])
def test_several_nights_may_lose_their_usual_share(removed, expected):
    before = [KeptEdges(0.8, {})] * NIGHTS
    (check,) = checked({"r": (1000, 0, 650)}, before, apart=3).values()
    assert state(check) == "warned"
    assert "0.68 times the usual 51.2% (median of the last 7 nights, over 3 nights)" in check.sentence
    assert state(*checked({"r": (1000, 0, removed)}, apart=3, awaited="d8").values()) == expected


def test_limits_can_be_left_out():
    halves = {"r": (1000, 900, 900), "s": (1000, 900, 900)}
    assert checked(halves, min_kept_edges={}).keys() == {"min_kept_by_relation"}
    assert checked(halves, min_kept_by_relation={}).keys() == {"min_kept_edges"}
    assert state(checked(halves, min_kept_edges={"block": 0.05})["min_kept_edges"]) == "passed"


@pytest.mark.parametrize(
    ("counts", "limits", "low"),
    [
        ((1000, 100, 100), {}, False),
        ((1000, 0, 201), {}, True),
        ((1000, 900, 900), {"min_kept_edges": {}, "min_kept_by_relation": {}}, False),
        ((1000, 30, 30), {"min_kept_edges": {"warn": 0.99}}, True),
    ],
)
def test_usual_share_is_read_for_low_ones(counts, limits, low):
    kept = KeptEdges.of_changes(EdgeChanges.of_relations({"r": relation(*counts)}))
    assert kept.is_low(DataGates.model_validate(limits)) is low


def test_numbers_of_rows_have_no_share():
    assert KeptEdges.of_changes(EdgeChanges.of_rows(now=5, before=10)) is None
    assert KeptEdges.of_changes(EdgeChanges.of_relations({"r": relation(0, 10, 0)})) is None
    assert KeptEdges.of_changes(None) is None
