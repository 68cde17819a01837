from __future__ import annotations

import pytest

from pbg_tasks.checkpoint import EdgeChunkRecord, Iteration, LiveMirror, watch_progress
from pbg_tasks.checkpoint.live import FILE_NAME, INTERVAL_SECONDS
from pbg_tasks.checkpoint.manifest import Head, encode
from pbg_tasks.storage import open_store


@pytest.fixture
def store(tmp_path):
    return open_store(tmp_path)


def iteration(number):
    return Iteration(
        number=number,
        epoch_idx=number - 1,
        num_epochs=3,
        edge_path_idx=0,
        num_edge_paths=1,
        edge_chunk_idx=0,
        num_edge_chunks=1,
    )


def mirror(store, now, writer_epoch=1):
    return LiveMirror("spec", writer_epoch, lambda data: store.put(f"run/{FILE_NAME}", data), clock=lambda: now[0])


def piece(lhs, rhs):
    return EdgeChunkRecord(lhs=lhs, rhs=rhs, rank=0, lease=0, edges=5, figures=(0.5, 0.0, 0.0, 0.0))


def head(store, version=0, writer_epoch=1):
    store.put("run/HEAD.json", encode(Head(writer_epoch=writer_epoch, version=version)))


def test_done_and_active_parts_are_reported(store):
    now = [0.0]
    live = mirror(store, now)
    head(store)
    assert watch_progress(store, "run") is None
    live.report(iteration(1), 0, 0)
    live.done(piece(0, 0))
    live.report(iteration(1), 0, 1)  # too soon after the last report
    progress, _ = watch_progress(store, "run")
    assert (progress.done, [(lease.lhs, lease.rhs) for lease in progress.active]) == ((), [(0, 0)])
    now[0] += INTERVAL_SECONDS
    live.report(iteration(1), 0, 1)
    progress, heard = watch_progress(store, "run")
    assert progress.done == (piece(0, 0),)
    assert [(lease.lhs, lease.rhs) for lease in progress.active] == [(0, 1)]
    assert heard is not None


def test_committed_iteration_is_not_reported_as_active(store):
    now = [0.0]
    live = mirror(store, now)
    live.report(iteration(1), 0, 0)
    live.done(piece(0, 0))
    live.committed()
    head(store, version=1)
    assert watch_progress(store, "run") is None
    now[0] += INTERVAL_SECONDS
    live.report(iteration(2), 1, 0)
    progress, _ = watch_progress(store, "run")
    assert (progress.iteration.number, progress.done) == (2, ())


def test_reports_of_fenced_writer_are_ignored(store):
    head(store, writer_epoch=2)
    mirror(store, [0.0]).report(iteration(1), 0, 0)
    assert watch_progress(store, "run") is None


def test_directory_without_training_reports_nothing(store):
    assert watch_progress(store, "run") is None
