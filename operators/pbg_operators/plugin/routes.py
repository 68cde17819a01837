"""Routes of the pages, for reading only.

Only users that Airflow lets read the DAG have access. Airflow's own dependencies decide that, by the token of the
request or the cookie of its UI.
"""

from __future__ import annotations

import time
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import anyio
from fastapi import APIRouter, Depends, HTTPException, Path, Query, Request, Response
from fastapi.responses import FileResponse, JSONResponse

from pbg_operators.internals import (
    DagAccessEntity,
    DagDetails,
    DagModel,
    GetUserDep,
    get_auth_manager,
    requires_access_dag,
    requires_authenticated,
)
from pbg_operators.link import PREFIX
from pbg_operators.plugin import attempts, database
from pbg_operators.plugin.answers import ReaderDep, base_of, links_of, page, shown
from pbg_operators.plugin.begin import begin_document, source_of
from pbg_operators.plugin.pages import ABSENT
from pbg_tasks.config.run import RUN_ID
from pbg_tasks.report.facts import GraphFacts
from pbg_tasks.report.history import history_document
from pbg_tasks.report.pages import Links, assets, live_sections, render_block
from pbg_tasks.report.standing import last_night, standing_document, with_failure, with_failures

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pbg_operators.plugin.answers import Reader
    from pbg_operators.plugin.attempts import Attempt
    from pbg_operators.plugin.pages import Pages, VersionedRun
    from pbg_tasks.report.documents import AttemptRow, HistoryDocument

DagId = Annotated[str, Path(max_length=250, pattern=r"^[\w.\-]+$")]
DagRunId = Annotated[str, Path(max_length=250, pattern=r"^[\w.~:+\-]+$")]
RunId = Annotated[str, Path(pattern=RUN_ID)]
SearchId = Annotated[str, Path(pattern=r"^[0-9a-f]{12}$")]
OtherRunId = Annotated[str, Query(pattern=RUN_ID)]


router = APIRouter()
NAMED = "The DAG itself names the snapshot of each run, so none is chosen here: trigger the DAG."
PAUSED = "The DAG is paused, so its runs wait until it is unpaused."
NO_NIGHT = "This DAG makes no nights. A search of hyper-parameters is on the page of the nights of its graph."
_UNDER_WAY = ("queued", "running")
SIBLINGS_KEPT = 60.0
"""Number of seconds for which the DAGs of a graph are known."""
ENTITIES = (None, DagAccessEntity.RUN, DagAccessEntity.XCOM)
"""Parts of a DAG that a page shows: the DAG, its runs, and the results of their tasks."""


def dag_router() -> APIRouter:
    """Return a router of pages below a DAG, for its readers."""
    asked = [Depends(requires_access_dag("GET", entity)) for entity in ENTITIES]
    return APIRouter(prefix="/dags/{dag_id}", dependencies=asked)


of_dag = dag_router()


@router.get("/assets/{name}", dependencies=[Depends(requires_authenticated())])
async def asset(name: str) -> Response:
    """Serve a style sheet or script.

    It takes none of the reader's threads: an outline is painted while all of them wait for stores.
    """
    path = (await anyio.to_thread.run_sync(assets)).get(name)
    if path is None:
        raise HTTPException(HTTPStatus.NOT_FOUND, "no such file")
    return FileResponse(path, headers={"Cache-Control": "private, max-age=3600"})


@router.get("/")
async def graphs(request: Request, user: GetUserDep) -> Response:
    """List the graphs that the user may read.

    Each row is filled in by a request of its own; the list waits for no store.
    """
    allowed = partial(get_auth_manager().get_authorized_dag_ids, user=user, method="GET")
    tags = await anyio.to_thread.run_sync(lambda: database.graph_dags(allowed()))
    base = base_of(request)
    shown = [dag for dag, tag in tags.items() if dag != f"nightly_{tag}" or f"reembed_{tag}" not in tags]
    listed = [
        {
            "name": _shown_name(dag, tags[dag]),
            "dag": dag,
            "href": f"{base}/dags/{quote(dag)}",
            "broken": tags[dag] == database.BROKEN,
            "airflow": f"{_airflow(base)}/dags/{quote(dag)}",
        }
        for dag in shown
    ]
    return page({"kind": "graphs", "graph": "", "dags": listed}, Links(assets=f"{base}/assets"))


