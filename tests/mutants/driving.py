"""Reading of damaged files in processes that may crash or hang."""

from __future__ import annotations

import io
import math
import multiprocessing
import os
import re
import resource
import shutil
import tempfile
import time
import traceback
import zlib
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pbg_tasks.errors import PbgError
from pbg_tasks.progress import Progress
from tests.mutants.mutations import mutated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.connection import Connection

REFUSED, IDENTICAL, SILENT, CRASH, HANG, TRACEBACK = "refused", "identical", "silent", "crash", "hang", "traceback"
SECONDS = 90.0
"""Seconds that reading one small file may take on a busy machine."""
_MEMORY = 16 << 30  # address space; torch alone maps some
_LONGEST = 3000  # characters of a message
DOCUMENTED = Path(__file__).parents[2] / "docs" / "guarantees.md"


@dataclass(frozen=True)
class Mutant:
    """One damaged file: the same three attributes make the same bytes."""

    kind: str
    seed: int
    number: int

    def bytes_of(self, data: bytes) -> bytes:
        """Damage a valid file."""
        return mutated(data, np.random.default_rng([self.seed, zlib.crc32(self.kind.encode()), self.number]))

    def __str__(self) -> str:
        return f"--kind {self.kind} --seed {self.seed} --only {self.number}"


@dataclass(frozen=True)
class Outcome:
    """Outcome of a mutant.

    Attributes:
        mutant: that was read.
        result: one of the constants above.
        detail: the message, or the aspects that silently differ.
        seconds: that reading took.
    """

    mutant: Mutant
    result: str
    detail: str = ""
    seconds: float = 0.0


@dataclass
class StepCounters:
    """Outcomes, counted.

    Attributes:
        documented: aspects that a kind may silently lose, by kind, as the documentation has them.
        counts: by kind and result.
        bad: outcomes that must not happen.
    """

    documented: dict[str, set[str]]
    counts: dict[tuple[str, str], int] = field(default_factory=dict)
    bad: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Count one."""
        key = (outcome.mutant.kind, outcome.result)
        self.counts[key] = self.counts.get(key, 0) + 1
        known = self.documented.get(outcome.mutant.kind, set())
        surprising = outcome.result == SILENT and not set(outcome.detail.split()) <= known
        if surprising or outcome.result in {CRASH, HANG, TRACEBACK}:
            self.bad.append(outcome)

    def total(self, result: str | None = None) -> int:
        """Return the number of outcomes, of one result or all."""
        return sum(count for (_, found), count in self.counts.items() if result in {None, found})

    def summary(self) -> str:
        """Return the last line."""
        surprises = sum(outcome.result == SILENT for outcome in self.bad)
        found = (
            f"{self.total()} mutants: {self.total(CRASH)} crashes, {self.total(HANG)} hangs, "
            f"{self.total(TRACEBACK)} tracebacks, {self.total(SILENT) - surprises} silent (documented)"
        )
        return f"{found}, {surprises} silent (undocumented)" if surprises else found


def documented(page: Path = DOCUMENTED) -> dict[str, set[str]]:
    """Return the undetected damage by kind, from the documentation's table."""
    found: dict[str, set[str]] = {}
    for line in page.read_text(encoding="utf-8").splitlines():
        if match := re.fullmatch(r"\| ((?:`[a-z0-9-]+`(?:, )?)+) \|[^|]*\| ([a-z, ]+) \|", line):
            for kind in re.findall("`(.*?)`", match[1]):
                found[kind] = set(match[2].replace(",", " ").split()) - {"nothing"}
    return found


def drive(mutants: Sequence[Mutant], *, workers: int = 2, read: Callable[..., None] | None = None) -> Iterator[Outcome]:
    """Read each mutant in a process that may die of it.

    Outcomes are yielded as they are known.

    Args:
        mutants: to make and read.
        workers: processes at a time.
        read: for tests, replaces ``answer`` in a worker.
    """
    with tempfile.TemporaryDirectory(prefix="pbg-mutants-") as scratch:
        pool = [_Worker(Path(scratch) / str(number), read or answer) for number in range(workers)]
        waiting = list(reversed(mutants))
        try:
            while waiting or any(worker.mutant for worker in pool):
                for worker in pool:
                    if worker.mutant is None and waiting:
                        worker.give(waiting.pop())
                wait([worker.pipe for worker in pool if worker.mutant], timeout=1)
                for worker in pool:
                    if outcome := worker.outcome():
                        yield outcome
        finally:
            for worker in pool:
                worker.end()


