"""Standing of graphs, and nights that failed."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import accumulate

import pytest

from pbg_tasks.publish import Channel
from pbg_tasks.publish.service_pins import pin_service, unpin_service
from pbg_tasks.report.history import early_night, history_document
from pbg_tasks.report.pages import Links, render, render_block
from pbg_tasks.report.run import run_document
from pbg_tasks.report.standing import standing_document, with_failure, with_failures
from pbg_tasks.tasks.view.report import read_graph, read_results, read_run
from tests.report.conftest import DAYS, HOSTILE
from tests.report.document import Page, check_page

LINKS = Links(assets="assets", graphs="all", history="nights", run="{run}")
HOUR = 3600.0


@pytest.fixture(scope="module")
def history(nights):
    return history_document(read_graph("toy", Channel(nights.store, "production")))


def attempt(**known):
    row = {"page": "p", "answers": "a", "log": "l", "state": "failed", "began": 9e9, "snapshot": "d9", "run": None}
    return {**row, "ended": None, "task": "prepare.plan", "reason": HOSTILE, "awaiting": [], **known}


def standing(history, attempts=(), schedules=({"paused": False, "at": None},), now=None):
    published = max(night["published"] for night in history["nights"] if night["published"])
    document = standing_document(
        with_failures(history, attempts), attempts, schedules, page="p", run=None, now=now or published + HOUR
    )
    html = render_block(document, LINKS, "row")
    check_page(f'<html lang="en"><title>t</title><main><h1>t</h1><table><caption>c</caption><tr>{html}</tr></table>'
               "</main></html>")  # fmt: skip
    return document, " ".join(Page(f"<main><table><tr>{html}</tr></table></main>").text().split())


def test_graph_without_trouble_needs_no_one(nights, history):
    document, text = standing(history)
    assert (document["tone"], document["needs"]) == ("good", [])
    mrr = [night["mrr"] for night in history["nights"] if night["release"]]
    assert f"{mrr[-1]:.4f}" in text
    change = nights.run(DAYS[3]).require("eval")["against"]["difference"]["mrr"]  # on the edges that both know
    assert f"{change:+z.4f}".replace("-", "−") + " against the release before" in text  # noqa: RUF001
    assert "60 min" in text
    assert "at an event, or by hand" in text


def test_served_one_of_two_releases_is_current(nights):
    """A channel may be rolled back to a run's first."""
    found = read_graph("toy", Channel(nights.store, "production"))
    served = next(each for each in found.releases if each.seq == found.current)
    second = served.model_copy(update={"seq": served.seq + 1})
    document = history_document(replace(found, releases=[*found.releases, second]))
    assert [night["release"] for night in document["nights"] if night["current"]] == [served.seq]


def test_refused_night_comes_first_with_reason(history):
    before = {**history, "nights": [night for night in history["nights"] if night["snapshot"] < DAYS[3]]}
    document, text = standing(before)
    assert (document["rank"], document["tone"]) == (0, "bad")
    assert f"{DAYS[2]} refused: " in text
    assert "are in no edge any more" in text


def test_night_that_failed_early_has_red_row(history):
    found = with_failures(history, [attempt()])
    (night,) = (each for each in found["nights"] if each["state"] == "failed")
    assert (night["snapshot"], night["run"], night["page"], night["reason"]) == ("d9", "", "p", HOSTILE)
    page = check_page(render(found, LINKS))
    (row,) = (each for each in page.all("tr") if each["attrs"].get("class") == "bad" and each["text"].startswith("d9"))
    assert HOSTILE in row["text"]
    assert standing(history, [attempt()])[0]["needs"][0]["text"] == f"d9 failed: {HOSTILE}"


@pytest.mark.parametrize(
    "attempts",
    [
        [attempt(state="running"), attempt()],  # begun anew
        [attempt(snapshot=DAYS[3], began=1.0)],  # has a release by now
        [attempt(state="success", run="/elsewhere/runs/d9-0123456789ab"), attempt()],
    ],
)
def test_failure_that_is_past_adds_no_row(history, attempts):
    assert with_failures(history, attempts)["nights"] == history["nights"]


