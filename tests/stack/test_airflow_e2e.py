"""A night from a form in a browser to a release.

It takes four Airflow processes, the ``pbg`` command, and an S3 server.

The tests of this file are one story and run in the order they stand in. It is longer than other files, because each
would take a stack of its own.
"""

from __future__ import annotations

import os
import re
import time
import urllib.error
import urllib.request
from base64 import b64decode
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import pytest

from examples.stack import processes
from examples.stack.watch import Watch
from pbg_tasks.storage.staging import sweep
from tests.browser import CONTRAST
from tests.pictures import IN_AIRFLOW
from tests.stack.backfills import until
from tests.stack.browser import check_page, choose_theme, no_problems, signed_in
from tests.stack.conftest import BUCKET, CLUSTERED, GRAPH
from tests.stack.traces import DAG, commands, forms_of, writers_below, writings_of

pytestmark = pytest.mark.airflow

RUN_SECONDS = 400.0
OWN = """# Airflow DAG of a team's own
from datetime import UTC, datetime
from pbg_operators import build_dag

day = datetime(2026, 11, 20, tzinfo=UTC)
dag = build_dag("small.yaml", "own", schedule="@daily", start_date=day, end_date=day, catchup=True)
"""


def succeed(api, run_id, dag=DAG, seconds=RUN_SECONDS):
    """Wait for a run and return its summary."""
    watch = Watch(api, dag, run_id, label=run_id, report=print)
    state = watch.until_finished(seconds)
    assert state == "success", "\n".join(watch.errors())
    return api.result(dag, run_id, "summary")


def states(api, run_id):
    return {task.task: task.state for task in api.tasks(DAG, run_id)}


def suggested(api):
    """Return the snapshots that Airflow's form suggests."""
    return api.get(f"dags/{DAG}/details")["params"]["snapshot"]["schema"].get("examples")


@pytest.fixture
def page(stack):
    """A signed-in browser at the DAG's page."""
    with signed_in(stack, f"/dags/{DAG}") as page:
        yield page


def test_plugin_is_registered_once(api):
    assert api.plugin_errors() == []


@pytest.mark.browser
def test_night_from_the_form_succeeds(page, api):
    until("the form lists snapshots", lambda: suggested(api))
    page.reload()  # the first answer of a new API server waits for imports, so it may have come without them
    page.get_by_role("button", name="Trigger").first.click()
    form = page.get_by_role("dialog").filter(has_text="Trigger Dag")
    field = form.locator("[name=element_snapshot]")  # the form opens with it
    listed = form.locator(f"#{field.get_attribute('list')} option")
    assert listed.evaluate_all("found => found.map(each => each.value)") == ["second", "first"]  # newest first
    field.fill("first")
    form.locator("#element_publish").get_by_role("combobox").click()  # with changed training the default is a trial
    page.get_by_role("option", name="If it passes its gates, also with changed training", exact=True).click()
    form.get_by_role("button", name="Advanced: training of this run", exact=True).click()
    form.locator("[name=element_epochs]").fill("1")
    form.locator("[name=element_dimension]").fill("8")
    form.get_by_role("button", name="Trigger", exact=True).click()
    page.wait_for_url(f"**/dags/{DAG}/runs/*")

    (run,) = api.runs(DAG)
    assert run["dag_run_id"] in page.evaluate("decodeURIComponent(location.pathname)")
    assert run["conf"] == {
        "snapshot": "first",
        "epochs": 1,
        "dimension": 8,
        "partitions": None,
        "engine": None,
        "ranks": None,
        "accept_data": None,
        "publish": "yes",
    }
    summary = succeed(api, run["dag_run_id"])
    assert summary["snapshot"] == "first"
    assert summary["epochs"] == 1
    assert summary["entities"]["total"] == 100
    assert summary["release"]["release"] == 1
    assert summary["release"]["published"]
    assert set(states(api, run["dag_run_id"]).values()) == {"success"}
    page.get_by_text("Success").first.wait_for()
    (run,) = api.runs(DAG)
    assert run["partition_key"] == "first"  # as that of a run that an event or the API began


def have_first_night(api):
    """Begin the first night where no browser filled in the form."""
    if not api.runs(DAG):
        succeed(api, api.trigger(DAG, partition_key="first", conf={"epochs": 1, "dimension": 8, "publish": "yes"}))


