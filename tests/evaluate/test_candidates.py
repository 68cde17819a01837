"""Samples of candidates: drawn once, reused, with figures of brute force."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pbg_tasks.config import Evaluation
from pbg_tasks.evaluate.candidates import Candidates
from pbg_tasks.formats.entity_sets import EntitySet
from tests.evaluate.graphs import Graph, make_config


def test_figures_of_sample_equal_brute_force(tmp_path):
    graph = Graph(make_config(partitions=3, operator="translation"), users=60, items=30, edges=200)
    held_out = graph.triples[:40]
    report, sample = graph.evaluate(tmp_path, held_out, evaluation=Evaluation(max_candidates=20))
    eligible = {name: set(sample.numbers(name, graph.bases[name]).tolist()) for name in graph.bases}
    raw, filtered, among, filtered_among = graph.oracle(held_out, eligible)
    assert report.candidates == {"user": 20, "item": 20}
    for figures_found, ranks, candidates in ((report.raw, raw, among), (report.filtered, filtered, filtered_among)):
        assert figures_found["mr"] == pytest.approx(ranks.mean(), abs=1e-5)
        assert figures_found["hits1"] == pytest.approx((ranks == 1).mean(), abs=1e-6)
        assert figures_found["auc"] == pytest.approx((1 - (ranks - 1) / (candidates - 1)).mean(), abs=1e-5)
    assert report.random["mr"] == pytest.approx((filtered_among + 1).mean() / 2)


def test_sample_of_candidates_is_drawn_once(tmp_path):
    graph = Graph(make_config(partitions=2, dynamic=True), users=200, edges=300)
    few = Evaluation(max_candidates=50)
    report, sample = graph.evaluate(tmp_path, graph.triples[:30], evaluation=few)
    assert report.sampled
    assert report.candidates == {"user": 50, "item": 11}
    kept = Candidates.from_bytes(sample.to_bytes())
    assert graph.evaluate(tmp_path, graph.triples[:30], evaluation=few, candidates=kept, seed=9)[0] == report
    other, _ = graph.evaluate(tmp_path, graph.triples[:30], evaluation=few, seed=9)
    assert other != report
    everyone, none = graph.evaluate(tmp_path, graph.triples[:30])
    assert none is None
    assert everyone.raw["mr"] == pytest.approx(4 * report.raw["mr"], rel=0.5)


def test_type_beyond_the_limit_is_drawn_later(tmp_path):
    graph = Graph(make_config(partitions=2), users=60, items=30, edges=100)
    limit = Evaluation(max_candidates=20)
    kept = Candidates.draw({"user": graph.counts["user"]}, 20, seed=7)
    report, sample = graph.evaluate(tmp_path, graph.triples[:20], evaluation=limit, candidates=kept)
    assert report.candidates == {"user": 20, "item": 20}
    assert np.array_equal(*(each.numbers("user", graph.bases["user"]) for each in (kept, sample)))
    again = Candidates.from_bytes(sample.to_bytes())
    assert again.drawn_with == 20
    assert graph.evaluate(tmp_path, graph.triples[:20], evaluation=limit, candidates=again, seed=9)[0] == report


def test_sample_without_limit_infers_it_from_size():
    sample = Candidates.draw({"user": [40, 40], "item": [30]}, 20, seed=0)
    old = Candidates.from_bytes(replace(sample, limit=None).to_bytes())
    assert old.limit is None
    assert old.drawn_with == 20


def test_sample_that_mostly_expired_is_drawn_anew():
    counts = {"user": [40, 40], "item": [30]}
    first = Candidates.draw(counts, 20, seed=0)
    bases = np.array([0, 40, 80])

    def night(expired):
        sample = expired.astype(np.int64)
        hidden = EntitySet({"user": sample // 40}, {"user": sample % 40})
        return Candidates.draw(counts, 20, seed=0, kept=first, hidden=hidden), sample

    again, _ = night(first.numbers("user", bases)[:10])
    np.testing.assert_array_equal(again.numbers("user", bases), first.numbers("user", bases))
    anew, gone = night(first.numbers("user", bases)[:11])
    found = anew.numbers("user", bases)
    assert len(np.unique(found)) == 20
    assert not np.isin(found, gone).any()
    np.testing.assert_array_equal(anew.numbers("item", np.array([0, 30])), first.numbers("item", np.array([0, 30])))
    few, _ = night(np.arange(65))
    np.testing.assert_array_equal(few.numbers("user", bases), np.arange(65, 80))  # all that are left
