"""Stored parts of an iteration that count before its end."""

from __future__ import annotations

import json

import pytest

from pbg_tasks.checkpoint import (
    EdgeChunkRecord,
    LeaseRecord,
    PartialRecord,
    claim,
    open_committed,
    segments,
    watch_progress,
)
from pbg_tasks.checkpoint.reader import HEAD
from pbg_tasks.checkpoint.writer import LEASE
from pbg_tasks.errors import ConflictError, FormatError, NotFoundError, StorageError
from tests.checkpoint.samples import PREFIX, SPEC, commit, iteration

FILE = "embeddings_all_0.v1.h5"


def put(writer, tmp_path, content, *, lease=1, rank=0):
    path = tmp_path / FILE
    path.write_bytes(content)
    return writer.partial.put(path, f"{lease}.{rank}", lease=lease)


def progress(writer, number, stored, **changes):
    fields = {
        "spec": SPEC,
        "writer_epoch": writer.partial.writer_epoch,
        "number": number,
        "iteration": iteration(1),
        "lease": number,
        "partitions": {FILE: stored},
    }
    return PartialRecord(**fields | changes)


def keys(store):
    return sorted(info.key.removeprefix(f"{PREFIX}/") for info in store.list(PREFIX))


def test_record_is_read_by_next_writer_until_commit(store, tmp_path):
    with claim(store, PREFIX, SPEC) as writer:
        done = EdgeChunkRecord(
            lhs=0, rhs=0, rank=1, lease=1, edges=7, before={"count": 1.0}, figures=(1.0, 0.0, 2.0, 3.0)
        )
        active = LeaseRecord(lhs=0, rhs=1, rank=0, lease=2)
        first = progress(writer, 1, put(writer, tmp_path, b"bucket"), done=(done,), active=(active,), last=((1, 0, 0),))
        writer.record(first)
    with pytest.raises(NotFoundError, match="no version has been committed"):
        open_committed(store, PREFIX)
    with claim(store, PREFIX, SPEC) as writer:
        assert writer.progress == first
        assert writer.partial.fetch(first.partitions[FILE], tmp_path / "there").read_bytes() == b"bucket"
        records = writer.settle(writer.progress)
        writer.commit(records, iteration=iteration(1), edges=10, retrained=3)
    manifest, files = open_committed(store, PREFIX)
    assert (manifest.edges, manifest.retrained) == ((10,), (3,))
    assert files.fetch(FILE, tmp_path / "committed").read_bytes() == b"bucket"
    assert keys(store) == ["HEAD.json", "checkpoint_version.txt", FILE, "manifest.v1.json"]
    with claim(store, PREFIX, SPEC) as writer:
        assert writer.progress is None
        commit(writer, 2)
        assert open_committed(store, PREFIX)[0].retrained == (3, 0)


def test_replaced_and_unnamed_objects_are_deleted(store, tmp_path):
    with claim(store, PREFIX, SPEC) as writer:
        first = put(writer, tmp_path, b"first", lease=1)
        writer.record(progress(writer, 1, first))
        second = put(writer, tmp_path, b"second", lease=2)
        put(writer, tmp_path, b"of a rank that was lost", lease=3)
        writer.record(progress(writer, 2, second))
        assert f"{PREFIX}/{first.name}" not in keys(store)
    with claim(store, PREFIX, SPEC) as writer:
        writer.sweep()
        found = [key for key in keys(store) if key.startswith(("partial/", "progress"))]
        assert found == [second.name, "progress.v1.e1.2.json"]


@pytest.fixture
def unanswered(store, tmp_path, monkeypatch):
    """Record something by a swap that takes place without an answer."""

    def run(writer):
        swap = store.swap

        def silent(key, *given, **named):
            info = swap(key, *given, **named)
            if key.endswith(HEAD):
                raise StorageError("no answer")
            return info

        with monkeypatch.context() as patch:
            patch.setattr(store, "swap", silent)
            with pytest.raises(StorageError, match="no answer"):
                writer.record(progress(writer, 1, put(writer, tmp_path, b"first")))

    return run


