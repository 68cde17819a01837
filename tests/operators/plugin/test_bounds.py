"""Runs shown by the pages in Airflow's real API server.

With its database; they are those of the DAG's own graph and store. The file is longer than others: all of it asks one
server, which takes seconds to start.
"""

from __future__ import annotations

import json
import re
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from urllib.parse import quote

import pytest
import yaml

from tests.airflow_home import use_private_airflow

use_private_airflow()

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity  # noqa: E402 - as below

from pbg_operators.internals import SerializedDagModel, create_session  # noqa: E402
from pbg_operators.plugin import attempts, database, suggestions  # noqa: E402
from pbg_operators.plugin.cache import Recent  # noqa: E402
from pbg_operators.plugin.pages import Pages  # noqa: E402
from pbg_tasks.errors import ConfigError, NotFoundError, StorageError  # noqa: E402
from pbg_tasks.storage import LocalStore  # noqa: E402
from pbg_tasks.tasks.nightly.plan import plan  # noqa: E402
from pbg_tasks.tasks.nightly.validate import validate  # noqa: E402
from pbg_tasks.tasks.tuning.steps import start  # noqa: E402
from tests.operators.plugin.site import DAG, serving  # noqa: E402
from tests.tasks.conftest import ring, workplace  # noqa: E402
from tests.waiting import wait_until  # noqa: E402

PLAN = database.PLAN
OUTSIDE = "This run is not one of the DAG&#39;s graph in the store of that graph, and no other run is shown here."


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Planned runs of several graphs and stores, by name."""
    with workplace(tmp_path_factory.mktemp("stores")) as place:
        place.snapshot("d1", ring(40))
        place.runs = {}
        for name, graph, store in (
            ("own", "toy", "g"),
            ("other graph", "other", "g"),
            ("other store", "toy", "g2"),
            ("store within", "toy", "g/inner"),
            ("moved", "toy", "moved"),
        ):
            place.write_spec(graph=graph, store=str(place.root / store), channel=graph)
            place.runs[name] = plan(place.spec, "d1")["run"]
        yield place


@pytest.fixture(scope="module")
def site(place, tmp_path_factory):
    with serving(tmp_path_factory.mktemp("graphs"), store=str(place.root / "g")) as site:
        yield site


def new_form(site):
    """Return what Airflow's form knows of snapshots, after it was forgotten."""
    site.details()  # the first request makes it
    layer = site.client.app.middleware_stack
    while not isinstance(layer, suggestions.SuggestSnapshots):
        layer = getattr(layer, "app", None) or layer._app
    until_listed(layer._known)
    layer._known.clear()
    suggestions._pages.cache_clear()
    return layer._known


def until_listed(known):
    """Wait until the snapshots that were asked for are listed."""
    wait_until(lambda: not any(each.listing for each in known.values()), seconds=60)


def stored(dags):
    """Store a file's DAGs as the DAG processor does."""
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db

    bag = DagBag(dags)
    assert bag.import_errors == {}
    sync_bag_to_db(bag, bundle_name="tests", bundle_version=None)


def each_part_closed(monkeypatch, dag):
    """Yield each part of a DAG while users may not read it."""
    from airflow.api_fastapi.app import get_auth_manager

    manager = get_auth_manager()
    allowed = manager.is_authorized_dag
    for closed in (None, DagAccessEntity.RUN, DagAccessEntity.XCOM):

        def is_authorized(*, access_entity=None, details=None, _closed=closed, **asked):
            hidden = details is not None and details.id == dag and access_entity == _closed
            return not hidden and allowed(access_entity=access_entity, details=details, **asked)

        monkeypatch.setattr(manager, "is_authorized_dag", is_authorized)
        yield closed


def test_graph_without_night_leads_to_its_first(site):
    answer = site.get("")  # no test before this one has begun any
    assert answer.status_code == 404
    assert "No night yet" in answer.text
    assert f'href="/pbg/dags/{DAG}/begin"' in answer.text


