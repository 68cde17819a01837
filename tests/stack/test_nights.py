"""Backfills through a real Airflow on a real S3 server.

They run in order where nights continue each other, else side by side.

The tests of this file are one story and run in the order they stand in. They take many minutes of processor time, so
they run only where ``PBG_E2E_NIGHTS`` is set: ``make e2e-nights``.
"""

from __future__ import annotations

import os
from itertools import pairwise

import pytest
import yaml

from examples.stack.stack import Stack
from pbg_tasks.storage import open_store
from pbg_tasks.tasks.context import RunContext
from tests.operators.specs import small_spec
from tests.stack.backfills import backfill, backfilled, by_day, ended, nightly, releases, states, until
from tests.stack.browser import signed_in
from tests.stack.conftest import edges

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.timeout(4 * 60 * 60),
    pytest.mark.skipif("PBG_E2E_NIGHTS" not in os.environ, reason="takes many minutes; set PBG_E2E_NIGHTS to run it"),
]

BUCKET = "nights"
DAYS = [f"2026-11-{day}" for day in range(10, 15)]
LAST = DAYS[-1]
EARLIER = DAYS[1:4]
BROKEN = EARLIER[1]
CHAIN, ALONE = "chained", "alone"
"""Two graphs on the same days: nights of one continue each other, those of the other do not."""


def spec_of(graph, nights):
    spec = small_spec(f"s3://{BUCKET}", graph)
    spec["snapshots"]["location"] = f"s3://{BUCKET}/{graph}/{{snapshot}}/*.parquet"
    return spec | {"nights": nights | {"calendar": {"cron": "0 2 * * *"}}}


def snapshot(graph, day, data):
    open_store(f"s3://{BUCKET}").put(f"{graph}/{day}/edges.parquet", data)


@pytest.fixture(scope="module")
def nights(tmp_path_factory):
    """A running stack with two graphs.

    One snapshot of one of them is no Parquet file.
    """
    directory = tmp_path_factory.mktemp("nights")
    graphs = directory / "graphs"
    graphs.mkdir()
    for graph, walk in ((CHAIN, {"walk": "chain", "first": DAYS[0]}), (ALONE, {"walk": "independent"})):
        (graphs / f"{graph}.yaml").write_text(yaml.safe_dump(spec_of(graph, walk)))
    stack = Stack(directory, graphs=graphs)
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in stack.start_store(BUCKET).items():
                patch.setenv(name, value)
            for at, day in enumerate(DAYS):
                snapshot(CHAIN, day, edges(range(at, 100 + at)))
                snapshot(ALONE, day, b"no Parquet" if day == BROKEN else edges(range(at, 100 + at)))
            stack.start_airflow(print)
            yield stack
    finally:
        stack.stop()


@pytest.fixture(scope="module")
def api(nights):
    """Airflow's API, with both nightly DAGs read and unpaused."""
    api = nights.airflow().api
    until("the DAGs are read", lambda: {nightly(CHAIN), nightly(ALONE)} <= set(api.dag_ids()), api.import_errors)
    for graph in (CHAIN, ALONE):
        api.unpause(nightly(graph))
    return api


def test_days_of_chain_started_together_continue_each_other(nights, api):
    backfill(nights, CHAIN, DAYS, "none", at_once=3)
    by_hand = api.trigger(nightly(CHAIN), partition_key=DAYS[1])
    runs = ended(api, CHAIN, len(DAYS))
    assert by_day(runs) == dict.fromkeys(DAYS, "success")
    until("the nightly ends", lambda: api.run_state(nightly(CHAIN), by_hand) == "success")
    assert set(states(api, CHAIN, by_hand).values()) <= {"success", "skipped"}
    waits = [
        line
        for run in runs
        for task in api.tasks(nightly(CHAIN), run["dag_run_id"])
        if task.task == "prepare.plan"
        for line in api.log(nightly(CHAIN), run["dag_run_id"], task)
        if "out_of_turn" in line
    ]
    assert waits
    listed, current = releases(nights, CHAIN)
    assert [(number, day) for number, day, _ in listed] == list(enumerate(DAYS, start=1))
    assert current == LAST