@pytest.mark.parametrize(("began", "reason"), [(1e9, "no column"), (3e9, HOSTILE)])
def test_plan_that_failed_twice_has_one_row(history, began, reason):
    stored = early_night("d9", "no column", 2e9)
    assert (
        standing({**history, "nights": [*history["nights"], stored]})[0]["needs"][0]["text"] == "d9 failed: no column"
    )
    found = with_failures({**history, "nights": [*history["nights"], stored]}, [attempt(began=began)])
    (night,) = (each for each in found["nights"] if each["state"] == "failed")
    assert (night["reason"], night["page"]) == (reason, "p")
    again = with_failures({**history, "nights": [*history["nights"], stored]}, [attempt(state="running"), attempt()])
    assert again["nights"] == history["nights"]


def test_run_whose_task_failed_shows_the_task(nights, history):
    document = {**run_document(read_run(nights.run(DAYS[3]))), "state": "running"}
    failed = attempt(run=document["url"], task="train.train", reason=None)
    found = with_failure(document, [failed, attempt(run=document["url"], state="success")])
    assert (found["state"], found["stopped"], found["log"]) == ("failed", "train", "l")
    assert [task["name"] for task in found["tasks"] if task["state"] == "failed"] == ["train"]
    page = check_page(render(found, LINKS))
    (alert,) = (each for each in page.elements if each["attrs"].get("role") == "alert")
    assert alert["text"] == "no reason was recorded; the log of the task has it Log of train"
    assert with_failure(document, [attempt(run=document["url"], state="success"), failed])["state"] == "running"
    (night,) = (
        each
        for each in with_failures(
            {**history, "nights": [{**each, "state": "running"} for each in history["nights"]]}, [failed]
        )["nights"]
        if each["state"] == "failed"
    )
    assert (night["snapshot"], night["page"]) == (DAYS[3], "p")


def test_run_that_goes_on_has_not_failed(nights, history):
    document = {**run_document(read_run(nights.run(DAYS[3]))), "state": "running", "begun": 5000.0}
    failed = attempt(run=document["url"], task="train.train", ended=4900.0)
    assert with_failure(document, [failed]) == {**document, "log": None}
    by_hand = {**document, "state": "failed", "reason": "no room"}  # a later error than Airflow's
    assert with_failure(by_hand, [failed]) == {**by_hand, "log": None}
    assert with_failure({**document, "begun": 4930.0}, [failed])["state"] == "failed"  # two clocks
    for begun, states in ((5000.0, {"running"}), (4930.0, {"running", "failed"}), (None, {"running", "failed"})):
        nights = [{**night, "state": "running", "begun": begun} for night in history["nights"]]
        found = with_failures({**history, "nights": nights}, [failed])["nights"]
        assert {night["state"] for night in found} == states


def test_run_by_hand_without_news_has_failed(nights, history):
    """Its process was killed, and left no error."""
    document = {**run_document(read_run(nights.run(DAYS[3]))), "state": "running", "begun": 5000.0}
    document["tasks"] = [*document["tasks"][:-1], {**document["tasks"][-1], "state": "now"}]
    failed = attempt(run=document["url"], task="train.train", ended=4900.0)
    assert with_failure(document, [failed], 5000.0 + HOUR) == {**document, "log": None}
    found = with_failure(document, [failed], 5000.0 + 3 * HOUR)
    assert (found["state"], found["stopped"], found["tasks"][-1]["state"]) == ("failed", "publish", "failed")
    assert "without news since 1970-01-01 01:23 UTC; if its process was killed, `pbg run`" in found["reason"]
    by_hand = {**document, "state": "failed", "reason": "no room"}
    assert with_failure(by_hand, [failed], 5000.0 + 3 * HOUR) == {**by_hand, "log": None}
    (night,) = (each for each in history["nights"] if each["run"] == document["run"])
    for forecast, hours, state in ((None, 1, "running"), (None, 3, "failed"), (2 * HOUR, 3, "running")):
        begun = {**night, "state": "running", "begun": 5000.0, "forecast": forecast}
        (row,) = with_failures({**history, "nights": [begun]}, [failed], 5000.0 + hours * HOUR)["nights"]
        assert (row["state"], row["page"]) == (state, None)


def test_run_that_waits_in_airflow_is_no_silence(nights, history):
    """Another DAG run has it, and its next task no worker yet."""
    document = {**run_document(read_run(nights.run(DAYS[3]))), "state": "running", "begun": 5000.0}
    failed = attempt(run=document["url"], task="train.train", ended=4900.0)
    both = [failed, attempt(run=document["url"], state="running", task=None)]
    assert with_failure(document, both, 5000.0 + 3 * HOUR) == {**document, "log": None}
    (night,) = (each for each in history["nights"] if each["run"] == document["run"])
    begun = {**night, "state": "running", "begun": 5000.0, "forecast": None}
    for found, state in ((both, "running"), ([failed], "failed")):
        (row,) = with_failures({**history, "nights": [begun]}, found, 5000.0 + 3 * HOUR)["nights"]
        assert row["state"] == state