def test_own_run_is_shown(site, place):
    answer = site.get(f"/runs/{site.planned({'run': place.runs['own']})}")
    assert answer.status_code == 200, answer.text
    assert place.runs["own"].rpartition("/")[2] in answer.text


def fail(site, run_id, reason, **run):
    """Let the plan of a DAG run fail, with its reason."""
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance

    site.post(f"dags/{DAG}/dagRuns", {"dag_run_id": run_id, "logical_date": None, **run})
    path = f"dags/{DAG}/dagRuns/{run_id}/taskInstances/{PLAN}/xcomEntries"
    site.post(path, {"key": "error", "value": reason, "map_index": -1})
    with create_session() as session:
        session.query(DagRun).filter_by(dag_id=DAG, run_id=run_id).one()._state = "failed"
        session.query(TaskInstance).filter_by(dag_id=DAG, run_id=run_id, task_id=PLAN).update({"state": "failed"})


def test_run_without_plan_has_page_that_asks_again(site):
    site.post(f"dags/{DAG}/dagRuns", {"dag_run_id": "manual__begun", "logical_date": None, "partition_key": "d9"})
    answer = site.get("/runs/manual__begun")
    assert answer.status_code == 200
    assert "Not planned yet" in answer.text
    assert '<meta http-equiv="refresh" content="5">' in answer.text
    assert f'href="/pbg/dags/{DAG}/begin"' in answer.text
    assert "Not planned yet" not in site.get("/runs/manual__of_nobody").text


@pytest.mark.parametrize("state", ["queued", "failed"])
def test_run_of_other_dag_is_no_night(site, state):
    from airflow.models.dagrun import DagRun

    (site.folder / "tidy.py").write_text(OTHER)
    stored(site.folder / "tidy.py")
    site.post("dags/tidy/dagRuns", {"dag_run_id": state, "logical_date": None})
    with create_session(scoped=False) as session:
        session.query(DagRun).filter_by(dag_id="tidy", run_id=state).one()._state = state
    answer = site.client.get(f"/pbg/dags/tidy/runs/{state}", headers=site.headers["ADMIN"])
    assert answer.status_code == 404
    assert "This DAG makes no nights." in answer.text
    assert 'http-equiv="refresh"' not in answer.text
    assert "pbg skip" not in answer.text


OTHER = """
from airflow.sdk import DAG, task

with DAG("tidy", schedule=None):

    @task
    def tidy() -> None:
        pass

    tidy()
"""


def test_run_that_failed_early_has_page_and_row(site, place):
    site.planned({"run": place.runs["own"]})
    fail(site, "manual__failed", "d9: no snapshot there; keys there: <d1>", partition_key="d9")
    answer = site.get("/runs/manual__failed")
    assert answer.status_code == 200
    assert "d9: no snapshot there; keys there: &lt;d1&gt;" in answer.text
    assert f'href="/dags/{DAG}/runs/manual__failed/tasks/{PLAN}"' in answer.text
    nights = site.get("").text
    row = nights[nights.index("d9") - 200 : nights.index("d9") + 600]
    assert f'href="/pbg/dags/{DAG}/runs/manual__failed"' in row
    assert '<tr class="bad">' in row
    standing = site.get("/standing").json()
    assert (standing["tone"], standing["rank"]) == ("bad", 0)
    assert "d9 failed: d9: no snapshot there; keys there: &lt;d1&gt;" in standing["html"]
    site.planned({"run": place.runs["own"]})


def test_page_to_begin_lists_snapshots_that_are_there(site, place):
    """They are those at the location that the DAG names."""
    for key in ("d2", "d10", "d9"):
        folder = site.folder / "snapshots" / key
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "part.parquet").write_bytes(b"edges")
    site.planned({"run": place.runs["own"]})
    answer = site.get("/begin")
    assert answer.status_code == 200, answer.text
    assert re.findall('data-begin="([^"]*)"', answer.text) == ["d10", "d9", "d2"]
    assert f'data-api="/api/v2/dags/{DAG}/dagRuns"' in answer.text
    assert str(place.root / "snapshots") not in answer.text