@of_dag.get("/standing")
async def standing(request: Request, dag_id: DagId, user: GetUserDep, reader: ReaderDep) -> Response:
    """Return the row of a DAG's graph in the list of all."""
    dag = f"{base_of(request)}/dags/{quote(dag_id)}"

    def read() -> Response:
        dags, found = _known(request, user, reader, dag_id)
        schedules = attempts.schedules(dags)
        try:
            pages, url = last(reader, dag_id)
            document = with_failures(pages.history(url), found, time.time())
            night = last_night(document)
            run = pages.another_run(url, night["run"]) if night is not None and night["run"] else None
        except ABSENT:
            document, run = with_failures(_empty(dag_id), found), None
        row = standing_document(
            document,
            found,
            [{"paused": each.paused, "at": each.at} for each in schedules],
            page=dag,
            run=with_failure(run, found, time.time()) if run is not None else None,
            now=time.time(),
        )
        html = render_block({**row}, links_of(request, dag_id), "row")
        return JSONResponse({"rank": row["rank"], "tone": row["tone"], "html": html})

    return await reader.read(read)


@of_dag.get("")
async def history(request: Request, dag_id: DagId, user: GetUserDep, reader: ReaderDep) -> Response:
    """Show the nights of a DAG's graph."""

    def read() -> Mapping[str, object]:
        found = _known(request, user, reader, dag_id)[1]
        try:
            pages, url = last(reader, dag_id)
            return {**with_failures(pages.history(url), found, time.time())}
        except ABSENT:
            document = with_failures(_empty(dag_id), found)
            if not document["store"]:  # any DAG has this tab, and may have failed
                raise
            text = "The graph has no night yet. Begin one, or trigger its DAG."
            return {**document} if document["nights"] else {**_message("No night yet", text)}

    return await shown(reader, request, dag_id, "nights", read)


@of_dag.get("/begin")
async def begin(request: Request, dag_id: DagId, user: GetUserDep, reader: ReaderDep) -> Response:
    """Show the snapshots that are there, from which a night is begun."""
    airflow = _airflow(base_of(request))

    def read() -> Mapping[str, object]:
        found, url = _known(request, user, reader, dag_id)[1], None
        asked = database.snapshots_of(dag_id)
        pages = reader.pages.by(asked.connection)
        try:
            pages, url = last(reader, dag_id)
            document = with_failures(pages.history(url), found, time.time())
        except ABSENT:
            document = with_failures(_empty(dag_id), found)
        released = next(
            (each for each in reversed(document["nights"]) if each["state"] == "released" and each["reported"]), None
        )
        source = source_of(asked.source)
        return {
            **begin_document(
                document,
                pages.another_run(url, released["run"]) if url is not None and released is not None else None,
                source,
                ([], NAMED) if asked.named else pages.snapshots(source),
                api=f"{airflow}/api/v2/dags/{quote(dag_id)}/dagRuns",
                runs=f"{airflow}/dags/{quote(dag_id)}/runs",
                warning=PAUSED if _is_paused(dag_id) else None,
            )
        }

    return await shown(reader, request, dag_id, "list", read)


@of_dag.get("/runs/{run_id}")
async def dag_run(request: Request, dag_id: DagId, run_id: DagRunId, user: GetUserDep, reader: ReaderDep) -> Response:
    """Show the run of a DAG run, or why it has none."""

    def read() -> Mapping[str, object]:
        found = [_row(request, each) for each in attempts.attempts([dag_id], run_id)]
        try:
            pages, url = reader.pages.own(database.planned(dag_id, run_id))
            others = _known(request, user, reader, dag_id)[1]  # one of them may be at the same run
            return {**with_failure(pages.run(url), [*found, *others], time.time())}
        except ABSENT:
            graph, store = database.latest_place(dag_id)
            if found and found[0]["run"] is not None:
                raise
            if not store:  # any DAG has this tab
                return _message("No night", NO_NIGHT)
            if found and found[0]["state"] in _UNDER_WAY:
                text = "Its page appears once its plan is stored; this one looks for it every few seconds."
                text += f" {PAUSED}" if _is_paused(dag_id) else ""
                return {**_message("Not planned yet", text), "again": 5}
            if not found or found[0]["state"] != "failed":
                raise
            return {"kind": "failed", "graph": graph, "dag_run": run_id, "attempt": found[0]}

    return await shown(reader, request, dag_id, "run", read)


@of_dag.get("/nights/{run}")
async def night(request: Request, dag_id: DagId, run: RunId, user: GetUserDep, reader: ReaderDep) -> Response:
    """Show any run of the graph."""
    return await shown(reader, request, dag_id, "run", partial(_night, request, user, reader, dag_id, run))


