"""An export or import at its destination: every file, then the manifest that makes them count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pbg_tasks.checkpoint import ObjectRecord
from pbg_tasks.checkpoint.manifest import decode, encode
from pbg_tasks.errors import ConflictError, FormatError, NotFoundError, PbgError
from pbg_tasks.publish.exchange import MANIFEST, ExchangeManifest
from pbg_tasks.storage.staging import sha256_file

if TYPE_CHECKING:
    from pbg_tasks.publish.exchange import Outbox
    from pbg_tasks.publish.exchange.manifest import ModelSource, VectorSource
    from pbg_tasks.storage import Store


def check_free(store: Store, *, overwrite: bool) -> None:
    """Refuse a destination that holds anything.

    Raises:
        ConflictError: it does, and may not be overwritten.
    """
    there = next(iter(store.list()), None)
    if there is not None and not overwrite:
        raise ConflictError(
            f"{store.url}: is not empty (it holds {there.key}); name another place, or give --overwrite"
        )


def deliver(
    store: Store,
    outbox: Outbox,
    *,
    exchange: str,
    source: ModelSource | VectorSource,
    overwrite: bool,
    **facts: Any,  # noqa: ANN401 - fields of the manifest
) -> ExchangeManifest:
    """Upload the files of an export or import, and its manifest last.

    Args:
        store: rooted at the destination.
        outbox: the files.
        exchange: name of the exchange format.
        source: where they come from.
        overwrite: whether what is there is replaced. The manifest of before goes first, and what only it listed goes
            too, so that nothing of two exports is ever seen as one.
        facts: more fields of the manifest.

    Raises:
        ConflictError: another writer put something there meanwhile. What this one put there is removed again.
    """
    records = {
        name: ObjectRecord(sha256=sha256_file(path), size=path.stat().st_size) for name, path in outbox.files.items()
    }
    manifest = ExchangeManifest(exchange=exchange, source=source, types=outbox.types, objects=records, **facts)
    if overwrite:
        _clear(store)
    put: list[str] = []
    try:
        for name, path in outbox.files.items():
            if overwrite:
                store.put(name, path)
            else:
                store.put_new(name, path)
            put.append(name)
        store.put_new(MANIFEST, encode(manifest))
    except PbgError:
        for name in put:
            store.delete(name)
        raise
    return manifest


def _clear(store: Store) -> None:
    """Remove the export that is there, its manifest first."""
    try:
        data = store.get(MANIFEST).data
    except NotFoundError:
        return
    store.delete(MANIFEST)
    try:
        before = decode(ExchangeManifest, data, source=f"{store.url}/{MANIFEST}")
    except FormatError:
        return  # damaged: its files are replaced by name
    for name in before.objects:
        store.delete(name)
