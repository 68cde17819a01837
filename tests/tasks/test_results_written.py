"""Results stored by tasks, which readers accept."""

from __future__ import annotations

import pytest

from pbg_tasks.config import RunLayout
from pbg_tasks.config.results import BucketResult, ExportFindings, ExportResult, Stored
from pbg_tasks.errors import FormatError
from pbg_tasks.tasks.context import RunContext, perform
from pbg_tasks.tasks.nightly.chain import run_chain
from pbg_tasks.tasks.nightly.plan import plan
from pbg_tasks.tasks.view.show import show_task
from tests.tasks.conftest import ring


def test_result_that_readers_refuse_is_not_stored(place):
    place.snapshot("d1", ring(20))
    url = plan(place.spec, "d1")["run"]
    with pytest.raises(FormatError, match=r"results/bucket\.json.*edges.*missing"):
        perform(BucketResult, url, lambda _: Stored.model_validate({"matrix": [[1]]}))
    run = RunContext.open(url)
    assert run.store.head(run.key(RunLayout.result("bucket"))) is None


def test_result_of_export_names_its_destination(place):
    place.snapshot("d1", ring(20))
    url = plan(place.spec, "d1")["run"]
    with pytest.raises(FormatError, match="destination"):
        perform(ExportResult, url, lambda _: Stored(), task="export-parquet")
    found = perform(ExportResult, url, lambda _: ExportFindings(destination="here"), task="export-parquet")
    assert (found.task, found.destination) == ("export-parquet", "here")
    assert RunContext.open(url).need(ExportResult, "export-parquet") == found


@pytest.mark.rotated(3)
@pytest.mark.parametrize("name", ["https://host/page?token={}", "https://user:secret@host/{}"])
def test_entity_that_looks_like_credentials_is_a_name(place, name):
    """A graph of web pages has such URLs.

    Results quote the entities that moved.
    """
    place.write_spec()
    for number, day in enumerate(("d1", "d2")):
        rows = ring(20, seed=number)
        place.snapshot(day, [(name.format(lhs), rel, name.format(rhs)) for lhs, rel, rhs in rows])
        run_chain(place.spec, day)
    moved = show_task(plan(place.spec, "d2")["run"], "drift")["most_moved"]
    assert moved[0]["entity"].startswith(name.format("e"))
