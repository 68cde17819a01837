"""Steps by a chosen instruction set."""

from __future__ import annotations

import pytest

from benchmarks.speed import sets
from benchmarks.speed.workloads import LIVEJOURNAL, RandomGraph
from pbg_tasks.native.library import instruction_set, library


@pytest.fixture
def graph(tmp_path):
    """Return a config, and put back the instruction set afterwards."""
    if library() is None:
        pytest.skip("the native library was not built")
    before = instruction_set()
    yield RandomGraph(100, 500).write(LIVEJOURNAL | {"dimension": 8}, tmp_path / "graph")
    assert sets.use(before)


def test_steps_are_computed_by_the_named_set(graph):
    assert sets.Ours(graph, sets.PLAIN).step(300) == 300
    assert instruction_set() == sets.PLAIN


def test_set_that_the_cpu_lacks_is_refused(graph):
    with pytest.raises(ValueError, match="sse9: this CPU lacks it"):
        sets.Ours(graph, "sse9")