class _Worker:
    def __init__(self, place: Path, read: Callable[..., None]) -> None:
        self._place, self._read = place, read
        self.mutant: Mutant | None = None
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=_begin, args=(self._read, theirs, self._place), daemon=True)
        self._process.start()
        theirs.close()
        self._has_begun, self._since = False, math.inf

    def give(self, mutant: Mutant) -> None:
        self.mutant = mutant
        if self._has_begun:
            self._since = time.monotonic()
        self.pipe.send(mutant)

    def outcome(self) -> Outcome | None:
        """Return the outcome of the mutant, once it is known.

        A worker that crashed or hangs is started anew.
        """
        if self.mutant is None:
            return None
        late = time.monotonic() - self._since > SECONDS
        try:
            if self.pipe.poll():
                result: Outcome | None = self.pipe.recv()
                if result is None:
                    self._has_begun, self._since = True, time.monotonic()
                else:
                    self.mutant = None
                return result
            if not late:
                return None
        except EOFError:
            late = False
        mutant, seconds = self.mutant, max(0.0, time.monotonic() - self._since)
        self.end()
        self.mutant = None
        status = self._process.exitcode
        self._start()
        return Outcome(mutant, HANG if late else CRASH, f"exit status {status}", seconds)

    def end(self) -> None:
        self.pipe.close()
        self._process.join(0.5)
        self._process.kill()
        self._process.join()
        shutil.rmtree(self._place, ignore_errors=True)


def _begin(read: Callable[..., None], pipe: Connection, place: Path) -> None:
    """Report the start of the process, and read."""
    pipe.send(None)  # on a busy machine, it took as long as reading may
    read(pipe, place)


def answer(pipe: Connection, place: Path) -> None:
    """Read mutants one after the other, in a worker."""
    from tests.mutants.kinds import original

    os.environ["PBG_SCRATCH"] = str(place / "scratch")
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    originals: dict[str, tuple[bytes, dict[str, str]]] = {}
    while True:
        try:
            mutant: Mutant = pipe.recv()
        except EOFError:
            return
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            if mutant.kind not in originals:
                originals[mutant.kind] = original(mutant.kind, place / "mutant")
            outcome = _read(mutant, place / "mutant", *originals[mutant.kind])
        pipe.send(outcome)


def _read(mutant: Mutant, place: Path, data: bytes, expected: dict[str, str]) -> Outcome:
    from tests.mutants.kinds import KINDS, damaged

    damaged(mutant.kind, place, mutant.bytes_of(data))
    started = time.monotonic()
    try:
        found = KINDS[mutant.kind].read(place)
    except PbgError as error:
        message = str(error)
        plain = "\n" not in message and 0 < len(message) < _LONGEST
        result, detail = (REFUSED if plain else TRACEBACK), message[:_LONGEST]
    except BaseException:  # noqa: BLE001 - whatever comes is what is looked for
        result, detail = TRACEBACK, traceback.format_exc()
    else:
        differing = [aspect for aspect in expected if found[aspect] != expected[aspect]]
        result, detail = (SILENT if differing else IDENTICAL), " ".join(differing)
    return Outcome(mutant, result, detail, time.monotonic() - started)


def run(mutants: Sequence[Mutant], *, workers: int) -> StepCounters:
    """Read mutants and print progress, bad outcomes and the counts."""
    tally = StepCounters(documented())
    progress = Progress("mutants", total=len(mutants), unit="mutants")
    slowest = Outcome(mutants[0], IDENTICAL)
    for outcome in drive(mutants, workers=workers):
        before = len(tally.bad)
        tally.add(outcome)
        slowest = max(slowest, outcome, key=lambda each: each.seconds)
        for each in tally.bad[before:]:
            print(f"{each.result.upper()}: {each.mutant}\n{each.detail}", flush=True)
        progress.advance(1)
    print(f"{'kind':24}" + "".join(f"{name:>11}" for name in (REFUSED, IDENTICAL, SILENT, CRASH, HANG, TRACEBACK)))
    for kind in dict.fromkeys(mutant.kind for mutant in mutants):
        counts = (tally.counts.get((kind, name), 0) for name in (REFUSED, IDENTICAL, SILENT, CRASH, HANG, TRACEBACK))
        print(f"{kind:24}" + "".join(f"{count:11}" for count in counts))
    print(f"slowest: {slowest.seconds:.1f} s ({slowest.mutant}, {slowest.result})")
    return tally
