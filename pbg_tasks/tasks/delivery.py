"""An export or import at its destination: every file, then the manifest that makes them count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pbg_tasks.checkpoint import ObjectRecord
from pbg_tasks.checkpoint.manifest import decode, encode
from pbg_tasks.errors import ConflictError, FormatError, NotFoundError
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
        overwrite: whether what is there is replaced. The manifest of before goes first and what only it listed goes
            last, so that nothing of two exports is ever seen as one.
        facts: more fields of the manifest.

    Raises:
        ConflictError: another writer put something there meanwhile. What this one put beside it is removed again;
            what it replaced stays, without a manifest, and a further try replaces it.
    """
    records = {
        name: ObjectRecord(sha256=sha256_file(path), size=path.stat().st_size) for name, path in outbox.files.items()
    }
    manifest = ExchangeManifest(exchange=exchange, source=source, types=outbox.types, objects=records, **facts)
    before = _take_manifest(store) if overwrite else set()
    put: list[str] = []
    try:
        for name, path in outbox.files.items():
            if overwrite:
                store.put(name, path)
            else:
                store.put_new(name, path)
                put.append(name)
        store.put_new(MANIFEST, encode(manifest))
    except BaseException:
        for name in put:
            store.delete(name)
        raise
    for name in before - records.keys():
        store.delete(name)
    return manifest


def _take_manifest(store: Store) -> set[str]:
    """Remove the manifest that is there; return what it listed."""
    try:
        data = store.get(MANIFEST).data
    except NotFoundError:
        return set()
    store.delete(MANIFEST)
    try:
        return set(decode(ExchangeManifest, data, source=f"{store.url}/{MANIFEST}").objects)
    except FormatError:
        return set()  # damaged: its files are replaced by name
