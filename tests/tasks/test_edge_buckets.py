from __future__ import annotations

import numpy as np
import pytest

from pbg_tasks.tasks.context import RunContext
from pbg_tasks.tasks.nightly import evaluate
from pbg_tasks.tasks.nightly.chain import run_task
from pbg_tasks.tasks.nightly.plan import plan
from pbg_tasks.tasks.runs.night import NightEdges
from pbg_tasks.training.data import edge_files
from tests.tasks.conftest import ring


@pytest.fixture
def url(place):
    place.snapshot("d1", ring(150))
    url = plan(place.spec, "d1", epochs=1)["run"]
    for task in ("validate", "partition", "bucket"):
        run_task(task, url)
    return url


def test_pieces_of_bucket_are_all_of_it(url, tmp_path):
    edges = NightEdges(RunContext.open(url), tmp_path / "down")
    pieces = {}
    for bucket, piece in edges.of("train", size=7):
        assert len(piece) <= 7
        pieces.setdefault(bucket, []).append(piece)
    for bucket, whole in edges.of("train"):
        found = pieces.pop(bucket)
        assert len(found) == -(-len(whole) // 7) > 2
        for column in ("lhs", "rhs", "rel"):
            joined = np.concatenate([getattr(piece, column) for piece in found])
            assert joined.tolist() == getattr(whole, column).tolist()
    assert not pieces
    assert not list((tmp_path / "down").rglob("*.h5"))


def test_kept_edges_are_fetched_once(url, tmp_path):
    run = RunContext.open(url)
    edges = NightEdges(run, tmp_path / "down", keep=True)
    first = [piece.rel.tolist() for _, piece in edges.of("valid", "train")]
    for stored in list(run.store.list(run.key("edges/train/"))):
        run.store.delete(stored.key)
    assert [piece.rel.tolist() for _, piece in edges.of("valid", "train")] == first


def test_evaluation_reads_training_edges_in_pieces(url, monkeypatch):
    for task in ("train", "preserve"):
        run_task(task, url)
    sizes, read = [], edge_files.read_edges
    monkeypatch.setattr(edge_files, "read_edges", lambda *given: sizes.append(len(edges := read(*given))) or edges)
    monkeypatch.setattr(evaluate, "BLOCK_EDGES", 30)
    result = run_task("eval", url)
    assert max(sizes) == 30  # there are fewer held-out edges than that
    assert sum(sizes) > 150
    assert result["popularity"]["count"] == 2 * result["edges"]
