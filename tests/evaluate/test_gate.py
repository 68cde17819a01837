"""Checks of a candidate.

The file is longer than others, as each check has its cases here.
"""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from pbg_tasks.config import Gates
from pbg_tasks.config.results import Evaluation, Metrics, TypeDrift
from pbg_tasks.evaluate import gate


def evaluation(mrr, *, raw=0.1, current=None, reason=None, **more):
    """Return a result of ``eval``.

    ``current`` is the figure of a release on the same edges.
    """
    figures = {"raw": {"count": 10, "mrr": raw}, "filtered": {"count": 10, "mrr": mrr}}
    if current is not None:
        both = {
            name: {"filtered": {"count": 80, "mrr": value}}
            for name, value in (("candidate", mrr), ("current", current))
        }
        difference = {"mrr": mrr - current, "low": mrr - current - 0.01, "high": mrr - current + 0.01}
        against = {"release": 7, "snapshot": "d7", "reason": reason, "edges": 140, "difference": difference}
        more["against"] = against | both
    return figures | more


def judge(gates, found, *, drift=None, before=None):
    types = {name: TypeDrift.model_validate(each) for name, each in drift["types"].items()} if drift else None
    metrics = None if before is None else Metrics.model_validate(before)
    return gate.judge(gates, Evaluation.model_validate(found), drift=types, before=metrics)


def failed(verdict):
    return [check.name for check in verdict.checks if not check.passed]


def warned(verdict):
    return [check.name for check in verdict.checks if check.warned]


def the(verdict, name):
    (check,) = [check for check in verdict.checks if check.name == name]
    return check


def test_good_first_night_passes():
    verdict = judge(Gates(min_mrr=0.2), evaluation(0.3))
    assert verdict.passed
    assert verdict.to_json()["passed"] is True
    assert [check.name for check in verdict.checks] == ["finite", "min_mrr"]


@pytest.mark.parametrize(
    ("gates", "mrr", "current", "expected"),
    [
        (Gates(min_mrr=0.4), 0.3, None, ["min_mrr"]),
        (Gates(max_mrr_drop=0.1), 0.26, 0.3, ["max_mrr_drop"]),
        (Gates(max_mrr_drop=0.1), 0.28, 0.3, []),
        (Gates(), math.nan, 0.3, ["finite", "min_mrr", "max_mrr_drop"]),
    ],
)
def test_each_limit_blocks_its_figure(gates, mrr, current, expected):
    assert failed(judge(gates, evaluation(mrr, current=current))) == expected


def trend(mrr, best, *, edges=140, release=3, **more):
    """Return a result of ``eval``, with a best release."""
    beside = evaluation(mrr, current=best)["against"] | {"release": release, "snapshot": "d3", "edges": edges}
    return evaluation(mrr, current=0.3) | {"best": beside | more}


@pytest.mark.parametrize(
    ("mrr", "outcome"),
    [(0.28, (True, False)), (0.26, (True, True)), (0.241, (True, True)), (0.239, (False, False)), (0.5, (True, False))],
)
def test_trend_beyond_limits_warns_or_blocks(mrr, outcome):
    check = the(judge(Gates(max_mrr_drop=0.9), trend(mrr, 0.3)), "max_trend_drop")
    assert (check.passed, check.warned) == outcome
    assert check.value == pytest.approx(1 - mrr / 0.3, abs=1e-6)


@pytest.mark.parametrize(("high", "passed"), [(-0.001, False), (0.0, True), (0.02, True)])
@pytest.mark.parametrize("release", [3, 7])  # an earlier one, and the current one
def test_fall_from_best_within_chance_only_warns(high, passed, release):
    found = trend(0.2, 0.3, release=release)
    for beside in (found["best"], found["against"]):
        beside["difference"] = {"low": -0.2, "high": high}
    check = the(judge(Gates(max_mrr_drop=0.9), found), "max_trend_drop")
    assert (check.passed, check.warned) == (passed, passed)
    reason = "; this only warns, as it may be chance: the interval has no fall, too"
    assert check.sentence.endswith("at most a fall of 20.0% allowed" + (reason if passed else ""))


def test_trend_sentence_names_release_and_figures():
    check = the(judge(Gates(), trend(0.2, 0.25)), "max_trend_drop")
    assert check.sentence == (
        "filtered MRR 0.2000 where release 3, the best of the last 28 nights, has 0.2500 on the same 140 edges: -20.0% "
        "(95 % interval -24.0% to -16.0%), at most a fall of 10.0% allowed"
    )


