"""Cosines, rotations, deciles, and their explanation by edges."""

from __future__ import annotations

import functools
import io
import json

import numpy as np
import pytest

from pbg_tasks.errors import FormatError
from pbg_tasks.evaluate import drift, partition_drift
from pbg_tasks.evaluate.drift import (
    QUERIES,
    Nearest,
    NeighbourSearch,
    Spread,
    View,
    aligned,
    by_degree,
    draw,
    neighbour_overlap,
)
from pbg_tasks.evaluate.ids import Triples
from pbg_tasks.evaluate.partition_drift import PartitionDrift
from pbg_tasks.evaluate.relation_drift import Edge, End, RelationDrift, Surroundings
from pbg_tasks.evaluate.tables import EntityTable
from pbg_tasks.formats.embeddings import write_embeddings
from pbg_tasks.model.arrays import likeness
from pbg_tasks.model.families import Families
from pbg_tasks.native import library
from tests.evaluate.graphs import INFO, make_config


def view(directory, rows, sizes, known, comparator="cos", lacking=0):
    """Return a view of embeddings in several files.

    Each file may lack its last rows.
    """
    directory.mkdir()
    config = make_config(dynamic=True, comparator=comparator, dimension=rows.shape[1])
    bases = np.concatenate(([0], np.cumsum(sizes)))
    paths, counts = [], [size - lacking for size in sizes]
    for part, count in enumerate(counts):
        paths.append(directory / f"{part}.h5")
        own = rows[bases[part] : bases[part] + count]
        write_embeddings(paths[-1], own, None, lr=0.1, iteration=INFO, config=config)
    return View(EntityTable(paths, bases, rows.shape[1], known, counts), likeness(config, {}, "user"))


def drift_of(views, candidates, queries=None, *, part=0, **how):
    """Compare the vectors of candidates of one partition."""
    ours, theirs = (each.among(candidates, part) for each in views)
    searches = [NeighbourSearch(each, candidates[:1] if queries is None else queries) for each in views]
    return PartitionDrift.of(ours, theirs, searches, comparable=True, **how)


def cosines(views, known, *, part=0, rotation=None):
    return drift_of(views, known, part=part, rotation_DD=rotation).cosine


def normal(rows, dimension, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, dimension)).astype(np.float32)


@pytest.fixture
def nights(tmp_path):
    """Two nights of 50 entities in two partitions.

    The second has no vector for the last three of each.
    """
    known = np.flatnonzero(np.arange(50) % 25 < 22)
    now, before = normal(50, 6), normal(50, 6, seed=1)
    views = view(tmp_path / "now", now, [25, 25], known), view(tmp_path / "before", before, [25, 25], known, lacking=3)
    return known, now, before, views


def test_cosines_are_those_of_row_pairs(nights, monkeypatch):
    known, now, before, views = nights
    expected = (now * before).sum(axis=1) / np.linalg.norm(now, axis=1) / np.linalg.norm(before, axis=1)
    parts = [known[known < 25], known[known >= 25]]
    for rows in (1 << 14, 7):
        monkeypatch.setattr(drift, "_COSINE_ROWS", rows)
        both = [cosines(views, own, part=part) for part, own in enumerate(parts)]
        np.testing.assert_allclose(np.concatenate(both), expected[known], rtol=1e-5)


@pytest.mark.parametrize("comparator", ["cos", "l2"])
def test_nights_of_other_sizes_are_read_in_step(tmp_path, monkeypatch, comparator):
    """A file with few candidates is read in other blocks."""
    monkeypatch.setattr(partition_drift, "BLOCK_ROWS", 8)
    known = np.delete(np.arange(40), [0, 5, 6, 21])
    now, before = normal(2000, 6), normal(2000, 6, seed=1)
    views = (
        view(tmp_path / "now", now, [2000], known, comparator),
        view(tmp_path / "before", before, [2000], known, comparator, lacking=1960),
    )
    found = drift_of(views, known, known, among=known[::2])
    expected = (now * before).sum(axis=1) / np.linalg.norm(now, axis=1) / np.linalg.norm(before, axis=1)
    np.testing.assert_allclose(found.cosine, expected[known], rtol=1e-5)
    assert set(found.now.numbers.ravel()) <= set(known[::2])
    again = [drift_of((each, each), known, known, among=known[::2]).now.numbers for each in views]
    np.testing.assert_array_equal(found.now.numbers, again[0])
    np.testing.assert_array_equal(found.before.numbers, again[1])


