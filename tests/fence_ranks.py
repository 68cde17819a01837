"""Stop a rank, let its gang go on, and wake it up.

It is stopped with SIGSTOP, and must not change anything after it wakes up.

    python -m tests.fence_ranks --rank 0

Two ranks train; one is stopped in the middle of an epoch. The other has to notice the silence and end. A second gang
goes on and commits. Then the stopped rank wakes up, believing it still leads or trains: the store must refuse all its
writes, and it has to end with the category of that.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from pbg_tasks.errors import BY_EXIT_CODE
from tests.kill_ranks import END_SECONDS, Graph


def start_rank(graph: Graph, rank: int, world: int, meeting: str, **environment: str) -> subprocess.Popen[bytes]:
    """Start one rank of a gang that meets at a file."""
    variables = {"RANK": str(rank), "WORLD_SIZE": str(world), "PBG_INIT_METHOD": meeting, **environment}
    command = [sys.executable, "-m", "pbg_tasks", "train", str(graph.config), "--json"]
    with (graph.directory / f"log-{rank}").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **variables})


def start_gang(graph: Graph, name: str) -> list[subprocess.Popen[bytes]]:
    """Start both ranks of a gang."""
    secrets, meeting = graph.secrets(), f"file://{graph.directory}/{name}"
    return [start_rank(graph, rank, 2, meeting, GLOO_SOCKET_IFNAME="lo", **secrets) for rank in range(2)]


def wait_for_progress(graph: Graph, gang: list[subprocess.Popen[bytes]]) -> None:
    """Wait until the first gang's first record is there.

    Raises:
        RuntimeError: it never came.
    """
    end = time.monotonic() + 120
    while time.monotonic() < end and not any(process.poll() for process in gang):
        if graph.head().get("progress"):
            return
        time.sleep(0.02)
    raise RuntimeError(f"no record; {(graph.directory / 'log-0').read_text()[-2000:]}")


def wait_for_end(gang: list[subprocess.Popen[bytes]], seconds: float) -> list[int]:
    """Return exit statuses.

    Raises:
        subprocess.TimeoutExpired: a process is still there after ``seconds``.
    """
    end = time.monotonic() + seconds
    return [process.wait(max(0.1, end - time.monotonic())) for process in gang]


def stop_outside_locks(graph: Graph, process: subprocess.Popen[bytes]) -> None:
    """Stop a process while it holds no lock of the directory.

    A directory's writers lock it for the moment of a write, and wait five minutes for one that is stopped then. S3 has
    no such locks, and the point here is what happens after them.

    Raises:
        RuntimeError: it always held one.
    """
    end = time.monotonic() + 60
    while time.monotonic() < end:
        process.send_signal(signal.SIGSTOP)
        if all(map(_is_free, graph.directory.glob("model/.pbg/locks/*"))):
            return
        process.send_signal(signal.SIGCONT)
        time.sleep(0.05)
    raise RuntimeError(f"each time that process {process.pid} was stopped, it held a lock")


def _is_free(lock: Path, patience: float = 2.0) -> bool:
    """Return whether a lock is free, or is soon."""
    end = time.monotonic() + patience
    with lock.open("rb+") as file:
        while time.monotonic() < end:
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            time.sleep(0.02)
    return False


def stop_and_wake(graph: Graph, stopped: int) -> str:
    """Stop a rank, let another gang finish, and wake it up.

    Returns the outcome of the stopped rank.

    Raises:
        RuntimeError: an object changed that must not.
    """
    first = start_gang(graph, "first")
    try:
        wait_for_progress(graph, first)
        sleeper, others = first[stopped], [process for process in first if process is not first[stopped]]
        stop_outside_locks(graph, sleeper)
        silent = time.monotonic()
        statuses = wait_for_end(others, END_SECONDS + 30)
        noticed = time.monotonic() - silent
        second = start_gang(graph, "second")
        if any(wait_for_end(second, 600)):
            raise RuntimeError(f"the second gang failed: {(graph.directory / 'log-0').read_text()[-2000:]}")
        before = graph.head(), graph.check()
        sleeper.send_signal(signal.SIGCONT)
        (status,) = wait_for_end([sleeper], END_SECONDS + 30)
        if (graph.head(), graph.check()) != before:
            raise RuntimeError("the rank that woke up changed what another gang had committed")
        if status == 0:
            raise RuntimeError("the rank that woke up says it succeeded")
        kinds = [BY_EXIT_CODE[each].kind if each in BY_EXIT_CODE else str(each) for each in (*statuses, status)]
        ended = f"the other ended after {noticed:.0f} s ({kinds[0]}), the sleeper with {kinds[-1]}"
        return f"{ended}; ledger {before[1]}"
    finally:
        for process in first:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()


def main(
    rank: Annotated[int, typer.Option(help="That is stopped.")] = 0,
    servers: Annotated[int, typer.Option(help="num_partition_servers: 0 or -1.")] = 0,
    *,
    ahead: Annotated[bool, typer.Option("--ahead", help="partitions_ahead.")] = False,
    tls: Annotated[bool, typer.Option("--tls", help="rank_tls.")] = False,
) -> None:
    """Stop and wake."""
    with tempfile.TemporaryDirectory() as directory:
        keys = {"num_partition_servers": servers, "partitions_ahead": ahead, "rank_tls": tls}
        graph = Graph.random(Path(directory) / "graph", epochs=2, edges=60_000, **keys)
        print(stop_and_wake(graph, rank))


if __name__ == "__main__":
    typer.run(main)
