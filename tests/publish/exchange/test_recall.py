"""Recall, compared with a count by hand."""

from __future__ import annotations

import numpy as np
import pytest

from pbg_tasks.publish.exchange.nearest import Recall

ROWS, QUERIES, K = 60, 12, 5


def scored(vectors, queries, *, distance):
    if distance:
        return -np.square(queries[:, None] - vectors[None]).sum(axis=2)
    return queries @ vectors.T


@pytest.mark.parametrize("distance", [False, True])
@pytest.mark.parametrize("wrong", [0, 1, 3])
def test_recall_counts_the_neighbours_found(distance, wrong):
    rng = np.random.default_rng(wrong)
    vectors = rng.normal(size=(ROWS, 4)).astype(np.float32)
    numbers = np.arange(0, ROWS, ROWS // QUERIES)
    scores = scored(vectors, vectors[numbers], distance=distance)
    order = np.argsort(-scores, axis=1)
    found = np.array([[n, *row[row != n]] for n, row in zip(numbers, order, strict=True)])  # itself first, as FAISS
    found[:, 1 : 1 + wrong] = order[:, -wrong:] if wrong else found[:, 1:1]
    recall = Recall(numbers, vectors[numbers], found[:, : K + 1], K, distance=distance)
    for start in range(0, ROWS, 7):
        recall.compare(vectors[start : start + 7])
    assert recall.value() == pytest.approx((K - wrong) / K)


def test_equal_vectors_count_as_each_other():
    vectors = np.ones((8, 2), np.float32)
    recall = Recall(np.array([0]), vectors[:1], np.array([[5, 6, 7]]), 2, distance=False)
    recall.compare(vectors)
    assert recall.value() == 1.0


def test_missing_neighbour_counts_as_not_found():
    vectors = np.eye(4, dtype=np.float32)
    recall = Recall(np.array([0]), vectors[:1], np.array([[0, 1, -1]]), 2, distance=True)
    recall.compare(vectors)
    assert recall.value() == 0.5