def test_zero_vectors_have_no_cosine(tmp_path):
    rows = normal(20, 6)
    rows[3] = 0
    views = [view(tmp_path / name, rows, [20], np.arange(20)) for name in ("now", "before")]
    found = cosines(views, np.arange(20))
    assert found[3] == 0
    np.testing.assert_allclose(np.delete(found, 3), 1, rtol=1e-6)


def test_rotated_space_is_rotated_back(tmp_path):
    known = np.arange(200)
    now = normal(200, 6)
    turn = np.linalg.qr(normal(6, 6, seed=2))[0]
    views = view(tmp_path / "now", now, [200], known), view(tmp_path / "before", now @ turn, [200], known)
    assert np.abs(cosines(views, known)).mean() < 0.9
    rotation = aligned(*views, known)
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(6), atol=1e-5)
    np.testing.assert_allclose(cosines(views, known, rotation=rotation), 1, atol=1e-5)


def test_rotation_needs_enough_vectors_of_equal_dimension(tmp_path):
    known = np.arange(59)  # ten a dimension are required
    one, other = normal(60, 6), normal(60, 6, seed=1)
    few = view(tmp_path / "a", one, [60], known), view(tmp_path / "b", other, [60], known)
    assert aligned(*few, known) is None
    wide = view(tmp_path / "c", normal(60, 4), [60], known)
    assert aligned(few[0], wide, known) is None


def test_unrelated_vectors_stay_unlike_after_rotation(tmp_path):
    known = np.arange(600)
    views = view(tmp_path / "a", normal(600, 6), [600], known), view(tmp_path / "b", normal(600, 6, 1), [600], known)
    assert cosines(views, known, rotation=aligned(*views, known)).mean() < 0.2


def overlap(views, queries, parts):
    """Search partition by partition, and compare the nearest of all."""
    drifts = [drift_of(views, own, queries, part=part) for part, own in enumerate(parts)]
    found = [functools.reduce(Nearest.joined, (getattr(each, night) for each in drifts)) for night in ("now", "before")]
    return neighbour_overlap(*found, sum(map(len, parts)))


@pytest.mark.parametrize("comparator", ["cos", "dot", "l2"])
def test_overlap_equals_brute_force(tmp_path, comparator):
    known = np.delete(np.arange(120), [4, 77])
    now = normal(120, 5)
    before = now + 0.3 * normal(120, 5, seed=1)
    views = [
        view(tmp_path / name, rows, [70, 50], known, comparator) for name, rows in (("now", now), ("before", before))
    ]
    queries = known

    def nearest(rows):
        unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        scores = {"cos": unit @ unit.T, "dot": rows @ rows.T}.get(comparator)
        if scores is None:
            scores = -np.linalg.norm(rows[:, np.newaxis] - rows[np.newaxis], axis=2)
        np.fill_diagonal(scores, -np.inf)
        scores[:, [4, 77]] = -np.inf
        return [set(np.argsort(-scores[query])[:10]) for query in queries]

    expected = [len(one & other) / 10 for one, other in zip(nearest(now), nearest(before), strict=True)]
    np.testing.assert_allclose(overlap(views, queries, [known[:69], known[69:]]), expected, atol=1e-6)
    assert 0.2 < np.mean(expected) < 0.95


