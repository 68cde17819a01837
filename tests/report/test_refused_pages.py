"""Advice on the page of a refused night."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pbg_tasks.config.results import CheckDocument
from pbg_tasks.report.pages import Links, render
from pbg_tasks.report.run import run_document
from pbg_tasks.tasks.view.report import read_run
from tests.report.conftest import DAYS
from tests.report.document import check_page


@pytest.fixture
def refused(nights):
    """The night that the data gate refused."""
    return read_run(nights.run(DAYS[2]))


def text_of(found):
    document = run_document(found)
    assert document["state"] == "refused"
    return check_page(render(document, Links(assets="assets", history="nights", run="{run}"))).text()


@pytest.mark.parametrize("fault", ["no_edges", "finite", "health of n"])
def test_unusable_night_needs_no_approval(refused, fault):
    """`pbg approve` would refuse it."""
    assert "To let it go on all the same: pbg approve" in text_of(refused)
    task = run_document(refused)["stopped"]
    result = getattr(refused.results, task)
    checks = [*result.data_gate.checks, CheckDocument(name=fault, passed=False, sentence="nothing is left")]
    judged = result.model_copy(update={"data_gate": result.data_gate.model_copy(update={"checks": checks})})
    found = replace(refused, results=replace(refused.results, **{task: judged}))
    assert "pbg approve" not in text_of(found)


def test_rejected_night_needs_no_approval(refused):
    task = run_document(refused)["stopped"]
    decision = {"task": task, "approved": False, "by": "ada", "at": "2026-11-03T02:00:00Z", "reason": "a bad feed"}
    assert "pbg approve" not in text_of(replace(refused, decisions={task: decision}))
