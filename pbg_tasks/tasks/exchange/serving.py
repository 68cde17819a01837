"""Serving of a channel's release by vector stores, after exports and roll-backs."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

from pbg_tasks.config.exports import RecallOptions
from pbg_tasks.errors import PbgError, StorageError
from pbg_tasks.progress import say
from pbg_tasks.publish import Channel
from pbg_tasks.publish.sinks import open_sink, sink_options
from pbg_tasks.storage import open_store
from pbg_tasks.tasks.exchange.fill import complete_tables, serve

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pbg_tasks.config import GraphSpec
    from pbg_tasks.config.exports import Export
    from pbg_tasks.publish import Release
    from pbg_tasks.publish.sinks import TableRecord, Tables
    from pbg_tasks.tasks.exchange.fill import Serving


def follow(graph: GraphSpec, export: Export) -> Release | None:
    """Point a sink's aliases to the release that the channel serves.

    The channel is read again after the switch: of two processes that switch at once, the later one sees the channel's
    last move.

    Args:
        graph: spec of the graph.
        export: one of its exports, to a sink.

    Returns:
        The release that aliases point to; None where the store has no tables of it that the export fills, and aliases
        stay where they were.

    Raises:
        StorageError: the store failed.
    """
    own = sink_options(export.format, export.options)
    collection, types = own.collection or graph.collection, export.types or tuple(graph.model.entities)
    with open_sink(export.format, export.place(graph.store), own) as tables:
        return _follow(tables, collection, Channel(open_store(graph.store), graph.channel), types)


def following(graph: GraphSpec, run: str) -> Serving:
    """Return a function that makes aliases follow the channel.

    Its result is whether that is the release of ``run``.
    """

    def serving(tables: Tables, collection: str, filled: Mapping[str, TableRecord]) -> bool:
        types = [record.entity for record in filled.values()]
        release = _follow(tables, collection, Channel(open_store(graph.store), graph.channel), types)
        return release is not None and release.run == run

    return serving


def _follow(tables: Tables, collection: str, channel: Channel, types: Collection[str]) -> Release | None:
    while (release := channel.current().release) is not None:
        filled = complete_tables(tables, collection, release.manifest_sha256)
        if not any(record.entity in types for record in filled.values()):  # another export may share the collection
            return None
        before = tables.served(collection)
        serve(tables, collection, filled)
        left = complete_tables(tables, collection, release.manifest_sha256)  # another export may drop one
        if not left.keys() >= filled.keys():
            _serve_again(tables, collection, before, {record.alias for record in filled.values()})
        elif channel.current().release == release:
            return release
    return None


def _serve_again(tables: Tables, collection: str, before: Mapping[str, str], aliases: Collection[str]) -> None:
    """Point aliases back to the tables of before a switch."""
    records = tables.records(collection)
    there = {alias: (before[alias], records[before[alias]]) for alias in aliases if before.get(alias) in records}
    if there:
        tables.switch(collection, there)
        say("export: another export drops one of these tables, so aliases are back at those of before")


def follow_all(graph: GraphSpec, release: Release) -> dict[str, bool]:
    """Let all sinks of a graph's exports follow its channel.

    Args:
        graph: spec of the graph.
        release: to which the channel was moved, for messages.

    Returns:
        For each sink by the export's name, whether its aliases point to that release.

    Raises:
        StorageError: a store failed; the others were done.
    """
    done, failed = dict[str, bool](), list[str]()
    for export in (each for each in graph.exports if each.is_sink):
        try:
            there = follow(graph, export)
        except PbgError as error:
            failed.append(f"{export.name}: {error}")
            continue
        done[export.name] = there == release
        if there is None:
            say(
                f"warning: sink {export.name} lacks complete tables of release {release.seq}, so its aliases stay; "
                f"`{_refill(graph, export, release)}` fills and serves them"
            )
    if failed:
        raise StorageError(
            f"the channel points to release {release.seq}, but not every sink does ({'; '.join(failed)}): run "
            f"`pbg rollback SPEC --to {release.seq} --channel {graph.channel}` again"
        )
    return done


def _refill(graph: GraphSpec, export: Export, release: Release) -> str:
    """Return the command that fills an export's tables of a release."""
    given = export.options | {"collection": export.options.get("collection") or graph.collection}
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in given.items()}
    options = [f"--type={name}" for name in export.types]
    options += [f"--option={name}={text}" for name, text in texts.items()]
    options += [
        f"--{name.replace('_', '-')}={getattr(export, name)}"
        for name, field in RecallOptions.model_fields.items()
        if name != "types" and getattr(export, name) != field.default
    ]
    source = f"{graph.store.rstrip('/')}/{release.directory}"
    return shlex.join(["pbg", "export", export.format, source, export.place(graph.store), *options])