@pytest.mark.parametrize(
    ("comparator", "native", "sizes"),
    [
        ("dot", True, [256, 256, 512, 1024, 952, 2000]),
        ("dot", False, ([256] * 11 + [184]) + [256] * 7 + [208]),
        ("l2", True, ([256] * 11 + [184]) + [256] * 7 + [208]),
    ],
)
def test_pieces_of_products_grow(tmp_path, monkeypatch, comparator, native, sizes):
    monkeypatch.setattr(drift, "library", lambda: object() if native else None)
    monkeypatch.setattr(drift, "MAX_TILE_SCORES", 1)  # pieces of 256 candidates first
    known = np.arange(5000)
    one = view(tmp_path / "a", normal(5000, 4), [5000], known, comparator)
    search = NeighbourSearch(one, known[:1])
    pieces = [piece for block in one.table.blocks(3000) for piece in search._pieces(block)]
    assert [len(piece.numbers) for piece in pieces] == sizes
    assert np.array_equal(np.concatenate([piece.numbers for piece in pieces]), known)


@pytest.mark.skipif(library() is None, reason="the native library was not built")
def test_only_first_piece_takes_all_scores(tmp_path, monkeypatch):
    """A piece as large as all before it has few better candidates."""
    monkeypatch.setattr(drift, "MAX_TILE_SCORES", 1)  # pieces of 256 candidates first
    taken = []

    def best(*args):
        taken.append(len(args[2]))
        return whole(*args)

    whole = drift._best
    monkeypatch.setattr(drift, "_best", best)
    one = view(tmp_path / "a", normal(6000, 8), [6000], np.arange(6000), "dot")
    queries = np.arange(0, 6000, 40)
    found = drift_of((one, one), np.arange(6000), queries).now
    assert taken == [256, 256]  # of two nights
    monkeypatch.setattr(drift, "_better", lambda *_: None)
    assert np.array_equal(found.numbers, drift_of((one, one), np.arange(6000), queries).now.numbers)
    assert sum(taken[2:]) == 2 * 6000


def test_overlap_needs_an_entity_beside_the_query(tmp_path):
    known = np.array([3])
    views = [view(tmp_path / name, normal(5, 4), [5], known) for name in ("a", "b")]
    assert np.isnan(overlap(views, known, [known])).all()
    known = np.array([1, 3, 4])  # each query has two others, so two neighbours are compared
    views = [view(tmp_path / name, normal(5, 4, seed), [5], known) for seed, name in enumerate(("c", "d"))]
    np.testing.assert_array_equal(overlap(views, known, [known]), [1, 1, 1])


def test_sample_is_drawn_from_the_known_alone(monkeypatch):
    monkeypatch.setattr(drift, "_COUNTED_ROWS", 100)
    known = np.arange(9050) % 3 == 0
    known[200:400] = False
    chosen = draw(known, QUERIES, 5)
    numbers = np.flatnonzero(known)
    expected = np.random.default_rng(5).choice(numbers, size=QUERIES, replace=False, shuffle=False)
    np.testing.assert_array_equal(chosen, np.sort(expected))
    np.testing.assert_array_equal(draw(known, len(numbers), 5), numbers)
    assert draw(known[:0], 3, 5).tolist() == draw(known[200:400], 3, 5).tolist() == []


def test_damaged_drift_of_partition_is_refused():
    nearest = Nearest(np.ones((3, 10), np.float32), np.ones((3, 10), np.int64))
    file = io.BytesIO()
    for count in (4, 0):
        PartitionDrift(np.ones(count, np.float32), nearest, nearest).write(file)
    file.seek(0)
    found = [PartitionDrift.read(file, known=4, queries=3, source="a") for _ in range(2)]
    assert [len(each.cosine) for each in found] == [4, 0]
    for known, queries, words in ((5, 3, "of other entities"), (4, 2, "of other entities")):
        file.seek(0)
        with pytest.raises(FormatError, match=words):
            PartitionDrift.read(file, known=known, queries=queries, source="a")
    file.seek(0)
    with pytest.raises(FormatError, match="a: not a file of drift"):
        PartitionDrift.read(io.BytesIO(file.read(300)), known=4, queries=3, source="a")


def test_spread_leaves_out_invalid_numbers():
    values = np.array([np.nan, *np.linspace(0, 1, 101)], np.float32)
    assert Spread.of(values) == Spread(0.5, 0.01, 0.05, 0.5)
    assert Spread.of(np.array([np.nan])) == Spread(None, None, None, None)


