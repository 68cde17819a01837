"""Reader of the documents of pages, and answers with the pages."""

from __future__ import annotations

from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from urllib.parse import quote, urlencode

import anyio
from fastapi import Depends, Request, Response
from fastapi.responses import HTMLResponse

from pbg_operators.plugin.cache import Recent
from pbg_operators.plugin.waiting import outline
from pbg_tasks.report.pages import Links, render

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pbg_operators.plugin.pages import Pages

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Reader:
    """Reader of documents in a bounded number of threads.

    ``places`` keeps which DAG is of which graph, once for the rows of all graphs.
    """

    pages: Pages
    threads: anyio.CapacityLimiter
    places: Recent[dict[str, tuple[str, str, str | None]]] = field(default_factory=lambda: Recent(1))

    async def read(self, work: Callable[[], Answer]) -> Answer:
        """Return the result of ``work``, run in a thread."""
        return await anyio.to_thread.run_sync(work, limiter=self.threads)


def _reader(request: Request) -> Reader:
    reader: Reader = request.app.state.reader
    return reader


def _copier(request: Request) -> Reader:
    copier: Reader = request.app.state.copier
    return copier


ReaderDep = Annotated[Reader, Depends(_reader)]
CopierDep = Annotated[Reader, Depends(_copier)]
"""Reader with threads of its own, for what copies files: several look-ups wait for one copy, and no page does."""


def page(document: Mapping[str, object], links: Links, status: HTTPStatus = HTTPStatus.OK) -> Response:
    """Return a response with the page of a document."""
    return HTMLResponse(render(document, links), status)


async def shown(
    reader: Reader, request: Request, dag_id: str, shape: str, work: Callable[[], Mapping[str, object]]
) -> Response:
    """Return a page's outline, or the page, made in a thread.

    Rendering takes long enough to delay the outlines of other pages, which the event loop makes.
    """
    if waiting := outline(request, links_of(request, dag_id), shape):
        return waiting

    def make() -> Response:
        document = work()
        absent = document["kind"] == "message" and "again" not in document
        return page(document, links_of(request, dag_id, document), HTTPStatus.NOT_FOUND if absent else HTTPStatus.OK)

    return await reader.read(make)


def base_of(request: Request) -> str:
    """Return the path of the application."""
    return str(request.scope.get("root_path", "")).rstrip("/")


def links_of(request: Request, dag_id: str, run: Mapping[str, Any] | None = None) -> Links:
    """Return the addresses of the pages of a DAG or a run."""
    dag = f"{base_of(request)}/dags/{quote(dag_id)}"
    comparison = live_page = files = None
    if run is not None and run["kind"] == "run":
        previous = run["lineage"]["previous"]
        comparison = f"{dag}/compare?{urlencode({'left': previous['run'], 'right': run['run']})}" if previous else None
        page = f"{dag}/nights/{quote(run['run'], safe='')}"
        live_page, files = f"{page}/live" if run["state"] == "running" else None, f"{page}/files"
    return Links(
        assets=f"{base_of(request)}/assets",
        graphs=f"{base_of(request)}/",
        history=dag,
        run=f"{dag}/nights/{{run}}",
        comparison=comparison,
        compare=f"{dag}/compare",
        lookup=f"{dag}/neighbours",
        names=f"{dag}/names",
        files=files,
        begin=f"{dag}/begin",
        live=live_page,
        search=f"{dag}/nights/{{run}}/searches/{{search}}",
    )
