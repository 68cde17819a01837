from __future__ import annotations

import json

import numpy as np
import pytest

from pbg_tasks.evaluate import health
from pbg_tasks.evaluate.health import Health


def normal(rows, dimension=16):
    return np.random.default_rng(0).normal(size=(rows, dimension)).astype(np.float32)


def test_random_embeddings_are_healthy_in_any_pieces():
    rows = normal(3000)
    whole, cut = Health.of([rows]), Health.of(np.array_split(rows, 7))
    assert whole.problems() == []
    assert (whole.rows, whole.norm_min, whole.norm_max) == (cut.rows, cut.norm_min, cut.norm_max)
    norms = np.linalg.norm(rows, axis=1)
    assert whole.norm_median == pytest.approx(np.median(norms), rel=1e-6)
    assert whole.cosine == pytest.approx(0, abs=0.01)
    assert cut.cosine == whole.cosine  # of the same sample


def test_mean_cosine_is_that_of_all_pairs():
    rows = normal(50) + 1
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    expected = (unit @ unit.T)[~np.eye(50, dtype=bool)].mean()
    assert Health.of([rows]).cosine == pytest.approx(expected, abs=1e-6)


def test_each_ailment_is_named_with_its_extent():
    rows = normal(100)
    rows[3, 1], rows[4, 2] = np.nan, np.inf
    rows[10:15] = 0
    found = Health.of(np.array_split(rows, 3))
    assert (found.non_finite, found.zero, found.norm_min) == (2, 5, 0)
    assert found.problems() == ["2 of 100 embeddings are not finite", "5 of 100 embeddings are zero"]


def test_collapse_is_seen_from_a_sample(monkeypatch):
    monkeypatch.setattr(health, "SAMPLE_ROWS", 20)
    rows = 1 + 0.01 * normal(500)
    assert "collapsed" in Health.of(np.array_split(rows, 9)).problems()[0]


def test_large_values_are_finite():
    found = Health.of([np.full((4, 8), 1e30, np.float32)])
    assert found.non_finite == 0
    assert found.norm_max == pytest.approx(1e30 * 8**0.5, rel=1e-6)


def test_empty_and_broken_tables_have_no_figures():
    for rows in (np.empty((0, 4), np.float32), np.full((3, 4), np.nan, np.float32)):
        found = Health.of([rows])
        assert (found.cosine, found.norm_min, found.norm_median) == (None, None, None)
        json.dumps(found.to_json(), allow_nan=False)