def replaced(mrr, before, *, repeats, **more):
    """Return a result of ``eval``, with a replaced release."""
    beside = evaluation(mrr, current=before)["against"] | {"release": 4, "run": "d7-0a", "repeats": repeats}
    return evaluation(mrr) | {"replaced": beside | more}


@pytest.mark.parametrize(
    ("mrr", "repeats", "outcome"),
    [
        (0.30, True, (True, False)),
        (0.291, True, (True, False)),  # the interval reaches 0.301
        (0.289, True, (False, False)),
        (0.289, False, (True, False)),
        (0.26, False, (False, False)),
    ],
)
def test_run_in_place_of_release_may_not_fall(mrr, repeats, outcome):
    check = the(judge(Gates(max_mrr_drop=0.1), replaced(mrr, 0.3, repeats=repeats)), "replaced")
    assert (check.passed, check.warned) == outcome


@pytest.mark.parametrize(
    ("repeats", "rule"),
    [(True, "of a run with its files and start, no fall beyond the interval is allowed"), (False, "20% allowed")],
)
def test_refused_replacement_names_run_and_figures(repeats, rule):
    sentence = the(judge(Gates(), replaced(0.2, 0.3, repeats=repeats)), "replaced").sentence
    assert sentence.startswith(
        "filtered MRR 0.2000 where release 4 (run d7-0a), whose place it would take, has 0.3000 on the same 140 edges: "
        "-33.3% (95 % interval -36.7% to -30.0%)"
    )
    assert sentence.endswith(f"{rule}; `--no-publish` leaves that release where it is")


@pytest.mark.parametrize(("repeats", "edges", "passed"), [(True, 5, False), (False, 5, True), (True, 0, True)])
def test_few_edges_excuse_a_corrected_day_alone(repeats, edges, passed):
    check = the(judge(Gates(), replaced(0.1, 0.3, repeats=repeats, edges=edges)), "replaced")
    assert (check.passed, check.warned) == (passed, passed)


def test_replaced_release_without_figures_is_a_warning():
    found = replaced(0.1, 0.3, repeats=True, reason="another split had held out other edges")
    check = the(judge(Gates(), found), "replaced")
    assert (check.passed, check.warned, check.value) == (True, True, None)
    assert check.sentence == (
        "not compared with release 4 (run d7-0a), whose place it would take: another split had held out other edges"
    )


def test_trend_against_the_current_release_takes_its_figures():
    found = evaluation(0.26, current=0.3) | {"best": {"release": 7, "snapshot": "d7", "reason": None}}
    check = the(judge(Gates(), found), "max_trend_drop")
    assert (check.value, check.warned) == (pytest.approx(2 / 15, abs=1e-6), True)
    few = judge(Gates(min_common_edges=141), found)
    assert warned(few) == ["max_mrr_drop"]  # the reason is the same


def test_trend_on_few_edges_decides_nothing():
    found = trend(0.1, 0.3, edges=99)
    gates = Gates(max_mrr_drop=0.9)
    check = the(judge(gates, found), "max_trend_drop")
    assert (check.passed, check.warned, check.value) == (True, True, None)
    assert check.sentence == (
        "not compared with release 3, the best of the last 28 nights: only 99 held-out edges are between entities "
        "that both know, fewer than min_common_edges 100"
    )
    assert failed(judge(gates.model_copy(update={"on_few_common_edges": "block"}), found)) == ["max_trend_drop"]


def test_trend_without_its_release_warns():
    verdict = judge(Gates(), trend(0.3, 0.3, reason="it was removed meanwhile"))
    assert (verdict.passed, warned(verdict)) == (True, ["max_trend_drop"])


def test_disabled_trend_is_not_judged():
    assert "max_trend_drop" not in [
        check.name for check in judge(Gates.model_validate({"max_trend_drop": {}}), trend(0.1, 0.3)).checks
    ]


def test_fall_is_measured_on_common_edges_only():
    against = evaluation(0.2, current=0.25)["against"]
    verdict = judge(Gates(max_mrr_drop=0.1), evaluation(0.9) | {"against": against})
    check = the(verdict, "max_mrr_drop")
    assert not check.passed
    assert check.value == pytest.approx(0.2)
    assert check.sentence == (
        "filtered MRR 0.2000 where release 7 has 0.2500 on the same 140 edges: -20.0% (95 % interval -24.0% to "
        "-16.0%), a fall of 10% allowed"
    )


