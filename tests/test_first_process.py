"""SIGTERM to a command that is the first process of a container."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pbg_tasks.cli.first_process import ENDED

NAMESPACE = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child")
COMMAND = """
import hashlib, os, sys
from pbg_tasks import cli

def work(arguments):
    print(os.getpid(), flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)  # minutes within a library, in which Python handles no signal

cli.called = lambda *_: work
cli.main()
"""


def can_unshare():
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode == 0


def child_of(process):
    return int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="ascii").split()[0])


@pytest.mark.skipif(not can_unshare(), reason="this system lets users make no namespace of processes")
def test_first_process_ends_on_sigterm():
    with subprocess.Popen([*NAMESPACE, sys.executable, "-c", COMMAND], stdout=subprocess.PIPE, text=True) as made:
        try:
            assert made.stdout.readline() == "1\n"
            os.kill(child_of(made), signal.SIGTERM)
            assert made.wait(30) == ENDED
        finally:
            made.kill()
