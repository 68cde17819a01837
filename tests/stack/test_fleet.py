"""Many graphs in a real DAG processor with Airflow's own limits."""

from __future__ import annotations

import pytest

from tests.fleet import Fleet, parsed


def test_dags_of_many_graphs_are_all_parsed(tmp_path):
    """Parse a file of many graphs beside files of one each.

    Further tests keep the CPUs busy meanwhile.
    """
    graphs = 200
    fleet = parsed(graphs, tmp_path, apart=3)
    assert fleet.errors == {}
    assert len(fleet.dags) == 4 * graphs
    assert fleet.size <= 40_000
    assert fleet.whole


@pytest.mark.parametrize(("dags", "errors"), [(7, {}), (8, {"file": "error"})])
def test_missing_graph_is_noticed(dags, errors):
    assert not Fleet(2, frozenset(map(str, range(dags))), errors, 0.0, 0.0, 0.0).whole
