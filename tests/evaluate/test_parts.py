"""Parts of an evaluation add up to the whole."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from pbg_tasks.config import Evaluation, Gates
from pbg_tasks.errors import ConfigError, FormatError
from pbg_tasks.evaluate import sampling
from pbg_tasks.evaluate.counts import MergedCounting, PartCounting, Share, from_bytes, to_bytes
from tests.evaluate.compared_models import compared_model
from tests.evaluate.graphs import Graph, make_config

GATES = Gates(min_over_popularity={}, max_mrr_drop=0.5, max_trend_drop={}, min_common_edges=10)
ASKED = ("evaluation", "candidates", "compared", "best", "gates", "seed")


def counted(graph, tmp_path, held_out, parts, **options):
    """Count all parts, each read back from its file."""
    kept = {key: value for key, value in options.items() if key in ASKED}
    found = [PartCounting(Share(number, parts).partitions(graph.counts)) for number in range(1, parts + 1)]
    for counting in found:
        graph.ranking(tmp_path, held_out, counting=counting, **kept)
    names = sorted(found[0].found)
    read = [from_bytes(to_bytes(part.found, names), names, source="part") for part in found]
    assert len({part.asked for part in found}) == 1
    return MergedCounting({name: sum(part[name] for part in read) for name in names}, found[0].asked)


def train_of(graph):
    return lambda: iter(graph.buckets(graph.triples[: len(graph.triples) // 2]).items())


@pytest.mark.parametrize("comparator", ["dot", "cos", "l2", "squared_l2"])
@pytest.mark.parametrize(("dynamic", "bias"), [(False, False), (True, True)])
def test_parts_add_up_to_whole(tmp_path, comparator, dynamic, bias):
    seed = int.from_bytes(hashlib.sha256(f"{comparator}{dynamic}".encode()).digest()[:4], "big")
    rng = np.random.default_rng(seed)
    config = make_config(
        partitions=int(rng.integers(1, 6)), dynamic=dynamic, comparator=comparator, operator="diagonal", bias=bias
    )
    graph, other = (Graph(config, seed=seed + each, users=40, edges=90) for each in range(2))
    graph.embeddings["user"][5:15] = graph.embeddings["user"][5]  # many candidates that tie
    compared, best = (
        compared_model(graph, other, tmp_path / name, unknown=n) for name, n in (("before", 0), ("best", 2))
    )
    options = {
        "evaluation": Evaluation(max_candidates=int(rng.integers(15, 60))),
        "compared": compared,
        "best": best,
        "seed": seed,
    }
    whole, sample = graph.evaluate(tmp_path, graph.triples[:50], train=train_of(graph), **options)
    for parts in (1, 2, 3, 7):
        counting = counted(graph, tmp_path, graph.triples[:50], parts, **options)
        merged, again = graph.evaluate(
            tmp_path, graph.triples[:50], train=train_of(graph), counting=counting, **options
        )
        assert merged.to_json() == whole.to_json()
        assert (again is None) == (sample is None)


@pytest.mark.parametrize("common", [20, 21, 161])
@pytest.mark.parametrize("unknown", [0, 1, 7])
def test_merge_stops_where_whole_stops(tmp_path, monkeypatch, common, unknown):
    monkeypatch.setattr(sampling, "ROUND_EDGES", 200)
    monkeypatch.setattr(sampling, "FIRST_PAIRS", 20)
    graph = Graph(make_config(dynamic=True, operator="translation", partitions=3), edges=900)
    compared = compared_model(graph, graph, tmp_path / "compared", unknown=unknown)
    for gates in (GATES, GATES.model_copy(update={"min_mrr": 0.25})):
        options = {
            "evaluation": Evaluation(max_edges=800),
            "gates": gates.model_copy(update={"min_common_edges": common}),
            "compared": compared,
            "best": compared,
        }
        whole, _ = graph.evaluate(tmp_path, graph.triples, train=train_of(graph), **options)
        counting = counted(graph, tmp_path, graph.triples, 3, **options)
        merged, _ = graph.evaluate(tmp_path, graph.triples, train=train_of(graph), counting=counting, **options)
        assert merged.to_json() == whole.to_json()
        assert whole.against.edges > 0


def test_collapsed_model_keeps_digits(tmp_path):
    graph = Graph(make_config(partitions=3, dynamic=True, dimension=100), users=517)
    graph.embeddings["user"][:] = graph.embeddings["user"][0]
    whole, _ = graph.evaluate(tmp_path, graph.triples)
    counting = counted(graph, tmp_path, graph.triples, 2)
    assert graph.evaluate(tmp_path, graph.triples, counting=counting)[0].to_json() == whole.to_json()
    assert whole.raw["mr"] == pytest.approx(517)


def test_parts_of_other_edges_are_refused(tmp_path):
    graph = Graph(make_config(partitions=3))
    counting = counted(graph, tmp_path, graph.triples[:20], 2)
    with pytest.raises(FormatError, match="other edges, candidates or releases than there are now"):
        graph.evaluate(tmp_path, graph.triples[:21], counting=counting)


def test_part_reads_its_partitions_only(tmp_path):
    graph = Graph(make_config(partitions=4))
    files = graph.files(tmp_path)
    assert len(files) == 5
    shares = [Share(number, 3).partitions(graph.counts) for number in (1, 2, 3)]
    assert shares == [{"user": {0, 3}, "item": set()}, {"user": {1}, "item": {0}}, {"user": {2}, "item": set()}]


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "1/0", "-1/2", "1/3/5", "a/b", ""])
def test_wrong_part_is_refused(text):
    with pytest.raises(ConfigError, match="is no part; write i/n"):
        Share.parse(text)


def test_file_of_counts_that_is_damaged_is_refused():
    data = to_bytes({"tonight": np.zeros((2, 2, 5), np.int64)}, ["tonight"])
    with pytest.raises(FormatError, match="not a file of counts"):
        from_bytes(data[:-3], ["tonight"], source="part")
    with pytest.raises(FormatError, match="other counts than its result names"):
        from_bytes(data, ["tonight", "best.current"], source="part")
