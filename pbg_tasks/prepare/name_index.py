"""Building of a type's name index by DuckDB, in bounded memory.

DuckDB sorts within its budget and spills to scratch; the columns grow in mapped files there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from pbg_tasks.config.graph import Resources
from pbg_tasks.errors import FormatError
from pbg_tasks.formats.arrow_numbers import numbers
from pbg_tasks.formats.name_index import digests_file_name, index_file_name, write_index
from pbg_tasks.prepare.connection import batches, loading, phase, scratch_of
from pbg_tasks.prepare.sql import DUCKDB, table
from pbg_tasks.prepare.sql.ids import number
from pbg_tasks.storage.files import disk_errors, take_room

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path
    from typing import BinaryIO

    import duckdb
    from numpy.typing import DTypeLike

_ROWS = 100_000
BUDGET = Resources(memory_gb=1.0, threads=1)
"""Most that an index takes of a reader or ``preserve``: 25 million names took 44 s, and 1.8 GB with mapped files."""


def index_ids(
    connection: duckdb.DuckDBPyConnection, ids: Path, entity: str, counts: Sequence[int], out: Path
) -> list[Path]:
    """Write the index of a type's names from its ids.

    Args:
        connection: for the work.
        ids: path of the type's ids, as in ``sql.table``.
        entity: type.
        counts: entities of each partition.
        out: directory for the index.

    Returns:
        The files that were written.

    Raises:
        FormatError: the ids are missing or damaged.
    """
    with loading(ids):
        return _write(
            connection, f"SELECT name, {number(DUCKDB, counts)} AS number FROM {table(ids)}", entity, counts, out
        )


def index_names(
    connection: duckdb.DuckDBPyConnection, names: Iterable[pa.Array], entity: str, counts: Sequence[int], out: Path
) -> list[Path]:
    """Write the index of names that come in order.

    The order is that of the numbers.

    Args:
        connection: for the work.
        names: large strings, some at a time.
        entity: type.
        counts: entities of each partition.
        out: directory for the index.

    Returns:
        The files that were written.
    """
    connection.execute("CREATE OR REPLACE TEMP TABLE indexed (name VARCHAR, number BIGINT)")
    first = 0
    for some in names:
        numbered = pa.table({"name": some, "number": np.arange(first, first + len(some))})
        connection.register("numbered", numbered)
        connection.execute("INSERT INTO indexed SELECT * FROM numbered")
        connection.unregister("numbered")
        first += len(some)
    try:
        return _write(connection, "SELECT * FROM indexed", entity, counts, out)
    finally:
        connection.execute("DROP TABLE indexed")


def _write(
    connection: duckdb.DuckDBPyConnection, rows: str, entity: str, counts: Sequence[int], out: Path
) -> list[Path]:
    scratch, total = scratch_of(connection), sum(counts)
    paths = {part: scratch / f"name_index.{part}" for part in ("offsets", "text", "bucket", "by_hash", "by_name")}
    with phase(connection, f"index of the names of {entity}"), disk_errors(scratch):
        offsets = _column(paths["offsets"], np.int64, total + 1)
        with paths["text"].open("wb") as text:
            for begin, batch in _sorted(connection, f"SELECT name FROM ({rows}) ORDER BY number", total):
                _append(batch.column(0), begin, offsets, text)
        bucket, by_hash, by_name = (_column(paths[part], np.uint32, total) for part in ("bucket", "by_hash", "by_name"))
        word = f"{DUCKDB.md5_head('name')} >> 32"
        query = (
            f"SELECT (({word}) * {total}::UBIGINT) >> 32 AS bucket, number::BIGINT AS number FROM ({rows}) ORDER BY ALL"
        )
        for begin, batch in _sorted(connection, query, total):
            by_hash[begin : begin + len(batch)] = numbers(batch.column("number"), np.int64)
            _count(numbers(batch.column("bucket"), np.uint64).astype(np.int64), bucket)
        np.cumsum(bucket, out=bucket, dtype=np.uint32)
        query = f"SELECT number::BIGINT AS number FROM ({rows}) ORDER BY name, number"
        for begin, batch in _sorted(connection, query, total):
            by_name[begin : begin + len(batch)] = numbers(batch.column("number"), np.int64)
        written = [out / index_file_name(entity), out / digests_file_name(entity)]
        write_index(
            *written, counts=counts, offsets=offsets, text=_mapped(paths["text"]), numbers=[bucket, by_hash, by_name]
        )
    del offsets, bucket, by_hash, by_name  # unmaps the files
    for path in paths.values():
        path.unlink()
    return written


def _column(path: Path, kind: DTypeLike, rows: int) -> np.ndarray:
    """Return zeros in a file that is mapped."""
    column = np.memmap(path, kind, "w+", shape=(rows,))
    take_room(path)
    return column


def _sorted(connection: duckdb.DuckDBPyConnection, query: str, total: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield a query's rows in batches, with the rows before each."""
    begin = 0
    for batch in batches(connection.sql(query), _ROWS):
        if begin + len(batch) <= total:
            yield begin, batch
        begin += len(batch)
    if begin != total:
        raise FormatError(f"{begin} names are stored, but the partitions have {total} entities")


def _append(names: pa.Array, begin: int, offsets: np.ndarray, text: BinaryIO) -> None:
    """Append names to the text, and their ends to the offsets."""
    _, places, data = names.buffers()
    kind = np.int64 if pa.types.is_large_string(names.type) else np.int32
    within = np.frombuffer(places, kind)[names.offset : names.offset + len(names) + 1]
    if data is not None:
        text.write(memoryview(data)[within[0] : within[-1]])
    offsets[begin + 1 : begin + len(names) + 1] = offsets[begin] + within[1:] - within[0]


def _count(bucket: np.ndarray, counts: np.ndarray) -> None:
    """Count names of ascending buckets, each at the bucket after its own."""
    after = bucket[bucket + 1 < len(counts)] + 1
    if len(after):
        found = np.bincount(after - after[0])
        counts[after[0] : after[0] + len(found)] += found.astype(np.uint32)


def _mapped(path: Path) -> np.ndarray:
    """Map bytes; an empty file cannot be mapped."""
    return np.memmap(path, np.uint8, "r") if path.stat().st_size else np.zeros(1, np.uint8)
