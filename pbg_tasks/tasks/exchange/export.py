"""``export``: embeddings in a format that other tools read.

The source is a release, a run or a PBG directory.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from pbg_tasks.checkpoint.manifest import sha256
from pbg_tasks.checkpoint.preserve import MANIFEST as PRESERVED
from pbg_tasks.checkpoint.reader import manifest_name
from pbg_tasks.config.exports import ExportOptions
from pbg_tasks.config.names import unsafe_name
from pbg_tasks.errors import ConfigError
from pbg_tasks.formats.embeddings import embeddings_shape
from pbg_tasks.progress import Progress, human_seconds, say
from pbg_tasks.publish.exchange import Contents, EntityRows, Outbox, writer
from pbg_tasks.publish.exchange.contents import Partition
from pbg_tasks.publish.exchange.manifest import ModelSource
from pbg_tasks.publish.tsv import global_embedding
from pbg_tasks.storage import open_store
from pbg_tasks.storage.files import disk_errors
from pbg_tasks.storage.staging import Scratch, named
from pbg_tasks.tasks.exchange.delivery import check_free, deliver
from pbg_tasks.tasks.model_source import load_newest, locate, locate_config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.config.results import Result
    from pbg_tasks.tasks.model_source import Source

DEFAULTS = ExportOptions()


def export(
    exchange: str,
    source: str | ConfigSchema,
    destination: str,
    *,
    channel: str | None = None,
    entity_path: str | None = None,
    options: ExportOptions = DEFAULTS,
    overwrite: bool = False,
    check: Callable[[], None] = lambda: None,
) -> Result:
    """Write embeddings in another format.

    All files are of one version; either all are written or none.

    Args:
        exchange: name of the format.
        source: a release or checkpoint directory, a run's URL, a graph's store, or a PBG config.
        destination: folder to write to, local or ``s3://``.
        channel: whose current release is exported; needed for a store with several.
        entity_path: directory of the names, if it is another than the config's.
        options: of the format.
        overwrite: whether an export that is there is replaced.
        check: raises an error when this may not be written any more; as in ``deliver``.

    Raises:
        ConfigError: format, option or entity type is unknown.
        ConflictError: something is at the destination.
        NotFoundError: there is no checkpoint.
        FormatError: a file is damaged, or a name cannot be written.
        QualityGateError: an index finds too few of the true neighbours.
    """
    started = time.monotonic()
    write = writer(exchange, options)
    store = open_store(destination)
    check_free(store, overwrite=overwrite)
    with Scratch() as scratch:
        progress = Progress(f"export {exchange}", unit="rows")
        find = _finder(source, scratch.path, channel, entity_path)
        load = partial(_load, scratch=scratch.path, types=options.types, on_rows=progress.advance)
        found, contents = load_newest(find, load)
        outbox = Outbox(scratch.path / "outbox")
        progress.total = contents.rows
        with progress, _told(found, scratch.path), disk_errors(scratch.path):
            measured = write(contents, outbox)
        manifest = deliver(
            store,
            outbox,
            exchange=exchange,
            source=_describe(found),
            overwrite=overwrite,
            check=check,
            names="percent-encoded" if options.escape else "plain",
            comparator=contents.config.comparator,
            relations=len(contents.relations),
            measured=measured,
        )
    seconds = time.monotonic() - started
    say(f"export {exchange}: {store.url} is complete after {human_seconds(seconds)}")
    return {
        "task": "export",
        "exchange": exchange,
        "checkpoint": found.checkpoint.url,
        "version": found.version,
        "destination": store.url,
        "types": {
            name: {"rows": record.rows, "dimension": record.dimension} for name, record in manifest.types.items()
        },
        "files": len(manifest.objects),
        "bytes": sum(record.size for record in manifest.objects.values()),
        **({"measured": measured} if measured else {}),
        "seconds": round(seconds, 3),
    }


def _finder(
    source: str | ConfigSchema, scratch: Path, channel: str | None, entity_path: str | None
) -> Callable[[], Source]:
    if isinstance(source, str):
        return partial(locate, source, scratch, channel=channel, entity_path=entity_path)
    if channel is not None:
        raise ConfigError("a channel has releases; a config names a checkpoint: give one of them")
    return partial(
        locate_config, source if entity_path is None else source.model_copy(update={"entity_path": entity_path})
    )


def _load(
    source: Source, *, scratch: Path, types: Sequence[str], on_rows: Callable[[int], None]
) -> tuple[Source, Contents]:
    """Download the files of a version and read their shapes."""
    config = source.config
    unknown = [name for name in types if name not in config.entities]
    if unknown:
        raise ConfigError(
            f"{source.checkpoint.url}: has no entity type {unknown[0]!r}; there are {', '.join(config.entities)}"
        )
    for name in types or config.entities:
        if (reason := unsafe_name(name)) is not None:
            say(f"warning: {source.checkpoint.url}: {reason}")
    relations = source.relations(_names(scratch))
    params = source.model(scratch, len(relations)).params
    entities = {
        name: _rows(source, name, scratch, global_embedding(config, params, name), on_rows)
        for name in config.entities
        if not types or name in types
    }
    return source, Contents(config, entities, relations, params)


def _rows(
    source: Source, name: str, scratch: Path, added: np.ndarray | None, on_rows: Callable[[int], None]
) -> EntityRows:
    files = zip(source.embeddings(name, scratch), source.entity_names(name, _names(scratch)), strict=True)
    partitions = [Partition(*pair) for pair in files]
    sizes = [embeddings_shape(partition.embeddings)[0] for partition in partitions]
    source.check_counts(name, sizes)
    bases = np.cumsum([0, *sizes])
    dimension, hidden = source.config.entity_dimension(name), source.hidden(name, bases)
    return EntityRows(name, partitions, dimension, added=added, hidden=hidden, on_rows=on_rows)


def _names(scratch: Path) -> Path:
    """Return the directory for downloaded names.

    It is apart from the checkpoint's files, because names may come from another place.
    """
    return scratch / "names"


@contextmanager
def _told(source: Source, scratch: Path) -> Iterator[None]:
    """Let errors name the files in their store instead of downloads."""
    with named(scratch, source.checkpoint.url), named(_names(scratch), source.entities.url):
        yield


def _describe(source: Source) -> ModelSource:
    """Describe the origin of embeddings.

    Includes the hash of the manifest that lists them, where there is one.
    """
    documents = (PRESERVED, manifest_name(source.version)) if source.checkpoint.whole else ()
    data = next((data for name in documents if (data := source.checkpoint.read(name)) is not None), None)
    return ModelSource(
        url=source.checkpoint.url,
        version=source.version,
        manifest_sha256=None if data is None else sha256(data),
        channel=source.channel,
    )