def test_paused_dag_is_named_where_nights_begin(site):
    for paused in (True, False):
        site.patch(f"dags/{DAG}", {"is_paused": paused})
        run_id = f"manual__paused_{paused}"
        site.post(f"dags/{DAG}/dagRuns", {"dag_run_id": run_id, "logical_date": None, "partition_key": "d9"})
        pages = [site.get(path).text for path in ("/begin", f"/runs/{run_id}")]
        assert ["wait until it is unpaused" in page for page in pages] == [paused, paused]


def test_form_of_airflow_suggests_snapshots_newest_first(site, monkeypatch):
    """They are in no version of the DAG."""
    monkeypatch.setattr(suggestions, "PATIENCE", 60.0)
    new_form(site)
    for key in ("d2", "d10", "d9"):
        folder = site.folder / "snapshots" / key
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "part.parquet").write_bytes(b"edges")
    field = site.details()["params"]["snapshot"]
    assert field["schema"]["examples"] == ["d10", "d9", "d2"]
    assert field["value"] is None
    assert site.details("drill_toy")["params"] == {}
    with create_session() as session:
        stored = SerializedDagModel.latest_item_select_object(DAG)
        assert "examples" not in json.dumps(session.scalar(stored).data["dag"]["params"])


def test_form_with_slow_store_has_list_of_before(site, monkeypatch):
    """A store that hangs delays one answer, then none until it answers."""
    usual, asked, known, answers = site.details(), [], new_form(site), threading.Event()
    field = usual["params"]["snapshot"]["schema"]
    monkeypatch.setattr(suggestions, "PATIENCE", 0.2)
    monkeypatch.setattr(suggestions, "listed", lambda _: (asked.append(1), answers.wait(60), ["d11"])[2])
    field.pop("examples", None)
    assert [site.details(), site.details()] == [usual, usual]
    assert len(asked) == 1
    answers.set()
    until_listed(known)
    assert site.details()["params"]["snapshot"]["schema"] == field | {"examples": ["d11"]}
    assert len(asked) == 2


def test_form_waits_for_list_under_way(site, monkeypatch):
    """The UI asks for a DAG's page, and again for its form."""
    site.details()
    new_form(site)
    monkeypatch.setattr(suggestions, "PATIENCE", 60.0)
    monkeypatch.setattr(suggestions, "listed", lambda _: (time.sleep(1.0), ["d11"])[1])
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda _: site.details()["params"]["snapshot"]["schema"].get("examples"), range(2)))
    assert both == [["d11"], ["d11"]]


@pytest.mark.parametrize("error", [StorageError("down"), RuntimeError("a bug")])
def test_form_of_failing_store_asks_it_once(site, monkeypatch, caplog, error):
    new_form(site)
    asked = []
    monkeypatch.setattr(database, "snapshots_of", lambda _: (_ for _ in asked.append(1) or [1]).throw(error))
    assert "examples" not in site.details()["params"]["snapshot"]["schema"]
    site.details()
    assert len(asked) == 1
    assert f"the form of {DAG} lists no new snapshots: {error}" in caplog.text


@pytest.mark.parametrize(
    ("schema", "suggests"),
    [
        ({"type": ["null", "string"]}, True),
        ({"type": "string"}, True),
        ({"type": "integer"}, False),
        ({"type": "array"}, False),
        ({"type": "string", "enum": ["a"]}, False),
        ({"type": "string", "examples": ["a"]}, False),
        ({}, False),
    ],
)
def test_form_of_ones_own_keeps_its_field(schema, suggests):
    details = {"tags": [{"name": "reembed"}], "params": {"snapshot": {"value": None, "schema": schema}}}
    assert (suggestions.form_of(json.dumps(details).encode()) is not None) == suggests


