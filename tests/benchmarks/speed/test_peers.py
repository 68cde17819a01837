"""Vectors of peers in our evaluator, and rows of equal quality."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from benchmarks.speed import peers, peers_slashdot
from benchmarks.speed.peers import Finish, Quality, Task
from benchmarks.speed.workloads import FB15K, placed

RELATIONS, DIMENSION = 3, 8


@pytest.fixture
def task(tmp_path):
    """Return a graph of 40 entities with 30 edges to rank."""
    rng = np.random.default_rng(1)
    files = {}
    for split, count in (("train", 200), ("valid", 20), ("test", 30)):
        files[split] = tmp_path / f"{split}.tsv"
        rows = zip(rng.integers(40, size=count), rng.integers(RELATIONS, size=count), rng.integers(40, size=count))  # noqa: B905 - of one length
        files[split].write_text("".join(f"n{lhs}\tr{rel}\tn{rhs}\n" for lhs, rel, rhs in rows))
    document = placed(FB15K | {"dimension": DIMENSION}, tmp_path / "graph", "train")
    return Task("small", tmp_path / "graph", document, ours=1, pbg=1, pyg=1, loops=False).write(files)


def columns(task, split):
    with h5py.File(task.root / split / "edges_0_0.h5") as file:
        return np.stack([file[name][:] for name in ("lhs", "rel", "rhs")], axis=1)


def mrr(task, score):
    """Rank the edges by a function of left, relation and right.

    One of the ends is every entity.
    """
    splits = np.concatenate([columns(task, split) for split in ("train", "valid", "test")])
    known, everyone = set(map(tuple, splits.tolist())), np.arange(task.entities)
    found = []
    for lhs, rel, rhs in columns(task, "ranked").tolist():
        for right in (True, False):
            scores = score(lhs, rel, everyone) if right else score(everyone, rel, rhs)
            own = rhs if right else lhs
            others = [
                each
                for each in everyone.tolist()
                if each not in {own, lhs if right else rhs}
                and ((lhs, rel, each) if right else (each, rel, rhs)) not in known
            ]
            found.append(1 / (1 + np.sum(scores[others] >= scores[own])))
    return np.mean(found)


def test_vectors_of_complex_rank_as_its_own_score(task):
    rng = np.random.default_rng(2)
    entities, relations = (rng.normal(size=(n, DIMENSION)).astype(np.float32) for n in (task.entities, RELATIONS))
    nodes, links = (each[:, : DIMENSION // 2] + 1j * each[:, DIMENSION // 2 :] for each in (entities, relations))

    def score(lhs, rel, rhs):
        return (nodes[lhs] * links[rel] * nodes[rhs].conj()).real.sum(axis=-1)

    found = task.quality(task.stored("pyg", entities, relations))
    assert found.mrr == pytest.approx(mrr(task, score), abs=1e-6)


def test_vectors_without_relations_rank_by_their_product(task):
    vectors = np.random.default_rng(3).normal(size=(task.entities, DIMENSION)).astype(np.float32)

    def score(lhs, _, rhs):
        return (vectors[lhs] * vectors[rhs]).sum(axis=-1)

    found = task.quality(task.stored("deepwalk", vectors, None))
    assert found.mrr == pytest.approx(mrr(task, score), abs=1e-6)


def test_links_are_split_without_loops(tmp_path):
    source = tmp_path / "edges.tsv"
    source.write_text("".join(f"{i % 50}\t{i // 50}\n" for i in range(2500)))
    files = peers_slashdot.split_links(source, tmp_path / "text")
    lines = {split: path.read_text().splitlines() for split, path in files.items()}
    every = [line for split in lines.values() for line in split]
    assert len({*every}) == len(every) == 2450
    assert 180 < len(lines["test"]) < 310
    assert 0 < len(lines["valid"]) < 60
    assert not any(line.split("\t")[0] == line.split("\t")[2] for line in every)


def test_row_takes_the_first_epoch_of_equal_quality(task):
    ours = [Finish(10.0, Quality(0.1, 0.8)), Finish(20.0, Quality(0.2, 0.9)), Finish(30.0, Quality(0.3, 0.95))]
    row, last = peers.rows(task, ours, {"a peer": Finish(80.0, Quality(0.19, 0.905))})
    assert (row.ours, row.theirs, row.ratios) == (20.0, 80.0, (4.0,))
    assert row.details["our epochs"] == 2
    assert (last.ours, last.theirs) == (30.0, None)
    short, _ = peers.rows(task, ours, {"a peer": Finish(80.0, Quality(0.4, 0.9))})
    assert (short.ours, short.theirs, short.ratios) == (30.0, 80.0, ())


def test_deepwalk_places_neighbours_beside_each_other(tmp_path):
    pytest.importorskip("gensim", reason="gensim is not installed")
    from benchmarks.speed.deepwalk_side import LENGTH, WALKS, DeepWalk

    pairs = [(i, j) for clique in (0, 10) for i in range(clique, clique + 10) for j in range(i + 1, clique + 10)]
    with h5py.File(tmp_path / "edges.h5", "w") as file:
        file["lhs"], file["rhs"] = np.array(pairs).T
    assert DeepWalk(str(tmp_path / "edges.h5"), 21, 8).train(str(tmp_path / "out.npy")) == 20 * WALKS * LENGTH
    vectors = np.load(tmp_path / "out.npy")
    assert vectors.shape == (21, 8)
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    likeness = units @ units.T
    assert likeness[:10, :10].mean() > likeness[:10, 10:20].mean() + 0.3