def test_summary_shows_its_table_in_its_log(api):
    have_first_night(api)
    run_id = next(run["dag_run_id"] for run in api.runs(DAG) if run["state"] == "success")
    (task,) = (each for each in api.tasks(DAG, run_id) if each.task == "summary")
    log = "\n".join(api.log(DAG, run_id, task))
    assert "verdict                           release 1 of production" in log
    assert re.search(r"  MRR filtered +0\.\d{4}\n", log)


def test_second_night_begins_by_event_of_edges(api):
    have_first_night(api)
    (edges,) = [asset for asset in api.get("assets")["assets"] if asset["name"] == f"{GRAPH}_edges"]
    api.post("assets/events", {"asset_id": edges["id"], "partition_key": "second"})
    deadline = time.monotonic() + 60
    while not (found := [run for run in api.runs(DAG) if run["partition_key"] == "second"]):
        assert time.monotonic() < deadline
        time.sleep(0.5)
    summary = succeed(api, found[0]["dag_run_id"])
    assert summary["release"]["release"] == 2
    assert summary["entities"]["gone"] == 4


def test_missing_snapshot_fails_at_once_with_its_sentence(api):
    dag = f"reembed_{CLUSTERED}"
    run_id = api.trigger(dag, partition_key="third")
    watch = Watch(api, dag, run_id, label=run_id, report=print)
    assert watch.until_finished(RUN_SECONDS) == "failed"
    (plan,) = [task for task in api.tasks(dag, run_id) if task.task == "prepare.plan"]
    assert (plan.state, plan.tries) == ("failed", 1)
    said = "\n".join(watch.errors())
    assert "error: input: " in said
    assert f"s3://{BUCKET}/{CLUSTERED}/third/*.parquet: no snapshot there" in said


@pytest.mark.browser
def test_list_of_runs_shows_snapshot_of_each(page, api, stack):
    """The listener gives the form's run its key."""
    page.goto(f"{stack.login()['url']}/dags/{DAG}/runs")
    page.get_by_role("button", name="Filter table columns").click()
    page.get_by_role("menuitem").filter(has_text="Partition Key").click()
    page.keyboard.press("Escape")
    for run in api.runs(DAG):
        row = page.get_by_role("row").filter(has_text=run["dag_run_id"])
        row.get_by_role("cell", name=run["partition_key"], exact=True).wait_for()
        assert run["note"] == f"Snapshot {run['partition_key']}"


@pytest.mark.browser
def test_pages_of_one_and_all_nights_are_shown(page, api, stack):
    run_id = api.runs(DAG)[0]["dag_run_id"]
    page.goto(f"{stack.login()['url']}/dags/{DAG}/runs/{quote(run_id)}")
    page.get_by_role("link", name="Embedding", exact=True).click()
    night = page.frame_locator("iframe")
    night.get_by_role("status").get_by_text("released", exact=True).wait_for()
    night.locator("#metrics .main-svg").first.wait_for()
    assert night.locator("td.done").count() == 4
    (frame,) = (each for each in page.frames if "/pbg/" in each.url)
    assert frame.evaluate(CONTRAST) == []

    page.goto(f"{stack.login()['url']}/dags/{DAG}")
    page.get_by_role("link", name="Nights", exact=True).click()
    nights = page.frame_locator("iframe")
    nights.get_by_role("button", name="Side by side").click()
    nights.get_by_role("heading", name="Side by side").wait_for()
    nights.get_by_role("link", name="Neighbours").click()
    nights.get_by_label("Entity").fill("node7")
    nights.get_by_role("button", name="Look up").press("Enter")
    nights.get_by_text("Nearest to node7").wait_for()
    assert nights.locator("tbody tr").count() == 10


