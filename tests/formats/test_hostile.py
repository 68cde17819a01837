"""HDF5 files that crash the library or keep it busy.

They are refused in bounded time, and the process that reads them goes on.
"""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

from examples.stack.processes import Identity
from pbg_tasks.errors import FormatError, ResourceError
from pbg_tasks.formats import examiner
from pbg_tasks.formats.edges import EdgeList, read_edges, write_edges
from pbg_tasks.formats.embeddings import read_embeddings, write_embeddings
from pbg_tasks.formats.examiner import EXAMINER, Examiner
from pbg_tasks.formats.guard import open_foreign
from pbg_tasks.formats.model import ModelState, read_model, write_model
from pbg_tasks.storage import open_store
from pbg_tasks.storage.staging import fetch_verified, sha256_file
from tests.formats.pickles import around, read_sums
from tests.waiting import wait_until

SECONDS = 60
"""Seconds on a machine that is busy with other work; the computing time is bounded by five."""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file.h5"


def compressed(path, **options):
    with h5py.File(path, "w") as file:
        file.attrs["format_version"] = 1
        for name in ("lhs", "rhs", "rel"):
            file.create_dataset(name, data=np.arange(1000), chunks=(100,), compression="gzip", **options)


def without_size(path):
    """Set the size of each dataset's first stored chunk to zero.

    It is one field of the file.
    """
    with h5py.File(path) as file:
        chunk = file["rel"].id.get_chunk_info(0)
    record = struct.pack("<IIQQ", chunk.size, 0, 0, 0)  # the first chunk's key in the B-tree
    data = path.read_bytes()
    assert record in data
    path.write_bytes(data.replace(record, struct.pack("<IIQQ", 0, 0, 0, 0)))


@pytest.mark.parametrize(
    "options", [{}, {"shuffle": True}, {"fletcher32": True}, {"shuffle": True, "fletcher32": True}]
)
def test_chunks_of_no_bytes_are_refused(path, options):
    compressed(path, **options)
    without_size(path)
    with pytest.raises(FormatError, match=r"file\.h5: damaged .*: dataset 'lhs': (a chunk|the checksum)"):
        read_edges(path)


@pytest.fixture
def model_of_pbg(path, config, iteration):
    """Write a model file whose optimizer sums are in PBG's blob only.

    Its config is a text in a heap of the file.
    """
    params = {"relations/0/operator/rhs/real": np.ones(2, np.float32)}
    write_model(path, ModelState(params, params), config=config, iteration=iteration)
    with h5py.File(path, "r+") as file:
        del file["optimizer/plain"]
    os.utime(path, ns=(1, 1))
    assert read_model(path).sums
    return path


def replace_byte(path, position, value):
    data = bytearray(path.read_bytes())
    assert data[position] != value
    data[position] = value
    path.write_bytes(data)


def test_file_that_crashes_the_library_is_refused(model_of_pbg):
    """One byte of the attribute's type leads to an invalid address."""
    kind = model_of_pbg.read_bytes().index(b"config/json\0") + len(b"config/json") + 6
    replace_byte(model_of_pbg, kind, 0xFF)
    with pytest.raises(FormatError, match=r"file\.h5: damaged HDF5 file: it crashed the HDF5 library \(SIG[A-Z]+\)"):
        read_model(model_of_pbg)


def test_file_that_keeps_library_busy_is_refused(model_of_pbg):
    """One byte of a heap's length makes the library search forever."""
    heap = model_of_pbg.read_bytes().index(b"GCOL") + 8
    replace_byte(model_of_pbg, heap, 0xFF)
    started = time.monotonic()
    with pytest.raises(FormatError, match=r"file\.h5: damaged HDF5 file: looking at it took longer than 5 s"):
        read_model(model_of_pbg)
    assert time.monotonic() - started < SECONDS


def test_the_next_file_is_read_after_a_crash(model_of_pbg, tmp_path):
    good = tmp_path / "good.h5"
    compressed(good)
    test_file_that_crashes_the_library_is_refused(model_of_pbg)
    assert len(read_edges(good)) == 1000


def test_a_blob_that_takes_for_ever_is_refused(path):
    """The hash of a tuple nested sixty times takes 2**60 steps.

    Each level contains the one below twice.
    """
    nested = b"\x80\x02})" + b"q\x00h\x00\x86" * 60 + b"K\x01s."
    started = time.monotonic()
    with pytest.raises(FormatError, match=r"optimizer/state_dict: damaged .*: looking at it took longer than 5 s"):
        read_sums(path, around(nested))
    assert time.monotonic() - started < SECONDS