def test_record_after_swap_without_answer_counts(store, tmp_path, unanswered):
    """It was refused as another writer's, and Airflow skipped the night."""
    with claim(store, PREFIX, SPEC) as writer:
        unanswered(writer)
        writer.record(progress(writer, 2, put(writer, tmp_path, b"second", lease=2)))
        writer.commit(writer.settle(writer.progress), iteration=iteration(1), edges=10)
    assert store.get(f"{PREFIX}/{FILE}").data == b"second"
    assert keys(store) == ["HEAD.json", "checkpoint_version.txt", FILE, "manifest.v1.json"]


def test_successor_after_swap_without_answer_counts(store, tmp_path, unanswered):
    with claim(store, PREFIX, SPEC) as old:
        unanswered(old)
        store.delete(f"{PREFIX}/{LEASE}")
        with claim(store, PREFIX, SPEC) as new:
            assert new.progress.number == 1
            with pytest.raises(ConflictError, match="another writer claimed this run; record 2 of writer epoch 1"):
                old.record(progress(old, 2, put(old, tmp_path, b"late", lease=9)))


def test_fenced_writer_records_and_settles_nothing(store, tmp_path):
    with claim(store, PREFIX, SPEC) as old:
        old.record(progress(old, 1, put(old, tmp_path, b"old")))
        store.delete(f"{PREFIX}/{LEASE}")  # as if its heartbeat had been silent for long
        with claim(store, PREFIX, SPEC) as new:
            late = put(old, tmp_path, b"late", lease=9)
            with pytest.raises(ConflictError, match="another writer claimed this run; record 2 of writer epoch 1"):
                old.record(progress(old, 2, late))
            stored = put(new, tmp_path, b"new", lease=2)
            new.record(progress(new, 1, stored))
            new.commit(new.settle(new.progress), iteration=iteration(1), edges=10)
            with pytest.raises(ConflictError, match="took this run over"):
                old.settle(old.progress)
    assert store.get(f"{PREFIX}/{FILE}").data == b"new"


def test_file_left_by_interrupted_writer_is_replaced(store, tmp_path):
    with claim(store, PREFIX, SPEC) as writer:
        writer.put(FILE, b"never committed")
    with claim(store, PREFIX, SPEC) as writer:
        stored = put(writer, tmp_path, b"right")
        writer.record(progress(writer, 1, stored))
        assert writer.settle(writer.progress) == {FILE: stored.record}
        assert writer.settle(writer.progress) == {FILE: stored.record}  # a crash before the commit repeats it
    assert store.get(f"{PREFIX}/{FILE}").data == b"right"


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (lambda data: data + b" ", r"progress\.v1\.e1\.1\.json: not the one that was recorded"),
        (None, r"HEAD\.json: names what is missing, restore it: .*progress\.v1\.e1\.1\.json"),
    ],
)
def test_damaged_record_is_named(store, tmp_path, damage, match):
    with claim(store, PREFIX, SPEC) as writer:
        writer.record(progress(writer, 1, put(writer, tmp_path, b"bucket")))
    key = f"{PREFIX}/progress.v1.e1.1.json"
    if damage is None:
        store.delete(key)
    else:
        store.put(key, damage(store.get(key).data))
    with pytest.raises(FormatError, match=match), claim(store, PREFIX, SPEC):
        pass


def test_record_of_other_spec_is_not_continued(store, tmp_path):
    with claim(store, PREFIX, SPEC) as writer:
        writer.record(progress(writer, 1, put(writer, tmp_path, b"bucket")))
    with claim(store, PREFIX, "b" * 64) as writer:
        assert writer.progress is None


