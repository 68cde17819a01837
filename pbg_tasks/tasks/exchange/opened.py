"""Contents of an export: a version's files, downloaded and described."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from pbg_tasks.checkpoint.manifest import sha256
from pbg_tasks.checkpoint.preserve import MANIFEST as PRESERVED
from pbg_tasks.checkpoint.reader import manifest_name
from pbg_tasks.config.base import digest
from pbg_tasks.config.names import unsafe_name
from pbg_tasks.errors import ConfigError
from pbg_tasks.formats.embeddings import embeddings_file_name, embeddings_shape
from pbg_tasks.formats.entities import RELATION_NAMES, entity_names_file_name
from pbg_tasks.formats.entity_sets import EXPIRED
from pbg_tasks.formats.model import model_file_name
from pbg_tasks.progress import say
from pbg_tasks.publish.exchange import Contents, EntityRows
from pbg_tasks.publish.exchange.contents import Around, Partition
from pbg_tasks.publish.exchange.manifest import ModelSource
from pbg_tasks.publish.tsv import global_embedding
from pbg_tasks.storage.names import join
from pbg_tasks.storage.parallel import in_parallel
from pbg_tasks.storage.staging import named
from pbg_tasks.tasks.model_source import locate, locate_config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.evaluate.counts import Share
    from pbg_tasks.tasks.files import Directory
    from pbg_tasks.tasks.model_source import Source

_THREADS = 4


def finder(
    source: str | ConfigSchema, scratch: Path, channel: str | None, entity_path: str | None
) -> Callable[[], Source]:
    """Return a function that finds the version to export.

    Raises:
        ConfigError: a channel is given for a config.
    """
    if isinstance(source, str):
        return partial(locate, source, scratch, channel=channel, entity_path=entity_path)
    if channel is not None:
        raise ConfigError("a channel has releases; a config names a checkpoint: give one of them")
    return partial(
        locate_config, source if entity_path is None else source.model_copy(update={"entity_path": entity_path})
    )


def load_contents(
    source: Source, *, scratch: Path, types: Sequence[str], on_rows: Callable[[int], None], share: Share | None = None
) -> tuple[Source, Contents]:
    """Download the files of a version and read their shapes.

    Args:
        source: the version.
        scratch: local directory for downloads.
        types: entity types that are exported; all of them when empty.
        on_rows: called with the number of rows that were read since the last call.
        share: part of an export whose partitions alone are downloaded; None: all.
    """
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
    own = _partitions(config, [name for name in config.entities if not types or name in types], share)
    entities = {
        name: _rows(source, name, scratch, global_embedding(config, params, name), on_rows, partitions)
        for name, partitions in own.items()
    }
    stored = source.checkpoint.stored(model_file_name(source.version))
    return source, Contents(config, entities, relations, params, stored)


def _partitions(config: ConfigSchema, types: Sequence[str], share: Share | None) -> dict[str, list[int]]:
    """Return the partitions of a share, by type."""
    places = [(name, part) for name in types for part in range(config.entities[name].num_partitions)]
    own = places if share is None else places[share.of(len(places))]
    listed: dict[str, list[int]] = {name: [] for name in types}
    for name, part in own:
        listed[name].append(part)
    return listed


def _rows(
    source: Source,
    name: str,
    scratch: Path,
    added: np.ndarray | None,
    on_rows: Callable[[int], None],
    numbers: Sequence[int],
) -> EntityRows:
    embeddings, names = source.embeddings(name, scratch, numbers), source.distinct_names(name, _names(scratch), numbers)
    partitions = [Partition(*files) for files in zip(embeddings, names, numbers, strict=True)]
    sizes = [embeddings_shape(partition.embeddings)[0] for partition in partitions]
    source.check_counts(name, dict(zip(numbers, sizes, strict=True)))
    bases = np.cumsum([0, *sizes])
    dimension, hidden = source.config.entity_dimension(name), source.hidden(name, bases, numbers)

    def bring(number: int) -> EntityRows:
        return _rows(source, name, scratch, added, lambda _: None, [number])

    def around() -> Around:
        return Around(source.shown_counts(name), bring)

    return EntityRows(name, partitions, dimension, added=added, hidden=hidden, on_rows=on_rows, around=around)


def _names(scratch: Path) -> Path:
    """Return the directory for downloaded names.

    It is apart from the checkpoint's files, because names may come from another place.
    """
    return scratch / "names"


@contextmanager
def named_in_store(source: Source, scratch: Path) -> Iterator[None]:
    """Let errors name the files in their store instead of downloads."""
    with named(scratch, source.checkpoint.url), named(_names(scratch), source.entities.url):
        yield


def identity(source: Source) -> str:
    """Return a hash of the states of a version's files.

    It is made from their recorded hashes; without these, from the tags of their store, which change with a file.
    """
    config = source.config
    places = [(name, part) for name, kind in config.entities.items() for part in range(kind.num_partitions)]
    vectors = [model_file_name(source.version), *(embeddings_file_name(*place, source.version) for place in places)]
    names = [RELATION_NAMES, EXPIRED, *(entity_names_file_name(*place) for place in places)]
    states = [_states(source.checkpoint, vectors), _states(source.entities, names)]
    return digest([source.checkpoint.url, source.version, source.entities.url, config.model_dump(mode="json"), states])


def _states(directory: Directory, names: Sequence[str]) -> list[str | None]:
    def state(name: str) -> str | None:
        if name in directory.records or directory.whole:
            record = directory.records.get(name)
            return None if record is None else record.sha256
        found = directory.store.head(join(directory.prefix, name))
        return None if found is None else found.tag

    return in_parallel(state, names, _THREADS)


def describe(source: Source) -> ModelSource:
    """Describe the origin of embeddings.

    Includes their contract, and the hash of the manifest that lists them, where there is one.
    """
    documents = (PRESERVED, manifest_name(source.version)) if source.checkpoint.whole else ()
    data = next((data for name in documents if (data := source.checkpoint.read(name)) is not None), None)
    return ModelSource(
        url=source.checkpoint.url,
        version=source.version,
        manifest_sha256=None if data is None else sha256(data),
        channel=source.channel,
        contract=source.contract,
    )