def test_form_is_kept_from_users_without_access(site):
    answer = site.client.get(f"/api/v2/dags/{DAG}/details", headers=site.headers[None])
    assert answer.status_code == 403
    assert "d10" not in answer.text


def test_graph_without_run_has_row_that_explains(site, monkeypatch):
    monkeypatch.setattr(database, "last_planned", lambda _: (_ for _ in ()).throw(NotFoundError("none")))
    monkeypatch.setattr(attempts, "attempts", lambda _: [])
    standing = site.get("/standing").json()
    assert standing["tone"] == "idle"
    assert "no night yet" in standing["html"]


def test_sibling_that_user_may_not_read_adds_nothing(site, place, monkeypatch):
    """Each DAG of a page is shown to its own readers."""
    from pbg_operators.plugin.app import make_app

    site.deploy(nights={"calendar": {"cron": "0 2 * * *"}})
    sibling = "nightly_toy"
    assert attempts.siblings(DAG, attempts.places()) == [DAG, sibling]
    state, asked, places = make_app().state, [], attempts.places
    state.reader = replace(state.reader, places=Recent(1))
    monkeypatch.setattr(attempts, "places", lambda: asked.append(1) or places())
    site.planned({"run": place.runs["own"]})
    monkeypatch.setattr(attempts, "attempts", lambda dags: [failed for failed in FAILED if failed.dag_id in dags])
    assert "the calendar failed" in site.get("").text
    assert site.client.get(f"/pbg/dags/{sibling}/standing", headers=site.headers["ADMIN"]).status_code == 200
    for closed in each_part_closed(monkeypatch, sibling):
        for path in ("", "/standing"):
            answer = site.get(path)
            assert answer.status_code == 200
            assert "the calendar failed" not in answer.text, (closed, path)
    assert asked == [1]  # once for both DAGs; rights were asked at each request
    site.deploy(nights={})


def test_dag_that_is_gone_is_not_listed(site):
    from airflow.models.dag import DagModel

    site.deploy(nights={"calendar": {"cron": "0 2 * * *"}})
    dags = [DAG, "nightly_toy"]
    assert {each.dag_id for each in attempts.schedules(dags)} == {*dags}
    with create_session(scoped=False) as session:  # as the scheduler does, once no file makes the DAG
        session.query(DagModel).filter_by(dag_id="nightly_toy").update({"is_stale": True})
    assert database.graph_dags(dags) == {DAG: "toy"}
    assert [each.dag_id for each in attempts.schedules(dags)] == [DAG]
    site.deploy(nights={})


def test_dags_without_graph_are_no_siblings(site, monkeypatch):
    broken = [site.folder / "one.yaml", site.folder / "two.yaml"]
    for path in broken:
        path.write_text("graph: 1\n")
    site.deploy()
    assert attempts.siblings("broken_one", attempts.places()) == ["broken_one"]
    monkeypatch.setattr(attempts, "attempts", lambda dags: [attempts.Attempt(dags[0], "1", "failed", 4e9, "d8")])
    answer = site.client.get("/pbg/dags/broken_one", headers=site.headers["ADMIN"])
    assert (answer.status_code, "has not planned an embedding yet" in answer.text) == (404, True)
    for path in broken:
        path.unlink()


FAILED = [
    attempts.Attempt("nightly_toy", "scheduled__1", "failed", 4e9, "d8", task=PLAN, reason="the calendar failed"),
]


def id_of(url):
    return url.rpartition("/")[2]


