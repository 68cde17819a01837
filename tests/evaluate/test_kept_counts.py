"""Ranks by kept counts are those of counting anew."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pbg_tasks.config import Evaluation
from pbg_tasks.errors import FormatError
from pbg_tasks.evaluate import kept_counts, parts
from pbg_tasks.evaluate.kept_counts import KeptCounts
from pbg_tasks.formats.entity_sets import EntitySet
from tests.evaluate.compared_models import compared_model
from tests.evaluate.graphs import Graph, make_config

COMPARATORS = ("dot", "cos", "l2", "squared_l2")


class Nights:
    """A night, and a later one of a graph that grew.

    The later one has other edges and other candidates, too. The model of the earlier night is ``other``, and ``then``
    its graph.
    """

    def __init__(self, tmp_path, seed, *, dynamic=False, unknown=2, comparator="dot", **keys):
        self.rng, self.path = np.random.default_rng(seed), tmp_path
        keys |= {"dynamic": dynamic, "operator": "translation"}
        size = {"users": 120, "items": 90, "edges": 150}
        self.now = Graph(make_config(partitions=2, **keys), seed, **size)
        self.other = Graph(make_config(partitions=2, comparator=comparator, **keys), seed + 1000, **size)
        self.relations = [1, 0] if dynamic else [0, 1]  # with names, relations may get other ids
        self.unknown = unknown
        self.then = self._earlier()

    def _earlier(self):
        then = Graph(self.other.config, users=4, items=4)
        then.params = self.other.params
        then.counts = {entity: [size - self.unknown for size in sizes] for entity, sizes in self.now.counts.items()}
        then.bases = {entity: np.concatenate(([0], np.cumsum(sizes))) for entity, sizes in then.counts.items()}
        places = {entity: self._places(entity) for entity in then.counts}
        then.embeddings = {entity: self.other.embeddings[entity][own] for entity, own in places.items()}
        triples = [self._back(triple, places) for triple in self.now.triples.tolist()]
        kept = np.array([triple for triple in triples if triple is not None])
        then.triples = kept[self.rng.random(len(kept)) < 0.8]
        return then

    def _places(self, entity):
        """Return tonight's numbers of the earlier night's entities."""
        sizes, bases = self.now.counts[entity], self.now.bases[entity]
        return np.concatenate([base + np.arange(size - self.unknown) for base, size in zip(bases, sizes, strict=False)])

    def _back(self, triple, places):
        lhs, rel, rhs = triple
        types = self.now.types[rel]
        found = [np.flatnonzero(places[entity] == end) for entity, end in zip(types, (lhs, rhs), strict=True)]
        return (found[0][0], self.relations[rel], found[1][0]) if all(map(len, found)) else None

    def hide(self, graph):
        """Return a random tenth of the entities."""
        partition, offset = {}, {}
        for entity, sizes in graph.counts.items():
            places = [(part, row) for part, size in enumerate(sizes) for row in range(size)]
            chosen = np.array([place for place in places if self.rng.random() < 0.1]).reshape(-1, 2)
            partition[entity], offset[entity] = chosen.T
        return EntitySet(partition, offset)

    def keep(self, **options):
        """Evaluate the earlier night; return the counts it keeps."""
        directory = self.path / "then"
        directory.mkdir()
        data = self.then.ranking(directory, self.then.triples, **options).kept().to_bytes()
        return KeptCounts.from_bytes(data, self.then.counts, source="counts")

    def compare(self, kept, **options):
        """Evaluate tonight beside the earlier night's model."""
        directory = self.path / ("anew" if kept is None else "kept")
        (directory / "now").mkdir(parents=True)
        model = compared_model(
            self.now, self.other, directory / "compared", unknown=self.unknown, relations=self.relations
        )
        report, _ = self.now.evaluate(
            directory / "now", self.now.triples, compared=replace(model, kept=kept), **options
        )
        return report


@pytest.fixture(autouse=True)
def _always_corrected(monkeypatch):
    monkeypatch.setattr(kept_counts, "MOST_SCORED", 1e9)


@pytest.mark.parametrize("seed", range(5))
def test_kept_counts_give_the_ranks_of_counting_anew(tmp_path, seed, scored):
    """Entities are new, expired and back; edges and ids of relations differ."""
    nights = Nights(tmp_path, seed, dynamic=bool(seed % 2), unknown=seed % 4, comparator=COMPARATORS[seed % 4])
    kept = nights.keep(hidden=nights.hide(nights.then))
    hidden = nights.hide(nights.now)
    anew = nights.compare(None, hidden=hidden)
    scores = scored.pop("compare")
    found = nights.compare(kept, hidden=hidden)
    assert found == anew
    assert found.against.edges > 60
    assert scored["compare"] != scores


