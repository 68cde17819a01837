"""Filling of a vector store: tables of a release, checks, one switch.

A release has tables of its own, whose names are made of what is in them. So a second try finds the table of the first
and goes on at its end, and an export that was done finds it done. Readers see a release when its tables are filled and
checked, by one switch of aliases, and go back to an earlier one by the same.
"""

from __future__ import annotations

import itertools
import re
import secrets
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from pbg_tasks.config.base import digest
from pbg_tasks.config.exports import no_metric
from pbg_tasks.errors import ConfigError, ConflictError, FormatError, QualityGateError
from pbg_tasks.progress import Progress, human_seconds, say
from pbg_tasks.publish.exchange.nearest import Form
from pbg_tasks.publish.sinks import Rows, TableRecord, open_sink, sink_options
from pbg_tasks.publish.sinks.checking import check_rows, recall_of, sampled
from pbg_tasks.storage.files import disk_errors
from pbg_tasks.storage.staging import Scratch
from pbg_tasks.tasks.exchange.opened import describe, finder, load_contents, told
from pbg_tasks.tasks.model_source import load_newest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.config.exports import ExportOptions
    from pbg_tasks.publish.exchange import Contents, EntityRows
    from pbg_tasks.publish.exchange.manifest import ModelSource
    from pbg_tasks.publish.sinks import SinkOptions, Tables

BY_HAND = "pbg"
"""Collection of exports that no graph spec lists."""
_LONGEST = 24  # characters of a part of a table's name; PostgreSQL has room for 63 of the whole
_DIGITS = 12
Serving: TypeAlias = "Callable[[Tables, str, Mapping[str, TableRecord]], bool]"


def slug(name: str) -> str:
    """Return a name of lower-case letters, digits and underscores.

    Every store takes such names. Names that differ have different slugs.
    """
    plain = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
    if plain == name and len(plain) <= _LONGEST and plain[:1].isalpha():
        return plain
    plain = plain if plain[:1].isalpha() else f"n_{plain}"
    return f"{plain[: _LONGEST - 7].rstrip('_')}_{digest(name)[:6]}"


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
) -> dict[str, Any]:
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
        load = partial(load_contents, scratch=scratch.path, types=options.types, on_rows=_ignore)
        found, contents = load_newest(finder(source, scratch.path, channel, entity_path), load)
        form = Form.of(contents.config, no_metric(sink, contents.config.comparator))
        filling = _Filling(sink, tables, own, options, form, own.collection or collection)
        with told(found, scratch.path), disk_errors(scratch.path):
            filled = filling.fill(contents, describe(found))
        served = serving(tables, filling.collection, filled)
        dropped = retire(tables, filling.collection, keep=own.keep, needed=filled)
    seconds = time.monotonic() - started
    say(f"export {sink}: {len(filled)} tables in {destination} are complete after {human_seconds(seconds)}")
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
            "served": served,
            "dropped": dropped,
        },
        "seconds": round(seconds, 3),
    }


def complete_tables(tables: Tables, collection: str, manifest_sha256: str) -> dict[str, TableRecord]:
    """Return a release's complete tables, the newest of each alias.

    There are none while a table that was to be filled with them is not complete: readers would see two releases.
    """
    found: dict[str, tuple[str, TableRecord]] = {}
    records = tables.records(collection)
    for table, record in sorted(records.items(), key=lambda item: item[1].number):
        if record.complete and record.manifest_sha256 == manifest_sha256:
            found[record.alias] = (table, record)
    whole = all(alias in found for _, record in found.values() for alias in record.together)
    return dict(found.values()) if whole else {}


