"""Files that a part of an evaluation reads, whole or in rows.

A part scores the candidates of its own partitions. Of the others it needs the vectors of the held-out edges' own
entities alone, which are read from the object as ranges of bytes, into a local file that has holes elsewhere.

Such rows are not compared with a hash. They come from one version of the object, which has to have the size and, in its
metadata, the hash that the manifest lists; the part that scores that partition brings it whole and compares its bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from pbg_tasks.checkpoint.reader import SHA256, VerifiedFiles
from pbg_tasks.errors import AccessError, FormatError, NotFoundError, StorageError
from pbg_tasks.evaluate.tables import SPARSE
from pbg_tasks.formats.guard import dataset, open_foreign
from pbg_tasks.formats.hdf5_header import PART, read_header
from pbg_tasks.model.families import Families
from pbg_tasks.storage import RangedStore
from pbg_tasks.storage.files import disk_errors, write_all
from pbg_tasks.storage.names import join
from pbg_tasks.storage.parallel import in_parallel

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    from pbg_tasks.checkpoint import CheckpointFiles
    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.evaluate.ids import Bucket
    from pbg_tasks.formats.edges import EdgeList
    from pbg_tasks.formats.hdf5_header import Hdf5Header

Key = tuple[str, int]
"""Entity type and partition."""

REQUEST_BYTES = 1 << 17
"""Bytes that could be read in the time that one more request takes."""
_REQUESTS, _MOST_BYTES = 16, 1 << 22  # at once, and of one, which is in memory


@dataclass(frozen=True, slots=True)
class PartFiles:
    """Embeddings files of a part of an evaluation.

    Attributes:
        whole: partitions of which all rows are read, by type.
        ends: int64, ascending, offsets of the held-out edges' ends in a partition; one for each edge and side.
    """

    whole: Mapping[str, Collection[int]]
    ends: Mapping[Key, np.ndarray]

    @classmethod
    def of(
        cls,
        config: ConfigSchema,
        whole: Mapping[str, Collection[int]],
        edges: Mapping[Bucket, EdgeList],
        relations: int,
    ) -> Self:
        """Find the ends of edges.

        Args:
            config: of the model that numbers the entities.
            whole: see the attributes.
            edges: that are asked, by bucket.
            relations: number of the relations.
        """
        found: dict[Key, list[np.ndarray]] = {}
        first = Families(config, relations).first
        for bucket, listed in edges.items():
            family = first[listed.rel]
            for number in np.unique(family).tolist():
                rows, relation = np.flatnonzero(family == number), config.relations[number]
                for entity, partition, offsets in (
                    (relation.lhs, bucket[0], listed.lhs),
                    (relation.rhs, bucket[1], listed.rhs),
                ):
                    here = partition if config.entities[entity].num_partitions > 1 else 0
                    found.setdefault((entity, here), []).append(offsets[rows])
        return cls(whole, {key: np.sort(np.concatenate(listed)) for key, listed in found.items()})

    def plus(self, ends: Mapping[Key, np.ndarray]) -> PartFiles:
        """Return the same with more rows of each partition."""
        found = {key: np.sort(np.concatenate((self.ends.get(key, own), own))) for key, own in ends.items()}
        return PartFiles(self.whole, {**self.ends, **found})

    def bring(self, files: CheckpointFiles, names: Mapping[Key, str], directory: Path) -> dict[Key, Path]:
        """Download files, or the rows of them that are read.

        Args:
            files: of one version of a model.
            names: file of each partition of tonight's types; rows after the end of one are no rows of it.
            directory: local one.

        Raises:
            FormatError: a file is damaged.
            NotFoundError: one is missing.
        """
        whole: list[str] = []
        for (entity, partition), name in names.items():
            ends = self.ends.get((entity, partition), np.empty(0, np.int64))
            if (
                partition in self.whole.get(entity, ())
                or not isinstance(files, VerifiedFiles)
                or not _bring_rows(files, name, ends, directory / name)
            ):
                whole.append(name)
        files.fetch_all(whole, directory)
        return {key: directory / name for key, name in names.items()}


NOTHING = PartFiles({}, {})
"""No vectors at all, of files whose shapes are read."""


def row_counts(files: CheckpointFiles, names: Mapping[Key, str]) -> dict[Key, int] | None:
    """Return the number of rows of files, by their headers.

    None is returned where a header cannot be read alone.

    Args:
        files: of one version of a model.
        names: of embeddings files.

    Raises:
        FormatError: a file is damaged.
        NotFoundError: one is missing.
    """
    if not isinstance(files, VerifiedFiles):
        return None
    found = in_parallel(partial(_open_rows, files), names.values(), _REQUESTS)
    rows = {key: each.shape[0] for key, each in zip(names, found, strict=True) if each is not None}
    return rows if len(rows) == len(names) else None


class _Rows(NamedTuple):
    """Rows of an object, read as ranges of bytes.

    Attributes:
        read: returns the bytes from one position to another.
        size: bytes of the object.
        place: first byte of the rows.
        shape: rows and columns.
        width: bytes of a number.
        header: all that describes the rows, by first byte.
    """

    read: Callable[[int, int], bytes]
    size: int
    place: int
    shape: tuple[int, int]
    width: int
    header: dict[int, bytes]


def _open_rows(files: VerifiedFiles, name: str) -> _Rows | None:
    """Read the header of an object.

    None is returned where all of it is better.
    """
    store, record = files.store, files.records.get(name)
    if not isinstance(store, RangedStore) or record is None:
        return None
    info = store.head(join(files.prefix, name))
    if info is None or info.size != record.size or info.metadata.get(SHA256) != record.sha256:
        return None  # fetching it finds the reason
    read = partial(store.get_range, info)
    try:
        found = read_header(f"{files.url}/{name}", info.size, read, _look)
    except (NotFoundError, AccessError):
        raise
    except (StorageError, FormatError):  # a server that gives no parts may yet give the whole
        return None
    return None if found is None else _Rows(read, info.size, *found)


def _bring_rows(files: VerifiedFiles, name: str, ends: np.ndarray, target: Path) -> bool:
    """Bring rows of a file; False where all of it is better."""
    found = _open_rows(files, name)
    if found is None:
        return False
    ends = ends[ends < found.shape[0]]
    spans = _spans(np.unique(ends), found.width * found.shape[1])
    size = int(sum(stop - start for start, stop in spans)) + len(spans) * REQUEST_BYTES
    if len(ends) * SPARSE >= found.shape[0] or size >= found.size:
        return False  # and a table would read these rows as a stretch
    try:
        with disk_errors(target), target.open("xb") as file:
            file.truncate(found.size)

            def write(span: tuple[int, int]) -> None:
                start, stop = found.place + span[0], found.place + span[1]
                write_all(file.fileno(), found.read(start, stop), start)

            for start, data in found.header.items():
                write_all(file.fileno(), data, start)
            in_parallel(write, spans, _REQUESTS)
    except (NotFoundError, AccessError):
        raise
    except StorageError:  # as above
        target.unlink(missing_ok=True)
        return False
    return True


def _look(file: Hdf5Header) -> tuple[int, tuple[int, int], int, dict[int, bytes]] | None:
    """Return place, shape, bytes of a number, and header by place."""
    with open_foreign(file) as opened:
        item = dataset(opened, "embeddings", kinds="f", shape=(None, None))
        if item.place is None:
            return None
        header = {number * PART: data for number, data in file.parts.items()}
        return item.place, (item.shape[0], item.shape[1]), item.dtype.itemsize, header


def _spans(rows: np.ndarray, row_bytes: int) -> list[tuple[int, int]]:
    """Return stretches of bytes that hold some rows.

    Rows with less between them than a request costs share one, which is cut where it would be too long for memory.

    Args:
        rows: int64, ascending, each once.
        row_bytes: of a row.
    """
    cuts = np.flatnonzero(np.diff(rows) * row_bytes > REQUEST_BYTES) + 1
    found = [(int(each[0]) * row_bytes, (int(each[-1]) + 1) * row_bytes) for each in np.split(rows, cuts) if len(each)]
    return [
        (start, min(start + _MOST_BYTES, stop)) for first, stop in found for start in range(first, stop, _MOST_BYTES)
    ]