def outside(place):
    """Return results, by name, that are no run of the graph's."""
    root, run, runs = place.root, id_of(place.runs["own"]), place.runs
    within = root / "g" / "runs" / "d9-0123456789ab"
    if not within.is_symlink():
        within.symlink_to(runs["other store"], target_is_directory=True)
        (root / "link").symlink_to(root / "g", target_is_directory=True)
    return {
        "other graph": runs["other graph"],
        "other store": runs["other store"],
        "store within": runs["store within"],
        "dots": f"{root}/g/../g2/runs/{id_of(runs['other store'])}",
        "dots that lead back": f"{root}/g2/../g/runs/{run}",
        "dots as id": f"{root}/g/runs/..",
        "link to the store": f"{root}/link/runs/{run}",
        "link within the store": str(within),
        "case": f"{root}/G/runs/{run}",
        "slash at the end": f"{runs['own']}/",
        "two slashes": f"{root}/g//runs/{run}",
        "another scheme": f"file://{runs['own']}",
        "encoded": f"file://{root}/%67/runs/{run}",
        "relative": f"g/runs/{run}",
        "directory": "/etc",
        "no run": f"{root}/g/runs/d1-0123456789ab/../{run}",
        "nothing": "",
        "bucket": f"s3://bucket/runs/{run}",
        "credentials": f"s3://key:CANARY@bucket/runs/{run}",
        "endpoint": f"http://169.254.169.254/runs/{run}",
    }


def test_run_outside_is_not_found_and_not_named(site, place):
    for name, url in outside(place).items():
        run_id = site.planned({"run": url})
        answer = site.get(f"/runs/{run_id}")
        assert answer.status_code == 404, (name, answer.text)
        assert answer.text.count(OUTSIDE) == 1 or name == "no run", (name, answer.text)
        assert "CANARY" not in answer.text
        for shown in ("other store", "store within", "other graph"):
            assert id_of(place.runs[shown]) not in answer.text, name
    for result in ({"run": 3}, {"run": None}, ["run"], "text"):  # none names a run
        assert "Not planned yet" in site.get(f"/runs/{site.planned(result)}").text


def test_pages_of_dag_follow_its_last_own_run(site, place):
    """A task that returned another run changes nothing.

    The pages show neither that run, nor do they hide the others.
    """
    run = id_of(place.runs["own"])
    site.planned({"run": place.runs["own"]})
    site.planned({"run": place.runs["other store"]})
    nights = site.get("")
    assert nights.status_code == 200, nights.text
    assert run in nights.text
    assert id_of(place.runs["other store"]) not in nights.text
    assert site.get(f"/nights/{run}").status_code == 200
    assert site.get(f"/compare?left={run}&right={run}").status_code == 200
    assert site.get("/neighbours").status_code == 200
    standing = site.get("/standing")
    assert standing.status_code == 200
    assert id_of(place.runs["other store"]) not in standing.text
    for other in ("other store", "store within", "other graph"):
        path = f"/nights/{quote(id_of(place.runs[other]))}"
        assert site.get(path).status_code == 404, other
        assert site.get(f"{path}/live").status_code == 404, other
    outside(place)
    assert OUTSIDE in site.get("/nights/d9-0123456789ab").text


def test_documents_of_own_run_are_served(site, place):
    site.planned({"run": place.runs["own"]})
    run = id_of(place.runs["own"])
    page = site.get(f"/nights/{run}").text
    for name in ("spec.json", "results/plan.json"):
        assert f'href="/pbg/dags/{DAG}/nights/{run}/files/{name}"' in page
        answer = site.get(f"/nights/{run}/files/{name}")
        assert answer.status_code == 200
        assert answer.content == (place.root / "g" / "runs" / run / name).read_bytes()
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["content-security-policy"].startswith("sandbox; default-src 'none'")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "location" not in answer.headers


def test_file_of_release_is_downloaded_never_shown(site, place):
    site.planned({"run": place.runs["own"]})
    run = id_of(place.runs["own"])
    release = place.root / "g" / "runs" / run / "release"
    release.mkdir(exist_ok=True)
    (release / "page.html").write_text("<script>alert(1)</script>")
    answer = site.get(f"/nights/{run}/files/release/page.html")
    assert (answer.status_code, answer.text) == (200, "<script>alert(1)</script>")
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == "attachment"


