"""Cut the network between two ranks in network namespaces.

Both have to end, and the next gang continues.

    sudo python -m tests.cut_ranks

Takes root, ``ip`` and ``iptables``. The ranks talk over a veth pair with real TCP; once they train, iptables drops
every packet between them, without a reset. The gang must notice by silence alone, and nothing committed may change.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tests.fence_ranks import wait_for_end, wait_for_progress
from tests.kill_ranks import END_SECONDS, Graph

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SPACES = ("pbg-rank-0", "pbg-rank-1")
PORT = "29511"


def run(*command: str) -> None:
    """Run a command of the system.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    subprocess.run(command, check=True, capture_output=True)


@contextmanager
def two_hosts() -> Iterator[None]:
    """Make two network namespaces with 10.77.0.1 and 10.77.0.2."""
    for space in SPACES:
        run("ip", "netns", "add", space)
    try:
        run("ip", "link", "add", "pbg0", "netns", SPACES[0], "type", "veth", "peer", "name", "pbg1", "netns", SPACES[1])
        for number, space in enumerate(SPACES):
            run("ip", "-n", space, "addr", "add", f"10.77.0.{number + 1}/24", "dev", f"pbg{number}")
            for device in (f"pbg{number}", "lo"):
                run("ip", "-n", space, "link", "set", device, "up")
        yield
    finally:
        for space in SPACES:
            with suppress(subprocess.CalledProcessError):
                run("ip", "netns", "del", space)


def start(graph: Graph, secrets: Mapping[str, str]) -> list[subprocess.Popen[bytes]]:
    """Start a rank in each namespace."""
    gang = []
    for rank, space in enumerate(SPACES):
        variables = {
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "10.77.0.1",
            "MASTER_PORT": PORT,
            **secrets,
            "GLOO_SOCKET_IFNAME": f"pbg{rank}",
        }
        command = ["ip", "netns", "exec", space, sys.executable, "-m", "pbg_tasks", "train", str(graph.config)]
        with (graph.directory / f"log-{rank}").open("ab") as log:
            gang.append(subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **variables}))
    return gang


def cut_and_mend(graph: Graph) -> str:
    """Cut, wait for both to end, repair, and let another gang finish.

    Raises:
        RuntimeError: a rank succeeded without the other, or the ledger is wrong.
    """
    with two_hosts():
        first = start(graph, graph.secrets())
        wait_for_progress(graph, first)
        rule = ("INPUT", "-i", "pbg0", "-j", "DROP")
        run("ip", "netns", "exec", SPACES[0], "iptables", "-I", *rule)
        cut = time.monotonic()
        statuses = wait_for_end(first, END_SECONDS + 30)
        seconds = time.monotonic() - cut
        if not all(statuses):
            raise RuntimeError(f"a rank succeeded without the other: {statuses}")
        run("ip", "netns", "exec", SPACES[0], "iptables", "-D", *rule)
        if any(wait_for_end(start(graph, graph.secrets()), 600)):
            raise RuntimeError(f"the second gang failed: {(graph.directory / 'log-0').read_text()[-2000:]}")
        edges, retrained = graph.check()
        if edges != (graph.total,) * graph.epochs:
            raise RuntimeError(f"ledger: {edges}")
        return f"both ended {seconds:.0f} s after the cut, with {statuses}; ledger {edges}, trained again {retrained}"


def main(
    servers: Annotated[int, typer.Option(help="num_partition_servers: 0 or -1.")] = 0,
    *,
    ahead: Annotated[bool, typer.Option("--ahead", help="partitions_ahead.")] = False,
    tls: Annotated[bool, typer.Option("--tls", help="rank_tls.")] = False,
) -> None:
    """Cut and repair."""
    missing = [tool for tool in ("ip", "iptables") if shutil.which(tool) is None]
    if missing or os.geteuid() != 0:
        sys.exit(f"takes root and {', '.join(missing) or 'nothing else'}")
    with tempfile.TemporaryDirectory() as directory:
        keys = {"num_partition_servers": servers, "partitions_ahead": ahead, "rank_tls": tls}
        print(cut_and_mend(Graph.random(Path(directory) / "graph", epochs=2, edges=60_000, **keys)))


if __name__ == "__main__":
    typer.run(main)
