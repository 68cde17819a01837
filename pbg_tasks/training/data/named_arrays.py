"""Starting vectors that are matched to entities by name.

They are ``{type}.npy`` with ``{type}.json``, or ``{type}.parquet``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch

from pbg_tasks.checkpoint import ObjectRecord
from pbg_tasks.checkpoint.manifest import decode, sha256
from pbg_tasks.config.base import Frozen
from pbg_tasks.errors import ConfigError, FormatError, InputError, NotFoundError
from pbg_tasks.formats.files import require_space
from pbg_tasks.formats.names import EXCHANGE_MANIFEST, EXCHANGE_MARK, UNFINISHED
from pbg_tasks.formats.npy import map_array, new_array
from pbg_tasks.progress import say
from pbg_tasks.storage.staging import sha256_file
from pbg_tasks.training.data.tables import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.formats.model import ModelState
    from pbg_tasks.storage import Store
    from pbg_tasks.training.data.partitions import PartitionKey

_BLOCK_VALUES = 1 << 22  # numbers converted at once: 16 MiB of float32
_BUFFER_BYTES = 1 << 20


class ListedFiles(Frozen):
    """Files in the manifest of an export or import.

    Attributes:
        objects: size and hash of each file, by name.
    """

    objects: dict[str, ObjectRecord]


class NamedArray:
    """Vectors of one entity type, which stay on disk.

    Args:
        source: name of the file in messages.
        names: name of each row.
        vectors: float (n, d), memory-mapped.
        dimension: the one that the config needs.

    Raises:
        FormatError: a name repeats, the numbers of names and rows differ, or the vectors have another type or
            dimension.
    """

    def __init__(self, source: str, names: pa.LargeStringArray, vectors: np.ndarray, dimension: int) -> None:
        if vectors.ndim != 2 or vectors.dtype.kind != "f" or vectors.shape[1] != dimension:  # noqa: PLR2004 (rows, columns)
            raise FormatError(
                f"{source}: holds {vectors.dtype} of shape {vectors.shape}, the config needs floats of shape "
                f"(rows, {dimension})"
            )
        if len(names) != len(vectors):
            raise FormatError(f"{source}: has {len(vectors)} rows and {len(names)} names")
        self.source, self.names = source, names
        self._vectors = vectors
        self._check_names()

    def _check_names(self) -> None:
        if self.names.null_count:
            raise FormatError(f"{self.source}: row {self.names.is_null().index(True)} has no name")
        if pc.count_distinct(self.names).as_py() < len(self.names):
            counts = pc.value_counts(self.names)
            repeated = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
            raise FormatError(f"{self.source}: the name {repeated[0].as_py()!r} stands in more than one row")

    def fill(self, wanted: list[str], table: Table) -> int:
        """Copy the rows of known names into ``table``.

        Args:
            wanted: names by offset.
            table: of as many rows, changed in place.

        Returns:
            Number of names that were found.

        Raises:
            FormatError: a row is not finite; the rows before it are changed.
        """
        offsets = pc.index_in(self.names, value_set=pa.array(wanted, pa.large_string())).fill_null(-1).to_numpy()
        rows = np.flatnonzero(offsets >= 0)
        step = max(1, _BLOCK_VALUES // max(1, table.embeddings.shape[1]))
        for start in range(0, len(rows), step):
            chosen = rows[start : start + step]
            with np.errstate(over="ignore"):  # a double beyond float32 becomes infinite
                block = self._vectors[chosen].astype(np.float32)
            broken = np.flatnonzero(~np.isfinite(block).all(axis=1))
            if len(broken):
                name = self.names[int(chosen[broken[0]])].as_py()
                raise FormatError(f"{self.source}: the vector of {name!r} is not finite in float32")
            table.embeddings[torch.from_numpy(offsets[chosen])] = torch.from_numpy(block).to(table.embeddings.dtype)
        return len(rows)


class NamedArrays:
    """Arrays of all entity types below one path.

    Args:
        config: types, partitions and dimensions.
        store: rooted at the path.
        scratch: local directory of the arrays, which must exist as long as they are used.
        names: returns a partition's names by offset.
        types: whose arrays are opened; None: all, of which those without one are logged.

    Raises:
        ConfigError: no type has an array.
        InputError: an import or export there is not finished.
        FormatError: an array is damaged or does not fit, or a file is another than the manifest beside it lists.
    """

    def __init__(
        self,
        config: ConfigSchema,
        store: Store,
        scratch: Path,
        names: Callable[[PartitionKey], list[str]],
        *,
        types: Sequence[str] | None = None,
    ) -> None:
        if store.head(EXCHANGE_MARK) is not None and store.head(EXCHANGE_MANIFEST) is None:
            raise InputError(f"init_path: {store.url} {UNFINISHED}")
        self._config, self._names = config, names
        listed = _listed(store)
        self._arrays = {
            entity: array
            for entity in (config.entities if types is None else types)
            if (array := _open(store, scratch, entity, config.entity_dimension(entity), listed)) is not None
        }
        self._matched: dict[PartitionKey, int] = {}
        if not self._arrays:
            raise ConfigError(
                f"init_path: {store.url} holds neither a checkpoint nor an array; for each entity type "
                f"({', '.join(config.entities)}) put TYPE.npy with TYPE.json, or TYPE.parquet, there"
            )
        for entity in config.entities.keys() - self._arrays.keys() if types is None else ():
            say(f"init_path: {store.url} holds no array of {entity}: these start at random")

    def fill(self, key: PartitionKey, table: Table, *, known: int = 0) -> None:
        """Overwrite the random start of rows whose entity's name is known.

        Args:
            key: the partition.
            table: all its rows.
            known: number of its first rows that stay.

        Raises:
            FormatError: a row is not finite.
        """
        array = self._arrays.get(key.entity)
        if array is None:
            return
        rest = Table(table.embeddings[known:], table.row_sums[known:])
        matched = array.fill(self._names(key)[known:], rest)
        if known:
            say(f"init_path: {key.entity} {key.partition}: {matched} of {len(rest)} new ones are in {array.source}")
            return
        self._matched[key] = matched
        say(
            f"init_path: {key.entity} {key.partition}: {matched} of {len(table)} entities start from {array.source}, "
            f"{len(table) - matched} at random"
        )
        counts = [count for (entity, _), count in self._matched.items() if entity == key.entity]
        if len(counts) == self._config.entities[key.entity].num_partitions:
            say(f"init_path: {array.source}: {len(array.names) - sum(counts)} of {len(array.names)} rows are not used")

    def model(self, current: ModelState) -> ModelState:
        """Return the parameters unchanged."""
        return current


def _listed(store: Store) -> Mapping[str, ObjectRecord]:
    """Return the files that a manifest lists; none without one.

    Raises:
        FormatError: it is damaged.
    """
    try:
        data = store.get(EXCHANGE_MANIFEST).data
    except NotFoundError:
        return {}
    return decode(ListedFiles, data, source=f"{store.url}/{EXCHANGE_MANIFEST}").objects


def _check(source: str, found: str, record: ObjectRecord) -> None:
    """Compare the hash of a file with its record.

    The names of one export beside the vectors of another would start entities from the vectors of others.
    """
    if found != record.sha256:
        raise FormatError(
            f"{source}: not the bytes that {EXCHANGE_MANIFEST} beside it recorded: it was damaged, changed or is being "
            f"replaced; restore it, or remove {EXCHANGE_MANIFEST} if another program changed it on purpose"
        )


def holds_array(store: Store, entity: str) -> bool:
    """Return whether a path has an array of an entity type."""
    return bool(_files(store, entity))


def _files(store: Store, entity: str) -> list[str]:
    return [name for name in (f"{entity}.npy", f"{entity}.parquet") if store.head(name) is not None]


def _open(
    store: Store, scratch: Path, entity: str, dimension: int, listed: Mapping[str, ObjectRecord]
) -> NamedArray | None:
    there = _files(store, entity)
    if len(there) > 1:
        raise FormatError(f"{store.url}: holds both {' and '.join(there)}; remove one")
    if not there:
        return None
    source, path = f"{store.url}/{there[0]}", scratch / there[0]
    store.fetch(there[0], path)
    if there[0] in listed:
        _check(source, sha256_file(path), listed[there[0]])
    if path.suffix == ".npy":
        return NamedArray(source, _json_names(store, f"{entity}.json", listed), map_array(path, source), dimension)
    return _from_parquet(path, source, dimension)


def _json_names(store: Store, name: str, listed: Mapping[str, ObjectRecord]) -> pa.LargeStringArray:
    source = f"{store.url}/{name}"
    try:
        data = store.get(name).data
        if name in listed:
            _check(source, sha256(data), listed[name])
        names = json.loads(data)
    except NotFoundError:
        raise FormatError(f"{source}: missing; it has to list the name of each row of the array beside it") from None
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{source}: not readable JSON: {error}") from None
    if not isinstance(names, list) or not all(isinstance(item, str) for item in names):
        raise FormatError(f"{source}: not a JSON list of strings")
    try:
        return pa.array(names, pa.large_string())
    except UnicodeEncodeError as error:
        raise FormatError(f"{source}: holds a name that is no Unicode text ({error.reason})") from None


def _from_parquet(path: Path, source: str, dimension: int) -> NamedArray:
    """Convert a Parquet file to an array on disk, by batches."""
    try:
        file = pq.ParquetFile(path, buffer_size=_BUFFER_BYTES, pre_buffer=False)
        _check_columns(file.schema_arrow, source)
        names = file.read(columns=["name"]).column("name").cast(pa.large_string()).combine_chunks()
        rows = file.metadata.num_rows
        target = path.with_suffix(".vectors.npy")
        require_space(target, 4 * rows * dimension)
        vectors = new_array(target, (rows, dimension))
        start, step = 0, max(1, _BLOCK_VALUES // dimension)
        for group in range(file.num_row_groups):  # one by one: otherwise Arrow keeps all of them in memory
            for batch in file.iter_batches(step, row_groups=[group], columns=["embedding"]):
                stop = start + len(batch)
                vectors[start:stop] = _block(batch.column("embedding"), names[start:stop], source, dimension)
                start = stop
    except (pa.ArrowException, OSError, UnicodeDecodeError, KeyError) as error:  # KeyError: a column occurs twice
        raise FormatError(f"{source}: not a readable Parquet file ({error})") from None
    finally:
        path.unlink()
    return NamedArray(source, names, vectors, dimension)


def _check_columns(schema: pa.Schema, source: str) -> None:
    kinds = {field.name: field.type for field in schema}
    vector, name = kinds.get("embedding", pa.null()), kinds.get("name", pa.null())
    name = name.value_type if pa.types.is_dictionary(name) else name
    is_list = any(test(vector) for test in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list))
    # Other types have several texts: 1.0 is the name "1.0" in a snapshot and "1" for Arrow.
    is_name = name in (pa.string(), pa.large_string(), pa.string_view()) or pa.types.is_integer(name)
    if not is_name or not is_list or not pa.types.is_floating(vector.value_type):
        raise FormatError(
            f"{source}: needs a column 'name' of strings or whole numbers and a column 'embedding' of lists of floats, "
            "has " + ", ".join(f"{field.name} ({field.type})" for field in schema)
        )


def _block(column: pa.Array, names: pa.Array, source: str, dimension: int) -> np.ndarray:
    lengths = pc.list_value_length(column).fill_null(0).to_numpy()
    wrong = np.flatnonzero(lengths != dimension)
    if len(wrong):
        row = int(wrong[0])
        raise FormatError(
            f"{source}: the vector of {names[row].as_py()!r} has {lengths[row]} numbers, the config needs {dimension}"
        )
    values: np.ndarray = column.flatten().to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):
        return values.astype(np.float32).reshape(-1, dimension)
