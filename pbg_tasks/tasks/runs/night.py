"""A night's run: what its tasks stored."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

from pbg_tasks.checkpoint import VerifiedFiles, open_preserved
from pbg_tasks.config import RunLayout
from pbg_tasks.config.results import BucketResult, PartitionResult, PreserveResult
from pbg_tasks.formats.edges import edge_file_name
from pbg_tasks.formats.entities import RELATION_NAMES, read_relation_names
from pbg_tasks.formats.entity_sets import EXPIRED, EntitySet
from pbg_tasks.storage.copies import Copies
from pbg_tasks.tasks.files import open_directory
from pbg_tasks.tasks.runs.base import read_buckets
from pbg_tasks.training.data.edge_files import FiledEdges
from pbg_tasks.training.schedule import Bucket, grid

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.tasks.context import RunContext
    from pbg_tasks.tasks.runs.base import BucketEdges

SPLITS = ("train", "valid", "test")


def open_start(run: RunContext) -> VerifiedFiles:
    """Open the start rows of new entities, as the training stored them.

    Raises:
        ConfigError: they have not been computed, or there are none.
    """
    files = open_directory(run, RunLayout.start)
    folder = next(iter(files.records)).partition("/")[0]
    records = {name.removeprefix(f"{folder}/"): record for name, record in files.records.items()}
    return VerifiedFiles(run.store, f"{files.prefix}/{folder}", 0, records)


class RunBuckets:
    """A split of a run, with buckets downloaded when they are needed.

    They are verified as well.

    Args:
        files: of the run.
        directory: for downloads, which stay there while its disk has room.
        split: folder of the buckets.
        reserve: bytes of that disk that are left to others.
    """

    def __init__(self, files: VerifiedFiles, directory: Path, split: str = "train", *, reserve: int = 0) -> None:
        self._files, self._directory = files, directory
        self._copies = Copies(reserve)
        self._split = split

    def where(self, edge_path_idx: int, bucket: Bucket) -> str:  # noqa: ARG002 - a run has one edge path
        """Return what messages call the file of a bucket."""
        return f"{self._files.url}/{self._name(bucket)}"

    def local(self, edge_path_idx: int, bucket: Bucket) -> Path:  # noqa: ARG002 - a run has one edge path
        """Return the local file of a bucket.

        The file stays until the next one is asked for.
        """
        name = self._name(bucket)
        record = self._files.records.get(name)
        fetch = partial(self._files.fetch, name, self._directory)  # raises the error where there is no record
        return self._copies.bring(self._directory / name, 0 if record is None else record.size, fetch)

    def clear(self) -> None:
        """Remove what was downloaded."""
        self._copies.clear()

    def _name(self, bucket: Bucket) -> str:
        return f"{self._split}/{edge_file_name(*bucket)}"


class NightEdges:
    """The held-out and the training edges of a night.

    Args:
        run: bucketed.
        directory: local one for the bucket that is being read.
        keep: whether files stay there for the next time, while the disk has room for twice the size of all of them.
    """

    def __init__(self, run: RunContext, directory: Path, *, keep: bool = False) -> None:
        stored = open_directory(run, RunLayout.edges)
        matrix = run.need(BucketResult).matrix
        self._grid, self._keep = grid(len(matrix), len(matrix[0])), keep
        reserve = 2 * sum(record.size for record in stored.records.values()) if keep else sys.maxsize
        self._files = {split: RunBuckets(stored, directory, split, reserve=reserve) for split in SPLITS}
        trained = {(0, bucket): matrix[bucket[0]][bucket[1]] for bucket in self._grid}
        self._edges = {
            split: FiledEdges(files, trained if split == "train" else None, files.where)
            for split, files in self._files.items()
        }

    def of(self, *splits: str, size: int | None = None) -> Iterator[BucketEdges]:
        """Yield buckets of some splits, ``size`` edges at a time.

        Raises:
            FormatError: a file is damaged.
        """
        for split in splits:
            yield from read_buckets(self._edges[split], self._grid, size)
            if not self._keep:
                self._files[split].clear()


class NightRun:
    """A night with a version of its model.

    Args:
        run: the night, bucketed.
        scratch: local directory for downloads.
        config: of the model.
        files: of the version.
        names: files of the directory with the relations' names and the entities that are not shown.

    Attributes:
        config: same.
        files: same.
        counts: entities of each partition, by type.
    """

    def __init__(
        self, run: RunContext, scratch: Path, *, config: ConfigSchema, files: VerifiedFiles, names: VerifiedFiles
    ) -> None:
        self.config, self.files = config, files
        self.counts = run.need(PartitionResult).counts
        self._names, self._scratch = names, scratch
        self._edges = NightEdges(run, scratch, keep=True)

    @classmethod
    def preserved(cls, run: RunContext, scratch: Path) -> NightRun:
        """Open the model that a night preserved.

        Raises:
            ConfigError: it is not preserved yet.
        """
        kept = run.need(PreserveResult)
        files = open_preserved(run.store, kept.directory, expected_sha256=kept.manifest_sha256)
        return cls(run, scratch, config=run.config, files=files, names=files)

    def relation_names(self) -> list[str]:
        """Return the names of the relations, by id."""
        self._names.fetch(RELATION_NAMES, self._scratch)
        return read_relation_names(self._scratch)

    def hidden(self) -> EntitySet | None:
        """Return the entities that readers are not shown."""
        if EXPIRED not in self._names.names:
            return None
        data = self._names.fetch(EXPIRED, self._scratch).read_bytes()
        return EntitySet.from_bytes(data, source=f"{self._names.url}/{EXPIRED}")

    def edges(self, *parts: str, size: int | None = None) -> Iterator[BucketEdges]:
        """Yield the edges of each bucket of some splits."""
        return self._edges.of(*parts, size=size)