@pytest.mark.browser
def test_pages_keep_theme_width_and_first_paint(page, api, stack, tmp_path):
    """Pictures go to the folder that ``PBG_PICTURES`` names."""
    out, (listed, begun) = Path(os.environ.get("PBG_PICTURES", tmp_path)), IN_AIRFLOW
    page.set_viewport_size({"width": 1400, "height": 560})
    painted = []
    with no_problems(page):
        for mode, suffix in (("Light", ""), ("Dark", "-dark")):
            page.goto(f"{stack.login()['url']}/")
            page.get_by_role("button", name="Browse").click()
            page.get_by_role("menuitem", name="Embeddings").click()
            shown = page.frame_locator("iframe")
            choose_theme(page, mode)
            shown.get_by_role("link", name=GRAPH, exact=True).wait_for()
            shown.locator("td.wait").first.wait_for(state="detached")
            first = shown.locator("tbody tr").first  # the graph that needs a person
            assert re.match(rf"{CLUSTERED}\s.*third failed: .*no snapshot there", first.inner_text(), re.DOTALL)
            check_page(page, mode, picture=out / f"{listed}{suffix}.png")
            shown.get_by_role("link", name=GRAPH, exact=True).click()
            shown.locator("table.sortable").first.wait_for()
            check_page(page, mode)
            shown.get_by_role("link", name="Begin a night").click()
            shown.get_by_role("heading", name="What will happen").wait_for()
            painted.append(check_page(page, mode, picture=out / f"{begun}{suffix}.png"))
        night = next(run for run in api.runs(DAG) if run["state"] == "success")["dag_run_id"]
        page.goto(f"{stack.login()['url']}/dags/{DAG}/runs/{quote(night)}/plugin/pbg-run")
        shown.locator("#metrics .main-svg").first.wait_for()
        check_page(page, "Dark")
    assert min(painted) < 1000  # of milliseconds, the other load of this machine included


@pytest.mark.browser
@pytest.mark.rotated(3)
def test_night_begun_from_its_page_is_followed(page, api, stack):
    before = {run["dag_run_id"] for run in api.runs(DAG)}
    with no_problems(page):
        page.goto(f"{stack.login()['url']}/dags/{DAG}")
        page.get_by_role("link", name="Nights", exact=True).click()
        shown = page.frame_locator("iframe")
        shown.get_by_role("link", name="Begin a night").click()
        shown.get_by_role("button", name="Begin first", exact=True).click()
        shown.get_by_role("button", name="Really begin first?").click()
        shown.get_by_role("link", name="begun").click()
        page.wait_for_url(f"**/dags/{DAG}/runs/*")
        (run,) = (each for each in api.runs(DAG) if each["dag_run_id"] not in before)
        assert run["dag_run_id"] in page.evaluate("decodeURIComponent(location.pathname)")
        assert run["partition_key"] == "first"
        assert run["dag_run_id"].endswith("__first")  # as the list of runs shows it
        page.get_by_role("link", name="Embedding", exact=True).click()
        shown.locator("td.done").first.wait_for(timeout=RUN_SECONDS * 1000)
        shown.get_by_role("status").get_by_text("released", exact=True).wait_for(timeout=RUN_SECONDS * 1000)
    assert succeed(api, run["dag_run_id"])["snapshot"] == "first"


def test_pages_are_for_readers_of_the_dag_only(api, stack):
    address = f"{stack.login()['url']}/pbg/dags/{DAG}"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for path in ("", "/runs/x", "/neighbours", "/nights/second-0123456789ab/live"):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            opener.open(f"{address}{path}")
        headers = {"Authorization": "Bearer forged"}
        forged = urllib.request.Request(f"{address}{path}", headers=headers)  # noqa: S310 - our own server's URL
        with pytest.raises(urllib.error.HTTPError, match="403"):
            opener.open(forged)


def test_pages_show_no_run_of_another_store(api, stack):
    """A forged XCom opens nothing outside of the graph's store.

    Users can write into the XCom of the task.
    """
    run_id = next(run["dag_run_id"] for run in api.runs(DAG) if run["state"] == "success")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    address = f"{stack.login()['url']}/pbg/dags/{DAG}/runs/{quote(run_id)}"
    page = urllib.request.Request(address, headers={"Authorization": f"Bearer {api._token}"})  # noqa: S310 - as above
    planned = api.result(DAG, run_id, "prepare.plan")
    with opener.open(page) as answer:
        assert planned["run"] in answer.read().decode()
    key = f"dags/{DAG}/dagRuns/{quote(run_id)}/taskInstances/prepare.plan/xcomEntries/return_value"
    try:
        for url in (planned["run"].replace(f"/{GRAPH}/", f"/{GRAPH}2/"), str(stack.directory), f"{planned['run']}/.."):
            api.patch(key, {"value": planned | {"run": url}})
            with pytest.raises(urllib.error.HTTPError, match="404"):
                opener.open(page)
    finally:
        api.patch(key, {"value": planned})


