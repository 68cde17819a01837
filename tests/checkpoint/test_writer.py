from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from pbg_tasks.checkpoint import claim, open_committed, open_preserved, preserve, writer_heartbeat
from pbg_tasks.checkpoint.reader import HEAD, manifest_name
from pbg_tasks.checkpoint.writer import LEASE, WRITER_EPOCH
from pbg_tasks.checkpoint.writer_heartbeat import SILENCE_SECONDS, process_identity, wait_until_free
from pbg_tasks.errors import (
    ConfigError,
    ConflictError,
    FormatError,
    NotFoundError,
    OvertakenError,
    ResourceError,
    StorageError,
)
from pbg_tasks.storage import open_store
from tests.checkpoint.samples import PREFIX, SPEC, commit
from tests.waiting import wait_until


def test_nothing_counts_before_the_commit(store):
    with claim(store, PREFIX, SPEC) as writer:
        writer.put("embeddings_all_0.v1.h5", b"half an epoch")
    with pytest.raises(NotFoundError, match="no version has been committed"):
        open_committed(store, PREFIX)


def test_commit_counts_and_next_writer_continues(store, tmp_path):
    with claim(store, PREFIX, SPEC) as writer:
        commit(writer, 1)
        first = commit(writer, 2, b"more")
    manifest, files = open_committed(store, PREFIX)
    assert (manifest.version, manifest.edges) == (2, (10, 10))
    assert manifest == first
    assert files.fetch("embeddings_all_0.v2.h5", tmp_path).read_bytes() == b"more"
    assert store.get(f"{PREFIX}/checkpoint_version.txt").data == b"2\n"
    with claim(store, PREFIX, SPEC) as writer:
        assert writer.version == 2
        commit(writer, 3)
    assert open_committed(store, PREFIX)[0].version == 3


def test_next_writer_finishes_killed_ones_commit(store, monkeypatch):
    with claim(store, PREFIX, SPEC) as writer:
        commit(writer, 1)
        monkeypatch.setattr(writer, "write_mirror", lambda: None)
        commit(writer, 2)  # it is killed before it writes PBG's version file and before it drops version 1
    assert store.get(f"{PREFIX}/checkpoint_version.txt").data == b"1\n"
    with claim(store, PREFIX, SPEC) as writer:
        assert writer.version == 2
    assert store.get(f"{PREFIX}/checkpoint_version.txt").data == b"2\n"
    assert not [info.key for info in store.list(PREFIX) if ".v1." in info.key]
    assert open_committed(store, PREFIX)[0].version == 2


@pytest.mark.parametrize("place", ["tmp_path", pytest.param("s3_bucket", marks=pytest.mark.s3)])
def test_commit_by_earlier_writer_after_restore_is_refused(request, place):
    """Restore a backup, so that a writer epoch is claimed twice."""
    store = open_store(str(request.getfixturevalue(place)))
    with claim(store, PREFIX, SPEC) as writer:
        commit(writer, 1)
    backup = store.get(f"{PREFIX}/{HEAD}").data
    with claim(store, PREFIX, SPEC) as earlier:
        store.put(f"{PREFIX}/{HEAD}", backup)
        store.delete(f"{PREFIX}/{LEASE}")
        with claim(store, PREFIX, SPEC) as later:
            assert later.partial.writer_epoch == earlier.partial.writer_epoch
            with pytest.raises(ConflictError, match="another writer claimed this run"):
                commit(earlier, 2, b"of the earlier one")
            commit(later, 2, b"of the earlier one")


def test_commit_overtaken_without_answer_may_count(store, monkeypatch):
    with claim(store, PREFIX, SPEC) as writer:
        true_swap = store.swap

        def swap(key, *given, **named):
            if key.endswith(HEAD):
                raise OvertakenError(key)
            return true_swap(key, *given, **named)

        monkeypatch.setattr(store, "swap", swap)
        with pytest.raises(ConflictError, match=r"version 1 of writer epoch 1 counts only if it is named there"):
            commit(writer, 1)