def test_files_outside_of_run_are_not_served(site, place, monkeypatch):
    site.planned({"run": place.runs["own"]})
    run, root = id_of(place.runs["own"]), place.root / "g" / "runs"
    (root / run / "held.json").write_text("{}")
    (root / run / "results" / "link.json").unlink(missing_ok=True)
    (root / run / "results" / "link.json").symlink_to("/etc/passwd")
    below = (
        "held.json",
        "checkpoint/HEAD.json",
        "results/none.json",
        "results/link.json",
        "results",
        "results/",
        "%2e%2e/spec.json",
        "results/%2e%2e/%2e%2e/spec.json",
        f"results/..%2f..%2f{id_of(place.runs['other graph'])}/spec.json",
        "results/%2fetc/passwd",
        "%2fetc%2fpasswd",
        "results\\..\\held.json",
        "results/plan.json%00",
        ".pbg/locks",
    )
    for key in below:
        answer = site.get(f"/nights/{run}/files/{key}")
        assert answer.status_code == 404, (key, answer.text)
        assert "root:" not in answer.text
    for other in ("other graph", "other store", "store within"):
        answer = site.get(f"/nights/{id_of(place.runs[other])}/files/spec.json")
        assert answer.status_code == 404, other
    outside(place)
    assert site.get("/nights/d9-0123456789ab/files/spec.json").status_code == 404
    monkeypatch.setenv("AIRFLOW__PBG__LOOKUP_BYTES", "10")
    large = site.get(f"/nights/{run}/files/spec.json")
    assert (large.status_code, "10B at most are served" in large.text) == (404, True)


def test_user_without_rights_is_refused(site, place):
    run_id, run = site.planned({"run": place.runs["own"]}), id_of(place.runs["own"])
    live = f"/nights/{run}/live"
    compared = f"/compare?left={run}&right={run}"
    more = (f"/nights/{run}/files/spec.json", "/names?prefix=e")
    for path in ("", "/standing", "/begin", f"/runs/{run_id}", f"/nights/{run}", live, compared, "/neighbours", *more):
        assert site.get(path).status_code == 200, path
        assert site.get(path, role=None).status_code == 403, path


def test_user_with_rights_on_other_dags_is_refused(site, place, monkeypatch):
    """Airflow is asked about DAG, runs and XComs, each time."""
    run_id, run = site.planned({"run": place.runs["own"]}), id_of(place.runs["own"])
    paths = ("", "/standing", "/begin", f"/runs/{run_id}", f"/nights/{run}", f"/nights/{run}/live")
    paths += (f"/compare?left={run}&right={run}", f"/nights/{run}/files/spec.json", "/names?prefix=e")
    for closed in each_part_closed(monkeypatch, DAG):
        for path in (*paths, "/neighbours?entity=e1"):
            answer = site.get(path)
            assert answer.status_code == 403, (closed, path)
            assert run not in answer.text
        listed = site.client.get("/pbg/", headers=site.headers["ADMIN"])
        assert listed.status_code == 200
        assert (DAG in listed.text) == (closed is not None)
    monkeypatch.undo()
    assert DAG in site.client.get("/pbg/", headers=site.headers["ADMIN"]).text


def test_old_runs_are_shown_from_their_store(site, place):
    """Earlier runs are shown from theirs; the spec names another."""
    before = site.planned({"run": place.runs["own"]})
    site.deploy(store=f"{place.root}/moved/")
    try:
        after = site.planned({"run": place.runs["moved"]})
        back = site.planned({"run": place.runs["own"]})
        assert site.get(f"/runs/{before}").status_code == 200
        assert site.get(f"/runs/{after}").status_code == 200
        assert site.get(f"/runs/{back}").status_code == 404
        nights = site.get("").text
        assert id_of(place.runs["moved"]) in nights
        assert id_of(place.runs["own"]) not in nights
    finally:
        site.deploy(store=str(place.root / "g"))