def test_small_allowed_fall_is_shown_exactly():
    verdict = judge(Gates(max_mrr_drop=0.0005), evaluation(0.2, current=0.25))
    assert the(verdict, "max_mrr_drop").sentence.endswith(", a fall of 0.05% allowed")


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (evaluation(0.1, current=0.9, reason="another split had held out other edges"), "release 7: another split"),
        (evaluation(0.1, current=0.0), "its filtered MRR is 0"),
        (
            evaluation(0.1) | {"against": {"release": 7, "snapshot": "d7", "reason": None, "edges": 0}},
            "only 0 held-out edges are between entities that both know, fewer than min_common_edges 100",
        ),
    ],
)
def test_incomparable_night_is_reported_with_reason(found, words):
    verdict = judge(Gates(max_mrr_drop=0.1), found)
    assert verdict.passed
    check = the(verdict, "max_mrr_drop")
    assert check.value is None
    assert "not compared" in check.sentence
    assert words in check.sentence


@pytest.mark.parametrize(("what", "passed"), [("warn", True), ("ask", False), ("block", False)])
def test_fall_on_few_common_edges_decides_nothing(what, passed):
    found = evaluation(0.1, current=0.9)
    found["against"]["edges"] = 19
    verdict = judge(Gates(on_few_common_edges=what), found)
    check = the(verdict, "max_mrr_drop")
    assert (check.passed, check.warned, check.value) == (passed, passed, None)
    assert check.sentence.startswith("not compared with release 7: only 19 held-out edges")
    assert failed(judge(Gates(min_common_edges=19), found)) == ["max_mrr_drop"]


@pytest.mark.parametrize(("mrr", "expected"), [(0.11, ["min_over_popularity"]), (0.121, []), (0.12, [])])
def test_model_below_popularity_is_refused(mrr, expected):
    found = evaluation(mrr, popularity={"count": 10, "mrr": 0.12})
    verdict = judge(Gates(), found)
    assert failed(verdict) == expected
    assert the(verdict, "min_over_popularity").sentence.startswith(f"filtered MRR {mrr:.4f} of 5 held-out edges is ")
    assert failed(judge(Gates.model_validate({"min_over_popularity": {"warn": 1}}), found)) == []
    assert failed(judge(Gates(), evaluation(mrr, popularity={"count": 0}))) == []


def started(mrr, before, *, low, high, edges=140, **more):
    found = evaluation(mrr, current=before, **more)
    difference = {"mrr": mrr - before, "low": low, "high": high}
    found["against"] |= {"continued": True, "edges": edges, "difference": difference}
    return found


def test_training_that_worsened_vectors_is_refused():
    worse = started(0.27, 0.3, low=-0.05, high=-0.021)  # within max_mrr_drop
    assert failed(judge(Gates(), worse)) == ["min_over_start"]
    assert the(judge(Gates(), worse), "min_over_start").sentence == (
        "on the same 140 edges the filtered MRR was 0.3000 before training, with vectors of release 7, and is "
        "0.2700 after it: -10.00% (95 % interval -16.67% to -7.00%); so 93.00% is left at best, at least 95.0% asked"
    )
    assert judge(Gates.model_validate({"min_over_start": {"warn": 1}}), worse).passed
    assert "min_over_start" in warned(judge(Gates(), started(0.29, 0.3, low=-0.02, high=-0.001)))
    assert warned(judge(Gates(), started(0.29, 0.3, low=-0.05, high=0.01))) == []  # may be chance
    assert judge(Gates(), started(0.31, 0.3, low=0.005, high=0.02)).passed


def test_start_of_few_edges_is_not_judged():
    fall = {"low": -0.05, "high": -0.03}
    for found in (started(0.27, 0.3, edges=19, **fall), started(0.27, 0.3, reason="another split", **fall)):
        assert "min_over_start" not in [check.name for check in judge(Gates(), found).checks]
    independent = started(0.27, 0.3, **fall)
    independent["against"]["continued"] = False
    assert judge(Gates(), independent).passed


