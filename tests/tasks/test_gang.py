"""One process of a gang, as far as it comes without the others."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import SimpleNamespace

import pytest
import torch

from pbg_tasks.errors import ConfigError, EvictedError
from pbg_tasks.tasks import gang
from pbg_tasks.tasks.train import train_directory
from pbg_tasks.train.place import Accelerator
from pbg_tasks.train.ranks.parameter_server import ParameterServer
from tests.directories import DataSet


def test_sigterm_ends_a_rank_that_waits_for_the_others(tmp_path, monkeypatch):
    """A container's first process would not even notice it without a handler."""
    monkeypatch.setenv("WORLD_SIZE", "2")  # a trainer and a partition server
    data = DataSet(tmp_path)
    config = data.config(num_machines=2, num_partition_servers=1, distributed_init_method=f"file://{tmp_path}/meeting")
    lease = tmp_path / "model" / "lease.json"

    def end():
        while not lease.exists():
            time.sleep(0.01)
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=end, daemon=True).start()
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(EvictedError, match="told to end"):
        train_directory(config, rank=0)
    assert not lease.exists()
    assert signal.getsignal(signal.SIGTERM) is before


def test_ranks_with_gpus_do_not_share_whole_types():
    seat = SimpleNamespace(
        job=SimpleNamespace(config=None),
        shared=SimpleNamespace(tables={"country": None}),
        engine=SimpleNamespace(place=Accelerator(torch.device("cuda"))),
    )
    with pytest.raises(ConfigError, match=r"of one partition \(country\)"):
        gang._Seat.exchange(seat, [ParameterServer(), ParameterServer()], None)
