"""Nights with bad days through a real Airflow, with default gates.

Nine days of AS-733 are served as the nine days up to yesterday: two are bad as they were collected, one is empty and
corrected later, one never comes, and the last one is late. The tests of this file are one story and run in the order
they stand in. They take many minutes, so they run only where ``PBG_E2E_NIGHTS`` is set: ``make e2e-nights``.
"""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path

import pytest
import yaml

from benchmarks.nights.days import find, read_dated_edges
from examples.stack.stack import Stack
from pbg_tasks.errors import InputError
from pbg_tasks.storage import open_store
from pbg_tasks.tasks.context import RunContext
from pbg_tasks.tasks.release.releases import skip
from tests.bad_days import GRAPH, MODEL, collected
from tests.stack.backfills import backfill, by_day, ended, nightly, releases, states, until

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.timeout(4 * 60 * 60),
    pytest.mark.skipif("PBG_E2E_NIGHTS" not in os.environ, reason="takes many minutes; set PBG_E2E_NIGHTS to run it"),
]

BUCKET = "campaign"
DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
FIRST = "1999-08-26"
YESTERDAY = dt.datetime.now(dt.UTC).date() - dt.timedelta(1)
DAYS = [str(YESTERDAY - dt.timedelta(back)) for back in range(8, -1, -1)]
BAD = {DAYS[3]: "1999-08-29", DAYS[5]: "1999-08-31"}
EMPTY, MISSING, LATE = DAYS[6:]
SOON = dt.timedelta(minutes=5)
"""Until the calendar's tick, by when Airflow has to run; it makes no run of a tick that has passed."""
GOOD = [day for day in DAYS[:6] if day not in BAD]
REDO = f"redo_{GRAPH}"
IMPATIENT = f"{GRAPH}_impatient"
"""Graph whose snapshots never come, with a deadline ``SOON`` after the calendar's tick."""


@pytest.fixture(scope="module")
def collected_days():
    """Edges by recent day.

    They replace the data's own days, so that a calendar finds them.
    """
    try:
        _, path = find(GRAPH, DATA)
    except InputError as error:
        pytest.skip(str(error))
    real = dict(collected(read_dated_edges(path), len(DAYS), FIRST))
    assert [DAYS[at] for at, day in enumerate(real) if day in BAD.values()] == list(BAD)
    return dict(zip(DAYS, real.values(), strict=True))


def put(day, edges):
    lines = ["lhs\trel\trhs", *("\t".join(edge) for edge in edges)]
    store = open_store(f"s3://{BUCKET}")
    store.put(f"{GRAPH}/{day}/edges.tsv", ("\n".join(lines) + "\n").encode())
    store.put(f"{GRAPH}/{day}/_SUCCESS", b"")


@pytest.fixture(scope="module")
def nights(tmp_path_factory, collected_days):
    """A running stack without the missing and the late day."""
    directory = tmp_path_factory.mktemp("campaign")
    graphs = directory / "graphs"
    graphs.mkdir()
    tick = dt.datetime.now(dt.UTC) + SOON
    spec = {
        "graph": GRAPH,
        "store": f"s3://{BUCKET}/store/{GRAPH}",
        "snapshots": {"location": f"s3://{BUCKET}/{GRAPH}/{{snapshot}}/*.tsv", "format": "tsv"},
        "model": MODEL,
        "split": {"valid": 0.01, "test": 0.1},
        "train": {"warm_epochs": 2},
        "resources": {"memory_gb": 1, "threads": 1},
        "nights": {
            "walk": "chain",
            "first": DAYS[0],
            # Midnight may pass between the import of this file, which may wait for other files, and the tick.
            "calendar": {"cron": f"{tick.minute} {tick.hour} * * *", "offset": (YESTERDAY - tick.date()).days},
            "watch": {"complete": "success"},
            "redo": True,
        },
    }
    (graphs / f"{GRAPH}.yaml").write_text(yaml.safe_dump(spec))
    never = {"location": f"s3://{BUCKET}/never/{{snapshot}}/*.tsv", "format": "tsv"}
    order = {"calendar": spec["nights"]["calendar"], "deadline": {"at": f"{tick + SOON:%H:%M}"}}
    impatient = {"graph": IMPATIENT, "store": f"s3://{BUCKET}/store/{IMPATIENT}", "snapshots": never, "nights": order}
    (graphs / f"{IMPATIENT}.yaml").write_text(yaml.safe_dump(spec | impatient))
    stack = Stack(directory, graphs=graphs)
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in stack.start_store(BUCKET).items():
                patch.setenv(name, value)
            for day in (*GOOD, *BAD):
                put(day, collected_days[day])
            put(EMPTY, [])
            stack.start_airflow(print)
            yield stack
    finally:
        stack.stop()