@pytest.mark.parametrize(("mrr", "expected"), [(0.09, ["min_over_start"]), (0.11, [])])
def test_model_below_random_vectors_is_refused(mrr, expected):
    verdict = judge(Gates(), evaluation(mrr, random={"mrr": 0.1}))
    assert failed(verdict) == expected
    assert the(verdict, "min_over_start").sentence.startswith(
        f"filtered MRR {mrr:.4f} of 5 held-out edges is {mrr / 0.1:.3g} times that of random vectors, 0.1000, "
    )


@pytest.mark.parametrize(
    ("edges", "random", "mrr", "passed"),
    [
        (20_000, 0.0029, 0.0031, False),  # untrained vectors of a graph whose entities have about as many edges each
        (20_000, 0.0029, 0.0065, True),
        (1_024, 0.0029, 0.0045, False),
        (99, 0.0029, 0.0031, True),  # too few edges to judge by more than the mean
        (1_000, 0.29, 0.295, False),
        (1_000, 0.29, 0.4, True),  # a relation to ten countries
    ],
)
def test_model_has_to_be_better_than_chance(edges, random, mrr, passed):
    found = evaluation(mrr, random={"mrr": random})
    found["filtered"]["count"] = 2 * edges
    assert ("min_over_start" not in failed(judge(Gates(), found))) == passed


def test_sentence_has_what_chance_reaches():
    found = evaluation(0.0031, random={"mrr": 0.0029})
    found["filtered"]["count"] = 40_000
    assert the(judge(Gates(), found), "min_over_start").sentence == (
        "filtered MRR 0.0031 of 20000 held-out edges is 0.902 times what random vectors reach by chance, 0.00344 "
        "(0.0029 is expected), at least 0.95 times asked"
    )


def test_random_vectors_are_within_what_chance_reaches():
    """Check the limit by 500 models of no use each."""
    rng = np.random.default_rng(0)
    for candidates, edges in ((10, 100), (300, 100), (3_000, 1_000)):
        reached = (1 / rng.integers(1, candidates + 1, size=(500, 2 * edges))).mean(axis=1)
        expected = float((1 / np.arange(1, candidates + 1)).mean())
        deviation = 2 * math.sqrt(expected / (2 * edges))
        limit = Gates().min_over_start.block * (expected + deviation)
        assert np.quantile(reached, 0.99) < limit
        assert 3.5 < deviation / reached.std() < 6


def relations(**found):
    return {name: {"filtered": {"count": 2 * edges, "mrr": mrr}} for name, (edges, mrr) in found.items()}


def test_each_relation_has_its_floor():
    floors = {"likes": {"min_mrr": 0.2}, "knows": {"min_mrr": 0.3}, "*": {"min_mrr": 0.1, "min_edges": 50}}
    found = relations(
        likes=(40, 0.25), knows=(40, 0.25), far=(60, 0.04), near=(60, 0.08), rare=(49, 0.0), fine=(60, 0.5)
    )
    verdict = judge(Gates(relations=floors), evaluation(0.3, relations=found))
    assert failed(verdict) == ["min_mrr of knows", "min_mrr of *"]
    assert the(verdict, "min_mrr of knows").sentence == (
        "filtered MRR 0.2500 of knows (40 held-out edges), at least 0.3 asked"
    )
    assert the(verdict, "min_mrr of *").sentence == (
        "2 of 3 relations with 50 held-out edges or more have a lower MRR (far 0.0400, near 0.0800), "
        "at least 0.1 asked of each"
    )
    assert the(verdict, "min_mrr of *").value == 0.04


def test_relation_with_few_edges_only_warns():
    floors = {"likes": {"min_mrr": 0.2}, "gone": {"min_mrr": 0.2}, "*": {"min_mrr": 0.9}}
    verdict = judge(Gates(relations=floors), evaluation(0.3, relations=relations(likes=(29, 0.01), other=(3, 0.01))))
    assert verdict.passed
    assert warned(verdict) == ["min_mrr of likes", "min_mrr of gone"]
    assert "29 held-out edges, fewer than min_edges 30" in the(verdict, "min_mrr of likes").sentence
    assert the(verdict, "min_mrr of *").value is None


def test_uncovered_new_entities_warn_or_block():
    coverage = {"user": {"new": 200, "trained": 190, "moved": 180, "covered": 170}, "item": {"new": 0, "covered": 0}}
    found = evaluation(0.3, coverage=coverage)
    assert warned(judge(Gates(), found)) == ["min_coverage of user"]
    verdict = judge(Gates(min_coverage={"block": 0.9}), found)
    assert failed(verdict) == ["min_coverage of user"]
    assert the(verdict, "min_coverage of user").sentence == (
        "85.0% of 200 new entities of type user were reached by training, at least 90.0% asked"
    )