def test_fenced_writer_sweeps_nothing_of_its_successor(store, tmp_path):
    """It may have paused between claim and sweep, with its whole gang."""
    with claim(store, PREFIX, SPEC) as old:
        put(old, tmp_path, b"never recorded")
        store.delete(f"{PREFIX}/{LEASE}")  # as if its heartbeat had been silent for long
        with claim(store, PREFIX, SPEC) as new:
            stored = put(new, tmp_path, b"new")
            new.record(progress(new, 1, stored))
            old.sweep()
    assert [key for key in keys(store) if key.startswith(("partial/", "progress"))] == [
        stored.name,
        "progress.v1.e2.1.json",
    ]


def test_settled_files_of_interrupted_writer_are_kept(store, tmp_path, monkeypatch):
    """The next writer may have committed a file between check and removal."""
    with claim(store, PREFIX, SPEC) as writer:
        writer.record(progress(writer, 1, put(writer, tmp_path, b"bucket")))
        writer.settle(writer.progress)
    deleted = []
    with claim(store, PREFIX, SPEC) as writer, monkeypatch.context() as patch:
        patch.setattr(store, "delete", deleted.append)
        writer.settle(writer.progress)
    assert deleted == []


def pieces(count):
    return tuple(EdgeChunkRecord(lhs=number, rhs=0, rank=0, lease=number + 1, edges=9) for number in range(count))


class TestSegments:
    @pytest.fixture(autouse=True)
    def short(self, monkeypatch):
        monkeypatch.setattr(segments, "PIECES", 10)

    def test_sealed_segments_lead_next_writer_to_all_pieces(self, store, tmp_path):
        with claim(store, PREFIX, SPEC) as writer:
            for number, count in enumerate((3, 9, 25, 29), start=1):
                writer.record(progress(writer, number, put(writer, tmp_path, b"x", lease=number), done=pieces(count)))
            name = f"{PREFIX}/progress.v1.e1.4.json"
            stored = json.loads(store.get(name).data)
            assert (len(stored["done"]), len(stored["sealed"])) == (9, 2)
            assert [key for key in keys(store) if "pieces" in key] == [each["name"] for each in stored["sealed"]]
        with claim(store, PREFIX, SPEC) as writer:
            assert writer.progress.done == pieces(29)
            writer.sweep()
            assert watch_progress(store, PREFIX) is None  # which belongs to the record before
            writer.record(progress(writer, 5, put(writer, tmp_path, b"y", lease=5), done=pieces(31)))
            assert watch_progress(store, PREFIX)[0].done == pieces(31)
            found = [key for key in keys(store) if "pieces" in key]
            assert found == [f"partial/e2/pieces.v1.{number}.json" for number in range(3)]  # the others are gone
            writer.commit(writer.settle(writer.progress), iteration=iteration(1), edges=10)
        assert not [key for key in keys(store) if "partial" in key]

    def test_late_pieces_go_into_the_next_segment(self, store, tmp_path):
        listed = pieces(20)
        with claim(store, PREFIX, SPEC) as writer:
            for number, done in enumerate((listed[5:17], (*listed[:5], *listed[5:17], *listed[17:])), start=1):
                writer.record(progress(writer, number, put(writer, tmp_path, b"x", lease=number), done=done))
        with claim(store, PREFIX, SPEC) as writer:
            assert sorted(piece.lease for piece in writer.progress.done) == list(range(1, 21))

    def test_changed_or_missing_segment_is_reported(self, store, tmp_path):
        with claim(store, PREFIX, SPEC) as writer:
            writer.record(progress(writer, 1, put(writer, tmp_path, b"x"), done=pieces(11)))
        key = f"{PREFIX}/partial/e1/pieces.v1.0.json"
        store.swap(key, b"{}", expected=store.head(key))
        with (
            pytest.raises(FormatError, match=r"pieces\.v1\.0\.json: not the one that was recorded"),
            claim(store, PREFIX, SPEC),
        ):
            pass
        store.delete(key)
        with (
            pytest.raises(FormatError, match=r"names what is missing.*pieces\.v1\.0\.json"),
            claim(store, PREFIX, SPEC),
        ):
            pass