def test_version_that_pbg_wrote_anew_is_kept(store):
    with claim(store, PREFIX, SPEC) as writer:
        commit(writer, 1)
        commit(writer, 2)
    store.put(f"{PREFIX}/embeddings_all_0.v1.h5", b"PBG's, which one of its snapshots may link to")
    with claim(store, PREFIX, SPEC):
        pass
    assert store.head(f"{PREFIX}/embeddings_all_0.v1.h5") is not None


def test_partial_objects_of_killed_gang_are_removed(store):
    with claim(store, PREFIX, SPEC) as writer:
        left = f"{PREFIX}/partial/e{writer.partial.writer_epoch}/n_0.1.h5"
        store.put(left, b"a partition of the iteration")
        commit(writer, 1)
    store.put(f"{PREFIX}/checkpoint_version.txt", b"one\n")
    with claim(store, PREFIX, SPEC):
        pass
    assert store.head(left) is None
    assert store.get(f"{PREFIX}/checkpoint_version.txt").data == b"1\n"


def test_documents_edited_by_hand_stay_visible(store):
    with claim(store, PREFIX, SPEC) as writer:
        commit(writer, 1)
        commit(writer, 2)
    manifest = store.get(f"{PREFIX}/manifest.v1.json").data
    store.put(f"{PREFIX}/manifest.v1.json", manifest.replace(b'"version"', b' "version"'))
    store.put(f"{PREFIX}/checkpoint_version.txt", b"7\n")
    with claim(store, PREFIX, SPEC):
        pass
    assert store.head(f"{PREFIX}/embeddings_all_0.v1.h5") is not None
    with pytest.raises(FormatError, match=r"names version 7, yet only 2 was committed .*edited by hand"):
        open_committed(store, PREFIX)


def test_older_writer_fails_at_its_commit(store):
    with claim(store, PREFIX, SPEC) as old:
        commit(old, 1)
        store.delete(f"{PREFIX}/{LEASE}")  # as if its heartbeat had been silent for long
        with claim(store, PREFIX, SPEC) as new:
            with pytest.raises(ConflictError, match="another writer claimed this run"):
                commit(old, 2, b"stale")
            assert open_committed(store, PREFIX)[0].version == 1
            commit(new, 2, b"fresh")
            with pytest.raises(ConflictError, match="took this run over"):
                old.put("embeddings_all_0.v2.h5", b"stale")
    files = open_committed(store, PREFIX)[1]
    assert store.get(f"{PREFIX}/embeddings_all_0.v2.h5").data == b"fresh"
    assert files.version == 2


def test_live_writer_is_not_pushed_aside(store):
    with claim(store, PREFIX, SPEC) as first:
        with pytest.raises(ConflictError, match="is alive and owns this run"), claim(store, PREFIX, SPEC, patience=7):
            pass
        commit(first, 1)
    assert open_committed(store, PREFIX)[0].version == 1


@pytest.mark.parametrize("fault", [StorageError("503"), ResourceError("the disk is full")])
def test_heartbeat_goes_on_after_fault(store, monkeypatch, fault):
    monkeypatch.setattr(writer_heartbeat, "BEAT_SECONDS", 0.01)
    put, faults = store.put, [fault]

    def failing(*given, **named):
        if faults and threading.current_thread().name == "lease":
            raise faults.pop()
        return put(*given, **named)

    monkeypatch.setattr(store, "put", failing)
    with claim(store, PREFIX, SPEC):
        wait_until(lambda: json.loads(store.get(f"{PREFIX}/{LEASE}").data)["beat"] > 1)
    assert not faults


