"""Files that executors read and write, and what they report of them."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from pbg_tasks.errors import FormatError, PbgError
from pbg_tasks.formats.tables import present_files
from pbg_tasks.storage import FinalFile, open_store
from pbg_tasks.storage.names import join
from pbg_tasks.storage.staging import put_all_new

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

OUTCOME = "name string, sha256 string, size long, figures string, kind string, message string"
"""Columns of what executors report."""
_TYPES = {"string": pa.string(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32()}


class StoredFile(NamedTuple):
    """A file in the store: its name or key, hash and size."""

    name: str
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class StoredFiles:
    """Files of a directory of a store, by name.

    Attributes:
        store: its URL.
        prefix: key of the directory.
        files: the facts by which executors verify what they read.
    """

    store: str
    prefix: str
    files: Mapping[str, StoredFile]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files.values())

    def row(self, name: str) -> tuple[str, str, int]:
        """Return key, hash and size of a file.

        Raises:
            FormatError: it is not there.
        """
        file = self.files.get(name)
        if file is None:
            raise FormatError(f"{self.store}/{self.prefix}: no file {name!r} in its manifest")
        return join(self.prefix, name), file.sha256, file.size

    def table(self, name: str) -> list[tuple[str, str, int]]:
        """Return key, hash and size of each file of a table.

        Raises:
            FormatError: the table, or one of its files, is not there.
        """
        return [self.row(each) for each in present_files(name, self.files) or [name]]


class Outcome(NamedTuple):
    """Report on a file, or on an error.

    It has the file's facts and figures (JSON), or the error's class and message.
    """

    name: str
    sha256: str = ""
    size: int = 0
    figures: str = ""
    kind: str = ""
    message: str = ""

    @classmethod
    def failed(cls, name: str, error: PbgError) -> Outcome:
        """Return the report on an error."""
        return cls(name, kind=type(error).__name__, message=str(error))


@dataclass(frozen=True, slots=True)
class Destination:
    """Directory of a store in which executors create files.

    Attributes:
        store: its URL.
        prefix: key of the directory.
    """

    store: str
    prefix: str

    def files(self, stored: Mapping[str, StoredFile]) -> StoredFiles:
        """Return files that were stored here."""
        return StoredFiles(self.store, self.prefix, stored)

    def put(self, directory: Path, name: str, *, figures: str = "") -> Outcome:
        """Store a file of a local directory, which is removed there.

        One that is stored with equal bytes stays, so a task may run twice, or at two places.

        Raises:
            ConflictError: other bytes are there.
        """
        path = directory / name
        (stored,) = put_all_new(open_store(self.store), {join(self.prefix, name): FinalFile(path)}).values()
        path.unlink(missing_ok=True)
        return Outcome(name, stored["sha256"], stored["size"], figures)


def arrow_schema(columns: str) -> pa.Schema:
    """Return Arrow's schema of columns in Spark's words."""
    pairs = (column.replace("`", "").split() for column in columns.split(","))
    return pa.schema([(name, _TYPES[kind]) for name, kind in pairs])


def signed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows of DuckDB as rows of a schema.

    Numbers without a sign become those with the same bits.
    """
    columns = [
        column.view(field.type) if pa.types.is_uint64(column.type) else column.cast(field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def reported(outcomes: Iterable[Outcome]) -> Iterator[pa.RecordBatch]:
    """Yield reports as rows of ``OUTCOME``."""
    schema = arrow_schema(OUTCOME)
    for outcome in outcomes:
        yield pa.RecordBatch.from_pylist([outcome._asdict()], schema=schema)


def watched(name: str, outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
    """Yield reports, at the end that on an error of this package.

    Spark would run the task again, and show a trace in place of the message.
    """
    try:
        yield from outcomes
    except PbgError as error:
        yield Outcome.failed(name, error)


def raise_first(outcomes: list[Outcome]) -> list[Outcome]:
    """Return reports without an error, by name.

    Raises:
        PbgError: the first one, of its own class.
    """
    found = sorted(outcomes)
    for each in found:
        if each.kind:
            raise _classes().get(each.kind, PbgError)(each.message)
    return found


_LAST_OF_TRACE = re.compile(
    r"^pbg_tasks\.(?:\w+\.)*(\w+): (.*)$(?!\s+(?:During handling|The above exception))", re.MULTILINE
)


def of_trace(text: str) -> PbgError | None:
    """Return this package's error in Python's trace of an executor.

    None where the trace ends with another error.
    """
    for name, message in _LAST_OF_TRACE.findall(text):
        if name in _classes():
            return _classes()[name](message)
    return None


def _classes() -> dict[str, type[PbgError]]:
    found, left = {}, deque([PbgError])
    while left:
        each = left.popleft()
        found[each.__name__] = each
        left.extend(each.__subclasses__())
    return found
