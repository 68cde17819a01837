"""Routes of the pages, for reading only.

Only users that Airflow lets read the DAG have access. Airflow's own dependencies decide that, by the token of the
request or the cookie of its UI.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, TypeVar
from urllib.parse import quote, urlencode

import anyio
from fastapi import APIRouter, Depends, HTTPException, Path, Query, Request, Response
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse

from pbg_operators.internals import (
    DagAccessEntity,
    GetUserDep,
    get_auth_manager,
    requires_access_dag,
    requires_authenticated,
)
from pbg_operators.plugin import database
from pbg_tasks.config.run import RUN_ID
from pbg_tasks.report import Links, live_sections, render
from pbg_tasks.report.pages import assets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pbg_operators.plugin.pages import Pages, VersionedRun

Answer = TypeVar("Answer")
DagId = Annotated[str, Path(max_length=250, pattern=r"^[\w.\-]+$")]
DagRunId = Annotated[str, Path(max_length=250, pattern=r"^[\w.~:+\-]+$")]
RunId = Annotated[str, Path(pattern=RUN_ID)]
SearchId = Annotated[str, Path(pattern=r"^[0-9a-f]{12}$")]
OtherRunId = Annotated[str, Query(pattern=RUN_ID)]


@dataclass(frozen=True, slots=True)
class Reader:
    """Reader of documents in a bounded number of threads."""

    pages: Pages
    threads: anyio.CapacityLimiter

    async def read(self, work: Callable[[], Answer]) -> Answer:
        """Return the result of ``work``, run in a thread."""
        return await anyio.to_thread.run_sync(work, limiter=self.threads)


def _reader(request: Request) -> Reader:
    reader: Reader = request.app.state.reader
    return reader


ReaderDep = Annotated[Reader, Depends(_reader)]
router = APIRouter()
of_dag = APIRouter(
    prefix="/dags/{dag_id}",
    # access to the DAG, its runs, and the results of their tasks
    dependencies=[
        Depends(requires_access_dag("GET", entity)) for entity in (None, DagAccessEntity.RUN, DagAccessEntity.XCOM)
    ],
)


@router.get("/assets/{name}", dependencies=[Depends(requires_authenticated())])
async def asset(name: str, reader: ReaderDep) -> Response:
    """Serve a style sheet or script."""
    path = (await reader.read(assets)).get(name)
    if path is None:
        raise HTTPException(HTTPStatus.NOT_FOUND, "no such file")
    return FileResponse(path, headers={"Cache-Control": "private, max-age=3600"})


@router.get("/")
async def graphs(request: Request, user: GetUserDep, reader: ReaderDep) -> Response:
    """List the DAGs with a graph that the user may read."""
    allowed = partial(get_auth_manager().get_authorized_dag_ids, user=user, method="GET")
    dags = await reader.read(lambda: database.graph_dags(allowed()))
    base = base_of(request)
    listed = [{"name": dag, "href": f"{base}/dags/{quote(dag)}"} for dag in dags]
    return page({"kind": "graphs", "graph": "", "dags": listed}, Links(assets=f"{base}/assets"))


@of_dag.get("")
async def history(request: Request, dag_id: DagId, reader: ReaderDep) -> Response:
    """Show the nights of a DAG's graph."""
    document = await reader.read(lambda: reader.pages.history(_last(reader, dag_id)))
    return page(document, _links(request, dag_id))


@of_dag.get("/runs/{run_id}")
async def dag_run(request: Request, dag_id: DagId, run_id: DagRunId, reader: ReaderDep) -> Response:
    """Show the run of a DAG run."""
    document = await reader.read(lambda: reader.pages.run(reader.pages.own(database.planned(dag_id, run_id))))
    return page(document, _links(request, dag_id, document))


@of_dag.get("/nights/{run}")
async def night(request: Request, dag_id: DagId, run: RunId, reader: ReaderDep) -> Response:
    """Show any run of the graph."""
    document = await _night(reader, dag_id, run)
    return page(document, _links(request, dag_id, document))


@of_dag.get("/nights/{run}/live")
async def live(
    request: Request,
    dag_id: DagId,
    run: RunId,
    reader: ReaderDep,
    since: Annotated[str, Query(max_length=64)] = "",
) -> Response:
    """Return the changes of a run's page since a version.

    There are none where the page still has version ``since``.
    """
    document = await _night(reader, dag_id, run)
    version, links = document["version"], _links(request, dag_id, document)
    sections = {} if since == version else await reader.read(lambda: live_sections(document, links))
    return JSONResponse({"version": version, "finished": document["state"] != "running", "sections": sections})


@of_dag.get("/nights/{run}/searches/{search}")
async def search(request: Request, dag_id: DagId, run: RunId, search: SearchId, reader: ReaderDep) -> Response:
    """Show a search of hyper-parameters on a run of the graph."""
    document = await reader.read(lambda: reader.pages.search(_last(reader, dag_id), run, search))
    return page(document, _links(request, dag_id))


@of_dag.get("/compare")
async def compare(request: Request, dag_id: DagId, left: OtherRunId, right: OtherRunId, reader: ReaderDep) -> Response:
    """Show two runs side by side."""
    document = await reader.read(lambda: reader.pages.comparison(_last(reader, dag_id), left, right))
    return page(document, _links(request, dag_id))


@of_dag.get("/neighbours")
async def neighbours(
    request: Request,
    dag_id: DagId,
    reader: ReaderDep,
    entity: Annotated[str, Query(max_length=500)] = "",
    kind: Annotated[str | None, Query(alias="type", max_length=200)] = None,
    release: Annotated[int | None, Query(ge=1)] = None,
    k: Annotated[int, Query(ge=1, le=100)] = 10,
) -> Response:
    """Show the form of the look-up, and its result."""
    found = partial(reader.pages.neighbours, entity=entity, entity_type=kind, release=release, count=k)
    document = await reader.read(lambda: found(_last(reader, dag_id)))
    return page(document, _links(request, dag_id))


router.include_router(of_dag)


def page(document: Mapping[str, object], links: Links, status: HTTPStatus = HTTPStatus.OK) -> Response:
    """Return a response with the page of a document."""
    return HTMLResponse(render(document, links), status)


def base_of(request: Request) -> str:
    """Return the path of the application."""
    return str(request.scope.get("root_path", "")).rstrip("/")


def _last(reader: Reader, dag_id: str) -> str:
    """Return the URL of the run that a DAG planned last."""
    return reader.pages.own(database.last_planned(dag_id))


async def _night(reader: Reader, dag_id: str, run: str) -> VersionedRun:
    return await reader.read(lambda: reader.pages.another_run(_last(reader, dag_id), run))


def _links(request: Request, dag_id: str, run: VersionedRun | None = None) -> Links:
    """Return the addresses of the pages of a DAG or a run."""
    dag = f"{base_of(request)}/dags/{quote(dag_id)}"
    comparison = news = None
    if run is not None:
        previous = run["lineage"]["previous"]
        comparison = f"{dag}/compare?{urlencode({'left': previous['run'], 'right': run['run']})}" if previous else None
        news = f"{dag}/nights/{quote(run['run'], safe='')}/live" if run["state"] == "running" else None
    return Links(
        assets=f"{base_of(request)}/assets",
        history=dag,
        run=f"{dag}/nights/{{run}}",
        comparison=comparison,
        compare=f"{dag}/compare",
        lookup=f"{dag}/neighbours",
        live=news,
        search=f"{dag}/nights/{{run}}/searches/{{search}}",
    )