def test_begun_task_is_news_of_a_run(nights):
    run = nights.run(DAYS[3])
    facts = {each.run_id: each for each in read_graph("toy", Channel(nights.store, "production")).runs}
    (held,) = nights.store.list(f"runs/{run.run_id}/held.json")
    assert facts[run.run_id].begun >= held.modified


def test_training_is_news_of_a_night(nights, monkeypatch):
    """One by hand may take many times its forecast."""
    module, run = "pbg_tasks.tasks.view.report", nights.run(DAYS[3])
    monkeypatch.setattr(f"{module}.read_results", lambda run, **how: replace(read_results(run, **how), train=None))
    monkeypatch.setattr(f"{module}.watch_progress", lambda *_: (None, 9e9))
    facts = {each.run_id: each for each in read_graph("toy", Channel(nights.store, "production")).runs}
    assert facts[run.run_id].begun == 9e9


def test_stored_failure_is_kept_beside_airflows(nights, history):
    failed = {"task": "bucket", "kind": "storage", "reason": HOSTILE, "at": "2026-11-27T07:30:00+00:00"}
    facts = read_run(nights.run(DAYS[3]))
    left = ("plan", "validate", "partition")
    results = replace(facts.results, **{task: None for task in facts.results.finished if task not in left})
    document = run_document(replace(facts, results=results, failed=failed))
    page = check_page(render(document, LINKS))
    assert "failed in bucket, 2026-11-27 07:30 UTC" in page.text()
    (tile,) = (each for each in page.all("li") if each["attrs"].get("class") == "failed")
    assert tile["text"] == "bucketfailed"
    (alert,) = (each for each in page.elements if each["attrs"].get("role") == "alert")
    assert alert["text"] == HOSTILE
    for state in ("running", "success"):  # Airflow tries it again later, or a person ran it
        assert with_failure(document, [attempt(run=document["url"], state=state, log=None)]) == document

    def known(task, reason):
        found = with_failure(document, [attempt(run=document["url"], task=task, reason=reason)])
        return found["stopped"], found["reason"], [each["name"] for each in found["tasks"] if each["state"] == "failed"]

    assert known("prepare.prepare", None) == ("bucket", HOSTILE, ["bucket"])  # several tasks in one of Airflow
    assert known("prepare.partition", "killed") == ("partition", "killed", ["partition"])
    nights_failed = [{**each, "state": "failed", "reason": HOSTILE, "page": None} for each in history["nights"]]
    found = with_failures({**history, "nights": nights_failed}, [attempt(run=document["url"], reason=None)])["nights"]
    assert {each["page"]: each["reason"] for each in found} == {None: HOSTILE, "p": HOSTILE}


def test_refusing_task_is_red_and_reason_is_first(nights):
    page = check_page(render(run_document(read_run(nights.run(DAYS[2]))), LINKS))
    (tile,) = (each for each in page.all("li") if each["attrs"].get("class") == "refused")
    assert tile["text"] == "partitionrefused"
    sentences = [each for each in page.elements if each["tag"] == "p" and each["attrs"].get("role") == "alert"]
    assert "of the entities of" in sentences[0]["text"]


def test_question_to_a_person_is_named(history):
    waiting = attempt(state="running", awaiting=["release.gate"], run="/x/runs/d9-0123456789ab")
    document, text = standing(history, [waiting])
    assert document["needs"] == [
        {
            "tone": "bad",
            "text": "d9 waits for an answer: approve or reject what its gate refused.",
            "page": "a",
            "airflow": True,
        }
    ]
    assert "Answer" in text


def test_paused_graph_warns(history):
    document, text = standing(history, schedules=[{"paused": True, "at": 1.0}])
    assert (document["tone"], document["next"]) == ("warn", "paused")
    assert "no night begins" in text


def test_release_that_is_overdue_warns(history):
    published = iter(range(86_400, 500_000, 86_400))
    nights = [{**night, "published": next(published) if night["release"] else None} for night in history["nights"]]
    extra = {
        **nights[-1],
        "snapshot": "2026-11-05",
        "run": "x-0123456789ab",
        "release": 4,
        "published": next(published),
    }
    regular = {**history, "nights": [*({**night, "current": False} for night in nights), extra]}
    assert standing(regular, now=extra["published"] + 30 * HOUR)[0]["needs"] == []
    document, text = standing(regular, now=extra["published"] + 72 * HOUR)
    assert document["tone"] == "warn"
    assert "No release for 3 days, where one comes every 24 h." in text