def moved(cosine, overlap):
    counts = {"common": 9, "new": 1, "gone": 0}
    return {"types": {"user": counts | {"cosine": {"mean": cosine}, "overlap": {"mean": overlap, "k": 10}}}}


def test_drift_limits_of_type_warn_or_block():
    gates = Gates(drift={"min_cosine": {"warn": 0.9, "block": 0.5}, "min_overlap": {"block": 0.3}})
    assert judge(gates, evaluation(0.3), drift=moved(0.95, 0.5)).passed
    assert warned(judge(gates, evaluation(0.3), drift=moved(0.8, 0.5))) == ["drift.min_cosine of user"]
    verdict = judge(gates, evaluation(0.3), drift=moved(0.4, 0.2))
    assert failed(verdict) == ["drift.min_cosine of user", "drift.min_overlap of user"]
    assert the(verdict, "drift.min_overlap of user").sentence == (
        "user: share of nearest neighbours that were kept 0.2000, at least 0.3 asked"
    )
    # unaligned spaces have no cosine to be judged
    assert failed(judge(gates, evaluation(0.3), drift=moved(None, 0.2))) == ["drift.min_overlap of user"]
    assert not {"drift.min_cosine of user"} & {
        check.name for check in judge(Gates(), evaluation(0.3), drift=moved(0, 0)).checks
    }


@pytest.mark.parametrize(("now", "then"), [(9.0, 4.0), (4.0, 9.0)])
def test_growing_or_shrinking_norms_warn(now, then):
    after, before = ({"user": {"norm_median": norm, "cosine": 0.0, "problems": []}} for norm in (now, then))
    found = evaluation(0.3, health=after)
    verdict = judge(Gates(), found, before={"health": before})
    assert warned(verdict) == ["drift.max_norm_change of user"]
    assert the(verdict, "drift.max_norm_change of user").value == 2.25
    strict = Gates(drift={"max_norm_change": {"block": 1.5}})
    assert failed(judge(strict, found, before={"health": before})) == ["drift.max_norm_change of user"]
    assert judge(strict, found, before={"health": after}).passed
    assert judge(strict, found).passed


def test_collapsed_embeddings_are_blocked():
    health = {"n": {"cosine": 0.999, "problems": ["the embeddings have collapsed: their mean cosine is 0.9990"]}}
    verdict = judge(Gates(), evaluation(0.3) | {"health": health})
    assert failed(verdict) == ["health of n"]


def test_any_infinite_figure_blocks_a_release():
    verdict = judge(Gates(), evaluation(0.3, raw=math.inf))
    assert failed(verdict) == ["finite"]
    assert "raw mrr" in verdict.checks[0].sentence


def test_evaluation_of_no_edges_does_not_pass():
    empty = {"raw": {"count": 0}, "filtered": {"count": 0}}
    verdict = judge(Gates(), empty)
    assert failed(verdict) == ["finite", "min_mrr"]


def test_verdict_is_strict_json():
    verdict = judge(Gates(), evaluation(math.nan, current=0.3))
    assert json.loads(json.dumps(verdict.to_json(), allow_nan=False))["passed"] is False


def test_drift_of_older_night_only_warns():
    gates = Gates.model_validate({"drift": {"min_cosine": {"block": 0.9}}, "max_mrr_drop": 0.1})
    drift = {"types": {"n": moved(0.5, None)["types"]["user"]}}
    found = evaluation(0.2, current=0.3)
    assert failed(judge(gates, found, drift=drift)) == ["max_mrr_drop", "drift.min_cosine of n"]
    found["against"] |= {"snapshot": "d5", "awaited": "d19"}
    verdict = judge(gates, found, drift=drift)
    assert (failed(verdict), warned(verdict)) == (["max_mrr_drop"], ["drift.min_cosine of n"])
    assert the(verdict, "max_mrr_drop").sentence.endswith(
        "a fall of 10% allowed; that is a release of 'd5', for 'd19', which comes between, has no release yet"
    )
    assert the(verdict, "drift.min_cosine of n").sentence.endswith(
        "; this only warns, for 'd19', which comes between, has no release yet"
    )
