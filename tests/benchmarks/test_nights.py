"""Dated edges as snapshots, and reports on nights.

Nights themselves have their own tests.
"""

from __future__ import annotations

import gzip
from statistics import fmean

import pytest

from benchmarks.nights.comparison import difference, overlap_by_degree
from benchmarks.nights.days import AHEAD, PAST, read_dated_edges, write_snapshot
from benchmarks.nights.graph import Graph
from benchmarks.nights.night import DATA_GATE, RELEASED, run_nights
from benchmarks.nights.ranking import held_out_names, rank_named
from benchmarks.nights.report import write
from benchmarks.nights.results import read
from benchmarks.nights.settings import best_of, cheapest_of
from benchmarks.nights.table import means, table
from pbg_tasks.config.loading import load_graph_spec
from pbg_tasks.errors import InputError
from pbg_tasks.storage import open_store

FACTS = "a\tsees\tb\t2014-01-02\na\tsees\tb\t2014-01-01\nb\tsees\tc\t2014-01-03\nc\tsees\ta\t2014-01-05\n"
TOPOLOGY = "2014-01-01\t+\ta\tb\n2014-01-01\t+\tb\tc\n2014-01-02\t-\ta\tb\n2014-01-04\t+\ta\tb\n"


def dated(folder, text):
    folder.mkdir(exist_ok=True)
    (folder / "edges.tsv").write_text(text)
    return read_dated_edges(folder)


def test_day_may_be_in_file_or_folder_name(tmp_path):
    (tmp_path / "2014-01-02.tsv").write_text("a\tsees\tb\n")
    (tmp_path / "day=2014-01-03").mkdir()
    (tmp_path / "day=2014-01-03" / "part-0.tsv.gz").write_bytes(gzip.compress(b"b\tsees\tc\n"))
    assert read_dated_edges(tmp_path).changes == {
        "2014-01-02": {("a", "sees", "b"): True},
        "2014-01-03": {("b", "sees", "c"): True},
    }
    (tmp_path / "edges.tsv").write_text("c\tsees\ta\n")
    with pytest.raises(InputError, match=r"edges\.tsv: lines of head, relation, tail need a day"):
        read_dated_edges(tmp_path)
    (tmp_path / "edges.tsv").write_text("c\tsees\n")
    with pytest.raises(InputError, match=r"edges\.tsv:1: has 2 cells separated by tabs, expected 3 or 4"):
        read_dated_edges(tmp_path)
    (tmp_path / "edges.tsv").unlink()
    (tmp_path / "2014-01-04.tsv.gz").write_bytes(b"no gzip")
    with pytest.raises(InputError, match=r"2014-01-04\.tsv\.gz: cannot be read"):
        read_dated_edges(tmp_path)


def test_snapshot_has_edges_known_by_its_day(tmp_path):
    found = dated(tmp_path, FACTS)
    days = ["2014-01-02", "2014-01-03", "2014-01-05"]
    assert dict(found.snapshots(days)) == {
        "2014-01-02": [("a", "sees", "b")],
        "2014-01-03": [("a", "sees", "b"), ("b", "sees", "c")],
        "2014-01-05": [("a", "sees", "b"), ("b", "sees", "c"), ("c", "sees", "a")],
    }


def test_window_drops_edges_that_were_not_repeated(tmp_path):
    found = dated(tmp_path, FACTS)
    assert dict(found.snapshots(["2014-01-03", "2014-01-05"], window=2)) == {
        "2014-01-03": [("a", "sees", "b"), ("b", "sees", "c")],
        "2014-01-05": [("c", "sees", "a")],  # there is no fact of the 4th
    }


def test_edges_with_signs_come_and_go(tmp_path):
    found = dated(tmp_path, TOPOLOGY)
    assert [len(edges) for _, edges in found.snapshots(list(found.changes))] == [2, 1, 2]
    with pytest.raises(InputError, match="when it goes"):
        list(found.snapshots(["2014-01-01"], window=2))


def test_coming_days_are_those_after_a_night(tmp_path):
    days = [f"2014-01-{day:02}" for day in range(1, 31)]
    found = dated(tmp_path, "".join(f"a\tsees\t{day}\t{day}\n" for day in days))
    assert found.coming(days[2]) == {("a", "sees", day) for day in days[3 : 3 + AHEAD]}
    assert found.coming(days[-1]) == set()


def test_first_night_has_past_days_where_possible(tmp_path):
    days = [f"2014-0{month}-{day:02}" for month in (1, 3) for day in range(1, 31)]
    found = dated(tmp_path, "".join(f"a\tsees\tb\t{day}\n" for day in days))
    assert found.chosen(2) == days[PAST : PAST + 2]
    assert found.chosen(2, "2014-01-05") == ["2014-01-05", "2014-01-06"]
    assert found.chosen(59) == days[1:]
    with pytest.raises(InputError, match="only 2 days"):
        found.chosen(3, days[-2])


