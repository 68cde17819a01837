"""Look-up of neighbours, and the names that it suggests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import Query, Request, Response
from fastapi.responses import JSONResponse

from pbg_operators.plugin.answers import CopierDep, shown
from pbg_operators.plugin.routes import DagId, dag_router, last

if TYPE_CHECKING:
    from collections.abc import Mapping

router = dag_router()


@router.get("/neighbours")
async def neighbours(
    request: Request,
    dag_id: DagId,
    reader: CopierDep,
    entity: Annotated[str, Query(max_length=500)] = "",
    kind: Annotated[str | None, Query(alias="type", max_length=200)] = None,
    release: Annotated[int | None, Query(ge=1)] = None,
    k: Annotated[int, Query(ge=1, le=100)] = 10,
) -> Response:
    """Show the form of the look-up, and its result."""

    def read() -> Mapping[str, object]:
        pages, url = last(reader, dag_id)
        return {**pages.neighbours(url, entity=entity, entity_type=kind, release=release, count=k)}

    return await shown(reader, request, dag_id, "list", read)


@router.get("/names")
async def names(
    dag_id: DagId,
    reader: CopierDep,
    prefix: Annotated[str, Query(min_length=1, max_length=500)],
    kind: Annotated[str | None, Query(alias="type", max_length=200)] = None,
    release: Annotated[int | None, Query(ge=1)] = None,
) -> Response:
    """Suggest names of a release that begin with what was typed."""

    def read() -> dict[str, object]:
        pages, url = last(reader, dag_id)
        return {**pages.names(url, prefix=prefix, entity_type=kind, release=release)}

    return JSONResponse(await reader.read(read))