def test_version_without_store_uses_the_latest(site, place, monkeypatch):
    """Earlier versions stored DAGs without graph and store."""
    from pbg_operators.plan import PlanOperator

    site.deploy(gates={"max_mrr_drop": 0.5})
    with monkeypatch.context() as patch:
        patch.setattr(PlanOperator, "template_fields", ("arguments", "scratch"))
        site.deploy(gates={"max_mrr_drop": 0.6})
        own, other = (site.planned({"run": place.runs[name]}) for name in ("own", "other store"))
        assert "does not name the store" in site.get(f"/runs/{own}").text
    site.deploy(gates={"max_mrr_drop": 0.7})
    assert site.get(f"/runs/{own}").status_code == 200
    assert site.get(f"/runs/{other}").status_code == 404


GROUP = """
from airflow.sdk import DAG, Asset, PartitionedAssetTimetable
from pbg_operators import PbgTaskGroup

with DAG("shop", schedule=PartitionedAssetTimetable(assets=Asset("orders")), tags=["a team"]):
    PbgTaskGroup({spec!r}, group_id="night", snapshot="{{{{ ds }}}}")
"""


def test_run_of_group_is_found(site, place, monkeypatch):
    """Also by a connection and beside tags of the team's own."""
    spec, dags = site.folder / "toy.yaml", site.folder / "shop.py"
    dags.write_text(GROUP.format(spec=str(spec)))
    text = spec.read_text()
    spec.write_text(yaml.safe_dump(yaml.safe_load(text) | {"airflow": {"connection": "shop_store"}}))
    stored(dags)
    spec.write_text(text)
    site.post("dags/shop/dagRuns", {"dag_run_id": "r1", "logical_date": None, "partition_key": "d9"})
    path = "dags/shop/dagRuns/r1/taskInstances/night.prepare.plan/xcomEntries"
    result = {"run": place.runs["own"], "snapshot": "d1"}
    site.post(path, {"key": "return_value", "value": result, "map_index": -1})
    pages = [site.client.get(f"/pbg/dags/shop/{page}", headers=site.headers["ADMIN"]) for page in ("runs/r1", "begin")]
    assert [page.status_code for page in pages] == [502, 502]
    assert "connection &#39;shop_store&#39; does not exist" in pages[0].text
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_STORE", '{"conn_type": "pbg"}')
    pages = [site.client.get(f"/pbg/dags/shop/{page}", headers=site.headers["ADMIN"]) for page in ("runs/r1", "begin")]
    assert [page.status_code for page in pages] == [200, 200]
    assert place.runs["own"].rpartition("/")[2] in pages[0].text
    assert "The DAG itself names the snapshot of each run" in pages[1].text
    assert database.graph_dags(["shop", DAG]) == {"shop": "toy", DAG: "toy"}
    # By another connection, the same URL may be another store.
    assert attempts.siblings("shop", attempts.places()) == ["shop"]
    (attempt,) = attempts.attempts(["shop"])
    assert (attempt.run, attempt.snapshot) == (place.runs["own"], "d1")


PLAIN = """
from airflow.sdk import DAG
from pbg_operators.plan import PlanOperator

with DAG("plain", schedule=None):
    PlanOperator(task_id="prepare.plan", spec="/g.yaml", graph="toy", store="/g", store_conn_id=None)
"""


def test_pages_of_dag_without_connection_use_none(site):
    """They do not take ``pbg_s3``, as its tasks do not."""
    dags = site.folder / "plain.py"
    dags.write_text(PLAIN)
    stored(dags)
    with create_session() as session:
        assert database.place_of(session, "plain") == ("toy", "/g", None)
        assert database.place_of(session, DAG)[2] == "pbg_s3"
    assert database.snapshots_of("plain").connection is None