def test_file_that_takes_too_much_memory_is_refused(path, monkeypatch):
    compressed(path)
    monkeypatch.setattr(examiner, "MEMORY", 1 << 20)
    monkeypatch.setattr(examiner, "_MEMORY_PER_BYTE", 0)
    with pytest.raises(FormatError, match=r"file\.h5: damaged HDF5 file: .*(memory|crashed)"):
        read_edges(path)
    monkeypatch.undo()
    assert len(read_edges(path)) == 1000


def test_process_killed_by_system_is_no_damage(path, monkeypatch):
    compressed(path)
    read_edges(path)

    def kill(*_, **__):
        EXAMINER._process.kill()
        raise examiner._EndedError

    monkeypatch.setattr(Examiner, "_exchange", kill)
    with pytest.raises(ResourceError, match=r"file\.h5: the process that looks at it was killed"):
        read_edges(path)
    monkeypatch.undo()
    assert len(read_edges(path)) == 1000


def test_process_that_waits_too_long_is_no_damage(path, monkeypatch):
    compressed(path)
    read_edges(path)
    os.kill(EXAMINER._process.pid, signal.SIGSTOP)
    monkeypatch.setattr(examiner, "_WAITING", 0.1)
    with pytest.raises(ResourceError, match=r"took longer than \d s, most of them waiting"):
        read_edges(path)
    monkeypatch.undo()
    assert len(read_edges(path)) == 1000


def test_process_that_cannot_start_reports_the_reason(path, monkeypatch, tmp_path):
    compressed(path)
    EXAMINER.stop()
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(ResourceError, match="cannot start a process that looks at HDF5 files: No such file"):
        read_edges(path)
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho a library is missing >&2; exit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    with pytest.raises(ResourceError, match=r"cannot start .*a library is missing"):
        read_edges(path)


@pytest.mark.parametrize(("known", "reason"), [(None, "No usable temporary directory"), ("/no/such", "No such file")])
def test_unusable_temporary_directory_names_variable(path, monkeypatch, known, reason):
    compressed(path)
    EXAMINER.stop()
    monkeypatch.setattr(tempfile, "tempdir", known)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/no/such"])
    with pytest.raises(ResourceError, match=rf"HDF5 files: {reason}.*/no/such.*; free some space, or set TMPDIR"):
        read_edges(path)


