"""Files that real Angel wrote, read, compared and written again.

They are compared with their input and with Angel's own reading.

    python -m tests.angel_goldens DIR

DIR, any folder below it or an archive ``.tar.xz`` in it holds cases: a folder each with ``case.json``, ``input.tsv``,
``model/`` and what Angel loads; and text of LINE named ``line_<key separator>_<feature separator>_<partitioner>.txt``,
with the context vectors in ``.txt.context``. What was put into LINE is ``line_input.tsv`` (node, place, value a line)
and ``line_context_input.tsv`` beside it, or where these are missing, ``LINE_INPUT``.
One line a case: exact, refused-as-documented or wrong. Exit status 1 if any is wrong, or there is none.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import warnings
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from functools import cached_property
from pathlib import Path

import numpy as np

from examples.data.archives import unpack
from pbg_tasks.errors import FormatError, PbgError
from pbg_tasks.formats.angel import (
    FORMATS,
    AngelLossWarning,
    LocalFolder,
    MatrixLayout,
    Style,
    open_matrix,
    parse_meta,
    read_line,
    serialize_meta,
    write_cells,
)
from pbg_tasks.formats.angel.formats import PACKAGE
from pbg_tasks.formats.angel.java_digits import decimal_text
from pbg_tasks.formats.angel.line import SEPARATORS
from pbg_tasks.formats.angel.meta import META_NAMES
from pbg_tasks.formats.angel.row_types import row_type
from pbg_tasks.formats.angel.text import format_lines

EXACT, REFUSED, WRONG = "exact", "refused-as-documented", "wrong"
MOST_COLUMNS = 100_000  # so many rows are compared as vectors
ONE_BYTE = "one-byte-values"  # infinities and NaN that Angel writes beside doubles of six decimals
LINE_INPUT = {
    "line_input.tsv": {4 + k: (k + 0.1, k * -1e-5, 3.0) for k in range(4)},
    "line_context_input.tsv": {4 + k: (9.0, 8.0, k) for k in range(4)},
}
"""Vectors by node, the input of the samples of LINE without an input file of their own."""


class WrongError(Exception):
    """A fault that a case reveals."""


class Case:
    """One matrix that Angel saved."""

    def __init__(self, folder):
        self.folder = folder
        self.facts = json.loads((folder / "case.json").read_text())
        self.arguments = self.facts.get("args", {})
        self.separator = self.arguments.get("sep", ",").encode().decode("unicode_escape")
        self.meta_path = next((path for name in META_NAMES for path in folder.glob(f"model/*/{name}")), None)
        if self.meta_path is None:
            raise FormatError(f"{folder}: has no metadata")
        self.model = self.meta_path.parent
        self.meta = parse_meta(self.meta_path.read_bytes(), str(self.meta_path))
        self.row_type = row_type(self.meta.row_type, str(self.meta_path))
        self.format = self.meta.format_class_name.removeprefix(PACKAGE)

    @cached_property
    def input(self):
        """Input of the saved rows, by row and column."""
        return self._of_saved_rows(self._table("input.tsv"))

    @cached_property
    def loaded(self):
        """Values that Angel loads of the saved rows.

        None where it could not load them.
        """
        return self._of_saved_rows(self._table("load-ps.tsv"))

    def _of_saved_rows(self, table):
        wanted = self.arguments.get("save_rows")
        if table is None or wanted is None:
            return table
        rows = saved_rows(wanted, self._row_ids())
        return {place: value for place, value in table.items() if place[0] in rows}

    def check(self):
        """Return the outcome and a note on it; raises WrongError."""
        if self.meta_path.read_bytes() != serialize_meta(self.meta) and self._by_angel():
            raise WrongError("metadata that is read and written again has other bytes")
        wanted, there = self.arguments.get("save_rows"), self._row_ids()
        if wanted is not None and saved_rows(wanted, there) != there:
            raise WrongError(f"rows {wanted} were to be saved, and metadata has {sorted(there)}")
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", AngelLossWarning)
            try:
                matrix = open_matrix(LocalFolder(self.model), separator=self.separator)
                cells = self._cells(matrix)
            except PbgError as error:
                return self._refused(error)
        if not self._same(cells, self.input):
            if said and self._same(cells, self.loaded or {}):
                return REFUSED, f"warned: {said[0].message}"
            raise WrongError(f"reads {self._difference(cells, self.input)}")
        self._check_vectors(matrix, cells)
        notes = [self._rewrite(Style(self.separator))]
        if self.loaded is not None and not self._same(self.loaded, self.input):
            notes.append("Angel itself loads it wrong")
        return EXACT, "; ".join(filter(None, notes))

    def _refused(self, error):
        """Check that a refusal has a reason of Angel's own.

        It is a loss that Angel's own loading shows too, or a foreign format.
        """
        if not self.row_type.numeric or self.format not in FORMATS:
            return REFUSED, str(error)
        losses, angel = [], self.loaded
        matrix = open_matrix(LocalFolder(self.model), separator=self.separator, on_loss=losses.append)
        if self.meta.hashed and not self._form.has_columns:
            return REFUSED, losses[0].message
        cells = self._cells(matrix)
        kinds = {loss.kind for loss in losses}
        if not kinds:
            raise error
        if ONE_BYTE in kinds:  # Angel itself cannot load it
            rounded = {place: six_decimals(value) for place, value in self.input.items()}
            if not self._same(cells, rounded):
                raise WrongError(f"refused; what is left differs: {self._difference(cells, rounded)}")
            return REFUSED, ", ".join(sorted(kinds))
        if self._same(cells, self.input) and cells.keys() == self.input.keys() and kinds != {"six-decimals"}:
            raise WrongError(f"refused, and nothing is lost: {error}")
        if angel is not None and not self._same(cells, angel):
            raise WrongError(f"refused; what is left differs from what Angel loads: {self._difference(cells, angel)}")
        note = self._rewrite(Style(self.separator, six_decimals=True)) if kinds == {"six-decimals"} else ""
        return REFUSED, "; ".join(filter(None, [", ".join(sorted(kinds)), note]))

    def _rewrite(self, style):
        """Write the input as Angel did and compare every byte."""
        parts = self.meta.part_metas.values()
        if any(len(part.row_metas) != part.end_row - part.start_row for part in parts):
            return "not written again: some rows only were saved"
        if not (self._form.has_columns or self.row_type.dense) or (self._form.by_column and self.meta.hashed):
            return "not written again: others of its kind could not be read"
        options = {key: value for key, value in self.meta.options.items() if not key.startswith("feature.index.range")}
        hashed = self.meta.hashed
        start, end = self._columns()
        layout = MatrixLayout(
            name=self.meta.matrix_name,
            rows=self.meta.row,
            start_col=start,
            end_col=end,
            row_type=self.row_type,
            format=self.meta.format_class_name,
            block_row=None if hashed else self.meta.block_row,
            block_col=None if hashed else self.meta.block_col,
            hash_partitions=len(parts) if hashed else None,
            servers=self.arguments.get("ps", 1),
            partitions_per_file=self.arguments.get("parts_per_file", 5),
            style=style,
            options=options,
            matrix_id=self.meta.matrix_id,
            meta_name=self.meta_path.name,
        )
        places = np.array(list(self.input), np.int64).reshape(-1, 2)
        values = np.array(list(self.input.values()), self.row_type.value_type)
        with tempfile.TemporaryDirectory() as scratch:
            meta = write_cells(Path(scratch), layout, places[:, 0], places[:, 1], values)
            written = {path.name: path.read_bytes() for path in (Path(scratch) / layout.name).iterdir()}
        wanted = {path.name: path.read_bytes() for path in self.model.iterdir() if not path.name.startswith(".")}
        if {name: data for name, data in written.items() if name not in META_NAMES} != {
            name: data for name, data in wanted.items() if name not in META_NAMES
        }:
            if self._by_angel():
                raise WrongError("data that is written again has other bytes")
            return "written again, other bytes (not Angel's)"
        if replace(meta, options=self.meta.options) != self.meta:
            raise WrongError("metadata that is written anew says something else")
        return "" if written[layout.meta_name] == wanted[layout.meta_name] else "written again, rows in another order"

    def _check_vectors(self, matrix, cells):
        for entities in ("columns", "rows"):
            start, end = self._columns()
            if entities == "rows" and not 0 < end - start <= MOST_COLUMNS:
                continue
            rows = sorted(self._row_ids())
            columns = range(start, end)
            for ids, block in matrix.vectors(entities):
                for entity, vector in zip(ids.tolist(), block, strict=True):
                    for place, value in enumerate(vector):
                        key = (rows[place], entity) if entities == "columns" else (entity, columns[place])
                        if bits(cells.get(key, self.row_type.value_type.type(0))) != bits(value):
                            raise WrongError(f"vectors of {entities} differ at {key}")

    @property
    def _form(self):
        return FORMATS[self.format]

    def _row_ids(self):
        return {row for part in self.meta.part_metas.values() for row in part.row_metas}

    def _columns(self):
        parts = self.meta.part_metas.values()
        return min((part.start_col for part in parts), default=0), max((part.end_col for part in parts), default=0)

    def _cells(self, matrix):
        found = {}
        for cells in matrix.cells():
            for row, column, value in zip(cells.rows.tolist(), cells.columns.tolist(), cells.values, strict=True):
                if (row, column) in found:
                    raise WrongError(f"element {row}, {column} comes twice")
                found[row, column] = value
        return found

    def _table(self, name):
        """Read lines of row, column and value; None without the file."""
        if not (self.folder / name).exists():
            return None
        kind, found = self.row_type.value_type.type, {}
        for line in (self.folder / name).read_text().splitlines():
            row, column, text = line.split("\t")
            whole = np.issubdtype(kind, np.integer)
            found[int(row), int(column)] = kind(int(Decimal(text))) if whole else kind(text)
        return found

    def _same(self, left, right):
        return self._difference(left, right) is None

    def _difference(self, left, right):
        """Return the first element that differs; what one lacks is zero."""
        zero = self.row_type.value_type.type(0)
        for key in sorted(left.keys() | right.keys()):
            one, other = left.get(key, zero), right.get(key, zero)
            if bits(one) != bits(other):
                return f"{one!s} for {other!s} at {key}"
        return None

    def _by_angel(self):
        return self.facts.get("save_rc", 1) == 0


def bits(value):
    """Return a number's bytes; every NaN is one."""
    return b"NaN" if value != value else value.tobytes()  # noqa: PLR0124 (the test for NaN)