@pytest.mark.parametrize("seed", [0, 2])
def test_kept_counts_of_tied_candidates_are_exact(tmp_path, seed, monkeypatch):
    monkeypatch.setattr(parts, "MAX_SETTLED", 1000)  # all of these candidates are close
    nights = Nights(tmp_path, seed, comparator=COMPARATORS[seed])
    for graph in (nights.other, nights.then):
        for table in graph.embeddings.values():
            table[:] = table[0]
    nights.then.embeddings = {
        entity: nights.other.embeddings[entity][: len(rows)] for entity, rows in nights.then.embeddings.items()
    }
    kept = nights.keep()
    assert len(kept.edges) == len(nights.then.triples)
    assert nights.compare(kept) == nights.compare(None)


def test_counts_of_unsettled_tiles_are_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "MAX_SETTLED", 0)
    nights = Nights(tmp_path, 0)
    for table in nights.then.embeddings.values():
        table[:] = table[0]
    kept = nights.keep()
    assert not len(kept.edges)
    assert nights.compare(kept) == nights.compare(None)


def test_counts_that_a_correction_contradicts_are_counted_anew(tmp_path):
    nights = Nights(tmp_path, 4)
    kept = nights.keep()
    report = nights.compare(replace(kept, no_worse=np.zeros_like(kept.no_worse)))
    assert all(0 < ranks["hits1"] < ranks["mrr"] <= 1 for ranks in report.against.current.values())


def test_correction_of_unsettled_tiles_is_not_taken(tmp_path, monkeypatch, scored):
    monkeypatch.setattr(parts, "MAX_SETTLED", 1000)
    nights = Nights(tmp_path, 0)
    for graph in (nights.other, nights.then):
        for table in graph.embeddings.values():
            table[:] = table[0]
    kept = nights.keep()
    monkeypatch.setattr(parts, "MAX_SETTLED", 0)
    anew = nights.compare(None)
    scores = scored.pop("compare")
    assert nights.compare(kept) == anew
    assert scored["compare"] > scores  # those of the correction, too


def test_kept_counts_score_only_differences(tmp_path, scored):
    nights = Nights(tmp_path, 3, unknown=0)
    kept = nights.keep()
    asked = {tuple(triple) for triple in nights.then.triples.tolist()}
    nights.now.triples = np.array([triple for triple in nights.now.triples.tolist() if tuple(triple) in asked])
    nights.compare(kept)
    sizes = {entity: len(rows) for entity, rows in nights.now.embeddings.items()}
    whole = sum(sizes[lhs] + sizes[rhs] for lhs, rhs in (nights.now.types[rel] for rel in nights.now.triples[:, 1]))
    expected = 0
    for pair in dict.fromkeys(nights.now.types):
        own = [rel for rel in (0, 1) if nights.now.types[rel] == pair]
        edges = nights.now.triples[np.isin(nights.now.triples[:, 1], own)]
        expected += len(edges) * sum(len(set(edges[:, side].tolist())) for side in (0, 2))
    assert scored["compare"] == expected < whole


def test_costly_correction_counts_anew(tmp_path, scored, monkeypatch):
    monkeypatch.setattr(kept_counts, "MOST_SCORED", 0)
    nights = Nights(tmp_path, 1)
    kept = nights.keep()
    anew = nights.compare(None)
    scores = scored.pop("compare")
    assert nights.compare(kept) == anew
    assert scored["compare"] == scores


def test_sampled_candidates_that_differ_are_corrected(tmp_path):
    nights = Nights(tmp_path, 5)
    kept = nights.keep(evaluation=Evaluation(max_candidates=40), seed=1)
    options = {"evaluation": Evaluation(max_candidates=50), "seed": 2}
    assert nights.compare(kept, **options) == nights.compare(None, **options)


def test_edges_that_lack_counts_are_counted_anew(tmp_path):
    nights = Nights(tmp_path, 6)
    nights.then.triples = nights.then.triples[::3]
    assert nights.compare(nights.keep()) == nights.compare(None)


@pytest.mark.parametrize("change", ["cut", "longer", "negative", "floats", "other"])
def test_damaged_counts_are_refused(tmp_path, change):
    nights = Nights(tmp_path, 2)
    kept = nights.keep(hidden=nights.hide(nights.then))
    data, rows = kept.to_bytes(), nights.then.counts
    if change == "cut":
        data = data[:-3]
    elif change == "longer":
        data += b"x"
    elif change == "negative":
        data = replace(kept, no_worse=kept.no_worse - 10**6).to_bytes()
    elif change == "floats":
        data = data.replace(b"<i8", b"<f8", 1)
    else:
        rows = rows | {"user": [1, 2]}
    with pytest.raises(FormatError, match=r"^counts: .*remove it, nights do without it$"):
        KeptCounts.from_bytes(data, rows, source="counts")
