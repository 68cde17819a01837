"""Number of relations on a run's page."""

from __future__ import annotations

from dataclasses import replace

from pbg_tasks.report.pages import Links, render
from pbg_tasks.report.run import run_document
from pbg_tasks.tasks.view.report import read_run
from tests.report.conftest import DAYS
from tests.report.document import Page


def test_relations_that_are_not_listed_count(nights, monkeypatch):
    monkeypatch.setattr("pbg_tasks.report.run._LISTED", 4)
    found = read_run(nights.run(DAYS[1]))
    assert len(found.results.validate.relations) == 4
    partitioned = found.results.partition.model_copy(update={"relations": 1345})
    document = run_document(replace(found, results=replace(found.results, partition=partitioned)))
    assert (document["relation_count"], [*document["model"]["operators"].values()]) == (1345, [1345])
    assert "Relations 1,345" in Page(render(document, Links(assets="assets", history="nights", run="{run}"))).text()
    early = run_document(replace(found, results=replace(found.results, partition=None)))
    assert early["relation_count"] is None