def test_the_process_has_no_credentials(path, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary")
    EXAMINER.stop()
    compressed(path)
    read_edges(path)
    assert b"canary" not in Path(f"/proc/{EXAMINER._process.pid}/environ").read_bytes()


def test_the_process_has_no_torch(path):
    compressed(path)
    read_edges(path)
    assert "torch" not in Path(f"/proc/{EXAMINER._process.pid}/maps").read_text()


def test_process_ends_with_its_parent(path):
    compressed(path)
    script = (
        "import sys; from pathlib import Path; from pbg_tasks.formats.edges import read_edges\n"
        "from pbg_tasks.formats.examiner import EXAMINER\n"
        "read_edges(Path(sys.argv[1])); print(EXAMINER._process.pid, flush=True)\n"
        "import os, signal; os.kill(os.getpid(), int(sys.argv[2]))\n"
    )
    for end in (0, signal.SIGKILL):
        command = [sys.executable, "-c", script, str(path), str(int(end))]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
        assert done.stderr == ""
        pid = int(done.stdout)
        wait_until(lambda pid=pid: Identity.of(pid) is None, SECONDS)


def test_a_fork_has_a_process_of_its_own(path):
    compressed(path)
    read_edges(path)
    pid = os.fork()
    if not pid:
        try:
            os._exit(0 if len(read_edges(path)) == 1000 else 1)
        except BaseException:  # noqa: BLE001 - the status shows it
            os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0
    assert len(read_edges(path)) == 1000


def test_threads_get_answers_to_their_own_files(tmp_path):
    paths = [tmp_path / f"{number}.h5" for number in range(8)]
    for number, path in enumerate(paths):
        with h5py.File(path, "w") as file:
            file.attrs["format_version"] = 1
            for name in ("lhs", "rhs", "rel"):
                file[name] = np.full(number + 1, number)
    found = {}

    def read(number):
        found[number] = [read_edges(paths[number]).rel.tolist() for _ in range(10)]

    threads = [threading.Thread(target=read, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: [[number] * (number + 1)] * 10 for number in range(8)}


def test_a_file_that_is_replaced_meanwhile_is_refused(path, monkeypatch):
    compressed(path)
    ask = Examiner.ask

    def replace(self, *arguments, **options):
        other = path.with_name("other.h5")
        compressed(other, shuffle=True)
        other.replace(path)
        return ask(self, *arguments, **options)

    monkeypatch.setattr(Examiner, "ask", replace)
    with pytest.raises(FormatError, match=r"file\.h5: was replaced while it was read"):
        read_edges(path)


def test_a_file_that_changes_meanwhile_is_refused(path):
    compressed(path)
    with pytest.raises(FormatError, match=r"file\.h5: was changed while it was read"), open_foreign(path):
        os.utime(path, ns=(1, 1))


@pytest.fixture
def no_other_process(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("another process was asked")

    monkeypatch.setattr(Examiner, "ask", refuse)


@pytest.mark.usefixtures("no_other_process")
def test_files_that_were_written_here_are_read_here(path, config, iteration):
    rows = np.ones((10, 4), np.float32)
    write_embeddings(path, rows, rows[:, 0], lr=0.1, iteration=iteration, config=config)
    np.testing.assert_array_equal(read_embeddings(path)[0], rows)


@pytest.mark.usefixtures("no_other_process")
def test_files_of_a_known_hash_are_read_here(tmp_path):
    ids = np.arange(5)
    write_edges(tmp_path / "a.h5", EdgeList(ids, ids, ids))
    there = tmp_path / "there.h5"
    digest = sha256_file(tmp_path / "a.h5")
    size = (tmp_path / "a.h5").stat().st_size
    fetch_verified(open_store(tmp_path), "a.h5", there, sha256=digest, size=size)
    assert len(read_edges(there)) == 5
    there.write_bytes(there.read_bytes())
    os.utime(there, ns=(1, 1))
    with pytest.raises(AssertionError, match="another process was asked"):
        read_edges(there)


def test_wrong_checksums_of_chunks_are_refused(path):
    compressed(path, fletcher32=True)
    with h5py.File(path) as file:
        chunk = file["rhs"].id.get_chunk_info(3)
    replace_byte(path, chunk.byte_offset + chunk.size - 1, path.read_bytes()[chunk.byte_offset + chunk.size - 1] ^ 1)
    with pytest.raises(FormatError, match="dataset 'rhs': the checksum of a chunk is wrong"):
        read_edges(path)


def say_length(path, found, length):
    """Change the length of all datasets in their headers."""
    data = path.read_bytes()
    assert data.count(struct.pack("<QQ", found, found)) == 3
    path.write_bytes(data.replace(struct.pack("<QQ", found, found), struct.pack("<QQ", length, found)))


@pytest.mark.parametrize("length", [0, 100, 900])
def test_chunks_beyond_the_shape_are_refused(path, length):
    """A header with fewer rows than were stored would lose the others."""
    compressed(path, fletcher32=True)
    say_length(path, 1000, length)
    with h5py.File(path) as file:
        assert file["lhs"].shape == (length,)
    with pytest.raises(FormatError, match="dataset 'lhs': it has chunks beyond its shape"):
        read_edges(path)


@pytest.mark.parametrize("length", [0, 100, 950])
@pytest.mark.parametrize("version", ["earliest", "latest"])
def test_dataset_that_the_library_shrank_is_read(path, length, version):
    with h5py.File(path, "w", libver=version) as file:
        file.attrs["format_version"] = 1
        for name in ("lhs", "rhs", "rel"):
            item = file.create_dataset(name, data=np.arange(1000), chunks=(100,), maxshape=(2000,), compression="gzip")
            item.resize((length,))
    np.testing.assert_array_equal(read_edges(path).lhs, np.arange(length))


@pytest.mark.parametrize("dtype", ["<i8", ">i4", "u2", "i1"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"chunks": (7,)},
        {"chunks": (7,), "compression": "gzip", "compression_opts": 9},
        {"chunks": (7,), "compression": "gzip", "shuffle": True, "fletcher32": True},
        {"chunks": (301,), "fletcher32": True},
        {"chunks": (7,), "shuffle": True},
        {"chunks": (1000,), "maxshape": (None,), "compression": "gzip"},
    ],
)
@pytest.mark.parametrize("version", ["earliest", "latest"])
def test_numbers_are_those_that_the_library_reads(path, dtype, options, version):
    """Compare every layout of the library by its numbers' places."""
    values = np.random.default_rng(0).integers(0, 100, 301).astype(dtype)
    with h5py.File(path, "w", libver=version) as file:
        file.attrs["format_version"] = 1
        for name in ("lhs", "rhs"):
            file.create_dataset(name, data=values, **options)
        sparse = options | ({"fillvalue": 9} if "chunks" in options else {})
        file.create_dataset("rel", (301,), dtype, **sparse)[50:60] = values[50:60]
    with h5py.File(path) as file:
        wanted = {name: file[name][...] for name in ("lhs", "rhs", "rel")}
    for start, stop in ((0, None), (3, 299), (48, 55), (300, 301)):
        found = read_edges(path, start, stop)
        for name, column in wanted.items():
            np.testing.assert_array_equal(getattr(found, name), column[start:stop])