def test_store_that_is_a_link_is_shown(place):
    outside(place)
    run = id_of(place.runs["own"])
    planned = database.Planned(f"{place.root}/link/runs/{run}", "toy", f"{place.root}/link/")
    assert Pages().own([planned])[1] == planned.run


def test_one_url_by_two_connections_is_two_stores(tmp_path, monkeypatch):
    """Two servers stand for it, each in a directory of its own."""

    class Served(LocalStore):
        url = str(tmp_path / "store")

    with workplace(tmp_path) as place:
        place.snapshot("d1", ring(40))
        place.write_spec(tune={"space": {"model.lr": [0.1, 0.2]}})
        began = start(place.spec, "d1")
        run, search = began["run"], began["search"]
        shutil.copytree(place.store, tmp_path / "staging", ignore=shutil.ignore_patterns("tune"))
        validate(run)
    roots = {"http://127.0.0.1:1": place.store, "http://127.0.0.1:2": tmp_path / "staging"}
    monkeypatch.setattr(
        "pbg_operators.plugin.pages.open_store", lambda _, environment: Served(roots[environment["AWS_ENDPOINT_URL"]])
    )
    for name, endpoint in zip(("PRODUCTION", "STAGING"), roots, strict=True):
        said = {"conn_type": "pbg", "extra": {"endpoint_url": endpoint}}
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(said))
    production = Pages("production")
    staging = production.by("staging")
    assert (production.run(run)["data"] is None, staging.run(run)["data"] is None) == (False, True)
    assert [len(pages.history(run)["searches"]) for pages in (production, staging)] == [1, 0]
    assert production.search(run, id_of(run), search)["search"] == search
    with pytest.raises(ConfigError, match="has no search"):
        staging.search(run, id_of(run), search)


@pytest.mark.parametrize("store", ["s3://bucket/graphs/g", "s3://bucket/graphs/g/"])
def test_other_bucket_or_prefix_gets_no_request(monkeypatch, store):
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # no server listens there
    for name in ("AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "us-east-1")
    run = "d1-0123456789ab"
    for root in (
        "s3://bucket/graphs/g2",
        "s3://bucket/graphs/G",
        "s3://bucket/graphs",
        "s3://bucket/graphs/g/g",
        "s3://bucket/graphs/x/../g",
        "s3://bucket/graphs//g",
        "s3://bucket2/graphs/g",
        "s3://Bucket/graphs/g",
        "S3://bucket/graphs/g",
        "s3://bucket/graphs%2Fg",
        "/bucket/graphs/g",
        "bucket/graphs/g",
    ):
        with pytest.raises(NotFoundError, match="not one of the DAG's graph"):
            Pages().own([database.Planned(f"{root}/runs/{run}", "g", store)])
    with pytest.raises(StorageError, match=r"http://127\.0\.0\.1:9"):
        Pages().own([database.Planned(f"s3://bucket/graphs/g/runs/{run}", "g", store)])


def test_queued_runs_of_backfill_hide_no_failure(site, monkeypatch):
    monkeypatch.setattr(attempts, "LOOKED_AT", 2)
    fail(site, "manual__hidden", "d7: no snapshot there", partition_key="d7")
    for number in range(3):
        run = {"dag_run_id": f"manual__queued_{number}", "logical_date": None, "partition_key": f"d1{number}"}
        site.post(f"dags/{DAG}/dagRuns", run)
    found = [each.run_id for each in attempts.attempts([DAG])]
    assert found[:3] == ["manual__queued_2", "manual__queued_1", "manual__hidden"]
    monkeypatch.setattr(attempts, "LOOKED_AT", 40)
    found = [each.run_id for each in attempts.attempts([DAG])]
    assert found[:4] == ["manual__queued_2", "manual__queued_1", "manual__queued_0", "manual__hidden"]
