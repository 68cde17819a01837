from __future__ import annotations

import json

import pytest

from pbg_tasks.checkpoint import StatsMirror
from pbg_tasks.checkpoint.stats import FILE_NAME, IO_FILE_NAME
from pbg_tasks.errors import FormatError
from pbg_tasks.storage import open_store
from tests.checkpoint.samples import iteration


def line(epoch, loss, count=10, **more):
    metrics = {"loss": loss, "reg": 0.0, "violators_lhs": 0.0, "violators_rhs": 0.0}
    stats = {"lhs_partition": 0, "rhs_partition": 0, "index": epoch, "stats": {"count": count, "metrics": metrics}}
    return json.dumps(stats | {"epoch_idx": epoch, "edge_path_idx": 0, "edge_chunk_idx": 0} | more)


def held_out(epoch):
    return json.dumps(
        {"epoch_idx": epoch, "edge_path_idx": 0, "edge_chunk_idx": 0, "index": 0, "eval_stats_chunk_avg": {}}
    )


@pytest.mark.parametrize("prefix", ["", "run/checkpoint"])
def test_lines_of_committed_iterations_always_stay(tmp_path, prefix):
    store = open_store(tmp_path)
    key = f"{prefix}/{FILE_NAME}".lstrip("/")
    kept = [line(0, 3.0), line(0, 1.0, count=30), held_out(0), line(1, 1.0)]
    store.put(key, "\n".join([*kept, line(2, 0.9), '{"cut off']).encode())
    stats = StatsMirror(store, prefix, iteration(2))
    assert stats.losses() == [1.5, 1.0]
    stats.append([line(2, 0.5)])
    assert store.get(key).data.decode().splitlines() == [*kept, line(2, 0.5)]
    assert stats.losses() == [1.5, 1.0, 0.5]


def io(epoch, seconds=2.0):
    place = {"epoch_idx": epoch, "edge_path_idx": 0, "edge_chunk_idx": 0}
    return json.dumps(place | {"io": {"seconds": seconds, "waited": 1.0, "share": 0.5}})


def test_old_io_figures_move_to_their_file(tmp_path):
    """Leave one line where both files have an iteration's.

    They do after a kill between the two writes.
    """
    store = open_store(tmp_path)
    old = [line(0, 3.0), json.dumps(json.loads(held_out(0)) | json.loads(io(0))), line(1, 1.0), io(1)]
    store.put(FILE_NAME, "\n".join(old).encode())
    store.put(IO_FILE_NAME, f"{io(0)}\n{io(2)}\n".encode())
    stats = StatsMirror(store, "", iteration(2))
    stats.append([line(2, 0.5), io(2, seconds=4.0)])
    assert store.get(FILE_NAME).data.decode().splitlines() == [line(0, 3.0), held_out(0), line(1, 1.0), line(2, 0.5)]
    assert store.get(IO_FILE_NAME).data.decode().splitlines() == [io(0), io(1), io(2, seconds=4.0)]


def test_training_without_commit_leaves_no_statistics(tmp_path):
    store = open_store(tmp_path)
    store.put(FILE_NAME, line(0, 3.0).encode())
    assert StatsMirror(store, "", None).losses() == []
    assert StatsMirror(open_store(tmp_path / "none"), "", iteration(1)).losses() == []


def test_foreign_line_is_named(tmp_path):
    store = open_store(tmp_path)
    store.put(FILE_NAME, line(0, 3.0, stats={"count": 1, "metrics": {"score": 1}}).encode())
    with pytest.raises(FormatError, match=r"training_stats\.json: not a line of training statistics"):
        StatsMirror(store, "", iteration(1)).losses()
