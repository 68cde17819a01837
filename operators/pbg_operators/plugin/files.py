"""Stored documents of a run, for readers of its DAG.

A browser has no keys of the store, so the API server reads the object with the graph's connection and passes its bytes
on. No address of the store, signed or not, reaches the browser.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, NamedTuple

from airflow.sdk import conf
from fastapi import Path as Part
from fastapi.responses import StreamingResponse

from pbg_operators.plugin.answers import CopierDep  # noqa: TC001 - FastAPI reads the annotation
from pbg_operators.plugin.pages import LOOKUP_BYTES, require_inside
from pbg_operators.plugin.routes import DagId, RunId, dag_router, last
from pbg_tasks.errors import ConfigError, InputError, NotFoundError
from pbg_tasks.progress import human_count
from pbg_tasks.storage.names import check_key
from pbg_tasks.storage.staging import Scratch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from pbg_operators.plugin.answers import Reader

router = dag_router()
SERVED = ("spec.json", "planned.json", "results", "release")
"""First parts of the keys below a run that are served: what its page names, no data of training."""
CHUNK = 1 << 18
HEADERS = {"Content-Security-Policy": "sandbox; default-src 'none'; frame-ancestors 'self'"}
"""A document runs nothing, whatever its bytes are."""


class Opened(NamedTuple):
    """File whose name is gone already, so that closing it removes it."""

    bytes: BinaryIO
    size: int


@router.get("/nights/{run}/files/{key:path}")
async def file(
    dag_id: DagId, run: RunId, key: Annotated[str, Part(max_length=1024)], reader: CopierDep
) -> StreamingResponse:
    """Serve a document or a file of a run of the graph."""
    opened = await reader.read(partial(_open, reader, dag_id, run, key))
    is_document = key.endswith(".json")
    kind = "inline" if is_document else "attachment"
    headers = HEADERS | {"Content-Length": str(opened.size), "Content-Disposition": kind}
    return StreamingResponse(
        _chunks(opened.bytes),
        media_type="application/json" if is_document else "application/octet-stream",
        headers=headers,
    )


def _open(reader: Reader, dag_id: str, run_id: str, key: str) -> Opened:
    """Copy an object to a file without a name.

    Raises:
        PbgError: it is missing, not one of those that are served, of another graph, or too large.
    """
    pages, url = last(reader, dag_id)
    run = pages.other(url, run_id)
    if check_key(key).partition("/")[0] not in SERVED:
        raise ConfigError(f"{key!r} is none of the documents of a run that are served here")
    name = run.key(key)
    require_inside(run.store, name)
    found = run.store.head(name)
    if found is None:
        raise NotFoundError(f"run {run_id} has no {key}")
    limit = conf.getint("pbg", "lookup_bytes", fallback=LOOKUP_BYTES)
    if found.size > limit:
        raise InputError(
            f"{key} of run {run_id} has {human_count(found.size)}B, and {human_count(limit)}B at most are served: copy "
            "it from the store, or raise [pbg] lookup_bytes"
        )
    with Scratch() as scratch:
        target = scratch.path / "file"
        size = run.store.fetch(name, target).size
        return Opened(target.open("rb"), size)


def _chunks(source: BinaryIO) -> Iterator[bytes]:
    with source:
        while chunk := source.read(CHUNK):
            yield chunk
