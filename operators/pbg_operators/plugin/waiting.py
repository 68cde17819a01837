"""Outline of a page, shown while the store is read for it.

A browser that opens a page gets the outline at once; its script then asks for the page at the same address. Browsers
name such requests, so any other program, and a browser that does not, gets the page itself.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from fastapi.responses import HTMLResponse

from pbg_tasks.report.pages import render

if TYPE_CHECKING:
    from fastapi import Request, Response

    from pbg_tasks.report.pages import Links

WHOLE = "whole"
"""Query by which a browser without scripts asks for the page itself."""
_OPENED = {"document", "iframe", "frame"}


def outline(request: Request, links: Links, shape: str) -> Response | None:
    """Return a page's outline; None where the page itself is requested.

    Args:
        request: of the page.
        links: of its DAG.
        shape: of the page that follows: ``run``, ``nights`` or ``list``.
    """
    if request.headers.get("sec-fetch-dest") not in _OPENED or WHOLE in request.query_params:
        return None
    whole = request.url.include_query_params(**{WHOLE: "1"})
    document = {"kind": "waiting", "graph": "", "shape": shape, "whole": f"?{whole.query}"}
    return HTMLResponse(render(document, links), HTTPStatus.OK)
