from __future__ import annotations

from dataclasses import replace

import pytest

from pbg_tasks.config import DataGates
from pbg_tasks.prepare.comparison import volumes
from pbg_tasks.prepare.data_gate import Difference, Measured, judge_entities, judge_snapshot
from pbg_tasks.prepare.difference import EdgeChanges, RelationEdges
from pbg_tasks.prepare.validate import SnapshotReport

REPORT = SnapshotReport(edges=100, self_loops=4, duplicates=10, relations={}, weights=None, columns={}, changes=None)
CHANGES = EdgeChanges.of_relations({"r": RelationEdges(60, 50, 80, 10, 40), "s": RelationEdges(0, 0, 20, 0, 20)})
DIFFERENCE = Difference(since="d1", edges=CHANGES, degrees={"n": 0.3}, columns=["column 'a' is new"], volumes=[])
QUIET = {name: {} for name in DataGates.model_fields if name != "changed_columns"} | {"changed_columns": "ignore"}


def judged(limits, **changes):
    gates = DataGates.model_validate(QUIET | limits)
    return judge_snapshot(gates, REPORT, replace(DIFFERENCE, **changes))


@pytest.mark.parametrize(
    ("limits", "value", "sentence"),
    [
        ({"min_edges": {"block": 101}}, 100, "100 edges, at least 101 asked"),
        ({"max_duplicates": {"block": 0.09}}, 0.1, "10.0% of the edges repeat an earlier one, at most 9.0% allowed"),
        (
            {"max_self_loops": {"block": 0.03}},
            0.04,
            "4.0% of the edges lead from an entity to itself, at most 3.0% allowed",
        ),
        (
            {"max_added_edges": {"block": 0.05}},
            0.1,
            "10.0% of the number of edges of 'd1' came anew, at most 5.0% allowed",
        ),
        (
            {"max_self_loops": {"block": 0.0001}},
            0.04,
            "4.0% of the edges lead from an entity to itself, at most 0.01% allowed",
        ),
        ({"max_removed_edges": {"block": 0.5}}, 0.6, "60.0% of the edges of 'd1' are gone, at most 50.0% allowed"),
        (
            {"max_gone_relations": {"block": 0}},
            0.2,
            "20.0% of the edges of 'd1' were of relations that have none any more (s), at most 0.0% allowed",
        ),
        (
            {"max_degree_distance": {"block": 0.2}},
            0.3,
            "the degrees of n are distributed otherwise than in 'd1' (distance 0.300), at most 0.2 allowed",
        ),
        ({"changed_columns": "block"}, None, "column 'a' is new"),
    ],
)
def test_each_limit_blocks_with_its_figure(limits, value, sentence):
    verdict = judged(limits)
    assert not verdict.passed
    (check,) = verdict.checks
    assert (check.value, check.sentence) == (value, sentence)
    warned = {name: {"warn": limit["block"]} if isinstance(limit, dict) else "warn" for name, limit in limits.items()}
    verdict = judged(warned)
    assert verdict.passed
    assert verdict.checks[0].warned


def test_volume_is_judged_against_both_windows():
    found = judged(
        {"max_volume": {"block": 2}, "min_volume": {"warn": 0.6}}, volumes=volumes(100, [20] * 20 + [200] * 7)
    )
    assert [(check.name, check.passed, check.warned) for check in found.checks] == [
        ("min_volume of 7", True, True),
        ("max_volume of 7", True, False),
        ("min_volume of 28", True, False),
        ("max_volume of 28", False, False),
    ]


def test_volume_against_one_snapshot_has_no_median():
    found = judged({"min_volume": {"warn": 0.6}, "max_volume": {}}, volumes=volumes(10, [20]))
    assert found.checks[0].sentence == "0.50 times as many edges as the snapshot before, at least 0.6 asked"


def test_report_from_numbers_alone_gives_lower_bound():
    verdict = judged({"max_removed_edges": {"block": 0.1}}, edges=EdgeChanges.of_rows(now=100, before=125))
    assert verdict.checks[0].sentence.startswith("at least 20.0% of the edges of 'd1' are gone")


def test_first_night_is_compared_with_nothing():
    limits = {name: {"block": 0} for name in QUIET if name.startswith("max_")} | {"changed_columns": "block"}
    verdict = judged(limits, since=None, edges=None, degrees={}, columns=[])
    assert [check.name for check in verdict.checks] == ["max_duplicates", "max_self_loops"]


@pytest.mark.parametrize(
    ("name", "duplicates", "gone", "expected"),
    [
        ("max_duplicates", 40, 0, (True, True)),
        ("max_duplicates", 50, 0, (False, False)),
        ("max_gone_relations", 0, 20, (True, True)),
        ("max_gone_relations", 0, 30, (False, False)),
    ],
)
def test_doubled_and_halved_snapshots_block_by_default(name, duplicates, gone, expected):
    report = replace(REPORT, duplicates=duplicates)
    relations = {"r": RelationEdges(60, 50, 100 - gone, 10, 40), "s": RelationEdges(0, 0, gone, 0, gone)}
    difference = replace(DIFFERENCE, edges=EdgeChanges.of_relations(relations))
    (check,) = [each for each in judge_snapshot(DataGates(), report, difference).checks if each.name == name]
    assert (check.passed, check.warned) == expected


