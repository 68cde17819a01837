"""Forecast of an evaluation and of its parts."""

from __future__ import annotations

import pytest

from pbg_tasks.config import GraphSpec
from pbg_tasks.memory.tasks import evaluation_forecast

ENTITIES, EDGES = 86_054_151, 338_586_276
"""Of Freebase, as in the paper of PBG."""


@pytest.fixture
def graph():
    """A spec of one type with 100 numbers."""
    return GraphSpec.model_validate(
        {
            "graph": "large",
            "store": "s3://bucket/large",
            "snapshots": {"location": "s3://bucket/{snapshot}.parquet"},
            "model": {
                "entities": {"n": {"num_partitions": 200}},
                "relations": [{"name": "r", "lhs": "n", "rhs": "n"}],
                "dimension": 100,
            },
            "resources": {"memory_gb": 2, "threads": 4},
        }
    )


def lines(graph, **facts):
    forecast = evaluation_forecast(graph, asked=10_000, known=EDGES, entities=ENTITIES, **facts)
    assert forecast.peak == sum(line.size for line in forecast.lines)
    return {line.what: line.size for line in forecast.lines}


def test_part_of_86_million_entities_holds_no_vectors(graph):
    found = lines(graph, compared=True, part=True)
    row = 4 * 100
    assert found["queries"] == 10_000 * 5 * row
    assert found["candidates and scores"] == 4 * (4096 * 4 * row + 13_000_000)
    assert found["comparison with the release before"] == 120_000_000 + 10 * ENTITIES
    assert found["known edges"] == 16 * EDGES
    assert sum(found.values()) < 8e9 < ENTITIES * row / 4  # all vectors of one night are 34 GB


def test_part_holds_less_than_the_whole(graph):
    whole, part = (lines(graph, compared=True, part=part) for part in (False, True))
    assert sum(part.values()) + 60 * EDGES + 50 * ENTITIES == sum(whole.values())
    assert sum(lines(graph, compared=False, part=True).values()) < sum(part.values())
