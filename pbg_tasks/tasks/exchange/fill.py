"""Filling of a vector store: tables of a release, checks, one switch.

A release has tables of its own, whose names are made of what is in them. So a second try finds the table of the first
and goes on at its end, and an export that was done finds it done. Readers see a release when its tables are filled and
checked, by one switch of aliases, and go back to an earlier one by the same.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, TypedDict

from pbg_tasks.config.exports import no_metric
from pbg_tasks.errors import ConfigError
from pbg_tasks.progress import counted, human_seconds, say
from pbg_tasks.publish.exchange.nearest import Form
from pbg_tasks.publish.sinks import TableRecord, open_sink, sink_options
from pbg_tasks.storage.files import disk_errors
from pbg_tasks.storage.staging import Scratch
from pbg_tasks.tasks.exchange.filling import Filling
from pbg_tasks.tasks.exchange.opened import describe, finder, identity, load_contents, named_in_store
from pbg_tasks.tasks.model_source import load_newest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.config.exports import ExportOptions
    from pbg_tasks.publish.sinks import Tables

BY_HAND = "pbg"
"""Collection of exports that no graph spec lists."""
Serving: TypeAlias = "Callable[[Tables, str, Mapping[str, TableRecord]], bool]"


class EntityShape(TypedDict):
    """Shape of an entity type's vectors."""

    rows: int
    dimension: int


class FilledTable(TypedDict):
    """Table of an entity type; ``recall``: None where it was not measured."""

    alias: str
    table: str
    recall: float | None


class FilledTables(TypedDict):
    """Tables of a release; the attributes of ``Filling``, and what readers see.

    Attributes:
        served: the aliases point to these tables.
        left: aliases of the collection with a table of a type that the model lacks.
        dropped: names of tables that went.
    """

    collection: str
    tables: dict[str, FilledTable]
    resumed_rows: int
    written_rows: int
    kept_rows: int
    not_copied: dict[str, str]
    served: bool
    left: list[str]
    dropped: list[str]


class Filled(TypedDict):
    """Figures of an export to a vector store."""

    exchange: str
    checkpoint: str
    version: int
    destination: str
    types: dict[str, EntityShape]
    measured: FilledTables
    seconds: float


def serve(tables: Tables, collection: str, filled: Mapping[str, TableRecord]) -> bool:
    """Point the aliases of a collection to complete tables, by one switch.

    Returns:
        True: they point to these tables.
    """
    tables.switch(collection, {record.alias: (table, record) for table, record in filled.items()})
    say(f"export: {', '.join(f'{record.alias} -> {table}' for table, record in filled.items())}")
    return True


def fill(
    sink: str,
    source: str | ConfigSchema,
    destination: str,
    *,
    channel: str | None = None,
    entity_path: str | None = None,
    options: ExportOptions,
    collection: str = BY_HAND,
    serving: Serving = serve,
) -> Filled:
    """Fill tables with a model's embeddings, check them, and serve them.

    Args:
        sink: name of the sink.
        source: as of ``export``.
        destination: URL of the store.
        channel: whose current release is exported.
        entity_path: directory of the names, if it is another than the config's.
        options: of the export.
        collection: begins the names of tables, where the options name none.
        serving: points aliases to tables, and returns whether those are the filled ones.

    Returns:
        The figures of an export; ``measured`` has the tables with their recall.

    Raises:
        ConfigError: sink, option or entity type is unknown, or no metric of a vector store compares as the model does.
        ConflictError: another export fills the same tables.
        FormatError: a file is damaged, the store cannot hold a name, or it returns other rows than were written.
        QualityGateError: a table's search finds too few of the true neighbours; aliases stay where they are.
        StorageError: the store failed; a further try goes on where this one ended.
    """
    started = time.monotonic()
    if foreign := options.foreign_to(sink):
        raise ConfigError(f"sink {sink} has no option {foreign[0]!r}")
    own = sink_options(sink, options.options)
    with Scratch() as scratch, open_sink(sink, destination, own) as tables:
        load = partial(load_contents, scratch=scratch.path, types=options.types, on_rows=lambda _: None)
        found, contents = load_newest(finder(source, scratch.path, channel, entity_path), load)
        form = Form.of(contents.config, no_metric(sink, contents.config.comparator))
        names = None if found.entities is found.checkpoint else identity(found)
        filling = Filling(sink, tables, own, options, form, own.collection or collection, scratch.path, names)
        with named_in_store(found, scratch.path), disk_errors(scratch.path):
            filled = filling.fill(contents, describe(found))
        served = serving(tables, filling.collection, filled)
        left = _left(tables, filling.collection, contents.config.entities)
        aliases = [record.alias for record in filled.values()]
        dropped = retire(tables, filling.collection, aliases, keep=own.keep, needed=filled)
    seconds = time.monotonic() - started
    if left:
        say(
            f"warning: export {sink}: {', '.join(left)} still show an earlier release, as the model has no such entity "
            "type; once no reader needs them, remove them in the store"
        )
    say(f"export {sink}: {destination} is complete after {human_seconds(seconds)}, {counted(len(filled), 'table')}")
    return {
        "exchange": sink,
        "checkpoint": found.checkpoint.url,
        "version": found.version,
        "destination": destination.rstrip("/"),
        "types": {record.entity: {"rows": record.rows, "dimension": record.dimension} for record in filled.values()},
        "measured": {
            "collection": filling.collection,
            "tables": {
                record.entity: {"alias": record.alias, "table": table, "recall": record.recall}
                for table, record in filled.items()
            },
            "resumed_rows": filling.resumed,
            "written_rows": filling.written,
            "kept_rows": filling.kept,
            "not_copied": filling.not_copied,
            "served": served,
            "left": left,
            "dropped": dropped,
        },
        "seconds": round(seconds, 3),
    }


