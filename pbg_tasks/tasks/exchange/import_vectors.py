"""``import-embeddings``: vectors of other tools, as arrays with names.

A training can start from them (``init_path``).
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from pbg_tasks.config.names import check_entity_name, unsafe_name
from pbg_tasks.errors import ConfigError, InputError
from pbg_tasks.progress import Progress, human_seconds, say
from pbg_tasks.publish.exchange import Inbox, Outbox, ReadOptions, TypeRecord, reader
from pbg_tasks.publish.exchange.arrays import write_vectors
from pbg_tasks.publish.exchange.contents import Block
from pbg_tasks.publish.exchange.manifest import VectorSource
from pbg_tasks.publish.exchange.names import decoded
from pbg_tasks.publish.exchange.norms import Norms
from pbg_tasks.storage import open_store
from pbg_tasks.storage.staging import Scratch
from pbg_tasks.tasks.exchange.delivery import check_free, deliver

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import JsonValue

    from pbg_tasks.config.results import Result
    from pbg_tasks.publish.exchange import Vectors

DEFAULTS = ReadOptions()


def import_embeddings(
    exchange: str, source: str, destination: str, *, options: ReadOptions = DEFAULTS, overwrite: bool = False
) -> Result:
    """Read vectors with names and write them as ``{type}.npy`` with ``{type}.json``.

    A training that has the destination as ``init_path`` gives each entity the row of its name, whatever its partition.

    Args:
        exchange: name of the format.
        source: file or folder, local or ``s3://``.
        destination: folder to write to, local or ``s3://``.
        options: how the source is read.
        overwrite: whether an import that is there is replaced.

    Raises:
        ConfigError: the format is unknown, or the entity type is not given or cannot be part of a file's name.
        ConflictError: something is at the destination.
        InputError: there is nothing to import.
        FormatError: the source is damaged, or a vector or name is invalid; the message names file and line or row.
    """
    started = time.monotonic()
    read = reader(exchange, options)
    store = open_store(destination)
    check_free(store, overwrite=overwrite)
    with Scratch() as scratch:
        inbox, outbox = Inbox(source, scratch.path / "inbox"), Outbox(scratch.path / "outbox")
        norms: dict[str, Norms] = {}
        for vectors in read(inbox):
            plain = _decoded(vectors) if options.escaped or inbox.is_escaped else vectors.blocks
            norms[vectors.entity] = Norms()
            _write(replace(vectors, blocks=norms[vectors.entity].watch(plain)), outbox)
        if not outbox.types:
            raise InputError(f"{inbox.url}: holds no vectors")
        origin = VectorSource(url=inbox.url)
        manifest = deliver(store, outbox, exchange=exchange, source=origin, overwrite=overwrite)
    odd: list[JsonValue] = [f"{entity}: {oddity}" for entity, found in norms.items() for oddity in found.oddities()]
    for oddity in odd:
        say(f"warning: {inbox.url}: {oddity}; compare with the program that wrote them")
    seconds = time.monotonic() - started
    say(f"import-embeddings {exchange}: {store.url} is complete after {human_seconds(seconds)}; use it as init_path")
    return {
        "task": "import-embeddings",
        "exchange": exchange,
        "source": inbox.url,
        "destination": store.url,
        "types": {
            name: {"rows": record.rows, "dimension": record.dimension} for name, record in manifest.types.items()
        },
        "norms": {entity: found.to_json() for entity, found in norms.items()},
        **({"odd": odd} if odd else {}),
        "seconds": round(seconds, 3),
    }


def _write(vectors: Vectors, outbox: Outbox) -> None:
    try:
        problem = unsafe_name(check_entity_name(vectors.entity), hidden=True)
    except ValueError as error:
        problem = str(error)
    if problem is not None:
        raise ConfigError(f"{vectors.source}: {problem}; give --type another")
    files = (f"{vectors.entity}.npy", f"{vectors.entity}.json")
    array, names = map(outbox.path, files)
    with Progress(f"import {vectors.entity}", vectors.total, "rows") as progress:
        rows = write_vectors(vectors, array, names, on_rows=progress.advance)
    outbox.types[vectors.entity] = TypeRecord(rows=rows, dimension=vectors.dimension, files=files)


def _decoded(vectors: Vectors) -> Iterator[Block]:
    for block in vectors.blocks:
        yield Block(decoded(block.names, source=vectors.source), block.vectors)
