"""Several tasks of a night in one process."""

from __future__ import annotations

import pytest

from pbg_tasks.config.airflow import TOGETHER
from pbg_tasks.config.results import PartitionResult
from pbg_tasks.errors import ConfigError, QualityGateError
from pbg_tasks.storage.copies import Copies
from pbg_tasks.tasks.context import CHAIN, RunContext
from pbg_tasks.tasks.nightly.chain import run_chain, run_task, run_together
from pbg_tasks.tasks.nightly.plan import plan
from pbg_tasks.tasks.runs import night
from tests.tasks.conftest import ring


@pytest.fixture
def planned(place):
    place.snapshot("d1", ring(120))
    return plan(place.spec, "d1")["run"]


def test_night_of_few_commands_has_every_result(place, planned):
    prepared = run_together("prepare", planned)
    run_task("train", planned)
    finished = run_together("finish", planned)
    run = RunContext.open(planned)
    for result in (prepared, finished):
        assert tuple(result["tasks"]) == TOGETHER[result["task"]]
        assert {name: run.require(name) for name in result["tasks"]} == {
            name: {key: value for key, value in found.items() if key != "announced"}
            for name, found in result["tasks"].items()
        }
    assert all(run.result(task) for task in CHAIN)
    assert finished["published"] is True
    assert place.channel().current().release.run == run.run_id


def test_night_for_several_machines_is_done_by_one(place, monkeypatch):
    """Partition servers on Kubernetes take such a model.

    Here the disk has to have room for all partitions.
    """
    reserves = []
    monkeypatch.setattr(night, "Copies", lambda reserve=0: reserves.append(reserve) or Copies(reserve))
    place.write_spec({"num_machines": 4, "num_partition_servers": 1, "distributed_init_method": "env://"})
    place.snapshot("d1", ring(120))
    done = run_chain(place.spec, "d1")
    assert done["release"]["published"]
    run = RunContext.open(done["run"])
    rows = sum(map(sum, run.need(PartitionResult).counts.values()))
    assert rows * (4 * run.config.dimension + 8) in reserves


def test_second_call_does_what_is_left(planned, capfd):
    run_task("validate", planned)
    before = RunContext.open(planned).require("validate")
    assert run_together("prepare", planned)["tasks"]["validate"] == before
    assert capfd.readouterr().err.count("done before") == 1


def test_refusal_ends_the_command_after_its_result(place):
    place.write_spec(gates={"min_mrr": 1.0})
    place.snapshot("d1", ring(120))
    url = plan(place.spec, "d1")["run"]
    run_together("prepare", url)
    run_task("train", url)
    with pytest.raises(QualityGateError, match="filtered MRR"):
        run_together("finish", url)
    run = RunContext.open(url)
    assert run.require("gate")["passed"] is False
    assert run.result("publish") is None


def test_finish_before_training_is_refused(planned):
    run_together("prepare", planned)
    with pytest.raises(ConfigError, match="`pbg train` has not finished"):
        run_together("finish", planned)