def test_pages_in_bucket_have_content_type_of_pages(api, stack):
    with closing(stack.store.client()) as client:
        listed = client.list_objects_v2(Bucket=BUCKET, Prefix=f"store/{GRAPH}/")["Contents"]
        pages = [entry["Key"] for entry in listed if entry["Key"].endswith("/index.html")]
        kinds = {client.head_object(Bucket=BUCKET, Key=key)["ContentType"] for key in pages}
    assert len(pages) == 1 + len([run for run in api.runs(DAG) if run["state"] == "success"])
    assert kinds == {"text/html; charset=utf-8"}


def test_consumers_get_one_event_for_each_release(api):
    (channel,) = [asset for asset in api.get("assets")["assets"] if asset["name"] == f"{GRAPH}_production"]
    events = api.get(f"assets/events?asset_id={channel['id']}")["asset_events"]
    releases = [event["extra"]["release"] for event in events]
    assert len(releases) == len(set(releases)) > 0
    assert {event["partition_key"] for event in events} <= {"first", "second"}
    assert all(0 < event["extra"]["mrr"] <= 1 and event["extra"]["edges"] > 0 for event in events)


@pytest.mark.rotated(3)
def test_unpublished_night_by_partition_key_sends_no_event(api):
    events_before = api.get("assets/events")["total_entries"]
    run_id = api.trigger(DAG, partition_key="second", conf={"epochs": 2, "publish": "no"})
    summary = succeed(api, run_id)
    assert (summary["snapshot"], summary["epochs"]) == ("second", 2)
    assert not (summary["release"] or {}).get("published")
    assert states(api, run_id)["release.publish"] == "skipped"
    assert api.get("assets/events")["total_entries"] == events_before


@pytest.fixture(scope="module")
def training(api, stack):
    """Run id and command of a night that trains for hours."""
    run_id = api.trigger(DAG, partition_key="second", conf={"epochs": 1000, "dimension": 512, "publish": "no"})
    deadline = time.monotonic() + RUN_SECONDS
    while not (found := commands(stack, "train")):
        assert time.monotonic() < deadline, states(api, run_id)
        time.sleep(0.2)
    return run_id, found


@pytest.mark.browser
@pytest.mark.rotated(3, group="stopped training")
def test_page_is_updated_while_its_night_trains(page, training, stack):
    run_id, _ = training
    deadline = time.monotonic() + RUN_SECONDS
    page.goto(f"{stack.login()['url']}/dags/{DAG}/runs/{quote(run_id)}/plugin/pbg-run")
    status = page.frame_locator("iframe").get_by_role("status")
    status.get_by_text("training, epoch").wait_for()
    before = status.inner_text()
    while status.inner_text() == before:
        assert time.monotonic() < deadline, before
        page.wait_for_timeout(200)
    page.frame_locator("iframe").locator("td.done").first.wait_for()  # there is none while an epoch begins


@pytest.mark.rotated(3, group="stopped training")
def test_stopped_task_leaves_no_process(api, stack, training):
    run_id, found = training
    assert any(process.alive for process in found)
    deadline = time.monotonic() + RUN_SECONDS
    path = f"dags/{DAG}/dagRuns/{run_id}/taskInstances/train.train"
    api.patch(path, {"new_state": "failed"})
    while any(process.alive for process in found):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert Watch(api, DAG, run_id, label=run_id, report=print).until_finished(RUN_SECONDS) == "failed"
    assert not commands(stack, "train")


