"""Tables of embeddings in files of several partitions."""

from __future__ import annotations

import os

import numpy as np
import pytest

from pbg_tasks.errors import FormatError
from pbg_tasks.evaluate.ids import are_among
from pbg_tasks.evaluate.tables import EntityTable
from pbg_tasks.formats.embeddings import write_embeddings
from tests.evaluate.graphs import INFO, make_config

SIZES = (700, 900)
DIMENSION = 6
ROW = 4 * DIMENSION


@pytest.fixture(params=[False, True], ids=["in one stretch", "with checksums"])
def rows(request, tmp_path):
    """All embeddings, of which each partition has a file."""
    drawn = np.random.default_rng(0).normal(size=(sum(SIZES), DIMENSION)).astype(np.float32)
    config = make_config(dimension=DIMENSION, checksums=request.param)
    for part, own in enumerate(np.split(drawn, [SIZES[0]])):
        write_embeddings(tmp_path / f"{part}.h5", own, None, lr=0.1, iteration=INFO, config=config)
    return drawn


def table_of(directory, sample):
    return EntityTable([directory / f"{part}.h5" for part in (0, 1)], np.cumsum([0, *SIZES]), DIMENSION, sample)


@pytest.mark.parametrize("wanted", [[1599, 0, 699, 700, 0, 701], list(range(1599, -1, -1)), [], [3], range(650, 760)])
def test_gathered_rows_are_those_of_the_entities(tmp_path, rows, wanted):
    numbers = np.array(wanted, np.int64)
    for at_a_time in (2, 1000):
        assert np.array_equal(table_of(tmp_path, None).gather(numbers, at_a_time), rows[numbers])


@pytest.mark.parametrize("chosen", [range(1600), range(0, 1600, 3), [0, 1, 2, 698, 699, 700, 1599], [5], []])
def test_blocks_have_the_candidates_in_order(tmp_path, rows, chosen):
    numbers = np.array(chosen, np.int64)
    blocks = list(table_of(tmp_path, numbers).blocks(4))
    assert all(len(block.numbers) <= 4 for block in blocks)
    assert np.array_equal(np.concatenate([[], *(block.numbers for block in blocks)]), numbers)
    assert all(np.array_equal(block.rows, rows[block.numbers]) for block in blocks)


@pytest.mark.parametrize("rows", [False], indirect=True)  # chunks with checksums are read whole
def test_few_rows_are_read_without_the_others(tmp_path, rows, monkeypatch):
    """A night asks for few rows of large tables again and again."""
    read = []
    real = os.preadv

    def counted(file, buffers, offset):
        read.append(real(file, buffers, offset))
        return read[-1]

    monkeypatch.setattr(os, "preadv", counted)
    few = np.array([0, 1, 2, 900, 1500])
    table_of(tmp_path, None).gather(few, 1000)
    list(table_of(tmp_path, few).blocks(1000))
    assert sum(read) == 2 * len(few) * ROW


def test_few_rows_that_are_not_finite_are_refused(tmp_path, rows):
    rows[900] = np.inf
    config = make_config(dimension=DIMENSION)
    write_embeddings(tmp_path / "1.h5", rows[SIZES[0] :], None, lr=0.1, iteration=INFO, config=config)
    with pytest.raises(FormatError, match="not finite"):
        table_of(tmp_path, None).gather(np.array([900]), 10)


@pytest.mark.parametrize("others", [0, 1, 20, 5000])
def test_few_and_many_numbers_are_found_alike(others):
    random = np.random.default_rng(0)
    ascending = np.sort(random.choice(10_000, others, replace=False))
    for count in (0, 1, 70, 300):
        numbers = random.integers(-5, 10_005, count)
        expected = np.array([number in set(ascending.tolist()) for number in numbers.tolist()], bool)
        np.testing.assert_array_equal(are_among(numbers, ascending), expected)
