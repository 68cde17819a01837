"""End of a command's process, without the teardown of its modules."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

ENDING = """
import atexit, os, sys, threading, time
from pbg_tasks import cli
class Kept:
    def __del__(self, write=os.write):
        write(1, b"torn down")
kept = Kept()
def late():
    time.sleep(0.2)
    print("joined")
def main():
    atexit.register(print, "handled")
    threading.Thread(target=late).start()
    sys.stdout.write("done ")
    {end}
cli.main = main
cli.command()
"""


def ended(end, **options):
    buffered = os.environ | {"PYTHONUNBUFFERED": ""}
    words = [sys.executable, "-c", ENDING.format(end=end)]
    return subprocess.run(words, env=buffered, text=True, timeout=120, check=False, **options)


@pytest.mark.parametrize(("end", "status"), [("return", 0), ("sys.exit(7)", 7)])
def test_command_ends_after_threads_and_handlers(end, status):
    done = ended(end, capture_output=True)
    assert (done.stdout, done.stderr, done.returncode) == ("done joined\nhandled\n", "", status)


@pytest.mark.parametrize("end", ["sys.exit('words')", "raise ValueError('words')"])
def test_unforeseen_end_is_left_to_python(end):
    done = ended(end, capture_output=True)
    assert done.stdout == "done joined\nhandled\ntorn down"
    assert done.returncode == 1
    assert "words" in done.stderr


def test_handler_of_environment_is_called(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import atexit\natexit.register(print, 'spans sent')\n")
    found = {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    words = [sys.executable, "-c", ENDING.format(end="return")]
    done = subprocess.run(words, env=os.environ | found, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "done joined\nhandled\nspans sent\ntorn down"


def test_closed_output_ends_without_traceback():
    words = [sys.executable, "-c", f"import sys; sys.stdout = None\n{ENDING.format(end='return')}"]
    words[2] = words[2].replace('sys.stdout.write("done ")', "sys.exit(5)")
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert (done.stderr, done.returncode) == ("", 5)


def test_full_disk_behind_stdout_is_no_success():
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device
        assert ended("return", stdout=full, stderr=subprocess.DEVNULL).returncode == 120
