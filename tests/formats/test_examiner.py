"""The process that examines HDF5 files, under unusual conditions."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest

from pbg_tasks.errors import FormatError, ResourceError
from pbg_tasks.formats import examiner
from pbg_tasks.formats.examiner import EXAMINER

SECONDS = 20
"""Seconds after which a test ends a process that hangs."""
MORE_THAN_A_PIPE = 8 << 20


def ask(size):
    """Send ``size`` bytes as an optimizer's blob, which they are not."""
    return EXAMINER.ask("sums", "file.h5", {"source": "file.h5", "shapes": []}, [bytes(size)], size=size)


@pytest.fixture
def process():
    """The examining process, which has answered one request."""
    with pytest.raises(FormatError, match="not an archive"):
        ask(10)
    return EXAMINER._process


@pytest.fixture
def stopped(process):
    """The examining process, stopped, and killed after ``SECONDS``."""
    os.kill(process.pid, signal.SIGSTOP)
    timer = threading.Timer(SECONDS, process.kill)
    timer.start()
    yield process
    timer.cancel()


def test_small_limit_does_not_outlast_its_request(process, monkeypatch):
    status = Path(f"/proc/{process.pid}/status").read_text()
    used = int(re.search(r"VmSize:\s+(\d+) kB", status)[1]) << 10
    monkeypatch.setattr(examiner, "MEMORY", used + (64 << 20))
    with pytest.raises(FormatError, match="not an archive"):
        ask(10)
    monkeypatch.undo()
    with pytest.raises(FormatError, match="not an archive"):
        ask(256 << 20)
    assert EXAMINER._process is process


def test_request_to_a_stopped_process_ends(stopped, monkeypatch):
    monkeypatch.setattr(examiner, "_WAITING", 0.1)
    with pytest.raises(ResourceError, match="most of them waiting"):
        ask(MORE_THAN_A_PIPE)
    assert stopped.returncode == -signal.SIGKILL


def test_real_time_signal_is_reported_as_damage(stopped):
    os.kill(stopped.pid, signal.SIGRTMIN + 3)
    threading.Timer(0.5, os.kill, (stopped.pid, signal.SIGCONT)).start()
    with pytest.raises(FormatError, match=r"crashed the HDF5 library \(status -\d+\)"):
        ask(10)


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_fork_during_a_request_does_not_hang(stopped):
    found = []

    def send():
        try:
            ask(MORE_THAN_A_PIPE)
        except FormatError as error:
            found.append(str(error))

    thread = threading.Thread(target=send)
    thread.start()
    time.sleep(0.5)  # the pipe is full, the thread waits
    child = os.fork()
    if child == 0:
        os._exit(0)
    deadline = time.monotonic() + SECONDS / 2
    while not (ended := os.waitpid(child, os.WNOHANG)[0]) and time.monotonic() < deadline:
        time.sleep(0.02)
    if not ended:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    os.kill(stopped.pid, signal.SIGCONT)
    thread.join()
    assert ended
    assert "not an archive" in found[0]