def test_writer_that_ends_while_watched_is_followed(store):
    """A scheduler may start the next try before the last one ended."""
    holder = process_identity() | {"machine": "elsewhere"}
    beats = iter(range(100))

    def beat(_seconds):
        if (count := next(beats)) < 9:
            store.put(f"{PREFIX}/{LEASE}", json.dumps({"holder": holder, "beat": count}).encode())
        else:
            store.delete(f"{PREFIX}/{LEASE}")

    store.put(f"{PREFIX}/{LEASE}", json.dumps({"holder": holder, "beat": -1}).encode())
    wait_until_free(store, f"{PREFIX}/{LEASE}", sleep=beat)
    assert next(beats) == 10


def test_living_writer_counts_despite_cached_status(store, monkeypatch):
    """A client of NFS may keep one for a minute."""
    lease, beats = f"{PREFIX}/{LEASE}", iter(range(100))

    def beat(_seconds):
        holder = process_identity() | {"machine": "elsewhere"}
        store.put(lease, json.dumps({"holder": holder, "beat": next(beats)}).encode())

    beat(0)
    cached = store.head(lease)
    monkeypatch.setattr(store, "head", lambda _: cached)
    with pytest.raises(ConflictError, match="is alive and owns this run"):
        wait_until_free(store, lease, sleep=beat)


def test_writer_leaves_lease_of_its_successor(store):
    other = json.dumps({"holder": process_identity() | {"machine": "elsewhere"}, "beat": 0}).encode()
    with claim(store, PREFIX, SPEC):
        store.put(f"{PREFIX}/{LEASE}", other)
    assert store.get(f"{PREFIX}/{LEASE}").data == other


def test_silent_lease_of_unknown_machine_is_taken_over(store):
    holder = process_identity() | {"machine": "elsewhere"}
    store.put(f"{PREFIX}/{LEASE}", json.dumps({"holder": holder, "beat": 4}).encode())
    slept = []
    wait_until_free(store, f"{PREFIX}/{LEASE}", sleep=slept.append)
    assert sum(slept) == SILENCE_SECONDS


