"""Memory of a process and its descendants together."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.speed.usage import WATCH_SECONDS, MemoryWatch

MIB = 1 << 20
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - of which the test is
# Both processes map 64 MiB, and the child has 32 of its own.
SHARING = """
import mmap, os
shared = mmap.mmap(-1, 64 << 20)
pages = range(0, len(shared), mmap.PAGESIZE)
for at in pages:
    shared[at] = 1
ready, done = os.pipe()
if not os.fork():
    own = b"1" * (32 << 20)
    os.write(done, bytes([sum(shared[at] for at in pages) > 0]))
    os.read(0, 1)
    os._exit(0)
os.read(ready, 1)
print(flush=True)
os.read(0, 1)
"""
WAITING = "print(flush=True)\ninput()"


@contextmanager
def started(code):
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.stdin.close()


def peak(pid):
    with MemoryWatch(pid) as watch:
        pass
    return watch.peak


def test_shared_memory_counts_once():
    with started(WAITING) as pid:
        bare = peak(pid)
    with started(SHARING) as pid:
        together = peak(pid)
    assert 96 <= (together - bare) / MIB < 126


@pytest.mark.skipif(not SHARED_MEMORY.is_dir(), reason="this system has no /dev/shm")
def test_peak_between_looks_and_unmapped_files_count():
    with started(WAITING) as pid, MemoryWatch(pid) as watch:
        before = watch.peak
        path = SHARED_MEMORY / f"pbg-test-{pid}"
        try:
            path.write_bytes(b"1" * (32 * MIB))
            deadline = time.monotonic() + 60 * WATCH_SECONDS
            while watch.peak < before + 31 * MIB and time.monotonic() < deadline:
                time.sleep(WATCH_SECONDS)
        finally:
            path.unlink(missing_ok=True)
    assert watch.peak >= before + 31 * MIB


def test_process_that_is_gone_has_no_memory():
    with started(WAITING) as pid:
        pass
    assert peak(pid) < 8 * MIB  # files that other processes put into /dev/shm meanwhile
