"""Nights between two that are compared, which have not finished."""

from __future__ import annotations

import pytest

from pbg_tasks.errors import QualityGateError
from pbg_tasks.tasks.nightly.chain import run_chain, run_task
from pbg_tasks.tasks.nightly.plan import plan
from tests.tasks.conftest import ring


def test_other_ids_after_broken_night_are_refused(place):
    place.write_spec({"num_epochs": 1}, gates={"max_mrr_drop": 1.0}, nights={"walk": "independent"})
    place.snapshot("d1", ring(40))
    run_chain(place.spec, "d1")
    place.snapshot("d2", ring(40))  # its night broke, which leaves neither release nor refusal
    place.snapshot("d3", [(f"x{lhs}", rel, f"x{rhs}") for lhs, rel, rhs in ring(40)])
    run = plan(place.spec, "d3")["run"]
    run_task("validate", run)
    gone = r"100\.0% of the entities of 'd1' are .* at most 35\.0% allowed in a night, 57\.7% in the 2 from there"
    with pytest.raises(QualityGateError, match=gone):
        run_task("partition", run)