@pytest.mark.rotated(3)
def test_night_on_cluster_of_four_ranks_succeeds(api, stack, cluster):
    dag = f"reembed_{CLUSTERED}"
    run_id = api.trigger(dag, partition_key="first")
    summary = succeed(api, run_id, dag, seconds=2 * RUN_SECONDS)
    assert summary["release"]["published"]
    trained = api.result(dag, run_id, "train.train")
    assert trained["ranks"] == 4
    assert trained["edges_trained"] == summary["edges"]["train"]
    jobs = {job["metadata"]["labels"]["app.kubernetes.io/component"]: job for job in cluster.jobs()}
    assert {name: job["status"]["succeeded"] for name, job in jobs.items()} == {"partition": 1, "train": 4, "eval": 1}
    job = jobs["train"]
    assert job["metadata"]["annotations"]["pbg-tasks/owner"] == f"{dag}/{run_id}/train.train/-1"
    (train,) = [task for task in api.tasks(dag, run_id) if task.task == "train.train"]
    assert train.tries == 1
    log = "\n".join(api.log(dag, run_id, train))
    assert all(f"[rank {rank}]" in log for rank in range(4))
    secrets = [secret["data"] for secret in cluster.objects.everything("secrets")]
    (token,) = [b64decode(data["PBG_RUN_TOKEN"]).decode() for data in secrets if "PBG_RUN_TOKEN" in data]
    assert token not in log
    for command, group in (("partition", "prepare"), ("eval", "release")):  # pods beside the training
        (task,) = [task for task in api.tasks(dag, run_id) if task.task == f"{group}.{command}"]
        assert task.tries == 1
        assert f"[{command}] " in "\n".join(api.log(dag, run_id, task))
        assert api.result(dag, run_id, task.task)["task"] == command


def test_figures_of_nights_are_metrics(statsd, cluster):
    """Check nights here, and one trained in a Job in its turn."""
    sent = {line.partition(":")[0] for line in statsd.waiting()}
    assert {f"airflow.pbg.small.{name}" for name in ("eval.mrr", "publish.release", "drift.node.overlap")} <= sent
    graphs = {GRAPH, *([CLUSTERED] if cluster.jobs() else [])}
    assert {f"airflow.pbg.{graph}.train.edges_per_second" for graph in graphs} <= sent


def test_runs_of_own_dag_name_their_snapshots(api, stack):
    """A snapshot that the clock names may still come."""
    (stack.directory / "dags" / "own.py").write_text(OWN)
    until("the DAG is read", lambda: "own" in api.dag_ids(), api.import_errors)
    api.unpause("own")
    api.trigger("own", conf={"snapshot": "never"})
    expected = {("scheduled", "2026-11-19", "up_for_reschedule"), ("manual", "never", "failed")}
    until("the runs end or wait", lambda: {(*each[:2], each[3]) for each in begun(api, "own")} == expected)
    assert {note for _, key, note, _ in begun(api, "own") if note != f"Snapshot {key}"} == set()


def begun(api, dag):
    """Return type, key, note and state of plan of each run."""
    found = []
    for run in api.runs(dag):
        plan = [task.state for task in api.tasks(dag, run["dag_run_id"]) if task.task == "prepare.plan"]
        found.append((run["run_type"], run["partition_key"], run["note"], *plan))
    return found


def test_scratch_is_empty_in_the_end(stack):
    """The API server, which runs on, keeps copies for look-ups."""
    scratch = stack.directory / "scratch"
    assert sweep(scratch) == []
    assert [path for path in scratch.iterdir() if not (path / "config.json").exists()] == []


def test_keys_are_in_nothing_written_by_nights(stack, api, cluster):
    """Search everything for the keys.

    Logs, Airflow's database with XComs and rendered templates, all objects of the store, Jobs, and pages.
    """
    settings, environment = stack.airflow().settings, stack.store.environment()
    keys = [environment["AWS_SECRET_ACCESS_KEY"], settings.password, settings.fernet_key, settings.jwt_secret]
    tokens = [secret["data"].get("PBG_RUN_TOKEN", "") for secret in cluster.objects.everything("secrets")]
    keys += [b64decode(token).decode() for token in tokens if token]
    written = writings_of(stack, api, cluster)
    if not cluster.jobs():  # the night on the cluster has its turn on another day
        assert written.pop("jobs") == {}
    for kind, places in written.items():
        names = (GRAPH.encode(), CLUSTERED.encode())
        assert any(name in data for data in places.values() for name in names), f"{kind}: nothing of the nights"
        for place, data in places.items():
            assert not [key for key in keys if any(form in data for form in forms_of(key))], (kind, place)


def test_down_leaves_no_process(stack, api):
    assert len(writers_below(stack.directory)) >= 4
    stack.stop()
    assert not writers_below(stack.directory)
    assert not list(processes.members(stack.directory))
    assert api.health() == {}
