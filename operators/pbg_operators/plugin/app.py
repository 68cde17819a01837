"""Application that serves the pages, with common parts of its answers."""

from __future__ import annotations

import functools
from http import HTTPStatus
from typing import TYPE_CHECKING

import anyio
from fastapi import FastAPI, Request, Response

from pbg_operators.plugin import files, lookup, routes
from pbg_operators.plugin.answers import Reader, base_of, page
from pbg_operators.plugin.pages import ABSENT, Pages
from pbg_tasks.errors import PbgError
from pbg_tasks.report.pages import POLICY, Links

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

THREADS = 4
"""Number of threads that read stores, so that a slow store delays no request of Airflow."""
COPIERS = 2
"""Number of threads that copy files, which takes minutes, or wait for such a copy."""
HEADERS = {
    "Content-Security-Policy": f"{POLICY}; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


@functools.cache
def make_app() -> FastAPI:
    """Return the application, made at the first call."""
    app = FastAPI(title="PBG", docs_url=None, redoc_url=None, openapi_url=None)
    pages = Pages()
    app.state.reader = Reader(pages, anyio.CapacityLimiter(THREADS))
    app.state.copier = Reader(pages, anyio.CapacityLimiter(COPIERS))
    for part in (routes, files, lookup):
        app.include_router(part.router)
    app.middleware("http")(_guard)
    app.exception_handler(PbgError)(_explain)
    return app


async def _guard(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
    response = await answer(request)
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    return response


async def _explain(request: Request, error: PbgError) -> Response:
    """Return a page about missing data or an unreadable store."""
    absent = isinstance(error, ABSENT)
    title = "Nothing to show" if absent else "The store cannot be read"
    status = HTTPStatus.NOT_FOUND if absent else HTTPStatus.BAD_GATEWAY
    document = {"kind": "message", "graph": "", "title": title, "text": str(error)}
    return page(document, Links(assets=f"{base_of(request)}/assets"), status)