def _left(tables: Tables, collection: str, entities: Collection[str]) -> list[str]:
    """Return the aliases whose tables are of a type not in ``entities``."""
    records = tables.records(collection)
    shown = tables.served(collection).items()
    return sorted(alias for alias, table in shown if table in records and records[table].entity not in entities)


def complete_tables(tables: Tables, collection: str, manifest_sha256: str) -> dict[str, TableRecord]:
    """Return a release's complete tables, the newest of each alias.

    Those of an export that lacks one of its tables are left out: readers would see two releases. Tables of another
    export of the collection wait for none of them.
    """
    found: dict[str, tuple[str, TableRecord]] = {}
    records = tables.records(collection)
    for table, record in sorted(records.items(), key=lambda item: item[1].number):
        if record.complete and record.manifest_sha256 == manifest_sha256:
            found[record.alias] = (table, record)
    while lacking := [alias for alias, (_, record) in found.items() if not found.keys() >= {*record.together}]:
        for alias in lacking:
            del found[alias]
    return dict(found.values())


def retire(
    tables: Tables, collection: str, aliases: Collection[str], *, keep: int, needed: Collection[str]
) -> list[str]:
    """Drop tables that are neither served nor among the newest.

    Args:
        tables: of the store.
        collection: of the tables.
        aliases: whose tables go; another export may keep more of the others.
        keep: number of tables of each alias that stay besides the served one; of complete ones as many as of others,
            so that nights that failed displace no release. Tables whose files they share stay, too.
        needed: tables that stay in any case.

    Returns:
        The names of those that went.
    """
    stays = {*tables.served(collection).values(), *needed}
    by_alias: dict[tuple[str, bool], list[tuple[int, str, TableRecord]]] = {}
    records = tables.records(collection)
    for table, record in records.items():
        if table not in stays and record.alias in aliases:
            by_alias.setdefault((record.alias, record.complete), []).append((record.number, table, record))
    old = {table for found in by_alias.values() for _, table, _ in sorted(found, key=lambda item: item[:2])[:-keep]}
    shared = {base for table, record in records.items() if table not in old for base in record.bases}
    dropped = []
    for table in sorted(old - shared, key=lambda each: -records[each].number):  # before those whose files it shares
        if table in shared or _served_meanwhile(tables, table, records[table]):
            shared.update(records[table].bases)
            continue
        tables.drop(table, records[table])
        dropped.append(table)
    return sorted(dropped)


def _served_meanwhile(tables: Tables, table: str, record: TableRecord) -> bool:
    """Mark a table, and return whether it is served by now.

    A roll-back looks for the mark after it moved the aliases. So either that finds the mark, or the table is seen to be
    served here, and stays.
    """
    if record.complete and table in tables.records(record.collection):  # else another export drops it, too
        tables.complete(table, record.model_copy(update={"complete": False}))
    if table not in tables.served(record.collection).values():
        return False
    tables.complete(table, record)
    return True
