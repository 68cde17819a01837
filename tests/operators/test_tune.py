"""Tasks of a search, and the answers that later tasks read."""

from __future__ import annotations

import json

import pytest
from airflow.sdk.exceptions import AirflowFailException

from pbg_operators.tune import TuneStartOperator

STARTED = {"task": "tune-start", "run": "/store/runs/r1", "search": "0123456789ab", "rungs": 2, "candidates": 4}


@pytest.mark.parametrize("lacking", [None, "run", "search"])
def test_search_of_another_version_fails_at_once(fake_pbg, context, lacking):
    found = {key: value for key, value in STARTED.items() if key != lacking}
    fake_pbg(f"print({json.dumps(json.dumps(found))})")
    context["params"] = {"snapshot": "d1", "accept_data": None}
    context["dag_run"].partition_key = None
    task = TuneStartOperator(task_id="tune_start", spec="/graph.yaml", store_conn_id=None)
    if lacking is None:
        assert task.execute(context) == STARTED
        assert task.arguments == ["/graph.yaml", "--snapshot=d1"]
        return
    with pytest.raises(AirflowFailException, match=f"pbg tune-start succeeded, yet its answer .*{lacking}"):
        task.execute(context)
