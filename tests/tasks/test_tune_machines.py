"""Searches of several machines, of which one cannot train a candidate."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from pbg_tasks.errors import ResourceError
from pbg_tasks.tasks.tuning import trial as trial_module
from pbg_tasks.tasks.tuning.tune import tune
from tests.tasks.conftest import ring, workplace

TUNE = "pbg_tasks.tasks.tuning.tune"


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    with workplace(tmp_path_factory.mktemp("tune")) as place:
        place.snapshot("d1", ring(60))
        yield place


def written(place, rates):
    """Write a spec that tries learning rates; return its path."""
    model = {"num_epochs": 4, "entities": {"n": {"num_partitions": 1}}}
    place.write_spec(model=model, split={"valid": 0.2, "test": 0.2}, tune={"space": {"model.lr": rates}})
    return place.spec


@pytest.mark.parametrize("others", [True, False])
def test_smaller_machine_decides_nothing_for_larger(graph, monkeypatch, others):
    """Alone it goes on without a candidate that does not fit."""
    spec, refused = written(graph, [0.1, 0.06 if others else 0.04]), []

    def here(context, name, rung, *, patient=True):
        if refused:
            return trial_module.try_candidate(context, name, rung, patient=patient)
        refused.append(name)
        for each in context.trials(rung) if others else ():
            if each != name:
                trial_module.try_candidate(context, each, rung)  # as another process does meanwhile
        raise ResourceError("train would take 9 GB")

    monkeypatch.setattr(f"{TUNE}.try_candidate", here)
    if others:
        with pytest.raises(ResourceError, match=r"trained here \(train would take 9 GB\), and another process"):
            tune(spec, "d1")
    rows = {row["trial"]: row for row in tune(spec, "d1")["rows"]}
    assert (rows[refused[0]]["mrr"] is not None) is others
    assert all(row["mrr"] is not None for name, row in rows.items() if name != refused[0])


@pytest.mark.parametrize(("lr", "before"), [(0.045, False), (0.035, True)])
def test_process_at_refused_candidate_keeps_its_decision(graph, monkeypatch, lr, before):
    """It has no result yet, and began after the refusal or before."""
    spec, leases = written(graph, [0.1, lr]), []

    def beat(seconds):  # as another process does meanwhile
        leases[0][0].put(leases[0][1], f'{{"beat": {seconds}}}'.encode())

    def here(context, name, rung, *, patient=True):
        if not leases:
            leases.append((context.run.store, context.key(f"trials/{name}/checkpoint/lease.json")))
            if before:
                beat(0)
            raise ResourceError("train would take 9 GB")
        if not before:
            beat(0)
        return trial_module.try_candidate(context, name, rung, patient=patient)

    with monkeypatch.context() as patched:
        patched.setattr(f"{TUNE}.try_candidate", here)
        patched.setattr(f"{TUNE}.time", SimpleNamespace(monotonic=time.monotonic, sleep=beat))
        with pytest.raises(ResourceError, match="another process at this search may train it"):
            tune(spec, "d1")
    ((store, lease),) = leases
    store.delete(lease)
    assert all(row["mrr"] is not None for row in tune(spec, "d1")["rows"])


def test_process_that_ranks_refused_candidate_keeps_decision(graph, monkeypatch):
    """Its training has ended, and with it the lease of the checkpoint."""
    spec, rank = written(graph, [0.1, 0.025]), trial_module._ranks
    monkeypatch.setattr("pbg_tasks.checkpoint.writer_heartbeat.BEAT_SECONDS", 0.05)
    asked = []

    def refusing(context, name, rung, *, patient=True):
        if name == asked[0]:
            raise ResourceError("train would take 9 GB")
        return trial_module.try_candidate(context, name, rung, patient=patient)

    def ranked(run, config, *given):
        if not asked:  # meanwhile a smaller machine comes to the candidate
            asked.append(Path(config.checkpoint_path).parent.name)
            with monkeypatch.context() as patched:
                patched.setattr(f"{TUNE}.try_candidate", refusing)
                patched.setattr(f"{TUNE}.SILENCE_SECONDS", 1.0)
                with pytest.raises(ResourceError, match="another process at this search may train it"):
                    tune(spec, "d1")
        return rank(run, config, *given)

    monkeypatch.setattr(trial_module, "_ranks", ranked)
    assert all(row["mrr"] is not None for row in tune(spec, "d1")["rows"])
