"""``export``: embeddings in a format that other tools read.

The source is a release, a run or a PBG directory.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, TypedDict

from pbg_tasks.config.exports import ExportOptions, is_sink
from pbg_tasks.errors import ConfigError
from pbg_tasks.progress import Progress, human_seconds, say
from pbg_tasks.publish.exchange import Outbox, writer
from pbg_tasks.storage import open_store
from pbg_tasks.storage.files import disk_errors
from pbg_tasks.storage.staging import Scratch
from pbg_tasks.tasks.exchange.delivery import check_free, deliver
from pbg_tasks.tasks.exchange.feature_view import write_feature_views
from pbg_tasks.tasks.exchange.opened import describe, finder, load_contents, named_in_store
from pbg_tasks.tasks.model_source import load_newest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pydantic import JsonValue

    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.publish.exchange import ExchangeManifest
    from pbg_tasks.publish.exchange.manifest import PartRecord
    from pbg_tasks.storage import Store
    from pbg_tasks.tasks.exchange.fill import EntityShape, FilledTables
    from pbg_tasks.tasks.model_source import Source

DEFAULTS = ExportOptions()


class Exported(TypedDict):
    """Figures of every export."""

    task: str
    exchange: str
    checkpoint: str
    version: int
    destination: str
    types: dict[str, EntityShape]
    seconds: float


class _Measured(TypedDict, total=False):
    measured: Mapping[str, JsonValue]


class ExportedFiles(Exported, _Measured):
    """Figures of an export to files."""

    files: int
    bytes: int


class ExportedPart(ExportedFiles):
    """Figures of a part of an export."""

    part: str


class ExportedTables(Exported):
    """Figures of an export to a vector store."""

    measured: FilledTables


def export(
    exchange: str,
    source: str | ConfigSchema,
    destination: str,
    *,
    channel: str | None = None,
    entity_path: str | None = None,
    options: ExportOptions = DEFAULTS,
    overwrite: bool = False,
    tags: Mapping[str, str] | None = None,
    check: Callable[[], None] = lambda: None,
) -> Exported:
    """Write embeddings in another format, or fill a vector store.

    All files are of one version; either all are written or none.

    Args:
        exchange: name of the format.
        source: a release or checkpoint directory, a run's URL, a graph's store, or a PBG config.
        destination: folder to write to, local or ``s3://``; URL of a vector store.
        channel: whose current release is exported; needed for a store with several.
        entity_path: directory of the names, if it is another than the config's.
        options: of the format.
        overwrite: whether an export that is there is replaced.
        tags: further facts of the model, for the tags of a feature view.
        check: raises an error when this may not be written any more; as in ``deliver``.

    Raises:
        ConfigError: format, option or entity type is unknown.
        ConflictError: something is at the destination.
        NotFoundError: there is no checkpoint.
        FormatError: a file is damaged, or a name cannot be written.
        QualityGateError: an index finds too few of the true neighbours.
    """
    if is_sink(exchange):
        if overwrite:
            raise ConfigError(
                f"sink {exchange} replaces nothing: each release has tables of its own; leave --overwrite out"
            )
        from pbg_tasks.tasks.exchange.fill import fill

        filled = fill(exchange, source, destination, channel=channel, entity_path=entity_path, options=options)
        tables: ExportedTables = {"task": "export", **filled}
        return tables
    started = time.monotonic()
    write = writer(exchange, options)
    store = open_store(destination)
    check_free(store, overwrite=overwrite)
    with Scratch() as scratch:
        progress = Progress(f"export {exchange}", unit="rows")
        find = finder(source, scratch.path, channel, entity_path)
        load = partial(load_contents, scratch=scratch.path, types=options.types, on_rows=progress.advance)
        found, contents = load_newest(find, load)
        outbox = Outbox(scratch.path / "outbox")
        progress.total = contents.rows
        with progress, named_in_store(found, scratch.path), disk_errors(scratch.path):
            measured = write(contents, outbox)
            if options.feast:
                facts = _tags(found) | dict(tags or {})
                write_feature_views(contents, outbox, prefix=options.feast, destination=store.url, tags=facts)
        manifest = deliver(
            store,
            outbox,
            exchange=exchange,
            source=describe(found),
            overwrite=overwrite,
            check=check,
            names="percent-encoded" if options.escape else "plain",
            comparator=contents.config.comparator,
            relations=len(contents.relations),
            measured=measured,
        )
    say(f"export {exchange}: {store.url} is complete after {human_seconds(time.monotonic() - started)}")
    return result_of(exchange, found.checkpoint.url, found.version, store, manifest, started)


def result_of(
    exchange: str, checkpoint: str, version: int, store: Store, written: ExchangeManifest | PartRecord, started: float
) -> ExportedFiles:
    """Return the result of an export or of a part.

    Args:
        exchange: name of the format.
        checkpoint: URL of the model.
        version: of the model.
        store: rooted at the destination.
        written: describes the files.
        started: monotonic time of the beginning.
    """
    own: _Measured = {"measured": written.measured} if written.measured else {}
    return {
        "task": "export",
        "exchange": exchange,
        "checkpoint": checkpoint,
        "version": version,
        "destination": store.url,
        "types": {name: {"rows": record.rows, "dimension": record.dimension} for name, record in written.types.items()},
        "files": len(written.objects),
        "bytes": sum(record.size for record in written.objects.values()),
        **own,
        "seconds": round(time.monotonic() - started, 3),
    }


def _tags(found: Source) -> dict[str, str]:
    """Return the known facts of a version, for a feature view."""
    facts = {
        "source": found.checkpoint.url,
        "version": found.version,
        "channel": found.channel,
        "release": found.release,
        "space": found.space,
    }
    return {key: str(value) for key, value in facts.items() if value is not None}
