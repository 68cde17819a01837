"""Ranks against a brute-force oracle that scores one candidate at a time.

Longer than other files, as one graph and its oracle serve all of them.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from pbg_tasks.config import Evaluation
from pbg_tasks.errors import ConfigError, FormatError, ResourceError
from pbg_tasks.evaluate import comparison, evaluation, on_gpu, parts, ranking, tables
from pbg_tasks.evaluate.evaluation import EdgeRanking
from pbg_tasks.evaluate.report import figures, random_scorer
from pbg_tasks.evaluate.sampling import Sample
from pbg_tasks.evaluate.tables import Budget
from pbg_tasks.model.scoring import RelationScorer
from pbg_tasks.native import library
from tests.evaluate.graphs import Graph, assert_popularity_is_that_of_brute_force, make_config

GPU = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("comparator", ["dot", "cos", "l2", "squared_l2"])
@pytest.mark.parametrize("operator", ["none", "translation", "diagonal", "complex_diagonal", "linear", "affine"])
def test_ranks_equal_brute_force(tmp_path, operator, comparator, dynamic):
    graph = Graph(make_config(partitions=3, dynamic=dynamic, operator=operator, comparator=comparator))
    held_out = graph.triples[:12]
    report, _ = graph.evaluate(tmp_path, held_out)
    raw, filtered, *_ = graph.oracle(held_out)
    assert report.raw["mrr"] == pytest.approx((1 / raw).mean(), abs=1e-6)
    assert report.filtered["mrr"] == pytest.approx((1 / filtered).mean(), abs=1e-6)
    assert report.raw["mr"] == pytest.approx(raw.mean(), abs=1e-5)
    assert report.edges == 12
    assert report.sides["lhs"]["raw"]["mr"] == pytest.approx(raw[:12].mean(), abs=1e-5)
    assert report.sides["rhs"]["filtered"]["mr"] == pytest.approx(filtered[12:].mean(), abs=1e-5)
    of_relation = np.tile(held_out[:, 1], 2) == 1
    assert report.relations["knows"]["filtered"]["count"] == of_relation.sum()
    assert report.relations["knows"]["filtered"]["mr"] == pytest.approx(filtered[of_relation].mean(), abs=1e-5)


@pytest.mark.parametrize(("loops", "selfless"), [([], {0, 1}), ([1], {0}), ([0, 1], set())])
def test_known_end_is_left_out_of_filtered_ranks(tmp_path, loops, selfless):
    graph = Graph(make_config(partitions=3, dynamic=True, operator="none"), users=15)
    graph.triples[3, 2] = graph.triples[3, 0]  # a loop among the held-out edges is an answer all the same
    held_out = graph.triples[:20]
    raw, filtered, _, candidates = graph.oracle(held_out, selfless=selfless)
    plain = graph.oracle(held_out)
    report, _ = graph.evaluate(
        tmp_path, held_out, evaluation=Evaluation(exclude_self=True), loops=np.array(loops, np.int64)
    )
    assert report.filtered["mrr"] == pytest.approx((1 / filtered).mean(), abs=1e-6)
    assert report.filtered["mr"] == pytest.approx(filtered.mean(), abs=1e-5)
    assert report.raw["mrr"] == pytest.approx((1 / raw).mean(), abs=1e-6)
    assert bool((candidates < plain[3]).any()) == bool(selfless)


def test_known_end_of_another_type_stays_a_candidate(tmp_path):
    graph = Graph(make_config(operator="none"))
    held_out = graph.triples[:20]
    filtered = graph.oracle(held_out, selfless={1})[1]
    report, _ = graph.evaluate(
        tmp_path, held_out, evaluation=Evaluation(exclude_self=True), loops=np.empty(0, np.int64)
    )
    assert report.filtered["mr"] == pytest.approx(filtered.mean(), abs=1e-5)


def test_excluding_known_end_needs_known_loops(tmp_path):
    graph = Graph(make_config())
    with pytest.raises(ConfigError, match="exclude_self: the model does not record which relations had loops"):
        graph.evaluate(tmp_path, graph.triples[:3], evaluation=Evaluation(exclude_self=True))


def test_partitions_and_block_sizes_keep_ranks(tmp_path, monkeypatch):
    reports = []
    for partitions, rows, queries in ((1, 8192, 512), (3, 8192, 512), (3, 2, 3), (5, 7, 1)):
        monkeypatch.setattr(Budget, "of", lambda *_, rows=rows, queries=queries: Budget(3 * queries, rows, 8 * queries))
        directory = tmp_path / f"{partitions}-{rows}"
        directory.mkdir()
        graph = Graph(make_config(partitions=partitions, operator="diagonal"))
        reports.append(graph.evaluate(directory, graph.triples[:20])[0])
    assert all(report == reports[0] for report in reports[1:])


def test_repeated_questions_and_edges_are_all_ranked(tmp_path, monkeypatch):
    graph = Graph(make_config(partitions=2, operator="translation", dynamic=True), edges=80)
    graph.triples[:30, 0], graph.triples[:30, 1] = 3, 1  # a hub: which entities does 3 know?
    held_out = np.concatenate((graph.triples[:25], graph.triples[:5], graph.triples[40:50]))
    raw, filtered, *_ = graph.oracle(held_out)
    for tile in (512, 4):
        monkeypatch.setattr(tables, "MIN_TILE_SCORES", 100 * tile)
        monkeypatch.setattr(tables, "MAX_TILE_SCORES", 100 * tile)
        directory = tmp_path / str(tile)
        directory.mkdir()
        report, _ = graph.evaluate(directory, held_out)
        assert report.edges == 40
        assert report.raw["mr"] == pytest.approx(raw.mean(), abs=1e-5)
        assert report.filtered["mr"] == pytest.approx(filtered.mean(), abs=1e-5)


def test_question_of_several_edges_is_scored_once(tmp_path, monkeypatch):
    graph = Graph(make_config(dynamic=True), edges=80)
    graph.triples[:30, 0], graph.triples[:30, 1] = 3, 1  # a hub, as above
    scored, score, of_products = [], RelationScorer.score, comparison.compare_products

    def products(queries, candidates, *rest):
        found = of_products(queries, candidates, *rest)
        scored.extend([] if found is None else [torch.empty(len(queries), len(candidates))])
        return found

    monkeypatch.setattr(RelationScorer, "score", lambda *given: scored.append(score(*given)) or scored[-1])
    monkeypatch.setattr(evaluation, "products_on", lambda _: products)
    graph.evaluate(tmp_path, graph.triples)
    questions = sum(len(np.unique(asked, axis=0)) for asked in (graph.triples[:, :2], graph.triples[:, 1:]))
    assert questions < 140  # of 160 questions of edges
    assert sum(map(torch.numel, scored)) == 23 * questions


@pytest.mark.parametrize(("comparator", "times"), [("dot", 1), ("l2", 2)])
@pytest.mark.skipif(library() is None, reason="the native library was not built")
def test_sides_of_products_read_candidates_once(tmp_path, monkeypatch, comparator, times):
    graph = Graph(make_config(dynamic=True, comparator=comparator))
    read, blocks = [], tables.EntityTable.blocks
    monkeypatch.setattr(tables.EntityTable, "blocks", lambda table, rows: read.append(rows) or blocks(table, rows))
    report, _ = graph.evaluate(tmp_path, graph.triples)
    assert report.filtered["mr"] == pytest.approx(graph.oracle(graph.triples)[1].mean(), abs=1e-5)
    assert len(read) == times


def test_held_out_edges_not_known_are_ranked(tmp_path):
    graph = Graph(make_config(partitions=2, dynamic=True))
    held_out, graph.triples = graph.triples[:10], graph.triples[10:]
    report, _ = graph.evaluate(tmp_path, held_out)
    assert report.filtered["mr"] == pytest.approx(graph.oracle(held_out)[1].mean(), abs=1e-5)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("comparator", ["dot", "cos", "l2", "squared_l2"])
def test_equal_embeddings_tie_and_rank_last(tmp_path, monkeypatch, comparator, bias):
    for dimension, users, tile in ((6, 40, 512), (100, 517, 512), (400, 300, 7)):
        monkeypatch.setattr(tables, "MIN_TILE_SCORES", 100 * tile)
        monkeypatch.setattr(tables, "MAX_TILE_SCORES", 100 * tile)
        directory = tmp_path / str(dimension)
        directory.mkdir()
        graph = Graph(
            make_config(partitions=2, dynamic=True, comparator=comparator, bias=bias, dimension=dimension), users=users
        )
        rng = np.random.default_rng(dimension)
        for row in (rng.normal(size=dimension), np.zeros(dimension)):
            graph.embeddings["user"][:] = row
            report, _ = graph.evaluate(directory, graph.triples)
            assert report.raw["mr"] == users
            assert report.raw["auc"] == 0


def test_invalid_scores_never_rank_well(tmp_path):
    graph = Graph(make_config(dynamic=True, operator="translation"), users=30)
    for value in graph.params.values():
        value[:] = np.nan
    report, _ = graph.evaluate(tmp_path, graph.triples[:10])
    assert report.raw["mr"] == 30
    json.dumps(report.to_json(), allow_nan=False)


def test_candidates_with_invalid_scores_count_as_better(tmp_path, monkeypatch):
    graph = Graph(make_config(dynamic=True, comparator="l2"), users=30)
    monkeypatch.setattr(
        RelationScorer, "score", lambda _, queries, rows: torch.full((len(queries), len(rows)), torch.nan)
    )
    assert graph.evaluate(tmp_path, graph.triples[:10])[0].raw["mr"] == 30


@pytest.mark.parametrize("threads", [1, 3])
def test_infinite_embeddings_are_refused(tmp_path, threads):
    graph = Graph(make_config(dynamic=True), users=30)
    graph.embeddings["user"][7, 2] = np.nan
    with pytest.raises(FormatError, match="embeddings_user_0"):
        graph.evaluate(tmp_path, graph.triples[:10], threads=threads)


def test_limit_on_edges_samples_every_bucket(tmp_path):
    graph = Graph(make_config(partitions=3, dynamic=True), edges=900)
    taken = Sample.of(graph.buckets(graph.triples), 90).edges
    sizes = {bucket: len(edges) for bucket, edges in taken.items()}
    assert sum(sizes.values()) == 90
    assert len(sizes) == 9
    assert min(sizes.values()) > 5
    assert graph.evaluate(tmp_path, graph.triples, evaluation=Evaluation(max_edges=90))[0].edges == 90
    assert graph.evaluate(tmp_path, graph.triples, evaluation=Evaluation(max_edges=5000))[0].edges == 900


def test_relations_of_one_name_differ_by_types(tmp_path):
    graph = Graph(make_config())
    report, _ = graph.evaluate(tmp_path, graph.triples, relations=["likes", "likes"])
    assert sorted(report.relations) == ["likes (user, item)", "likes (user, user)"]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("limit", [1000, 9])
def test_popularity_equals_brute_force(tmp_path, dynamic, limit):
    graph = Graph(make_config(partitions=3, dynamic=dynamic), edges=150)
    assert_popularity_is_that_of_brute_force(tmp_path, graph, graph.triples[40:], graph.triples[:40], limit)


def test_training_edges_count_as_known(tmp_path):
    graph = Graph(make_config(partitions=2, dynamic=True), edges=150)
    whole, _ = graph.evaluate(tmp_path, graph.triples[:40])
    assert whole.popularity is None
    assert "popularity" not in whole.to_json()
    parts = EdgeRanking(
        graph.local(tmp_path),
        graph.buckets(graph.triples[:40]),
        lambda: iter(graph.buckets(graph.triples[:40]).items()),
        lambda: iter(graph.buckets(graph.triples[40:]).items()),
        evaluation=Evaluation(),
    )
    parts.rank()
    assert parts.report().filtered == whole.filtered


@pytest.mark.parametrize("threads", [1, 4])
def test_less_memory_gives_smaller_pieces(threads):
    assert Budget.of(1 << 40, 100, threads).rows == Budget.of(1 << 32, 100, threads).rows
    for memory, dimension in ((1 << 28, 400), (1 << 28, 100), (1 << 30, 1000)):
        budget = Budget.of(memory, dimension, threads)
        queries = budget.edges * 4 * 5 * dimension
        candidates = threads * (budget.rows * 4 * 4 * dimension + budget.scores * 3 * 4)
        assert memory / 4 < queries + candidates <= memory


def test_few_questions_are_compared_with_larger_blocks():
    budget = Budget.of(1 << 32, 100, 1)
    assert budget.block_rows(1) == budget.rows > budget.block_rows(10_000) == tables.ENOUGH_BLOCK_ROWS


@pytest.mark.parametrize("dimension", [4, 100, 2000])
def test_candidates_of_products_take_memory_of_tiles(dimension):
    budget = Budget.of(1 << 32, dimension, 1)
    more = budget.product_rows(dimension) - budget.rows
    assert 0 <= budget.scores * 3 * 4 - more * 4 * 4 * dimension < 4 * 4 * dimension


def test_threads_do_not_change_ranks(tmp_path, monkeypatch):
    monkeypatch.setattr(ranking, "PART_QUESTIONS", 7)
    monkeypatch.setattr(Budget, "of", lambda *_: Budget(40, 4, 12))
    graph = Graph(make_config(partitions=3, operator="translation"), users=90, edges=300)
    reports = [graph.evaluate(tmp_path, graph.triples[:150], threads=threads)[0] for threads in (1, 2, 5)]
    assert reports[0] == reports[1] == reports[2]
    assert reports[0].raw["mr"] == pytest.approx(graph.oracle(graph.triples[:150])[0].mean(), abs=1e-5)


def test_ranks_without_native_library_are_equal(tmp_path, monkeypatch):
    graph = Graph(make_config(partitions=3, dynamic=True, operator="diagonal"), users=90, edges=300)
    graph.embeddings["user"][1::2] = graph.embeddings["user"][::2]  # ties
    report, _ = graph.evaluate(tmp_path, graph.triples[:150])
    monkeypatch.setattr(comparison, "library", lambda: None)
    assert graph.evaluate(tmp_path, graph.triples[:150])[0] == report


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("comparator", ["dot", "cos"])
def test_ranks_on_a_gpu_are_equal(tmp_path, monkeypatch, comparator, native):
    monkeypatch.setattr(on_gpu, "_SCORES", 1000)
    graph = Graph(make_config(partitions=3, dynamic=True, operator="diagonal", comparator=comparator), 90, 300)
    graph.embeddings["user"][1::2] = graph.embeddings["user"][::2]  # ties
    report, _ = graph.evaluate(tmp_path, graph.triples[:150])
    compared = []

    class Products(on_gpu.GpuProducts):
        def __call__(self, *given):
            compared.append(given)
            return super().__call__(*given)

    for module in () if native else (comparison, parts):
        monkeypatch.setattr(module, "library", lambda: None)
    monkeypatch.setattr(evaluation, "products_on", lambda _: Products(GPU))
    assert graph.evaluate(tmp_path, graph.triples[:150])[0] == report
    assert compared


@pytest.mark.parametrize(("comparator", "threads"), [("dot", comparison.GPU_THREADS), ("l2", 9)])
def test_distances_keep_all_threads(tmp_path, monkeypatch, comparator, threads):
    seen, of = [], Budget.of
    monkeypatch.setattr(Budget, "of", lambda *given: seen.append(given[2]) or of(*given))
    monkeypatch.setattr(evaluation, "products_on", lambda _: on_gpu.GpuProducts(GPU))
    graph = Graph(make_config(comparator=comparator))
    graph.evaluate(tmp_path, graph.triples[:15], threads=9)
    assert seen == [threads]


def test_missing_gpu_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    graph = Graph(make_config(partitions=3, operator="diagonal"), users=9, edges=30)
    report, _ = graph.evaluate(tmp_path, graph.triples[:15], evaluation=Evaluation(device="auto"))
    assert report == graph.evaluate(tmp_path, graph.triples[:15])[0]
    with pytest.raises(ResourceError, match=r"eval.device \(--device\): cuda: torch .* set it to cpu"):
        graph.evaluate(tmp_path, graph.triples[:15], evaluation=Evaluation(device="cuda"))


def test_figures_of_ranks_are_right():
    ranks, among = np.array([1, 2, 10, 100]), np.full(4, 101)
    found = figures(ranks, among)
    assert found["mrr"] == pytest.approx((1 + 0.5 + 0.1 + 0.01) / 4)
    assert (found["hits1"], found["hits10"], found["hits50"], found["mr"]) == (0.25, 0.75, 0.75, 28.25)
    assert found["auc"] == pytest.approx(1 - (0 + 1 + 9 + 99) / 400)


def test_random_scorer_reaches_its_expected_figures():
    n = 50
    rng = np.random.default_rng(0)
    drawn = rng.integers(1, n + 1, size=200_000)
    assert random_scorer(np.array([2]))["mrr"] == pytest.approx(0.75, rel=1e-3)
    expected = random_scorer(np.full(3, n))
    assert expected["mrr"] == pytest.approx((1 / drawn).mean(), rel=0.02)
    assert expected["hits10"] == pytest.approx((drawn <= 10).mean(), rel=0.02)