def test_deciles_keep_entities_of_one_degree_together():
    degree = np.array([1] * 45 + [2] * 15 + list(range(3, 43)))
    cosine = np.where(degree == 1, 0.5, 0.9).astype(np.float32)
    overlap = np.full(100, np.nan, np.float32)
    overlap[:2] = 0.25, 0.75
    rows = by_degree(degree, cosine, overlap)
    assert [row["decile"] for row in rows] == [1, 5, 7, 8, 9, 10]
    first = {"decile": 1, "min_degree": 1, "max_degree": 1, "entities": 45, "cosine": 0.5, "overlap": 0.5}
    assert rows[0] == first
    assert (rows[2]["min_degree"], rows[2]["max_degree"], rows[2]["entities"]) == (3, 12, 10)
    assert rows[1]["overlap"] is None
    assert sum(row["entities"] for row in rows) == 100
    assert by_degree(np.empty(0, np.int64), np.empty(0, np.float32), np.empty(0, np.float32)) == []


def test_relation_figures_are_means_over_ends():
    config = make_config()
    families = Families(config, 2)
    cosine = {"user": np.array([0.2, np.nan, 0.8]), "item": np.array([0.4, np.nan])}
    overlap = {"user": np.full(3, np.nan), "item": np.array([np.nan, 1.0])}
    found = RelationDrift(config, families, cosine, overlap)
    likes = Triples(np.array([0, 1, 2]), np.array([0, 0, 0]), np.array([0, 0, 1]))
    knows = Triples(np.array([1]), np.array([1]), np.array([1]))
    for piece in (likes, knows):
        found.add(piece)
    assert found.to_json(["likes", "knows"]) == {
        "likes": {"edges": 3, "cosine": pytest.approx((0.2 + 0.4 + 0.4 + 0.8) / 4), "overlap": 1.0},
        "knows": {"edges": 1, "cosine": None, "overlap": None},
    }
    np.testing.assert_array_equal(found.degree["user"], [1, 3, 1])
    np.testing.assert_array_equal(found.degree["item"], [2, 1])
    json.dumps(found.to_json(["likes", "knows"]), allow_nan=False)


def test_edges_around_entity_are_of_its_type():
    config = make_config()
    user, item = End("user", 1), End("item", 1)
    around = Surroundings(config, Families(config, 2), [user, item], limit=3)
    around.add(Triples(np.array([1, 0, 2]), np.array([0, 0, 0]), np.array([0, 1, 2])))
    around.add(Triples(np.array([1, 2, 1, 1]), np.array([1, 1, 1, 1]), np.array([1, 1, 0, 2])))
    assert around.edges[item] == [Edge(End("user", 0), 0, item)]
    assert around.edges[user] == [
        Edge(user, 0, End("item", 0)),
        Edge(user, 1, user),
        Edge(End("user", 2), 1, user),
    ]


def test_edges_of_one_type_have_same_figures():
    config = make_config()
    knows = config.model_copy(update={"relations": config.relations[1:]})
    random = np.random.default_rng(0)
    lhs, rhs = random.integers(30, size=(2, 400))
    one, two = (Triples(lhs, np.full(400, number), rhs) for number in (0, 1))
    cosine = {"user": np.where(random.random(30) < 0.5, np.nan, random.random(30)), "item": np.empty(0)}
    chosen, found = [End("user", 3), End("user", 7)], []
    for own, edges in ((knows, one), (config, two)):
        families = Families(own, len(own.relations))
        moved, around = RelationDrift(own, families, cosine, cosine), Surroundings(own, families, chosen, limit=50)
        moved.add(edges)
        around.add(edges)
        figures = moved.to_json([relation.name for relation in own.relations])
        listed = {end: [(edge.lhs, edge.rhs) for edge in edges] for end, edges in around.edges.items()}
        found.append((figures, moved.degree["user"].tolist(), listed))
    assert found[0] == found[1]
    assert all(found[0][2].values())
