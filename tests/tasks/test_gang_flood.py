"""A gang of real rank processes, flooded by strangers.

They connect while it forms and trains.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from itertools import product

import pytest

from pbg_tasks.checkpoint import open_committed
from pbg_tasks.storage import open_store
from tests.fence_ranks import start_rank, wait_for_end
from tests.kill_ranks import Graph
from tests.rotation import of_today

FLOOD = 200


@contextlib.contextmanager
def flood(process, kinds):
    """Press on every port of a process from its ranks' address."""
    arguments = ["tests.training.ranks.flood", str(FLOOD), f"pid:{process.pid}", *kinds]
    strangers = subprocess.Popen([sys.executable, "-m", *arguments], stdout=subprocess.PIPE, text=True)
    try:
        with strangers.stdout:
            yield strangers.stdout
    finally:
        strangers.kill()
        strangers.wait()


FLOODS = list(product([(0, "file"), (-1, "file"), (0, "tcp")], ["silent", "silent slow garbage"]))


@pytest.mark.parametrize(("place", "kinds"), of_today(FLOODS, days=3))
def test_gang_forms_and_trains_under_a_flood(tmp_path, place, kinds):
    """Flood both ranks at all their ports.

    From their own address, from their start to their end.
    """
    servers, meeting = place
    where = f"file://{tmp_path}/meeting"
    if meeting == "tcp":  # a port of torch's store, at which strangers press too
        with socket.create_server(("127.0.0.1", 0)) as server:
            where = f"tcp://127.0.0.1:{server.getsockname()[1]}"
    graph = Graph.random(tmp_path / "graph", epochs=1, edges=30_000)
    graph.configure(
        entities={"n": {"num_partitions": 4}},
        relations=[{"name": "r", "lhs": "n", "rhs": "n", "operator": "translation"}],
        dimension=32,
        num_partition_servers=servers,
    )
    gang = [start_rank(graph, rank, 2, where, PBG_RUN_TOKEN="t" * 32) for rank in range(2)]
    with flood(gang[0], kinds.split()) as first, flood(gang[1], kinds.split()):
        assert first.readline(), "rank 0 listened nowhere"
        assert wait_for_end(gang, 120) == [0, 0], [(graph.directory / f"log-{rank}").read_text() for rank in range(2)]
    manifest, _ = open_committed(open_store(str(graph.checkpoint)), "")
    assert (manifest.edges, manifest.retrained) == ((graph.total,), ())
