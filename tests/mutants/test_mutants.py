"""A short run over damaged files of all kinds.

A failing reader is counted.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time

import pytest

from tests.mutants import driving
from tests.mutants.driving import CRASH, HANG, REFUSED, TRACEBACK, Mutant, Outcome, StepCounters, drive
from tests.mutants.kinds import KINDS
from tests.rotation import rotation


@pytest.mark.rotated(3)
def test_damaged_files_end_no_reader():
    count = 3 * len(KINDS)
    command = [sys.executable, "-m", "tests.mutants", "--count", str(count), "--seed", str(rotation())]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == 0, ended.stdout
    last = rf"{count} mutants: 0 crashes, 0 hangs, 0 tracebacks, \d+ silent \(documented\)"
    assert re.fullmatch(last, ended.stdout.splitlines()[-1])


def test_documented_kinds_are_those_that_are_read():
    assert set(driving.documented()) == set(KINDS)


def fails(pipe, _):
    """Read mutants with a reader that fails in each way.

    The number of the mutant decides the way.
    """
    while True:
        mutant = pipe.recv()
        if mutant.number == 0:
            os.abort()
        if mutant.number == 1:
            time.sleep(600)
        pipe.send(Outcome(mutant, TRACEBACK if mutant.number == 2 else REFUSED))


@pytest.mark.rotated(3)
def test_reader_that_fails_is_counted(monkeypatch):
    monkeypatch.setattr(driving, "SECONDS", 5.0)
    tally = StepCounters({})
    for outcome in drive([Mutant("tsv", 0, number) for number in range(4)], workers=2, read=fails):
        tally.add(outcome)
    assert {outcome.mutant.number: outcome.result for outcome in tally.bad} == {0: CRASH, 1: HANG, 2: TRACEBACK}
    assert tally.summary() == "4 mutants: 1 crashes, 1 hangs, 1 tracebacks, 0 silent (documented)"


@pytest.mark.parametrize(("detail", "bad"), [("numbers", 0), ("numbers names", 1)])
def test_silent_change_is_bad_unless_documented(detail, bad):
    tally = StepCounters({"tsv": {"numbers", "count"}})
    tally.add(Outcome(Mutant("tsv", 0, 0), driving.SILENT, detail))
    assert len(tally.bad) == bad
    assert ("undocumented" in tally.summary()) == bool(bad)


def test_seed_repeats_its_mutants():
    data = bytes(range(256)) * 8
    damaged = [Mutant("tsv", 5, number).bytes_of(data) for number in range(50)]
    assert damaged == [Mutant("tsv", 5, number).bytes_of(data) for number in range(50)]
    assert damaged != [Mutant("tsv", 6, number).bytes_of(data) for number in range(50)]