@pytest.mark.parametrize(
    ("text", "message"), [("", "no TSV file"), ("a\tb\tc\tyesterday\n", "is no day"), ("a\tb\n", "2 cells")]
)
def test_undated_edges_are_refused(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        dated(tmp_path, text)


def test_graph_has_specs_of_both_walks(tmp_path):
    dated(tmp_path / "data", FACTS)
    graph = Graph.write("data", tmp_path, place=str(tmp_path / "place"), specs=tmp_path, count=2, first="2014-01-02")
    assert graph.days == ["2014-01-02", "2014-01-03"]
    assert graph.day_after() == ("2014-01-05", [("a", "sees", "b"), ("b", "sees", "c"), ("c", "sees", "a")])
    assert load_graph_spec(graph.spec("chain")).nights.first == "2014-01-02"
    assert load_graph_spec(graph.spec("independent")).nights.walk == "independent"
    with pytest.raises(InputError, match="neither a folder"):
        Graph.write("nothing", tmp_path, place=str(tmp_path / "place"), specs=tmp_path, count=2)


@pytest.mark.rotated(3)
def test_night_is_described_by_its_end(tmp_path):
    rows = [f"n{at}\tsees\tn{(at + step) % 40}\t2014-01-0{1 + step % 2}\n" for at in range(40) for step in (1, 2, 5)]
    dated(tmp_path / "data", "".join(rows))
    graph = Graph.write("data", tmp_path, place=str(tmp_path / "place"), specs=tmp_path, count=2)
    spec = graph.spec("chain", gates={"max_mrr_drop": 1.0, "data": {"max_removed_edges": {"block": 0.1}}})
    small = ("model.dimension=8", "model.num_uniform_negs=20", "model.num_epochs=1")
    edges = dict(graph.dated.snapshots(graph.days))[graph.days[1]]
    write_snapshot(open_store(graph.place), graph.days[1], edges[:20])
    first, bad = run_nights(spec, graph.days, *small)
    assert (first.outcome, bad.outcome) == (RELEASED, DATA_GATE)
    assert first.figures["release"] == 1
    (ranked,) = rank_named(first.run, held_out_names(first.run, "test"))
    assert fmean(ranked.values()) == pytest.approx(first.figures["mrr"], abs=1e-6)
    assert len(first.manifest) == 64
    assert "gates.data.max_removed_edges" in bad.said
    assert bad.manifest is None
    walks = {"chain": [first.to_json(), bad.to_json()], "independent": [first.to_json()] * 2}
    assert "released / stopped by the data gate" in table(walks)
    assert means(walks)["independent"] == first.figures["mrr"]


def test_difference_is_the_mean_over_days():
    a, b, c = (("x", "r", str(number)) for number in range(3))
    ours, theirs = [{a: 1.0, b: 0.5}, {a: 1.0, b: 0.5, c: 0.25}], [{a: 0.5, b: 0.5}, {a: 0.25, b: 0.5, c: 0.25}]
    found = difference(ours, theirs)
    assert found["mrr"] == pytest.approx((0.5 / 2 + 0.75 / 3) / 2)
    assert found["low"] == 0  # a resample without the one edge that differs
    assert found["high"] > found["mrr"]


def test_overlap_of_deciles_is_put_together_by_degree():
    def decile(most, entities, overlap):
        return {"max_degree": most, "entities": entities, "overlap": overlap}

    nights = [[decile(1, 60, 0.5), decile(3, 30, 0.9), decile(6, 10, None)], [decile(1, 20, 0.9), decile(90, 10, 1.0)]]
    assert overlap_by_degree([{"degree_deciles": {"node": rows}} for rows in nights] + [{}]) == [
        {"up_to": 1, "share": 0.6667, "overlap": 0.6},
        {"up_to": 6, "share": 0.25, "overlap": 0.9},
        {"up_to": None, "share": 0.0833, "overlap": 1.0},
    ]


def test_best_setting_keeps_neighbours_where_one_does():
    rows = [{"name": "a", "valid": 0.3, "overlap": 0.8}, {"name": "b", "valid": 0.2, "overlap": 0.9}]
    assert best_of([*rows, {"name": "c", "valid": 0.1, "overlap": 0.99}]) == "b"
    assert best_of(rows[:1]) == "a"
    assert best_of([{"name": "d", "valid": 0.1, "overlap": None}, {"name": "e", "valid": 0.2, "overlap": None}]) == "e"


def test_cheapest_setting_is_as_good_and_keeps_neighbours():
    rows = [
        {"name": "a", "valid": 0.3, "overlap": 0.9, "edges_trained": 30},
        {"name": "b", "valid": 0.2, "overlap": 0.9, "edges_trained": 20},
        {"name": "c", "valid": 0.21, "overlap": 0.9, "edges_trained": 20},
        {"name": "d", "valid": 0.4, "overlap": 0.8, "edges_trained": 10},
    ]
    assert [cheapest_of(rows, valid) for valid in (0.2, 0.21, 0.25, 0.35)] == ["c", "c", "a", None]


def test_document_has_the_figures_of_results(tmp_path, monkeypatch):
    results = read()
    if "stories" not in results:
        pytest.skip("nothing was measured yet: python -m benchmarks.nights.story")
    from benchmarks.nights import report

    kept = report.DOCUMENT.read_text()
    monkeypatch.setattr(report, "DOCUMENT", tmp_path / "nights.md")
    write(results)
    assert (tmp_path / "nights.md").read_text() == kept