@pytest.fixture(scope="module")
def api(nights):
    """Airflow's API, with the nightly DAG unpaused.

    The calendar's tick begins the night of yesterday.
    """
    api = nights.airflow().api
    dags = {nightly(GRAPH), nightly(IMPATIENT), REDO}
    until("the DAGs are read", lambda: dags <= set(api.dag_ids()), api.import_errors)
    for dag in dags:
        api.unpause(dag)
    return api


def spec_path(nights):
    return nights.directory / "graphs" / f"{GRAPH}.yaml"


def refusals(api, run_id):
    """Return the tasks that refused a run."""
    path = f"dags/{nightly(GRAPH)}/dagRuns/{run_id}/taskInstances/~/xcomEntries?xcom_key=refused"
    return [entry["task_id"] for entry in api.get(path)["xcom_entries"]]


def noted(api, run):
    """Return whether notes name the refusing task and the reason."""
    (task,) = refusals(api, run["dag_run_id"])
    note = api.get(f"dags/{nightly(GRAPH)}/dagRuns/{run['dag_run_id']}/taskInstances/{task}")["note"]
    return note.startswith("Refused in try 1: ") and run["note"].endswith(f", refused by {task}")


def scheduled(api, graph=GRAPH):
    return [run for run in api.runs(nightly(graph)) if run["run_type"] == "scheduled"]


def test_late_day_waits_without_a_worker(api):
    def waiting():
        runs = scheduled(api)
        return [run for run in runs if states(api, GRAPH, run["dag_run_id"])["prepare.plan"] == "up_for_reschedule"]

    (run,) = until("yesterday's night waits", waiting, lambda: scheduled(api))
    assert run["partition_key"] == LATE


def test_bad_days_are_refused_and_good_ones_published(nights, api):
    backfill(nights, GRAPH, DAYS[:8], "none", at_once=1)
    runs = {run["partition_key"]: run for run in ended(api, GRAPH, 8)}
    assert by_day(runs.values()) == {day: "success" if day in GOOD else "failed" for day in DAYS[:8]}
    listed, current = releases(nights, GRAPH)
    assert [day for _, day, _ in listed] == GOOD
    assert current == GOOD[-1]
    refused = {day: refusals(api, run["dag_run_id"]) for day, run in runs.items()}
    assert all(len(refused[day]) == 1 for day in BAD)
    assert not any(refused[day] for day in GOOD)
    assert all(noted(api, runs[day]) for day in BAD)
    assert not refused[MISSING]  # nothing there: a wrong key is a failure, not a refusal


def test_wait_for_a_day_ends_at_deadline(api):
    """A day that never came is no refusal."""
    ends = until("the night ends", lambda: [run for run in scheduled(api, IMPATIENT) if run["end_date"]])
    assert [(run["state"], run["note"]) for run in ends] == [("failed", f"Snapshot {LATE}")]
    task = f"dags/{nightly(IMPATIENT)}/dagRuns/{ends[0]['dag_run_id']}/taskInstances/prepare.plan"
    assert "(nights.deadline): once it is whole" in api.get(f"{task}/xcomEntries/error")["value"]
    waited = [dt.datetime.fromisoformat(ends[0][name]) for name in ("start_date", "end_date")]
    assert SOON - dt.timedelta(minutes=1) < waited[1] - waited[0] < SOON + dt.timedelta(minutes=3)


def test_late_day_is_published_when_it_comes(nights, api, collected_days):
    skip(spec_path(nights), MISSING, reason="never delivered")
    skip(spec_path(nights), EMPTY, reason="empty; corrected later")
    put(LATE, collected_days[LATE])
    until("yesterday's night ends", lambda: scheduled(api)[0]["state"] in {"success", "failed"})
    assert scheduled(api)[0]["state"] == "success"
    listed, current = releases(nights, GRAPH)
    assert [day for _, day, _ in listed] == [*GOOD, LATE]
    assert current == LATE


def test_corrected_day_is_redone_with_those_after_it(nights, api, collected_days):
    put(EMPTY, collected_days[EMPTY])
    run_id = api.trigger(REDO, conf={"from": EMPTY})
    until("the days are redone", lambda: api.run_state(REDO, run_id) in {"success", "failed"})
    assert api.run_state(REDO, run_id) == "success"
    listed, current = releases(nights, GRAPH)
    assert [day for _, day, _ in listed] == [*GOOD, LATE, EMPTY, LATE]
    assert current == LATE
    store = yaml.safe_load(spec_path(nights).read_text())["store"]
    before = [RunContext.open(f"{store}/runs/{run}").spec.previous.run for _, _, run in listed[-2:]]
    assert before == [listed[len(GOOD) - 1][2], listed[-2][2]]