@pytest.mark.browser
def test_browser_shows_runs_and_history_of_graph(nights, api):
    with signed_in(nights, f"/dags/{nightly(CHAIN)}/runs") as page:
        for day in DAYS:
            row = page.get_by_role("row").filter(has_text=f"__{day}__")  # its key, in the id
            row.get_by_text("Success").first.wait_for()
        page.get_by_role("link", name="Nights").click()
        shown = page.frame_locator("iframe")
        shown.get_by_text(f"release {len(DAYS)}").first.wait_for()
        for day in DAYS:
            shown.get_by_text(day).filter(visible=True).first.wait_for()


def test_one_of_two_runs_with_same_key_trains(nights, api):
    # The second run watches the first one's heartbeat for 40 s, and has to see it train still: each epoch is stored.
    conf = {"epochs": 1000, "dimension": 4096, "publish": "yes"}
    both = [api.trigger(nightly(ALONE), partition_key=LAST, conf=conf) for _ in range(2)]
    for run_id in both:
        until("both end", lambda run_id=run_id: api.run_state(nightly(ALONE), run_id) in {"success", "failed"})
    assert [api.run_state(nightly(ALONE), run_id) for run_id in both] == ["success", "success"]
    trained = [states(api, ALONE, run_id)["train.train"] for run_id in both]
    assert sorted(trained) == ["skipped", "success"]
    listed, current = releases(nights, ALONE)
    assert [(number, day) for number, day, _ in listed] == [(1, LAST)]
    assert current == LAST


def test_earlier_days_side_by_side_leave_the_channel(nights, api):
    backfill(nights, ALONE, EARLIER, "none", at_once=3)
    runs = ended(api, ALONE, len(EARLIER))
    assert by_day(runs) == {day: "failed" if day == BROKEN else "success" for day in EARLIER}
    assert any(later["start_date"] < run["end_date"] for run, later in pairwise(runs))
    listed, current = releases(nights, ALONE)
    assert {day for _, day, _ in listed} == {*EARLIER, LAST} - {BROKEN}
    assert current == LAST
    publish = {states(api, ALONE, run["dag_run_id"])["release.publish"] for run in runs if run["state"] == "success"}
    assert publish == {"skipped"}  # so that no alert reports a release that is not served


def test_only_failed_day_is_repeated_after_its_repair(nights, api):
    before, _ = releases(nights, ALONE)
    snapshot(ALONE, BROKEN, edges(range(2, 102)))
    backfill(nights, ALONE, EARLIER, "failed", at_once=3)
    again = ended(api, ALONE, len(EARLIER) + 1)
    assert [(run["partition_key"], run["state"]) for run in again[len(EARLIER) :]] == [(BROKEN, "success")]
    after, current = releases(nights, ALONE)
    assert after[:-1] == before
    assert after[-1][1] == BROKEN
    assert current == LAST


def test_repeating_a_day_changes_nothing(nights, api):
    before = releases(nights, CHAIN)
    backfill(nights, CHAIN, DAYS[-1:], "completed", at_once=1)
    again = ended(api, CHAIN, len(DAYS) + 1)[-1]
    assert (again["partition_key"], again["state"]) == (LAST, "success")
    assert releases(nights, CHAIN) == before


def test_chain_is_repeated_from_day_in_order(nights, api):
    """Each day continues the new release of the day before.

    It does not continue the old one.
    """
    path, redone = nights.directory / "graphs" / f"{CHAIN}.yaml", DAYS[2:]
    spec = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump(spec | {"train": {"warm_epochs": 2}}))
    before = len(backfilled(api, CHAIN))
    backfill(nights, CHAIN, redone, "completed", at_once=1)
    runs = ended(api, CHAIN, before + len(redone))[before:]
    assert [(run["partition_key"], run["state"]) for run in runs] == [(day, "success") for day in redone]
    listed, current = releases(nights, CHAIN)
    new = listed[len(DAYS) :]
    assert [(number, day) for number, day, _ in new] == list(enumerate(redone, start=len(DAYS) + 1))
    assert current == LAST
    specs = [RunContext.open(f"{spec['store']}/runs/{run}").spec for _, _, run in new]
    assert [each.previous.run for each in specs] == [listed[1][2], *(run for _, _, run in new[:-1])]
    assert all(each.previous.warm_start for each in specs)
