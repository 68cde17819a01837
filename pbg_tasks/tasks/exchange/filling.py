"""Tables of a release: begun, written, checked.

A table's name is made of what is in it, so a second try finds the table of the first, and goes on. A table is written
whole, or begins as a copy of an earlier release's and is changed where the model differs (``deltas``).
"""

from __future__ import annotations

import itertools
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import numpy as np

from pbg_tasks.config.base import digest
from pbg_tasks.config.sinks import slug
from pbg_tasks.errors import ConflictError, FormatError, QualityGateError, StorageError
from pbg_tasks.progress import Progress, say
from pbg_tasks.publish.sinks import DeltaSinkOptions, Rows, TableRecord
from pbg_tasks.publish.sinks.checking import check_rows, recall_of, sampled
from pbg_tasks.tasks.exchange.deltas import Delta, base_of, compare, write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pydantic import JsonValue

    from pbg_tasks.config.exports import ExportOptions
    from pbg_tasks.publish.exchange import Contents, EntityRows
    from pbg_tasks.publish.exchange.manifest import ModelSource
    from pbg_tasks.publish.exchange.nearest import Form
    from pbg_tasks.publish.sinks import CopiedTables, SinkOptions, Tables

_DIGITS = 12


@dataclass(slots=True)
class Filling:
    """Filling of one release.

    Attributes:
        sink: its name.
        tables: of the store.
        own: options of the sink.
        options: of the export.
        form: of the vectors.
        collection: of the tables.
        scratch: directory for what a delta compares.
        names: stands for the files of names, where they are outside of the model's manifest.
        resumed: number of rows that an earlier try had written.
        written: number of rows that this one wrote.
        kept: number of rows that stayed as the table before, or an earlier try, had them.
        not_copied: why the store did not copy the table before, by type.
    """

    sink: str
    tables: Tables
    own: SinkOptions
    options: ExportOptions
    form: Form
    collection: str
    scratch: Path
    names: str | None = None
    resumed: int = 0
    written: int = 0
    kept: int = 0
    not_copied: dict[str, str] = field(default_factory=dict)

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
            options=self._options(),
        )

    def _options(self) -> dict[str, JsonValue]:
        """Return the options that change what is in a table."""
        found = self.own.model_dump(mode="json", exclude={"collection", "keep", "batch_mb", "whole_every"})
        return {key: value for key, value in found.items() if key != "moved_above" or value is not None}

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
        """Return a table's number of rows; -1 with gaps or repetitions.

        It is -1, too, where a table that shares files cannot be read: they may be gone for good.
        """
        try:
            return self.tables.count(table, record)
        except ConflictError as error:
            say(f"export {self.sink}: {error}")
        except StorageError as error:
            if not record.bases:
                raise
            say(f"warning: export {self.sink}: table {table} is taken for empty: {error}")
        return -1

    def _name(self, record: TableRecord, number: int) -> str:
        """Return the name of a table, which stands for its contents.

        Files without a manifest may have changed since an earlier try, so their table is always a new one.

        Args:
            record: of the table.
            number: of complete tables with these contents that lack rows by now.
        """
        contents = record.model_dump(mode="json", exclude={"number", "source", "together", "contract", "bases"})
        if number:
            contents["again"] = number
        if self.names is not None:
            contents["names"] = self.names
        if record.manifest_sha256 is None:
            contents["nonce"] = secrets.token_hex(16)
        return f"{record.alias}_{digest(contents)[:_DIGITS]}"

    def _fill(self, table: str, rows: EntityRows, wanted: TableRecord, there: TableRecord | None) -> TableRecord:
        changed = self._change(table, rows, wanted, there)
        if changed is not None:
            record, delta = changed
        else:
            record, delta = (wanted if there is None or there.bases else there), None
            start = self._begin(table, record, new=record is not there)
            self.resumed += start
            if start:
                say(f"export {self.sink}: {rows.entity}: {start} of {len(rows)} rows are in table {table} already")
            self._write(table, rows, start)
        if not record.complete:
            record = self.tables.finish(table, record)
        return self._checked(table, rows, record.model_copy(update={"together": wanted.together}), delta)

    def _change(
        self, table: str, rows: EntityRows, wanted: TableRecord, there: TableRecord | None
    ) -> tuple[TableRecord, Delta] | None:
        """Write the changes of a model into a copy of another table.

        Returns:
            Its record, and the delta; None where the table has to be written whole.
        """
        own, tables = self.own, cast("CopiedTables", self.tables)
        if not isinstance(own, DeltaSinkOptions) or own.moved_above is None or not len(rows):
            return None
        begun = there if there is not None and there.bases else None
        found = (table, begun) if begun is not None else self._base(table, wanted, there, own.whole_every)
        if found is None or (before := self._count(*found)) < 1:
            return None
        name, record = found
        parts = tables.read(name, record)
        above, skipped = own.moved_above, self.form.skipped
        delta = compare(parts, before, rows, skipped=skipped, above=above, scratch=self.scratch)
        if not delta.is_small:
            differ = f"{delta.written} of {len(rows)} rows differ from those served, more than half"
            say(f"export {self.sink}: {rows.entity}: {differ}: all are written")
            return None
        if begun is None:
            begun = wanted.model_copy(update={"bases": (name, *record.bases)})
            try:
                tables.copy(table, begun, record)
            except StorageError as error:
                self.not_copied[rows.entity] = str(error)
                say(f"warning: export {self.sink}: {rows.entity}: all rows are written: {error}")
                return None
        say(
            f"export {self.sink}: {rows.entity}: table {table} shares rows with {begun.bases[0]}; {delta.written} of "
            f"{len(rows)} are written"
        )
        if not begun.complete:
            most = _most(rows, own.batch_mb)
            with Progress(f"export {self.sink} {rows.entity}", total=delta.written, unit="rows") as progress:
                write(tables, table, rows, delta, skipped=skipped, most=most, wrote=progress.advance)
            self.written += delta.written
        self.kept += len(rows) - delta.written
        return begun, delta

    def _base(
        self, table: str, wanted: TableRecord, there: TableRecord | None, whole_every: int
    ) -> tuple[str, TableRecord] | None:
        """Return the table that a new one copies, and its record."""
        if there is not None and (there.complete or self._count(table, there) > 0):
            return None  # a whole table goes on
        records = self.tables.records(self.collection)
        base = base_of(records, self.tables.served(self.collection), wanted, whole_every)
        return None if base is None else (base, records[base])

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

    def _checked(self, table: str, rows: EntityRows, record: TableRecord, delta: Delta | None) -> TableRecord:
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
            self._check_sample(table, record, numbers_S, written, delta)
            wanted, places = self.options.neighbors, None if delta is None else delta.places()
            asked = (numbers_S, written.vectors)
            recall = recall_of(self.tables, table, record, rows, self.form, asked, wanted, places)
            say(f"export {self.sink}: {rows.entity}: recall@{wanted} {recall:.4f} of table {table}")
        if recall is not None and recall < self.options.min_recall:
            nearer = "a smaller moved_above, " if delta is not None else ""
            raise QualityGateError(
                f"table {table} of {rows.entity} finds {recall:.4f} of the {self.options.neighbors} nearest vectors, "
                f"the floor is {self.options.min_recall}: give sink {self.sink} {nearer}options for a more exact "
                "search, or lower min_recall; readers still see the release before"
            )
        done = record.model_copy(
            update={"complete": True, "recall": None if recall is None else round(recall, 6)}
            | {"neighbors": self.options.neighbors}
        )
        if done != record:
            self.tables.complete(table, done)
        return done

    def _check_sample(
        self, table: str, record: TableRecord, numbers_S: np.ndarray, expected: Rows, delta: Delta | None
    ) -> None:
        if delta is None:
            check_rows(self.tables, table, record, numbers_S, expected)
            return
        order = np.argsort(delta.numbers_N[numbers_S])
        ordered = Rows([expected.names[place] for place in order.tolist()], expected.vectors[order])
        moved = record.options["moved_above"]
        check_rows(self.tables, table, record, delta.numbers_N[numbers_S][order], ordered, moved)


def _most(rows: EntityRows, megabytes: float) -> int:
    """Return the number of rows that are written at once."""
    return max(1, int(megabytes * 1e6 / (4 * rows.dimension)))


def _batches(rows: EntityRows, start: int, megabytes: float, skipped: int) -> Iterator[tuple[int, Rows]]:
    """Yield rows in batches, with the number of each first one."""
    most = _most(rows, megabytes)
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
                first, names = first + len(names), []
                vectors = []
    if names:
        yield first, Rows(names, np.concatenate(vectors))
