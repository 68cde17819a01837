"""Results that tasks store are those that readers accept."""

from __future__ import annotations

import pytest

from pbg_tasks.config import RunLayout
from pbg_tasks.errors import FormatError
from pbg_tasks.tasks.context import RunContext, perform
from pbg_tasks.tasks.nightly.plan import plan
from tests.tasks.conftest import ring


def test_result_that_readers_refuse_is_not_stored(place):
    place.snapshot("d1", ring(20))
    url = plan(place.spec, "d1")["run"]
    with pytest.raises(FormatError, match=r"results/bucket\.json.*edges.*missing"):
        perform("bucket", url, lambda _: {"matrix": [[1]]})
    run = RunContext.open(url)
    assert run.store.head(run.key(RunLayout.result("bucket"))) is None


def test_result_of_export_names_its_destination(place):
    place.snapshot("d1", ring(20))
    url = plan(place.spec, "d1")["run"]
    with pytest.raises(FormatError, match="destination"):
        perform("export-parquet", url, lambda _: {})
    assert perform("export-parquet", url, lambda _: {"destination": "here"})["destination"] == "here"
