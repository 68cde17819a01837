"""A snapshot whose edges and entities are both refused, and approved once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pbg_tasks.config.limits import Check, Verdict
from pbg_tasks.errors import QualityGateError
from pbg_tasks.tasks.approval import approve
from pbg_tasks.tasks.context import RunContext
from pbg_tasks.tasks.nightly.chain import run_chain, run_task
from pbg_tasks.tasks.nightly.data_gate import settle
from pbg_tasks.tasks.nightly.plan import plan
from tests.tasks.conftest import ring

QUICK = {"num_epochs": 1}


def test_one_approval_covers_edges_and_entities(place):
    limits = {"max_removed_edges": {"block": 0.3}, "max_gone_entities": {"block": 0.3}}
    place.write_spec(model=QUICK, gates={"max_mrr_drop": 1.0, "data": limits})
    place.snapshot("d1", ring(60))
    place.snapshot("d2", ring(30))
    run_chain(place.spec, "d1")
    url = plan(place.spec, "d2")["run"]
    with pytest.raises(
        QualityGateError, match=r"max_removed_edges\); 50\.0% of the entities of 'd1' .*max_gone_entities"
    ):
        run_task("validate", url)
    assert approve(url, by="ada", reason="a holiday")["task"] == "validate"
    found = run_task("partition", url)["data_gate"]
    assert (found["passed"], found["accepted"]) == (True, "ada, with the edges: a holiday")
    run = RunContext.open(url)
    (seen,) = [Check(**each) for each in found["checks"] if not each["passed"]]
    for change in ({"value": 0.6}, {"limit": 0.2}, {"name": "another"}):  # no question named these
        assert not settle(run, Verdict((replace(seen, **change),))).passed
