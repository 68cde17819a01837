"""Edges added and removed between two snapshots, compared with Python's sets."""

from __future__ import annotations

from collections import Counter

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pbg_tasks.errors import FormatError
from pbg_tasks.prepare.difference import EDGE_HASHES, EdgeChanges, RelationEdges, find_edges, write_edge_hashes
from tests.prepare.differences import find, make_spec

names = st.sampled_from(["a", "b", "é\x1e", "a b", "'"])
edges = st.lists(st.tuples(names, st.sampled_from(["r", "s", "t"]), names), max_size=30)


def expected(before, now):
    rows = Counter(rel for _, rel, _ in now)
    then, here = set(before), set(now)

    def count(which, rel):
        return sum(each[1] == rel for each in which)

    return {
        rel: RelationEdges(
            rows[rel], count(here, rel), count(then, rel), count(here - then, rel), count(then - here, rel)
        )
        for _, rel, _ in [*before, *now]
    }


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edges, edges)
def test_difference_equals_that_of_sets(tmp_path, before, now):
    find(before, tmp_path / "before")
    assert find(now, tmp_path / "now", before=tmp_path / "before" / EDGE_HASHES) == expected(before, now)


def test_edges_sorted_by_several_threads_are_counted_exactly(tmp_path):
    spec, found = make_spec(), {}
    numbers = {
        "before": "SELECT range FROM range(50000, 350000)",
        "now": "SELECT range % 300000 AS range FROM range(360000)",
    }
    for night, query in numbers.items():
        out = tmp_path / night
        out.mkdir()
        with duckdb.connect(config={"threads": "4"}) as connection:
            connection.execute(
                f"""
                CREATE TEMP TABLE raw AS
                SELECT 'e' || range AS lhs, 'r' || range % 2 AS rel, 'e' AS rhs, NULL::VARCHAR AS lhs_type,
                    NULL::VARCHAR AS rhs_type
                FROM ({query})
                """
            )
            found = find_edges(connection, spec, tmp_path / "before" / EDGE_HASHES if found else None)
            write_edge_hashes(connection, out)
    assert found == dict.fromkeys(("r0", "r1"), RelationEdges(180000, 150000, 150000, 25000, 25000))
    assert duckdb.read_parquet(str(tmp_path / "now" / EDGE_HASHES)).count("*").fetchall() == [(300000,)]


def test_edges_in_other_order_give_equal_bytes(tmp_path):
    rows = [(f"e{i}", f"r{i % 3}", f"e{i * 7 % 90}") for i in range(90)]
    find(rows, tmp_path / "a")
    find(rows[::-1] + rows[:5], tmp_path / "b", before=tmp_path / "a" / EDGE_HASHES)
    assert (tmp_path / "a" / EDGE_HASHES).read_bytes() == (tmp_path / "b" / EDGE_HASHES).read_bytes()


def test_types_are_part_of_edge_and_relation(tmp_path):
    spec = make_spec(lhs_type="from", rhs_type="to")
    rows = [("1", "to", "2", "user", "item"), ("1", "to", "2", "item", "user"), ("1", "to", "2", "item", "user")]
    found = find(rows, tmp_path, spec=spec)
    assert found == {
        "to (item, user)": RelationEdges(2, 1, 0, 1, 0),
        "to (user, item)": RelationEdges(1, 1, 0, 1, 0),
    }


def test_graph_of_one_relation_uses_its_name(tmp_path):
    rows = [("1", None, "2"), ("1", None, "2")]
    assert find(rows, tmp_path, spec=make_spec(rel=None)) == {"only": RelationEdges(2, 1, 0, 1, 0)}


def test_table_of_other_columns_is_format_error(tmp_path):
    path = tmp_path / EDGE_HASHES
    duckdb.sql("SELECT 1 AS one").write_parquet(str(path))
    with pytest.raises(FormatError, match=EDGE_HASHES):
        find([("a", "r", "b")], tmp_path, before=path)


def test_sums_from_numbers_alone_are_bounds():
    relations = {"r": RelationEdges(9, 8, 5, 4, 1), "s": RelationEdges(0, 0, 2, 0, 2)}
    assert EdgeChanges.of_relations(relations) == EdgeChanges(8, 7, 4, 3, relations=relations)
    assert EdgeChanges.of_rows(now=10, before=14) == EdgeChanges(10, 14, 0, 4, exact=False)
    assert EdgeChanges.of_rows(now=14, before=10) == EdgeChanges(14, 10, 4, 0, exact=False)
