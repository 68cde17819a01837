"""A short run of ``tests.storm``, and checks that it detects faults."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.storage.histories import Read, Write, lost
from tests.storm import KINDS, Storm, verdict

A, B, C = Write(0, 1, None, "a"), Write(2, 3, "a", "b"), Write(4, 5, "b", "c")


@pytest.mark.s3
def test_storm_of_writers_loses_nothing():
    command = [sys.executable, "-m", "tests.storm", "--operations", "400", "--writers", "4", "--seed", "7"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.fullmatch(r"400 operations: 0 violations, 0 lost, [1-9]\d* refused", ended.stdout.splitlines()[-1])
    assert re.search(r"storm: .*operations/s, ETA \d", ended.stderr)
    assert all(re.search(rf"\d {kind}", ended.stdout) for kind in KINDS)


def test_same_seed_repeats_the_faults():
    def chosen(seed):
        storm = Storm(seed)
        return [
            (fault.cut, fault.truncate, fault.status) if (fault := storm("PUT", "/k")) else None for _ in range(300)
        ]

    assert chosen("1") == chosen("1") != chosen("2")


@pytest.mark.parametrize(
    ("history", "gone"),
    [
        ([A, B, C, Read(6, 7, "c")], []),
        ([A, B, Write(4, 5, "a", "d", "refused"), Read(6, 7, "b")], []),
        ([A, Write(2, 3, "a", "b", "unknown"), C, Read(6, 7, "c")], []),
        ([A, Write(2, 3, "a", "b", "unknown"), Read(6, 7, "a")], []),
        ([A, B, Read(6, 7, "a")], ["b"]),
        ([A, B, Write(4, 5, "a", "d"), Read(6, 7, "d")], ["b"]),
        ([A, B, Read(6, 7, None)], ["a", "b"]),
    ],
)
def test_value_gone_without_replacing_write_is_lost(history, gone):
    assert lost(history) == gone


def test_verdict_counts_violations(capsys):
    right = [A, B, Write(4, 5, "a", "d", "refused"), Read(6, 7, "b")]
    assert verdict([right, right], 8) == ("8 operations: 0 violations, 0 lost, 2 refused", True)
    line, is_right = verdict([right, [A, B, Write(4, 5, "a", "d"), Read(6, 7, "d")]], 8)
    assert re.fullmatch(r"8 operations: [1-9]\d* violations, 1 lost, 1 refused", line)
    assert not is_right
    assert "object 1: b was lost" in capsys.readouterr().out