def saved_rows(wanted, there):
    """Return the rows that ``save_rows`` names.

    It is a list, text such as ``0,2-4``, one row, or a number of first rows.

    Args:
        wanted: value of ``save_rows``.
        there: rows in the metadata, which distinguish one row from a number of them.
    """
    if isinstance(wanted, int):
        return {wanted} if there == {wanted} else set(range(wanted))
    if not isinstance(wanted, str):
        return {int(row) for row in wanted}
    spans = [part.partition("-") for part in wanted.split(",")]
    return {row for first, _, last in spans for row in range(int(first), int(last or first) + 1)}


def six_decimals(value):
    """Round a double to the six decimals it was written with."""
    return np.float64(decimal_text(float(value))) if np.isfinite(value) else value


def line_input(path):
    """Return the input vectors of a LINE file, float32 by node."""
    name = "line_context_input.tsv" if path.name.endswith(".context") else "line_input.tsv"
    if not (path.parent / name).exists():
        return {node: np.array(vector, np.float32) for node, vector in LINE_INPUT[name].items()}
    found = {}
    for line in (path.parent / name).read_text().splitlines():
        node, place, value = line.split("\t")
        found.setdefault(int(node), {})[int(place)] = np.float32(value)
    return {node: np.array([vector[place] for place in sorted(vector)]) for node, vector in found.items()}


