from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pbg_tasks.evaluate import comparison, on_gpu
from pbg_tasks.evaluate.comparison import Asked, Tile, compare, compare_products
from pbg_tasks.native import library

GPU = torch.device("cuda" if torch.cuda.is_available() else "cpu")

SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0], np.float32)


@st.composite
def tiles(draw):
    """Draw scores on a coarse grid, with ties and invalid numbers.

    Many are equal to a bound.
    """
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    questions, columns, edges = draw(st.tuples(*[st.integers(1, 40)] * 3))
    scores = rng.integers(-4, 5, size=(questions, columns)).astype(np.float32)
    odd = rng.random(scores.shape) < draw(st.sampled_from([0, 0.2]))
    scores[odd] = rng.choice(SPECIAL, size=odd.sum())
    ties = rng.integers(-4, 5, size=edges).astype(np.float32)
    wins = ties + rng.integers(0, 3, size=edges).astype(np.float32)
    ties[rng.random(edges) < 0.1] = np.nan
    known = [np.flatnonzero(rng.random(columns) < 0.2) for _ in range(questions)]
    return Tile(
        scores=scores,
        question=np.sort(rng.integers(questions, size=edges)),
        ties=ties,
        wins=wins,
        own=rng.integers(-1, columns, size=edges),
        answer_start=np.concatenate(([0], np.cumsum([len(row) for row in known]))),
        answers=np.concatenate(known),
    )


def one_by_one(tile):
    no_worse, known, close = [], [], []
    for edge, (question, ties, wins, own) in enumerate(zip(tile.question, tile.ties, tile.wins, tile.own, strict=True)):
        answers = set(tile.answers[tile.answer_start[question] : tile.answer_start[question + 1]].tolist())
        found = {
            column for column, score in enumerate(tile.scores[question]) if column != own and not bool(score < ties)
        }
        no_worse.append(len(found))
        known.append(len(found & answers))
        close += [(edge, column) for column in sorted(found) if tile.scores[question, column] <= wins]
    return no_worse, known, close


def check(found, tile):
    no_worse, known, close = one_by_one(tile)
    assert found.no_worse.tolist() == no_worse
    assert found.known.tolist() == known
    assert [tuple(pair) for pair in found.close.tolist()] == close


@given(tiles())
@settings(deadline=None)
def test_numpy_counts_as_a_plain_loop(tile):
    check(comparison._with_numpy(tile, 10_000), tile)


@contextmanager
def using(instructions):
    """Run the native library on an instruction set, or skip."""
    native = library()
    if native is None:
        pytest.skip("the native library was not built")
    usual = native.pbg_instruction_set()
    if native.pbg_use_instruction_set(instructions):
        pytest.skip("this CPU has no such instructions")
    try:
        yield
    finally:
        native.pbg_use_instruction_set(usual)


@pytest.mark.parametrize("instructions", [b"avx512", b"avx2", b"portable"])
def test_instruction_sets_count_as_a_plain_loop(instructions):
    @given(tiles())
    @settings(deadline=None)
    def counts_the_same(tile):
        check(comparison._natively(library(), tile, 10_000), tile)

    with using(instructions):
        counts_the_same()


@st.composite
def products(draw):
    """Draw vectors and edges whose bounds are scores.

    Some vectors are zero, and some are much longer than others. Bounds are any score or the highest, as of a search.
    """
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    questions, columns, dimension = draw(st.tuples(st.integers(1, 30), st.integers(1, 2100), st.integers(1, 70)))
    queries, candidates = (rng.standard_normal((count, dimension)) for count in (questions, columns))
    if draw(st.booleans()):  # halves of 1/127 of the largest: rounding to 8 bits moves all others as far as it can
        queries, candidates = (np.abs(np.floor(20 * vectors) + 0.5) / 127 for vectors in (queries, candidates))
        queries[:, 0] = candidates[:, 0] = 1
    queries *= 10 ** rng.uniform(-draw(st.sampled_from([0, 3])), 0, (questions, 1))
    candidates *= 10 ** rng.uniform(-draw(st.sampled_from([0, 1])), 0, (columns, 1))
    candidates[rng.random(columns) < 0.01] = 0
    queries, candidates = queries.astype(np.float32), candidates.astype(np.float32)
    edges = draw(st.integers(0, 40))
    question, own = np.sort(rng.integers(questions, size=edges)), rng.integers(columns, size=edges)
    scores = queries.astype(np.float64) @ candidates.T.astype(np.float64)
    if draw(st.booleans()):
        own = scores[question].argmax(axis=1)
    apart = 2e-6 * np.linalg.norm(queries[question], axis=1) * np.linalg.norm(candidates[own], axis=1)
    known = [np.flatnonzero(rng.random(columns) < 0.05) for _ in range(questions)]
    asked = Asked(
        question=question,
        ties=(scores[question, own] - apart).astype(np.float32),
        wins=(scores[question, own] + apart).astype(np.float32),
        own=np.where(rng.random(edges) < 0.2, -1, own),
        answer_start=np.concatenate(([0], np.cumsum([len(row) for row in known]))),
        answers=np.concatenate(known),
    )
    return queries, candidates, scores, asked