def retire(tables: Tables, collection: str, *, keep: int, needed: Collection[str]) -> list[str]:
    """Drop tables that are neither served nor among the newest.

    Args:
        tables: of the store.
        collection: of the tables.
        keep: number of tables of each alias that stay besides the served one; of complete ones as many as of others,
            so that nights that failed displace no release.
        needed: tables that stay in any case.

    Returns:
        The names of those that went.
    """
    stays = {*tables.served(collection).values(), *needed}
    by_alias: dict[tuple[str, bool], list[tuple[int, str, TableRecord]]] = {}
    for table, record in tables.records(collection).items():
        if table not in stays:
            by_alias.setdefault((record.alias, record.complete), []).append((record.number, table, record))
    old = [each for found in by_alias.values() for each in sorted(found, key=lambda item: item[:2])[:-keep]]
    for _, table, record in old:
        tables.drop(table, record)
    return sorted(table for _, table, _ in old)


@dataclass(slots=True)
class _Filling:
    """Filling of one release.

    Attributes:
        sink: its name.
        tables: of the store.
        own: options of the sink.
        options: of the export.
        form: of the vectors.
        collection: of the tables.
        resumed: number of rows that an earlier try had written.
        written: number of rows that this one wrote.
    """

    sink: str
    tables: Tables
    own: SinkOptions
    options: ExportOptions
    form: Form
    collection: str
    resumed: int = 0
    written: int = 0

    def fill(self, contents: Contents, source: ModelSource) -> dict[str, TableRecord]:
        """Fill and check a table for each type; return their records."""
        records = self.tables.records(self.collection)
        number = max((record.number for record in records.values()), default=0) + 1
        together = tuple(self._alias(rows) for rows in contents.entities.values())
        filled = {}
        for rows in contents.entities.values():
            wanted = self._record(rows, source, number, together)
            table, there = self._place(wanted)
            filled[table] = self._fill(table, rows, wanted, there)
        return filled

    def _alias(self, rows: EntityRows) -> str:
        return f"{self.collection}_{slug(rows.entity)}"

    def _record(self, rows: EntityRows, source: ModelSource, number: int, together: tuple[str, ...]) -> TableRecord:
        return TableRecord(
            collection=self.collection,
            entity=rows.entity,
            alias=self._alias(rows),
            number=number,
            source=source.url,
            manifest_sha256=source.manifest_sha256,
            contract=source.contract,
            rows=len(rows),
            dimension=rows.dimension - self.form.skipped,
            metric=self.form.metric,
            skipped_dimensions=self.form.skipped,
            together=together,
            options=self.own.model_dump(mode="json", exclude={"collection", "keep", "batch_mb"}),
        )

    def _place(self, wanted: TableRecord) -> tuple[str, TableRecord | None]:
        """Return the name of a table, and its record where it exists.

        Records are read anew, because another export may have filled and served the table meanwhile. A table that
        was complete and lacks rows now stays for its readers; the contents go into one of another name.
        """
        for number in itertools.count():
            table = self._name(wanted, number)
            there = self.tables.records(self.collection).get(table)
            if there is None or self._count(table, there) == there.rows:
                return table, there
            if not there.complete and table not in self.tables.served(self.collection).values():
                return table, there
            say(f"export {self.sink}: complete table {table} lacks rows by now; its contents go into another one")
        raise RuntimeError("numbers ended: a bug")

    def _count(self, table: str, record: TableRecord) -> int:
        """Return a table's number of rows; -1 with gaps or repetitions."""
        try:
            return self.tables.count(table, record)
        except ConflictError as error:
            say(f"export {self.sink}: {error}")
            return -1

    @staticmethod
    def _name(record: TableRecord, number: int) -> str:
        """Return the name of a table, which stands for its contents.

        Files without a manifest may have changed since an earlier try, so their table is always a new one.

        Args:
            record: of the table.
            number: of complete tables with these contents that lack rows by now.
        """
        contents = record.model_dump(mode="json", exclude={"number", "source", "together", "contract"})
        if number:
            contents["again"] = number
        if record.manifest_sha256 is None:
            contents["nonce"] = secrets.token_hex(16)
        return f"{record.alias}_{digest(contents)[:_DIGITS]}"

    def _fill(self, table: str, rows: EntityRows, wanted: TableRecord, there: TableRecord | None) -> TableRecord:
        record = wanted if there is None else there
        start = self._begin(table, record, new=there is None)
        self.resumed += start
        if there is not None and start:
            say(f"export {self.sink}: {rows.entity}: {start} of {len(rows)} rows are in table {table} already")
        self._write(table, rows, start)
        if not record.complete:
            record = self.tables.finish(table, record)
        return self._checked(table, rows, record.model_copy(update={"together": wanted.together}))

    def _begin(self, table: str, record: TableRecord, *, new: bool) -> int:
        """Return the number of rows that need not be written."""
        if not new:
            found = self._count(table, record)
            if found == record.rows if record.complete else 0 < found <= record.rows:
                return found
        self.tables.create(table, record.model_copy(update={"complete": False, "version": None, "recall": None}))
        return 0

    def _write(self, table: str, rows: EntityRows, start: int) -> None:
        progress = Progress(f"export {self.sink} {rows.entity}", total=len(rows) - start, unit="rows")
        if start == len(rows):
            return
        with progress:
            for first, batch in _batches(rows, start, self.own.batch_mb, self.form.skipped):
                self.tables.add(table, first, batch)
                self.written += len(batch.names)
                progress.advance(len(batch.names))

    def _checked(self, table: str, rows: EntityRows, record: TableRecord) -> TableRecord:
        """Compare a whole table with the model, and record the result.

        Raises:
            FormatError: it has other rows.
            QualityGateError: its search finds too few of the nearest.
        """
        if (found := self.tables.count(table, record)) != len(rows):
            raise FormatError(
                f"table {table} has {found} rows, the model {len(rows)}; drop it, and run the export again"
            )
        known = record.complete and record.neighbors == self.options.neighbors
        if known or not len(rows):
            recall = record.recall if known else 1.0
        else:
            numbers_S, expected = sampled(rows, self.options.queries)
            written = Rows(expected.names, expected.vectors[:, self.form.skipped :])
            check_rows(self.tables, table, record, numbers_S, written)
            wanted = self.options.neighbors
            recall = recall_of(self.tables, table, record, rows, self.form, numbers_S, wanted)
            say(f"export {self.sink}: {rows.entity}: recall@{wanted} {recall:.4f} of table {table}")
        if recall is not None and recall < self.options.min_recall:
            raise QualityGateError(
                f"table {table} of {rows.entity} finds {recall:.4f} of the {self.options.neighbors} nearest vectors, "
                f"the floor is {self.options.min_recall}: give sink {self.sink} options for a more exact search, or "
                "lower min_recall; readers still see the release before"
            )
        done = record.model_copy(
            update={"complete": True, "recall": None if recall is None else round(recall, 6)}
            | {"neighbors": self.options.neighbors}
        )
        if done != record:
            self.tables.complete(table, done)
        return done


def _ignore(count: int) -> None:
    """Leave rows of the model's files out of the progress."""


def _batches(rows: EntityRows, start: int, megabytes: float, skipped: int) -> Iterator[tuple[int, Rows]]:
    """Yield rows in batches, with the number of each first one."""
    most = max(1, int(megabytes * 1e6 / (4 * rows.dimension)))
    names: list[str] = []
    vectors: list[np.ndarray] = []
    first, number = start, 0
    for block in rows.blocks():
        skip = min(max(start - number, 0), len(block.names))
        number += len(block.names)
        for begin in range(skip, len(block.names), most):
            names += block.names[begin : begin + most]
            vectors.append(block.vectors[begin : begin + most, skipped:])
            if len(names) >= most:
                yield first, Rows(names, np.concatenate(vectors))
                first, names, vectors = first + len(names), [], []
    if names:
        yield first, Rows(names, np.concatenate(vectors))
