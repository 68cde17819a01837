"""Time that ranks wait, beside that in which they work."""

from __future__ import annotations

import json
from types import SimpleNamespace

from pbg_tasks.storage.local import LocalStore
from pbg_tasks.training import edge_chunks
from pbg_tasks.training.engine.on_torch import TorchEngine
from pbg_tasks.training.ranks import leader
from pbg_tasks.training.ranks.rank import RankWork
from tests.training.buckets import make_config
from tests.training.ranks.gangs import train


def test_ranking_is_no_waiting_of_ranks(buckets, tmp_path, monkeypatch):
    spent = {"ranking": 0, "reading": 0}
    clock = SimpleNamespace(monotonic=lambda: float(sum(spent.values())))
    evaluate, bring = TorchEngine.evaluate, RankWork.bring

    def ranked(*args, **kwargs):
        spent["ranking"] += 1
        return evaluate(*args, **kwargs)

    def brought(*args):
        spent["reading"] += 1
        return bring(*args)

    for module in (edge_chunks, leader):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(TorchEngine, "evaluate", ranked)
    monkeypatch.setattr(RankWork, "bring", brought)
    store = LocalStore(tmp_path / "store")
    train(make_config(num_epochs=1, eval_fraction=0.1), buckets, store, tmp_path / "scratch")
    (line,) = store.get("training_io.json").data.splitlines()
    io = json.loads(line)["io"]
    assert spent == {"ranking": 30, "reading": 16}  # one of 16 buckets has no edges
    assert (io["seconds"], io["waited"]) == (46.0, 16.0)
