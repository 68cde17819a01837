"""Many graphs in a real DAG processor with Airflow's own limits."""

from __future__ import annotations

import pytest

from tests.fleet import Fleet, busy, parsed
from tests.rotation import of_today


@pytest.mark.parametrize(("layout", "graphs"), of_today([("folder", 200), ("files", 3)], days=2))
def test_dags_of_many_graphs_are_all_parsed(tmp_path, layout, graphs):
    """One CPU is kept busy, the others by further tests."""
    with busy(1):
        fleet = parsed(graphs, tmp_path, layout)
    assert fleet.errors == {}
    assert len(fleet.dags) == 4 * graphs
    assert fleet.size <= 40_000
    assert fleet.whole


@pytest.mark.parametrize(("dags", "errors"), [(7, {}), (8, {"file": "error"})])
def test_missing_graph_is_noticed(dags, errors):
    assert not Fleet(2, frozenset(map(str, range(dags))), errors, 0.0, 0.0, 0.0).whole
