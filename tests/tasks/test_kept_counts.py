"""Counts of a release, taken from its own evaluation."""

from __future__ import annotations

import json
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from pbg_tasks.config.results import EvalResult
from pbg_tasks.evaluate import kept_counts as evaluated_counts
from pbg_tasks.evaluate.kept_counts import KeptRanker
from pbg_tasks.publish import Channel
from pbg_tasks.tasks.context import RunContext
from pbg_tasks.tasks.nightly import kept_counts
from pbg_tasks.tasks.nightly.chain import run_chain, run_task
from pbg_tasks.tasks.nightly.comparison_target import release_before
from pbg_tasks.tasks.nightly.evaluate import Releases, _evaluate
from pbg_tasks.tasks.nightly.kept_counts import are_kept
from pbg_tasks.tasks.nightly.plan import plan
from tests.tasks.conftest import ring

SPEC = {"entities": {"n": {"num_partitions": 2}}, "num_epochs": 1}


@pytest.fixture
def night(place, monkeypatch):
    """Return the second night, preserved; entities are new and expired."""
    monkeypatch.setattr(evaluated_counts, "MOST_SCORED", 1e9)
    place.write_spec(SPEC, vanished={"rule": "expire", "nights": 1})
    place.snapshot("d1", ring(60))
    run_chain(place.spec, "d1")
    place.snapshot("d2", [edge for edge in ring(64) if "e7" not in edge])
    url = plan(place.spec, "d2")["run"]
    for task in ("validate", "partition", "bucket", "train", "preserve"):
        run_task(task, url)
    return RunContext.open(url)


def figures(run):
    found = _evaluate(run, Releases(release_before(run), release_before(run), None)).document()
    return json.dumps(found["against"], sort_keys=True)


def first_run(run):
    return RunContext.within(run.store, release_before(run).run)


def file_of(run):
    return run.key(f"eval/{run.need(EvalResult).kept.sha256}.counts")


@pytest.fixture
def ranked(monkeypatch):
    """Return the rankers that kept counts made."""
    made = []

    class Noted(KeptRanker):
        def __init__(self, *args):
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr("pbg_tasks.evaluate.paired_comparison.KeptRanker", Noted)
    return made


@contextmanager
def altered(night, change):
    """Change the stored counts of the first night, or their record."""
    run = first_run(night)
    path = file_of(run) if change == "file" else run.key("results/eval.json")
    before = run.store.get(path).data
    if change == "file":
        run.store.put(path, before.replace(b"i8", b"i4", 1))
    else:
        found = json.loads(before)
        found["kept"] |= change
        run.store.put(path, json.dumps(found | ({} if change else {"kept": None})).encode())
    yield
    run.store.put(path, before)


HOLD = [
    ({"rule": 10**6}, "were counted by rule 1000000, and this version has rule 1"),
    ({"manifest_sha256": "0" * 64}, "are of other vectors than the release has"),
    ({"sha256": "0" * 64}, "does not exist"),
    ({}, "names none, as results of earlier versions"),
    ("file", "was changed after it was stored"),
]


def check_unused(night, ranked, capsys):
    """Check that counts that do not hold are not used."""
    ranked.clear()
    for change, reason in HOLD:
        with altered(night, change):
            figures(night)
        said = capsys.readouterr().err
        assert "release 1 is counted anew, without the counts of its own night: " in said
        assert reason in said
    assert not ranked


def test_night_with_kept_counts_has_equal_figures(night, ranked, monkeypatch, capsys):
    found = figures(night)
    assert ranked[0].found > 0
    check_unused(night, ranked, capsys)
    monkeypatch.setattr(kept_counts, "_read", lambda *_: None)
    assert figures(night) == found
    assert not ranked
    run_task("eval", night.url)
    for task in ("drift", "gate", "publish"):
        run_task(task, night.url)
    assert "kept" not in Channel(night.store, night.spec.graph.channel).current().release.metrics


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({}, True),
        ({"operator": "complex_diagonal", "comparator": "cos"}, True),
        ({"operator": "linear"}, False),
        ({"operator": "affine"}, False),
        ({"operator": "of_a_package"}, False),
        ({"comparator": "of_a_package"}, False),
    ],
)
def test_counts_hold_for_parts_that_round_alike(change, kept):
    relation = SimpleNamespace(operator=change.get("operator", "translation"))
    config = SimpleNamespace(comparator=change.get("comparator", "dot"), relations=[relation])
    assert are_kept(config) is kept