@of_dag.get("/nights/{run}/live")
async def live(
    request: Request,
    dag_id: DagId,
    run: RunId,
    user: GetUserDep,
    reader: ReaderDep,
    since: Annotated[str, Query(max_length=64)] = "",
) -> Response:
    """Return the changes of a run's page since a version.

    There are none where the page still has version ``since``.
    """
    document = await reader.read(partial(_night, request, user, reader, dag_id, run))
    version, links = f"{document['version']}{document['state']}", links_of(request, dag_id, document)
    sections = {} if since == version else await reader.read(lambda: live_sections(document, links))
    return JSONResponse({"version": version, "finished": document["state"] != "running", "sections": sections})


@of_dag.get("/nights/{run}/searches/{search}")
async def search(request: Request, dag_id: DagId, run: RunId, search: SearchId, reader: ReaderDep) -> Response:
    """Show a search of hyper-parameters on a run of the graph."""

    def read() -> Mapping[str, object]:
        pages, url = last(reader, dag_id)
        return {**pages.search(url, run, search)}

    return await shown(reader, request, dag_id, "list", read)


@of_dag.get("/compare")
async def compare(request: Request, dag_id: DagId, left: OtherRunId, right: OtherRunId, reader: ReaderDep) -> Response:
    """Show two runs side by side."""

    def read() -> Mapping[str, object]:
        pages, url = last(reader, dag_id)
        return {**pages.comparison(url, left, right)}

    return await shown(reader, request, dag_id, "nights", read)


router.include_router(of_dag)


def last(reader: Reader, dag_id: str) -> tuple[Pages, str]:
    """Return pages and URL of a DAG's last planned run."""
    return reader.pages.own(database.last_planned(dag_id))


def _night(request: Request, user: GetUserDep, reader: Reader, dag_id: str, run: str) -> VersionedRun:
    pages, url = last(reader, dag_id)
    document = pages.another_run(url, run)
    found = with_failure(document, _known(request, user, reader, dag_id)[1], time.time())
    return {**found, "version": document["version"]}


def _known(request: Request, user: GetUserDep, reader: Reader, dag_id: str) -> tuple[list[str], list[AttemptRow]]:
    """Return readable DAGs of a DAG's graph, and their last runs.

    The graph of each DAG is kept for a minute, as it takes the stored form of all; rights are asked anew.
    """
    found = attempts.siblings(dag_id, reader.places.get("all", attempts.places, lambda _: SIBLINGS_KEPT))
    dags = [dag_id, *(each for each in found[1:] if _may_read(user, each))]
    return dags, [_row(request, each) for each in attempts.attempts(dags)]


def _may_read(user: GetUserDep, dag_id: str) -> bool:
    """Return whether a user may open the pages of a DAG."""
    details = DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id))
    allowed = get_auth_manager().is_authorized_dag
    return all(allowed(method="GET", access_entity=entity, details=details, user=user) for entity in ENTITIES)


def _row(request: Request, attempt: Attempt) -> AttemptRow:
    """Return a run of Airflow as the pages show it."""
    base, run = base_of(request), f"/dags/{quote(attempt.dag_id)}/runs/{quote(attempt.run_id, safe='')}"
    return {
        "page": f"{base}{run}",
        "answers": f"{_airflow(base)}{run}/required_actions",
        "log": f"{_airflow(base)}{run}/tasks/{quote(attempt.task)}" if attempt.task else None,
        "state": attempt.state,
        "began": attempt.began,
        "ended": attempt.ended,
        "snapshot": attempt.snapshot,
        "run": attempt.run,
        "task": attempt.task,
        "reason": attempt.reason,
        "awaiting": [*attempt.awaiting],
    }


def _is_paused(dag_id: str) -> bool:
    return any(each.paused for each in attempts.schedules([dag_id]))


def _empty(dag_id: str) -> HistoryDocument:
    """Return the document of a graph without any run."""
    graph, store = database.latest_place(dag_id)
    return history_document(GraphFacts(graph or dag_id, "", store, [], [], {}, None, {}))


def _message(title: str, text: str) -> dict[str, object]:
    """Return the document of a page with nothing but a sentence."""
    return {"kind": "message", "graph": "", "title": title, "text": text}


def _shown_name(dag: str, graph: str) -> str:
    """Return the name of a DAG's row.

    A DAG that others wrote is shown with its own id, too.
    """
    if graph == database.BROKEN:
        return dag
    return graph if dag in {f"reembed_{graph}", f"nightly_{graph}"} else f"{graph} ({dag})"


def _airflow(base: str) -> str:
    """Return the path of Airflow's own pages."""
    return base.removesuffix(PREFIX)