@pytest.mark.parametrize(("gone", "expected"), [(60, (True, False)), (70, (True, True)), (90, (False, False))])
def test_edges_between_other_ends_block_by_default(gone, expected):
    changes = EdgeChanges.of_relations({"r": RelationEdges(100, 100, 100, gone, gone)})
    checks = judge_snapshot(DataGates(), REPORT, replace(DIFFERENCE, edges=changes)).checks
    (check,) = [each for each in checks if each.name == "max_removed_edges"]
    assert (check.passed, check.warned) == expected


def test_entities_that_are_gone_are_judged():
    gates = DataGates.model_validate({"max_gone_entities": {"warn": 0.1, "block": 0.2}})
    assert not judge_entities(gates, {"n": {"kept": 70, "gone": 30}}, since="d1").passed
    (check,) = judge_entities(gates, {"n": {"kept": 85, "gone": 15, "absent": 900}}, since="d1").checks
    assert (check.passed, check.warned, check.value) == (True, True, 0.15)
    assert check.sentence == "15.0% of the entities of 'd1' are in no edge any more, at most 10.0% allowed"
    assert judge_entities(gates, {"n": {"kept": 0, "gone": 0}}, since=None).checks == ()
    assert judge_entities(gates, {}, since=None).checks == ()
    assert judge_entities(DataGates(), {"n": {"kept": 84, "gone": 16}}, since="d1").passed
    assert not judge_entities(DataGates(), {"n": {"kept": 3255, "gone": 2378}}, since="1999-08-30").passed


@pytest.mark.parametrize(("gone", "apart", "passed"), [(57, 2, True), (58, 2, False), (58, 3, True), (100, 28, False)])
def test_entities_gone_over_nights_have_compound_limit(gone, apart, passed):
    counts = {"kept": 100 - gone, "gone": gone}
    (check,) = judge_entities(DataGates(), {"n": counts}, since="d1", awaited="d2", apart=apart).checks
    assert (check.passed, check.warned) == (passed, passed)


@pytest.mark.parametrize(
    ("measured", "passed"),
    [
        (None, True),  # 57.7 % in two nights
        (Measured({"max_gone_entities": 0.0}, 1), False),  # 35 %
        (Measured({"max_gone_entities": 0.2}, 1), False),  # 48 %
        (Measured({"max_gone_entities": 0.25}, 1), True),  # 51.25 %
        (Measured({"max_gone_entities": 0.9}, 1), True),  # still 57.7 %
        (Measured({"max_removed_edges": 0.0}, 1), True),
    ],
)
def test_measured_night_between_lowers_compound_limit(measured, passed):
    counts = {"n": {"kept": 50, "gone": 50}}
    (check,) = judge_entities(DataGates(), counts, since="d1", apart=2, measured=measured).checks
    assert (check.passed, check.warned) == (passed, passed)


@pytest.mark.parametrize(("before", "passed"), [(0.0, False), (0.25, True)])
def test_measured_relations_add_to_compound_limit(before, passed):
    gates = DataGates.model_validate(QUIET | {"max_gone_relations": {"block": 0.25}})
    relations = {"old": RelationEdges(0, 0, 40, 0, 40), "new": RelationEdges(60, 60, 60, 0, 0)}
    difference = replace(DIFFERENCE, edges=EdgeChanges.of_relations(relations), degrees={}, columns=[])
    measured = Measured({"max_gone_relations": before}, 1)
    (check,) = judge_snapshot(gates, REPORT, difference, apart=2, measured=measured).checks
    assert check.passed is passed


def over_nights(limit, relations, apart, awaited):
    """Judge changes of edges over several nights by one limit."""
    gates = DataGates.model_validate(QUIET | limit)
    difference = replace(DIFFERENCE, edges=EdgeChanges.of_relations(relations), degrees={}, columns=[], awaited=awaited)
    (check,) = judge_snapshot(gates, REPORT, difference, apart=apart).checks
    return check


@pytest.mark.parametrize("awaited", ["d2", None], ids=["unfinished", "refused"])
@pytest.mark.parametrize(
    ("removed", "apart", "passed"), [(74, 2, True), (76, 2, False), (76, 3, True), (100, 28, False)]
)
def test_edges_gone_over_nights_have_compound_limit(removed, apart, passed, awaited):
    relations = {"r": RelationEdges(100, 100, 100, removed, removed)}
    check = over_nights({"max_removed_edges": {"block": 0.5}}, relations, apart, awaited)
    assert (check.passed, check.warned, check.value) == (passed, passed, removed / 100)
    if not passed:
        most = {2: "75.0%", 28: "100.0%"}[apart]
        assert check.sentence.endswith(f"at most 50.0% allowed in one night, {most} in the {apart} nights since then")
    elif awaited is None:
        most = {2: "75.0%", 3: "87.5%"}[apart]
        reason = f"because that is for one night: in the {apart} nights since then {most} may go"
        assert check.sentence.endswith(f"at most 50.0% allowed; this only warns, {reason}")


