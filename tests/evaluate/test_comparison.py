from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbg_tasks.evaluate import comparison
from pbg_tasks.evaluate.comparison import Tile, compare
from pbg_tasks.native import library

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


@pytest.mark.parametrize("instructions", [b"avx512", b"avx2", b"portable"])
def test_instruction_sets_count_as_a_plain_loop(instructions):
    native = library()
    if native is None:
        pytest.skip("the native library was not built")
    usual = native.pbg_instruction_set()
    if native.pbg_use_instruction_set(instructions):
        pytest.skip("this CPU has no such instructions")

    @given(tiles())
    @settings(deadline=None)
    def counts_the_same(tile):
        check(comparison._natively(native, tile, 10_000), tile)

    try:
        counts_the_same()
    finally:
        native.pbg_use_instruction_set(usual)


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
