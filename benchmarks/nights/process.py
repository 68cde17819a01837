"""``pbg`` commands in forked processes of their own.

The parent has imported everything they need.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import traceback
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING, NamedTuple

from pbg_tasks.cli import main
from pbg_tasks.tasks.nightly.chain import TASKS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_FORKING = get_context("forkserver")
_FORKING.set_forkserver_preload(
    [__name__, *(f"pbg_tasks.tasks.{module}" for module in ("nightly.plan", *TASKS.values()))]
)


class Ended(NamedTuple):
    """Outcome of a command.

    Attributes:
        status: its exit status.
        errors: its whole stderr.
        seconds: of wall time, without the imports.
    """

    status: int
    errors: str
    seconds: float


def run_commands(commands: Iterable[Sequence[str]], *, at_once: int = 1) -> Iterator[Ended]:
    """Run commands, ``at_once`` at a time; yield their outcomes in order.

    Args:
        commands: each the words that follow ``pbg``.
        at_once: number of commands at the same time.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the commands run side by side
    with ProcessPoolExecutor(at_once, mp_context=_FORKING, max_tasks_per_child=1) as pool:
        yield from pool.map(_run, commands)


def _run(command: Sequence[str]) -> Ended:
    """Act as the command in this process."""
    started, status = time.monotonic(), 0
    sys.argv = ["pbg", *command]
    with tempfile.TemporaryFile() as errors, open(os.devnull, "w") as nowhere:  # noqa: PTH123 - /dev/null is no Path's
        os.dup2(nowhere.fileno(), 1)
        os.dup2(errors.fileno(), 2)
        try:
            main()
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else 1
        except Exception:  # noqa: BLE001 - as the interpreter does with an error that is not caught
            traceback.print_exc()
            status = 1
        sys.stderr.flush()
        errors.seek(0)
        text = errors.read().decode(errors="replace")
    return Ended(status, text, time.monotonic() - started)
