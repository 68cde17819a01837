from __future__ import annotations

import numpy as np
import pytest

from pbg_tasks.tasks.context import RunContext
from pbg_tasks.tasks.nightly import edge_buckets, evaluate
from pbg_tasks.tasks.nightly.chain import run_task
from pbg_tasks.tasks.nightly.edge_buckets import EdgeBuckets
from pbg_tasks.tasks.nightly.plan import plan
from tests.tasks.conftest import ring


@pytest.fixture
def url(place):
    place.snapshot("d1", ring(150))
    url = plan(place.spec, "d1", epochs=1)["run"]
    for task in ("validate", "partition", "bucket"):
        run_task(task, url)
    return url


def test_pieces_of_bucket_are_all_of_it(url, tmp_path):
    buckets = EdgeBuckets(RunContext.open(url), tmp_path)
    pieces = {}
    for bucket, piece in buckets.pieces("train", edges=7):
        assert len(piece) <= 7
        pieces.setdefault(bucket, []).append(piece)
    for bucket, whole in buckets.of("train"):
        found = pieces.pop(bucket)
        assert len(found) == -(-len(whole) // 7) > 2
        for column in ("lhs", "rhs", "rel"):
            joined = np.concatenate([getattr(piece, column) for piece in found])
            assert joined.tolist() == getattr(whole, column).tolist()
    assert not pieces


def test_evaluation_reads_training_edges_in_pieces(url, monkeypatch):
    for task in ("train", "preserve"):
        run_task(task, url)
    sizes, read = [], edge_buckets.read_edges
    monkeypatch.setattr(edge_buckets, "read_edges", lambda *given: sizes.append(len(edges := read(*given))) or edges)
    monkeypatch.setattr(evaluate, "PIECE_EDGES", 30)
    result = run_task("eval", url)
    assert max(sizes) == 30  # there are fewer held-out edges than that
    assert sum(sizes) > 150
    assert result["popularity"]["count"] == 2 * result["edges"]
