"""Tools that every benchmark gets.

A benchmark is a module of this package with ``measure(tools, *, quick) -> list[Measurement]``::

    def measure(tools: Tools, *, quick: bool) -> list[Measurement]:
        with tools.ours("benchmarks.speed.steps:Ours", ...) as ours, tools.theirs("Training", ...) as theirs:
            rounds = in_turns(tools.pairs, {"ours": lambda: ours("train"), "theirs": lambda: theirs("train")})
        return [Measurement.rate("FB step", "edges/cpu-s", rounds["ours"], rounds["theirs"], target=12)]

``Ours.train`` does a round of work and returns how much it did; seconds and peak memory are counted around it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.quality.data import FB15K, obtain
from benchmarks.speed.worker import Worker
from pbg_tasks.errors import ResourceError
from tests.interop.installation import CACHE, UnavailableError, pbg_python

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PBG_EPOCHS = 50
"""Epochs of PBG's own config for FB15k."""
RACERS = ("ours", "theirs")
_THEIRS = "benchmarks.speed.theirs"


@dataclass(frozen=True, slots=True)
class Tools:
    """Workers of both sides, data, and a place for files.

    Attributes:
        directory: for the benchmark's files, empty when it begins and removed when it ends.
        cache: for files that are made or fetched once.
        data: folder with data sets, as folders or ``NAME.tar.zst``.
        pairs: number of rounds of each side.
        race_epochs: that PBG trains in the race.
        racers: the sides of the race that are run now.
        edges: of the graph whose nights are measured; None: as many as the benchmark has.
    """

    directory: Path
    cache: Path
    data: Path
    pairs: int = 5
    race_epochs: int = PBG_EPOCHS
    racers: tuple[str, ...] = RACERS
    edges: int | None = None

    def ours(self, place: str, *, environment: Mapping[str, str] | None = None, **arguments: object) -> Worker:
        """Return a process of this environment with an object of ours.

        The object is of a class ``module:Class``; the process is used in a ``with`` block.

        Args:
            place: of the class.
            environment: variables beside those of this process.
            **arguments: of the class.
        """
        return self.worker(Path(sys.executable), place, environment=environment, **arguments)

    def theirs(self, name: str, *, environment: Mapping[str, str] | None = None, **arguments: object) -> Worker:
        """Return a process of PBG's environment with a class of ``theirs``.

        Args:
            name: of the class.
            environment: variables beside those of this process.
            **arguments: of the class.

        Raises:
            ResourceError: PBG cannot be installed here.
        """
        return self.worker(self.pbg_python(), f"{_THEIRS}:{name}", environment=environment, **arguments)

    def pbg_python(self) -> Path:
        """Return the interpreter of an environment with PBG.

        The environment is made when it is missing.

        Raises:
            ResourceError: it cannot be made.
        """
        own = os.environ.get(CACHE)
        try:
            return pbg_python(Path(own) if own else self.cache / "torchbiggraph")
        except UnavailableError as error:
            raise ResourceError(str(error)) from None

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """Yield a directory, and remove it after the ``with`` block."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.directory) as directory:
            yield Path(directory)

    def fb15k(self) -> Path:
        """Return the folder of FB15k's splits, fetched when missing.

        The splits are ``train.tsv``, ``valid.tsv`` and ``test.tsv``.

        Raises:
            InputError: a file holds something else.
            StorageError: it cannot be fetched.
        """
        return obtain(FB15K, self.data, self.cache)

    def worker(
        self, python: Path, place: str, *, environment: Mapping[str, str] | None = None, **arguments: object
    ) -> Worker:
        """Return a process of any environment; see ``ours``."""
        self.directory.mkdir(parents=True, exist_ok=True)
        log = self.directory / f"{place.replace(':', '.')}.log"
        return Worker(python, place, arguments, log, environment or {})