def test_killed_writer_is_followed_at_once(store, tmp_path):
    code = (
        "import sys, time\n"
        "from pbg_tasks.checkpoint import claim\n"
        "from pbg_tasks.storage import open_store\n"
        "with claim(open_store(sys.argv[1]), sys.argv[2], sys.argv[3]) as writer:\n"
        "    writer.put('embeddings_all_0.v1.h5', b'torn')\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path), PREFIX, SPEC], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "ready\n"
        os.kill(process.pid, signal.SIGKILL)
    started = time.monotonic()
    with claim(store, PREFIX, SPEC) as writer:
        assert time.monotonic() - started < 5
        assert writer.version == 0
        commit(writer, 1, b"whole")
    assert store.get(f"{PREFIX}/embeddings_all_0.v1.h5").data == b"whole"


def test_of_two_simultaneous_claims_one_succeeds(store, monkeypatch):
    real = store.swap

    def swap(key, data, *, expected, **options):
        if key.endswith(HEAD):
            monkeypatch.setattr(store, "swap", real)
            real(key, b'{"writer_epoch":7}', expected=expected)
        return real(key, data, expected=expected, **options)

    monkeypatch.setattr(store, "swap", swap)
    with pytest.raises(ConflictError, match="at the same moment"), claim(store, PREFIX, SPEC):
        pass


def test_another_spec_is_refused(store):
    with claim(store, PREFIX, SPEC) as writer:
        commit(writer, 1)
    with pytest.raises(ConfigError, match="of another spec"), claim(store, PREFIX, "b" * 64):
        pass


def test_previous_version_goes_and_version_zero_stays(store):
    with claim(store, PREFIX, SPEC) as writer:
        name = "embeddings_all_0.v0.h5"
        zero = writer.commit({name: writer.put(name, b"start")}, iteration=None, edges=0)
        one, two = commit(writer, 1), commit(writer, 2)
        for manifest in (zero, one, two):
            writer.drop(manifest)
    keys = {info.key.removeprefix(f"{PREFIX}/") for info in store.list(PREFIX)}
    assert keys >= {"embeddings_all_0.v0.h5", "embeddings_all_0.v2.h5", manifest_name(2)}
    assert not keys & {"embeddings_all_0.v1.h5", manifest_name(1)}


@pytest.mark.parametrize("name", [HEAD, manifest_name(1)])
@pytest.mark.parametrize("damage", [lambda data: data[:-2], lambda data: data.replace(b"1", b"2", 1), lambda _: b"{}"])
def test_a_hand_edited_document_is_refused(store, name, damage):
    with claim(store, PREFIX, SPEC) as writer:
        commit(writer, 1)
    key = f"{PREFIX}/{name}"
    store.put(key, damage(store.get(key).data))
    with pytest.raises(FormatError, match=name):
        open_committed(store, PREFIX)


def test_version_mirror_ahead_of_commits_is_refused(store):
    with claim(store, PREFIX, SPEC) as writer:
        commit(writer, 1)
        commit(writer, 2)
    store.put(f"{PREFIX}/checkpoint_version.txt", b"1\n")
    assert open_committed(store, PREFIX)[0].version == 2
    store.put(f"{PREFIX}/checkpoint_version.txt", b"3\n")
    with pytest.raises(FormatError, match="edited by hand"):
        open_committed(store, PREFIX)


def test_file_outside_of_manifest_is_refused(store, tmp_path):
    with claim(store, PREFIX, SPEC) as writer:
        commit(writer, 1, b"vectors")
    _, files = open_committed(store, PREFIX)
    for bring in (lambda: files.fetch("gone", tmp_path), lambda: files.fetch_all([*files.names, "gone"], tmp_path)):
        with pytest.raises(FormatError, match="no file 'gone' in its manifest"):
            bring()
    assert not list(tmp_path.glob("embeddings*"))


def test_changed_data_is_never_opened(store, tmp_path):
    with claim(store, PREFIX, SPEC) as writer:
        commit(writer, 1, b"vectors")
    store.put(f"{PREFIX}/embeddings_all_0.v1.h5", b"vectorz")
    with pytest.raises(FormatError, match=r"embeddings_all_0\.v1\.h5"):
        open_committed(store, PREFIX)[1].fetch("embeddings_all_0.v1.h5", tmp_path)
    assert not list(tmp_path.glob("embeddings*"))


def test_preserved_directory_can_be_moved(store, tmp_path):
    with claim(store, PREFIX, SPEC) as writer:
        manifest = commit(writer, 1)
    for _ in range(2):  # twice: the second preservation changes nothing
        document = preserve(store, PREFIX, manifest, f"{PREFIX}/epoch_1", epochs=1, documents={"config.json": b"{}"})
    assert set(document.objects) == {"embeddings_all_0.v1.h5", "checkpoint_version.txt", "config.json"}
    (tmp_path / PREFIX / "epoch_1").rename(tmp_path / "elsewhere")
    files = open_preserved(store, "elsewhere", expected_sha256=document.sha256())
    assert files.fetch("embeddings_all_0.v1.h5", tmp_path / "out").read_bytes() == b"vectors"
    assert not any(path.is_symlink() for path in (tmp_path / "elsewhere").iterdir())
    with pytest.raises(FormatError, match="changed afterwards; restore it, or serve another release"):
        open_preserved(store, "elsewhere", expected_sha256="0" * 64)
    with pytest.raises(NotFoundError, match=r"missing, so the release cannot be opened; restore it, or .*pbg rollback"):
        open_preserved(store, f"{PREFIX}/epoch_1", expected_sha256=document.sha256())


def test_objects_name_their_writer(store):
    for _ in range(2):
        with claim(store, PREFIX, SPEC) as writer:
            writer.put("embeddings_all_0.v1.h5", b"x")
    assert store.head(f"{PREFIX}/embeddings_all_0.v1.h5").metadata[WRITER_EPOCH] == "2"
