"""A process that holds one object and calls its methods.

It reads a line of JSON for each call and writes another one.

Ours and theirs are measured alike: each in such a process, in its own environment, one waiting while the other works.
This module runs in PBG's environment as well and knows nothing of either project.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from typing import Any

from benchmarks.speed.usage import cpu_seconds, peak_bytes


def answer(subject: Any, request: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401 - whatever is measured
    """Call a method; return its result, seconds and peak memory."""
    me = os.getpid()
    used, started = cpu_seconds(me), time.perf_counter()
    try:
        value = getattr(subject, request["call"])(**request["arguments"])
    except Exception as error:  # noqa: BLE001 - it is the answer
        return {"error": f"{type(error).__name__}: {error}"}
    wall, cpu = time.perf_counter() - started, cpu_seconds(me) - used
    return {"value": value, "wall": wall, "cpu": cpu, "peak": peak_bytes(me)}


class _Maker:
    """Makes the object that the command line names: ``module:Class``."""

    def __init__(self) -> None:
        self.made: Any = None

    def make(self, place: str, arguments: dict[str, Any]) -> None:
        module, _, name = place.partition(":")
        self.made = getattr(importlib.import_module(module), name)(**arguments)


def main() -> None:
    """Make the object of the first line, then answer further lines."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the measured code may print
    subject: Any = _Maker()
    for line in sys.stdin:
        print(json.dumps(answer(subject, json.loads(line))), file=answers, flush=True)
        if isinstance(subject, _Maker) and subject.made is not None:
            subject = subject.made


if __name__ == "__main__":
    main()
