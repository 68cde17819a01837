"""The application without a server: refused users and unreachable runs."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from types import SimpleNamespace

import anyio
import pytest

from tests.airflow_home import use_private_airflow

use_private_airflow()

from pbg_operators.link import PREFIX  # noqa: E402 - Airflow's home is chosen first
from pbg_operators.plugin import PbgPlugin, answers  # noqa: E402
from pbg_operators.plugin.pages import Pages, beside  # noqa: E402
from pbg_tasks.errors import ConfigError, InputError  # noqa: E402
from pbg_tasks.publish import Channel  # noqa: E402
from pbg_tasks.storage import open_store  # noqa: E402
from pbg_tasks.tasks import failure  # noqa: E402
from pbg_tasks.tasks.nightly.plan import plan  # noqa: E402
from tests.operators.plugin.permitted import permitted_app  # noqa: E402
from tests.publish.runs import candidate, write_run  # noqa: E402
from tests.tasks.conftest import ring  # noqa: E402
from tests.waiting import wait_until  # noqa: E402

RUN = "2026-11-01-0123456789ab"
PATHS = (
    "/",
    "/assets/report.css",
    "/dags/reembed_x",
    "/dags/reembed_x/standing",
    "/dags/reembed_x/begin",
    "/dags/reembed_x/runs/manual__1",
    f"/dags/reembed_x/nights/{RUN}",
    f"/dags/reembed_x/nights/{RUN}/live",
    f"/dags/reembed_x/nights/{RUN}/files/spec.json",
    f"/dags/reembed_x/nights/{RUN}/searches/0123456789ab",
    f"/dags/reembed_x/compare?left={RUN}&right={RUN}",
    "/dags/reembed_x/neighbours?entity=a",
    "/dags/reembed_x/names?prefix=a",
)

PARTS = ("/standing", "/live", "/names", "/files/spec.json")
"""Ends of the addresses from which a page loads its content."""


@pytest.fixture(scope="module")
def client():
    from fastapi.testclient import TestClient

    from pbg_operators.plugin.app import make_app

    return TestClient(make_app())


@pytest.mark.parametrize("path", PATHS)
def test_unsigned_user_reads_nothing(client, path):
    from pbg_operators.plugin.app import HEADERS

    answer = client.get(path)
    assert (answer.status_code, answer.json()) == (401, {"detail": "Not authenticated"})
    assert {name: answer.headers[name] for name in HEADERS} == HEADERS


def test_every_address_is_tested(client):
    routes = {route.path for route in client.app.routes}
    shown = {path.partition("?")[0].replace(RUN, "{run}") for path in PATHS}
    shown = {path.replace("reembed_x", "{dag_id}").replace("manual__1", "{run_id}") for path in shown}
    shown = {path.replace("0123456789ab", "{search}") for path in shown}
    shown = {path.replace("files/spec.json", "files/{key:path}") for path in shown}
    assert routes == {path.replace("report.css", "{name}") for path in shown}
    assert {method for route in client.app.routes for method in route.methods} == {"GET"}


def test_outlines_wait_for_no_reader(monkeypatch):
    from fastapi.testclient import TestClient

    app = permitted_app()
    for state in ("reader", "copier"):
        monkeypatch.setattr(app.state, state, None)
    client, opened = TestClient(app), {"Sec-Fetch-Dest": "document"}
    assert client.get("/assets/report.css").status_code == 200
    pages = [path for path in PATHS if path.startswith("/dags/") and not path.partition("?")[0].endswith(PARTS)]
    assert len(pages) == 7
    assert {path: client.get(path, headers=opened).text.count("aria-busy") for path in pages} == dict.fromkeys(pages, 1)


@pytest.mark.parametrize(
    ("path", "answer"), [("names?prefix=a", '{"names":["True"]}'), (f"nights/{RUN}/files/log/0", "True")]
)
def test_pages_wait_for_no_copy(monkeypatch, path, answer):
    """Each pause in typing asks for names, which wait for a copy."""
    from fastapi.testclient import TestClient

    from pbg_operators.plugin import files, lookup, routes
    from pbg_operators.plugin.app import THREADS

    copied, pages = threading.Event(), SimpleNamespace(search=lambda *_: {"kind": "message", "graph": ""})
    pages.names = lambda *_, **__: {"names": [str(copied.wait(60))]}
    asked, read = [], answers.Reader.read
    monkeypatch.setattr(answers.Reader, "read", lambda *given: [asked.append(given), read(*given)][1])
    monkeypatch.setattr(files, "_open", lambda *_: files.Opened(BytesIO(str(copied.wait(60)).encode()), len("True")))
    for module in (lookup, routes):
        monkeypatch.setattr(module, "last", lambda *_: (pages, ""))
    monkeypatch.setattr(answers, "render", lambda *_: "page")
    with TestClient(permitted_app()) as client, ThreadPoolExecutor(THREADS + 1) as pool:
        copies = [pool.submit(client.get, f"/dags/reembed_x/{path}") for _ in range(THREADS)]
        wait_until(lambda: len(asked) == THREADS, seconds=60)  # else the page may overtake them
        page = pool.submit(client.get, f"/dags/reembed_x/nights/{RUN}/searches/0123456789ab")
        try:
            assert page.result(20).text == "page"
            assert not any(each.done() for each in copies)
        finally:
            copied.set()
        assert [each.result(60).text for each in copies] == [answer] * THREADS


def test_page_is_rendered_beside_the_event_loop(monkeypatch):
    seen = []
    monkeypatch.setattr(answers, "render", lambda *_: seen.append(threading.current_thread()) or "page")
    request, read = SimpleNamespace(scope={}, headers={}), lambda: {"kind": "history"}

    async def ask():
        return await answers.shown(answers.Reader(None, anyio.CapacityLimiter(1)), request, "reembed_x", "list", read)

    assert anyio.run(ask).body == b"page"
    assert threading.main_thread() not in seen


def test_other_run_is_of_the_same_store():
    assert beside(f"s3://b/store/runs/{RUN}", "d2-aaaaaaaaaaaa") == "s3://b/store/runs/d2-aaaaaaaaaaaa"
    for run in ("../x", "d2", f"{RUN}/..", "", f"{RUN}\n"):
        with pytest.raises(ConfigError, match="is not a run's id"):
            beside(f"s3://b/store/runs/{RUN}", run)


def test_tabs_lead_to_their_pages():
    views = {view["destination"]: view["href"] for view in PbgPlugin().external_views}
    assert views == {
        "nav": f"{PREFIX}/",
        "dag": f"{PREFIX}/dags/{{DAG_ID}}",
        "dag_run": f"{PREFIX}/dags/{{DAG_ID}}/runs/{{RUN_ID}}",
    }


def test_api_server_never_loads_torch():
    code = (
        "import json, sys, pbg_operators.plugin; "
        "early = 'fastapi.applications' in sys.modules and 'h5py' in sys.modules; "
        "import pbg_operators.plugin.app; "
        "print(json.dumps([early, 'torch' in sys.modules, 'duckdb' in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == [False, False, False]


def test_runs_of_other_graph_are_unreachable(place):
    urls = []
    place.snapshot("d1", ring(40))
    for graph in ("toy", "other"):
        place.write_spec(graph=graph)
        urls.append(plan(place.spec, "d1")["run"])
    own, other = urls
    pages = Pages()
    assert pages.another_run(own, own.rpartition("/")[2])["graph"] == "toy"
    with pytest.raises(ConfigError, match="is not a run of graph 'toy'"):
        pages.another_run(own, other.rpartition("/")[2])
    with pytest.raises(ConfigError, match="is not a run of graph 'toy'"):
        pages.comparison(own, own.rpartition("/")[2], other.rpartition("/")[2])
    for url, graph in ((own, "toy"), (other, "other")):  # although they share a channel
        history = pages.history(url)
        assert (history["graph"], [night["run"] for night in history["nights"]]) == (graph, [url.rpartition("/")[2]])


def test_failed_run_that_begins_again_is_read_anew(place, monkeypatch):
    monkeypatch.setattr("pbg_operators.plugin.pages.MOVING_SECONDS", 0.0)
    pages = Pages()
    place.snapshot("d1", ring(40))
    run = plan(place.spec, "d1")["run"]
    run_id = run.rpartition("/")[2]
    failure.store_failure(open_store(place.store), run_id, "validate", InputError("no column 'lhs'"))
    assert [pages.run(run)[key] for key in ("state", "reason")] == ["failed", "no column 'lhs'"]
    failure.begin_again(open_store(place.store), run_id, "validate")
    assert pages.run(run)["state"] == "running"


@pytest.mark.parametrize("release", [None, 1])
def test_releases_of_other_graph_are_unreachable(place, release):
    place.snapshot("d1", ring(40))
    run, store = plan(place.spec, "d1")["run"], open_store(place.store)
    write_run(store, "r1")
    Channel(store, "production").publish(candidate(store, "r1", "d0"), planned_on=None)
    found = Pages().neighbours(run, entity="e1", entity_type=None, release=release, count=3)
    assert (found["answers"], found["problem"]) == (
        [],
        "channel 'production' has no such release of graph 'toy' yet",
    )