def check_products(queries, candidates, scores, asked, compare_products=compare_products):
    """Compare with float64, except for scores close to a bound.

    Returns whether products were counted, and not left to scores.
    """
    limit = 2 * len(asked.question) * len(candidates)
    found = compare_products(queries, candidates, asked, limit)
    if found is None:
        return False
    listed = set(map(tuple, found.close.tolist()))
    assert len(listed) == len(found.close)
    for edge, (question, own) in enumerate(zip(asked.question, asked.own, strict=True)):
        mine, ties, wins = scores[question], float(asked.ties[edge]), float(asked.wins[edge])
        error = 2e-6 * np.linalg.norm(queries[question]) * np.linalg.norm(candidates, axis=1) + 1e-30
        others = np.arange(len(candidates)) != own
        sure, possible = ((mine >= ties + sign * error) & others for sign in (1, -1))
        assert sure.sum() <= found.no_worse[edge] <= possible.sum()
        known = np.zeros(len(candidates), bool)
        known[asked.answers[asked.answer_start[question] : asked.answer_start[question + 1]]] = True
        assert (sure & known).sum() <= found.known[edge] <= (possible & known).sum()
        close = {column for at, column in listed if at == edge}
        assert set(np.flatnonzero(sure & (mine <= wins - error)).tolist()) <= close
        assert close <= set(np.flatnonzero(possible & (mine <= wins + error)).tolist())
    return True


@pytest.mark.parametrize("instructions", [b"amx", b"avx512_bf16", b"avx512_vnni", b"avx512", b"avx2", b"portable"])
def test_products_count_as_scores_do(instructions):
    counted = set()

    @given(products())
    @settings(deadline=None, max_examples=60)
    def counts_the_same(case):
        counted.add(check_products(*case))

    with using(instructions):
        counts_the_same()
    assert True in counted


@given(products(), st.sampled_from([500, 1 << 26]))
@settings(deadline=None, max_examples=60)
def test_products_on_a_gpu_count_as_scores_do(case, scores):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(on_gpu, "_SCORES", scores)
        check_products(*case, on_gpu.GpuProducts(GPU))


def test_gpu_lists_close_products_up_to_limit():
    queries, candidates, asked = far_apart(0.0)
    candidates[:40] = candidates[5]
    own = queries[1] @ candidates[5]
    asked = replace(asked, ties=np.full(1, own - 1e-5, np.float32), wins=np.full(1, own + 1e-5, np.float32))
    products, close = on_gpu.GpuProducts(GPU), [[0, column] for column in range(40) if column != 5]
    assert products(queries, candidates, asked, len(close)).close.tolist() == close
    assert products(queries, candidates, asked, len(close) - 1) is None


def far_apart(value):
    """Return queries, candidates, one of which has ``value``, and an edge."""
    rng = np.random.default_rng(0)
    queries, candidates = (rng.standard_normal((count, 8)).astype(np.float32) for count in (2, 3000))
    candidates[7, 3] = value
    bound = np.full(1, 1.5, np.float32)
    asked = Asked(np.ones(1, np.int64), bound, bound, np.full(1, 5), np.array([0, 0, 1]), np.array([9]))
    return queries, candidates, asked


def test_products_are_counted_without_scores():
    if library() is None:
        pytest.skip("the native library was not built")
    queries, candidates, asked = far_apart(0.0)
    found, scores = compare_products(queries, candidates, asked, 0), queries[1] @ candidates.T
    no_worse = scores >= 1.5
    assert found.no_worse.tolist() == [no_worse.sum() - no_worse[5]]
    assert found.known.tolist() == [no_worse[9]]


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e20])
def test_unusual_products_are_left_to_scores(value):
    assert compare_products(*far_apart(value), 10) is None


def test_equal_products_are_left_to_scores():
    queries, candidates, asked = far_apart(0.0)
    assert compare_products(queries * 0, candidates * 0, asked, 3000) is None


@pytest.mark.parametrize("edges", [3, 1500])
@pytest.mark.parametrize("native", [True, False])
def test_close_scores_are_listed_up_to_limit(monkeypatch, native, edges):
    if not native:
        monkeypatch.setattr(comparison, "library", lambda: None)
    tile = Tile(
        scores=np.zeros((1, 5), np.float32),
        question=np.zeros(edges, np.int64),
        ties=np.full(edges, -1, np.float32),
        wins=np.full(edges, 1, np.float32),
        own=np.full(edges, 2),
        answer_start=np.array([0, 1]),
        answers=np.array([4]),
    )
    found = compare(tile, 4 * edges)
    assert found.close.tolist() == [[edge, column] for edge in range(edges) for column in (0, 1, 3, 4)]
    found = compare(tile, 4 * edges - 1)
    assert found.close is None
    assert found.no_worse.tolist() == [4] * edges
    assert found.known.tolist() == [1] * edges


def test_arrays_that_library_would_misread_are_refused():
    native = library()
    if native is None:
        pytest.skip("the native library was not built")
    tile = Tile(
        scores=np.zeros((2, 3), np.float32),
        question=np.zeros(2, np.int32),
        ties=np.zeros(2, np.float32),
        wins=np.zeros(2, np.float32),
        own=np.zeros(2, np.int64),
        answer_start=np.zeros(3, np.int64),
        answers=np.zeros(0, np.int64),
    )
    with pytest.raises(ValueError, match="int32"):
        comparison._natively(native, tile, 4)
