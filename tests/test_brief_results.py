"""Results of evaluation and drift, as people see them."""

from __future__ import annotations

import json

import pytest

from pbg_tasks.cli.brief_results import brief
from pbg_tasks.cli.common import show_result

FIGURES = {"auc": 0.5, "count": 870, "hits1": 0.0, "hits10": 0.25, "hits50": 0.5, "mr": 150.5, "mrr": 0.125}
BOTH = {"filtered": FIGURES, "raw": FIGURES}
MOVED = {
    "cosine": -0.25,
    "changes": {"added": 12, "removed": 30},
    "edges": [{"change": change, "lhs": "a", "rel": "r", "rhs": "b"} for change in ("added", "kept", "added")],
    "type": "page",
}


def compared(release, reason=None):
    found = {"release": release, "snapshot": f"d{release}", "reason": reason}
    difference = {"mrr": -0.01, "low": -0.02, "high": 0.001}
    return found if reason else found | {"edges": 9, "candidate": BOTH, "current": BOTH, "difference": difference}


@pytest.fixture
def drift():
    types = {name: {"common": 90, "cosine": {"mean": 0.875}, "overlap": {"mean": 0.5, "k": 10}} for name in ("n", "p")}
    return {
        "release": 2,
        "snapshot": "d2",
        "types": types,
        "relations": {f"r{number}": {"cosine": 0.9, "edges": 3} for number in range(40)},
        "degree_deciles": {"n": [{"decile": 1, "cosine": 0.5, "entities": 9}] * 10},
        "most_moved": [MOVED | {"entity": f"e{number}"} for number in range(20)],
    }


@pytest.fixture
def evaluated(drift):
    relations = {
        f"r{number}": {"filtered": FIGURES | {"mrr": (number + 1) / 100}, "raw": FIGURES} for number in range(40)
    }
    return BOTH | {
        "task": "eval",
        "run": "/g/runs/d3-0",
        "split": "test",
        "edges": 435,
        "relations": dict(reversed(relations.items())),
        "sides": {"lhs": BOTH, "rhs": BOTH},
        "against": compared(2) | {"relations": relations},
        "best": compared(1),
        "replaced": compared(3, reason="no common edges"),
        "drift": drift,
        "kept": {"sha256": "0" * 64},
        "usage": {"cpu_seconds": 1.0},
    }


def printed(capsys, result):
    show_result(result, as_json=False)
    return capsys.readouterr().out.splitlines()


def test_evaluation_for_people_fits_on_screen(capsys, evaluated):
    lines = printed(capsys, evaluated)
    assert len(lines) <= 45
    assert max(map(len, lines)) <= 100
    assert "filtered  0.5  870    0      0.25    0.5     150.5  0.125" in [line.strip() for line in lines]
    at = lines.index("release before:")
    assert lines[at + 1 : at + 5] == [
        "  release:      2",
        "  snapshot:     d2",
        "  edges:        9",
        "  difference:   MRR -0.01, 95 % interval -0.02 to 0.001",
    ]
    assert lines[at + 6].split() == ["this", "run", "870", "0.125", "0", "0.25"]
    assert lines[lines.index("release replaced:") + 3].split(maxsplit=1) == ["reason:", "no common edges"]
    at = lines.index("worst of 40 relations:")
    assert [line.split()[0] for line in lines[at + 2 :][:5]] == ["r0", "r1", "r2", "r3", "r4"]
    assert lines[-1] == "--json prints all figures; `pbg report /g/runs/d3-0` makes pages of them"


def test_evaluation_of_sampled_split_shows_its_interval(capsys, evaluated):
    interval = {"mrr": 0.125, "low": 0.1, "high": 0.15}
    result = evaluated | {"edges": 300, "held_out": 961, "interval": interval, "sampled": False}
    lines = [" ".join(line.split()) for line in printed(capsys, result)]
    assert "edges: 300 of 961 held out" in lines
    assert "whole split: filtered MRR within 0.1 to 0.15 (95 % interval)" in lines
    assert "candidates sampled: no" in lines


def test_best_release_is_shown_once(evaluated):
    assert "best release" in brief(evaluated)
    assert "best release" not in brief(evaluated | {"best": {"release": 2, "snapshot": "d2", "reason": None}})


def test_evaluation_of_config_has_raw_relations(capsys):
    result = {"task": "eval", "checkpoint": "/m", "raw": FIGURES, "relations": {"r": {"raw": FIGURES}}, "edges": 5}
    lines = printed(capsys, result)
    assert lines[:2] == ["task:       eval", "checkpoint: /m"]
    assert lines[lines.index("relations:") + 1 :] == [
        "  r:",
        "    count:  870",
        "    mrr:    0.125",
        "    hits1:  0",
        "    hits10: 0.25",
        "--json prints all figures",
    ]


def test_drift_for_people_counts_changed_edges(capsys, drift):
    lines = printed(capsys, drift | {"task": "drift", "run": "/g/runs/d3-0"})
    assert len(lines) <= 20
    at = lines.index("most moved:")
    assert lines[at + 1 :][:2] == [
        "             cosine  added  removed  kept",
        "  e0 (page)  -0.25   12     30       0",
    ]


def test_drift_of_earlier_version_counts_no_edges(capsys, drift):
    moved = [{key: value for key, value in each.items() if key != "changes"} for each in drift["most_moved"]]
    lines = printed(capsys, drift | {"task": "drift", "run": "/g/runs/d3-0", "most_moved": moved})
    assert lines[lines.index("most moved:") + 1 :][:2] == ["  e0 (page):", "    cosine: -0.25"]


def test_tasks_together_are_each_shortened(capsys, evaluated, drift):
    result = {"task": "finish", "run": "/g/runs/d3-0", "tasks": {"eval": evaluated, "drift": drift | {"task": "drift"}}}
    lines = printed(capsys, result)
    assert len(lines) <= 70
    assert lines[-1].startswith("--json prints all figures; ")


def test_evaluation_for_programs_is_whole(capsys, evaluated):
    show_result(evaluated, as_json=True)
    assert json.loads(capsys.readouterr().out) == evaluated