@pytest.mark.parametrize("awaited", ["d2", None], ids=["unfinished", "refused"])
@pytest.mark.parametrize(("gone", "apart", "passed"), [(49, 2, True), (51, 2, False), (100, 3, False), (100, 4, True)])
def test_relations_gone_over_nights_add_up(gone, apart, passed, awaited):
    relations = {"day 1": RelationEdges(0, 0, gone, 0, gone), "day 9": RelationEdges(9, 9, 100 - gone, 9, 0)}
    check = over_nights({"max_gone_relations": {"block": 0.25}}, relations, apart, awaited)
    assert (check.passed, check.warned, check.value) == (passed, passed, gone / 100)


@pytest.mark.parametrize(
    ("removed", "passed"), [(0, True), (30, True), (40, False)], ids=["dated relations", "and some", "and too many"]
)
def test_edges_of_gone_relations_left_to_their_check(removed, passed):
    relations = {"day 1": RelationEdges(0, 0, 960, 0, 960), "r": RelationEdges(40, 40, 40, removed, removed)}
    check = over_nights({"max_removed_edges": {"block": 0.5}}, relations, 2, "d2")
    assert (check.passed, check.value) == (passed, 0.96 + removed / 1000)
    everything = {"day 1": relations["day 1"], "day 9": RelationEdges(9, 9, 0, 9, 0)}
    assert not over_nights({"max_removed_edges": {"block": 0.5}}, everything, 2, "d2").passed  # such as another column


def test_other_figures_block_after_refused_nights():
    limits = {"max_added_edges": {"block": 0.05}}
    assert not over_nights(limits, {"r": RelationEdges(100, 100, 100, 9, 9)}, 5, None).passed


def test_small_type_with_own_limit_is_judged():
    gates = DataGates.model_validate({"entities": {"n": {"max_gone_entities": {"block": 0.1}}}})
    assert not judge_entities(gates, {"n": {"kept": 2, "gone": 1}}, since="d1").passed
    assert judge_entities(DataGates(), {"n": {"kept": 2, "gone": 8}, "m": {"kept": 90, "gone": 0}}, since="d1").passed


def test_entities_gone_of_one_type_block():
    types = {"user": {"kept": 990, "gone": 10}, "item": {"kept": 0, "gone": 50}, "country": {"kept": 1, "gone": 9}}
    verdict = judge_entities(DataGates(), types, since="d1")
    assert [(each.name, each.passed) for each in verdict.checks] == [
        ("max_gone_entities", True),
        ("max_gone_entities of user", True),
        ("max_gone_entities of item", False),
    ]
    assert verdict.checks[2].sentence == (
        "100.0% of the entities of type item of 'd1' are in no edge any more, at most 35.0% allowed"
    )


def test_type_with_own_limit_leaves_all():
    types = {"user": {"kept": 95, "gone": 5}, "session": {"kept": 0, "gone": 900}}
    assert not judge_entities(DataGates(), types, since="d1").passed
    gates = DataGates.model_validate({"entities": {"session": {"max_gone_entities": {}}}})
    verdict = judge_entities(gates, types, since="d1")
    assert [(each.name, each.passed, each.value) for each in verdict.checks] == [
        ("max_gone_entities", True, 0.05),
        ("max_gone_entities of user", True, 0.05),
    ]
    assert verdict.checks[0].sentence.startswith("5.0% of the entities of other types than session of 'd1' are in no")
    types["user"] = {"kept": 50, "gone": 50}  # the others are judged as before
    assert not judge_entities(gates, types, since="d1").passed


def test_only_type_is_judged_by_own_limit():
    gates = DataGates.model_validate(
        {"max_gone_entities": {}, "entities": {"n": {"max_gone_entities": {"block": 0.9}}}}
    )
    for gone, passed in ((90, True), (91, False)):
        (check,) = judge_entities(gates, {"n": {"kept": 100 - gone, "gone": gone}}, since="d1").checks
        assert (check.name, check.passed) == ("max_gone_entities of n", passed)


@pytest.mark.parametrize(("own", "passed"), [({}, True), ({"block": 0.2}, False), (None, False)])
def test_degrees_of_one_type_have_own_limit(own, passed):
    limits = {"max_degree_distance": {"block": 0.2}, "entities": {"n": {"max_degree_distance": own}}}
    assert judged(limits, degrees={"n": 0.3}).passed is passed
    assert not judged(limits, degrees={"n": 0.0, "m": 0.3}).passed
