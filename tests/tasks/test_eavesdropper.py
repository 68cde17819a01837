"""Whole gangs of real rank processes, all of whose connections are recorded."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import numpy as np
import pytest

from pbg_tasks.formats.embeddings import embeddings_file_name
from tests.fence_ranks import wait_for_end
from tests.kill_ranks import Graph
from tests.training.ranks.tap import Tap, windows_heard

TYPE = "diagnosis"


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
def test_recorded_gang_shows_vectors_only_unencrypted(tmp_path, encrypted):
    graph = Graph.random(tmp_path / "graph", epochs=1, edges=500, rows=300)
    for count in (graph.directory / "entities").iterdir():
        count.rename(count.with_name(count.name.replace("_n_", f"_{TYPE}_")))
    graph.configure(
        entities={TYPE: {"num_partitions": 4}},
        relations=[{"name": "r", "lhs": TYPE, "rhs": TYPE, "operator": "translation"}],
        dimension=32,
        num_partition_servers=-1,
        rank_tls=encrypted,
    )
    secrets, record = graph.secrets(), tmp_path / "record"
    with socket.create_server(("127.0.0.1", 0)) as server:
        meeting = server.getsockname()
    tap, gang = Tap(meeting), []
    for rank, (host, port) in enumerate((meeting, tap.address)):
        place = {
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "PBG_INIT_METHOD": f"tcp://{host}:{port}",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        command = [sys.executable, "-m", "tests.training.ranks.tapped_rank", str(record), "train", str(graph.config)]
        with (graph.directory / f"log-{rank}").open("wb") as log:
            gang.append(subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **place, **secrets}))
    logs = [graph.directory / f"log-{rank}" for rank in range(2)]
    assert wait_for_end(gang, 120) == [0, 0], [log.read_text() for log in logs]
    tap.close()
    assert ("what they send is encrypted" in logs[0].read_text()) == encrypted
    assert b"rounds/0/1" in tap.heard, "where they meet was not recorded"
    heard = record.read_bytes() + bytes(tap.heard)
    rows = np.concatenate([stored_rows(graph, partition) for partition in range(4)])
    assert len(heard) > rows.nbytes / 4
    assert (TYPE.encode() in heard) == (not encrypted)
    assert bool(windows_heard(heard, rows)) == (not encrypted)
    for secret in secrets.values():
        assert secret.encode() not in heard


def stored_rows(graph, partition):
    import h5py

    with h5py.File(graph.checkpoint / embeddings_file_name(TYPE, partition, 1)) as file:
        return file["embeddings"][:]