WORKDAYS = [24.0, 24.0, 24.0, 24.0, 72.0]
"""Hours between the releases of a calendar such as ``0 2 * * 1-5``."""


@pytest.mark.parametrize(
    ("pauses", "hours", "late"),
    [
        (WORKDAYS * 3, 70, False),  # a weekend
        (WORKDAYS * 3, 100, True),
        ([0.2] * 60 + [24.0, 24.0], 26, False),  # after a backfill
        ([0.2] * 60 + [24.0, 24.0], 62, True),
        ([24.0] * 9 + [480.0], 62, True),  # an outage is no usual pause
    ],
)
def test_usual_pause_is_that_of_late(history, pauses, hours, late):
    (released,) = (night for night in history["nights"] if night["current"])
    times = [HOUR * at for at in accumulate([1000.0, *pauses])]
    nights = [
        {**released, "snapshot": f"d{number}", "run": f"r{number}", "published": time, "current": False}
        for number, time in enumerate(times)
    ]
    nights[-1] |= {"current": True}
    document, _ = standing({**history, "nights": nights}, now=times[-1] + hours * HOUR)
    assert [need["text"].startswith("No release for") for need in document["needs"]] == [True] * late


def test_next_night_is_the_earliest_scheduled(history):
    schedules = [{"paused": False, "at": 90_000.0}, {"paused": False, "at": 3_600.0}, {"paused": True, "at": 0.0}]
    assert standing(history, schedules=schedules)[0]["next"] == "1970-01-01 01:00 UTC"


def test_documents_are_plain_json(history):
    for found in (standing(history, [attempt()])[0], with_failures(history, [attempt()])):
        assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_page_of_failed_run_gives_reason_and_log():
    document = {"kind": "failed", "graph": "toy", "dag_run": "manual__1", "attempt": attempt()}
    page = check_page(render(document, LINKS))
    assert f"Task prepare.plan failed: {HOSTILE}" in page.text()
    assert "The log of the task" in page.text()
    assert "clear the task, or begin the night anew. To go on without this snapshot: pbg skip SPEC d9." in page.text()
    document["attempt"] = attempt(snapshot=None)
    assert "pbg skip" not in check_page(render(document, LINKS)).text()


def test_readers_are_listed_with_owner_and_date(nights):
    """Check a pin of a service, beside the channel's own readers."""
    channel, until = Channel(nights.store, "production"), datetime.now(UTC).date() + timedelta(days=9)
    pin_service(channel, "search", 1, owner=HOSTILE, until=until)
    try:
        history = history_document(read_graph("toy", channel))
    finally:
        unpin_service(channel, "search")
    rows = {each["reader"]: (each["share"], each["release"], each["snapshot"]) for each in history["readers"]}
    assert rows == {"production": (1.0, 3, DAYS[3]), "search": (None, 1, DAYS[0])}
    page = render(history, LINKS)
    check_page(page)
    assert HOSTILE in Page(page).text()
    assert f"search: 1, until {until}" in standing(history)[1]
    assert "production: 3" not in standing(history)[1]


def test_damaged_pin_leaves_the_page_whole(nights):
    channel = Channel(nights.store, "production")
    key = "channels/production/pins/for-shop.json"
    nights.store.put_new(key, b"{")
    try:
        history = history_document(read_graph("toy", channel))
    finally:
        nights.store.delete(key)
    (row,) = history["readers"]
    assert row["release"] is None
    assert key in row["reader"]
    assert key in Page(render(history, LINKS)).text()
    assert f"{key}" in standing(history)[1]


def test_share_of_readers_is_shown(history):
    (row,) = history["readers"]
    shared = {
        **history,
        "channel": "shadow",
        "read_channel": "production",
        "readers": [{**row, "channel": "shadow", "share": 0.1}, {**row, "share": 0.9, "promoted_from": "shadow 2"}],
    }
    text = Page(render(shared, LINKS)).text()
    assert "readers follow channel production" in text
    assert "10.0 % of its keys" in text
    assert "shadow 2" in text
    row_text = standing(shared)[1]
    assert "production, 10.0 %: 3" in row_text
    assert "production, 90.0 %: production 3" in row_text