def check_line(path):
    """Read LINE text, compare it with its input, and rewrite it."""
    words = path.name.split(".")[0].split("_")[1:3]
    after, between = (SEPARATORS[word] for word in words)
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "0").symlink_to(path.resolve())
        blocks = list(read_line(LocalFolder(Path(scratch)), key_separator=words[0], feature_separator=words[1]))
    wanted, read = line_input(path), [pair for nodes, vectors in blocks for pair in zip(nodes, vectors, strict=True)]
    if sorted(node for node, _ in read) != sorted(wanted):
        raise WrongError(f"holds nodes {[int(node) for node, _ in read]}, and {list(wanted)} were put in")
    for node, vector in read:
        if vector.tobytes() != wanted[node].tobytes():
            raise WrongError(f"reads {vector.tolist()} for {wanted[node].tolist()} at node {node}")
    written = b"".join(format_lines([nodes], vectors, after, between) for nodes, vectors in blocks)
    if written != path.read_bytes():
        raise WrongError("text that is read and written again has other bytes")
    return EXACT, "Angel cannot read this itself" if "bar" in words else ""


def is_refused_by_angel(path):
    """Return whether Angel itself fails on a case.

    It could not save or load it, or loads wrong what another program wrote for it.
    """
    if not (path / "case.json").exists():
        return False
    facts = json.loads((path / "case.json").read_text())
    if "save_rc" not in facts and facts.get("load-ps_roundtrip", "ok") != "ok":
        return True
    return any(facts.get(key, 0) != 0 for key in ("save_rc", "load-ps_rc"))


@contextmanager
def unpacked(folder):
    """Yield the folder of a case, unpacked where it is packed."""
    archives = sorted(folder.glob("*.tar.xz"))
    if not archives:
        yield folder
        return
    with tempfile.TemporaryDirectory() as scratch:
        for path in archives:
            unpack(path, Path(scratch))
        yield Path(scratch)


def outcomes(folder):
    """Yield (name, outcome, note) of every case below a folder."""
    cases = [(path.parent.name, Case, path.parent) for path in sorted(folder.rglob("case.json"))]
    lines = [(path.name, check_line, path) for path in sorted(folder.rglob("line_*.txt*"))]
    for name, kind, path in [*cases, *lines]:
        try:
            outcome, note = Case(path).check() if kind is Case else check_line(path)
        except WrongError as error:
            outcome, note = WRONG, str(error)
        except PbgError as error:
            outcome, note = (REFUSED if is_refused_by_angel(path) else WRONG), f"{type(error).__name__}: {error}"
        except Exception as error:  # noqa: BLE001 - one case that breaks the program hides no other
            outcome, note = WRONG, f"the program broke: {error!r}"
        yield name, outcome, note


def main(folder):
    """Check every case below a folder; return the exit status."""
    counts = Counter()
    with unpacked(folder) as place:
        for name, outcome, note in outcomes(place):
            counts[outcome] += 1
            print(f"{outcome:<22} {name}{f': {note}' if note else ''}")  # noqa: T201 - a command
    print(", ".join(f"{counts[outcome]} {outcome}" for outcome in (EXACT, REFUSED, WRONG)))  # noqa: T201 - a command
    return 1 if counts[WRONG] or not counts else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="the folder of the cases, or of an archive of them")
    sys.exit(main(parser.parse_args().folder))
