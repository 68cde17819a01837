"""Compare carriers of a gang's arrays, and print a table.

    python -m benchmarks.transport

Each carrier has a server process of its own. All carry the same bytes in each round, in a new order. CPU time of both
processes together is divided by that of today's frames in the same round, so that other work on the machine changes the
ratio little. It changes wall time a lot, so the best round counts for MB/s: with many rounds it is one with little
other work.
"""

from __future__ import annotations

import datetime as dt
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import numpy as np
import typer

from benchmarks.transport.carriers import CARRIERS, Carrier, Client, connect, serve
from pbg_tasks.training.ranks.transport.certificates import make_certificates

if TYPE_CHECKING:
    from collections.abc import Iterator

MODULE = "benchmarks.transport"
MEGABYTE = 1_000_000
SIZES = (1, 10, 100)
WAYS = ("get", "put")


class Cost(NamedTuple):
    """Cost of one round of a carrier.

    Attributes:
        wall: seconds.
        cpu: seconds of client and server.
    """

    wall: float
    cpu: float


class Side(NamedTuple):
    """A carrier's client, and its server process."""

    carrier: Carrier
    client: Client
    server: subprocess.Popen[str]

    def carry(self, way: str, array: np.ndarray, times: int) -> Cost:
        """Carry an array one way, several times."""
        before = self._cpu()
        began = time.perf_counter()
        for _ in range(times):
            if way == "get":
                self.client.get(array.nbytes)
            else:
                self.client.put(array)
        return Cost(time.perf_counter() - began, self._cpu() - before)

    def _cpu(self) -> float:
        clock = (~self.server.pid << 3) | 2  # clock_getcpuclockid(3) of Linux
        return time.process_time() + time.clock_gettime(clock)


def main(
    rounds: Annotated[int, typer.Option(help="Of each size and way.")] = 7,
    megabytes: Annotated[int, typer.Option(help="Carried by each carrier in a round.")] = 100,
    server: Annotated[int | None, typer.Option(hidden=True, help="Index of a carrier to serve.")] = None,
    directory: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Measure and print."""
    if server is not None and directory is not None:
        serve(CARRIERS[server], Path(directory), lambda address: print(address, flush=True))
        return
    os.environ.update(make_certificates(dt.timedelta(days=1)).environment())
    with ExitStack() as stack:
        sides = [stack.enter_context(_side(number)) for number in range(len(CARRIERS))]
        print("| carrier | way | MB | MB/s, best | of today's | CPU s/GB | CPU times today's: min, median, max |")
        print("|---|---|--:|--:|--:|--:|---|")
        for way in WAYS:
            for size in SIZES:
                for line in _rows(sides, way, size, rounds, megabytes):
                    print(line, flush=True)


@contextmanager
def _side(number: int) -> Iterator[Side]:
    """Start a carrier's server, and connect to it."""
    with tempfile.TemporaryDirectory() as name:
        command = [sys.executable, "-m", MODULE, "--server", str(number), "--directory", name]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                address = process.stdout.readline().strip() if process.stdout else ""
                yield Side(CARRIERS[number], connect(CARRIERS[number], address), process)
            finally:
                process.kill()


def _rows(sides: list[Side], way: str, size: int, rounds: int, megabytes: int) -> Iterator[str]:
    array, times = np.ones(size * MEGABYTE, np.uint8), max(1, megabytes // size)
    gigabytes = array.nbytes * times / 1e9
    costs: dict[str, list[Cost]] = {side.carrier.name: [] for side in sides}
    for number in range(rounds + 1):
        for side in random.sample(sides, len(sides)):
            cost = side.carry(way, array, times)
            if number:  # the first warms up
                costs[side.carrier.name].append(cost)
    today = costs[CARRIERS[0].name]
    fastest = min(cost.wall for cost in today)
    for name, found in costs.items():
        wall = min(cost.wall for cost in found)
        cpu = statistics.median(cost.cpu for cost in found)
        ratios = sorted(cost.cpu / ours.cpu for ours, cost in zip(today, found, strict=True))
        spread = f"{ratios[0]:.1f}, {statistics.median(ratios):.1f}, {ratios[-1]:.1f}"
        rate = f"{gigabytes * 1e3 / wall:.0f} | {fastest / wall:.0%} | {cpu / gigabytes:.2f}"
        yield f"| {name} | {way} | {size} | {rate} | {spread} |"


if __name__ == "__main__":
    typer.run(main)
