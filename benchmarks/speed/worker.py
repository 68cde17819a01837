"""Our end of a worker process (``serve`` is the other)."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self, cast

from benchmarks.speed.measurement import Round
from pbg_tasks.errors import PbgError

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[2]
_END_SECONDS = 30


class Worker:
    """A process with one object in it, for a ``with`` block.

    Calling the worker calls the object's methods.

    Args:
        python: interpreter of its environment.
        place: ``module:Class`` of the object.
        arguments: of the class.
        log: for its output.
        environment: variables beside those of this process.
        root: of the checkout whose code it runs.
    """

    def __init__(
        self,
        python: Path,
        place: str,
        arguments: Mapping[str, Any],
        log: Path,
        environment: Mapping[str, str],
        root: Path = ROOT,
    ) -> None:
        self._python, self._place, self._arguments, self._log = python, place, dict(arguments), log
        self._environment = os.environ | {"PYTHONWARNINGS": "ignore"} | dict(environment)
        self._root = root

    def __enter__(self) -> Self:
        with self._log.open("w", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                [self._python, "-m", "benchmarks.speed.serve"],
                cwd=self._root,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self._environment,
            )
        self._requests, self._answers = cast("IO[str]", self._process.stdin), cast("IO[str]", self._process.stdout)
        try:
            self("make", place=self._place, arguments=self._arguments)
        except BaseException:
            self._end(kill=True)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._end(kill=kind is not None)

    @property
    def pid(self) -> int:
        """Number of the process, in the ``with`` block."""
        return self._process.pid

    def __call__(self, method: str, **arguments: object) -> Round:
        """Call a method of the object.

        Arguments and result have to be JSON.

        Raises:
            PbgError: it raised, or the process ended.
        """
        try:
            print(json.dumps({"call": method, "arguments": arguments}), file=self._requests, flush=True)
            line = self._answers.readline()
        except BrokenPipeError:
            line = ""
        answer = json.loads(line) if line else {"error": f"the process ended: {self._last_words()}"}
        if "error" in answer:
            raise PbgError(f"{self._place}, {method}: {answer['error']}")
        return Round(**answer)

    def _end(self, *, kill: bool) -> None:
        if kill:
            self._process.kill()
        try:
            self._process.communicate(timeout=_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def _last_words(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
