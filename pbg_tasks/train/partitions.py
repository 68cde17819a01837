"""Which embedding partitions are in memory: those of one bucket, the others lie in files.

A bucket (i, j) needs partition i of every left-hand type and j of every right-hand type; types that are not
partitioned stay. A partition that leaves memory is written to local scratch as the file the next commit uploads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from pbg_tasks.formats.embeddings import embeddings_file_name, read_embeddings, write_embeddings
from pbg_tasks.train.tables import Table

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.formats.embeddings import IterationInfo
    from pbg_tasks.train.schedule import Bucket


class PartitionKey(NamedTuple):
    """One partition of one entity type."""

    entity: str
    partition: int


class PartitionSource(Protocol):
    """Where a partition comes from when this process has not trained it yet."""

    def table(self, key: PartitionKey) -> Table:
        """Return the partition as of the last commit, or as it starts."""
        ...


def partition_keys(config: ConfigSchema) -> list[PartitionKey]:
    """List every partition of every entity type."""
    return [
        PartitionKey(name, partition)
        for name, entity in config.entities.items()
        for partition in range(entity.num_partitions)
    ]


class PartitionBuffer:
    """The partitions in memory, with the files of those that are not.

    Args:
        config: which types stand on which side and how they are partitioned.
        source: gives a partition the first time it is needed.
        directory: local scratch for the files.
        keep: whether a partition that leaves memory is written; who changes none reads it from the source again.
    """

    def __init__(self, config: ConfigSchema, source: PartitionSource, directory: Path, *, keep: bool = True) -> None:
        self._config, self._source, self._directory, self._keep = config, source, directory, keep
        self._resident: dict[PartitionKey, Table] = {}
        self._files: dict[PartitionKey, Path] = {}
        self._sides = {
            side: sorted({getattr(relation, side) for relation in config.relations}) for side in ("lhs", "rhs")
        }

    def _key(self, entity: str, partition: int) -> PartitionKey:
        return PartitionKey(entity, partition if self._config.entities[entity].num_partitions > 1 else 0)

    def swap_to(self, bucket: Bucket, version: int, info: IterationInfo) -> tuple[dict[str, Table], dict[str, Table]]:
        """Bring a bucket's partitions into memory, writing out the ones it does not need.

        Args:
            bucket: what is trained next.
            version: the version that the files of evicted partitions belong to.
            info: the iteration under way, for those files.

        Returns:
            Tables by entity type, for the left-hand and the right-hand side; one object where both are one partition.
        """
        sides = {
            side: {name: self._key(name, index) for name in self._sides[side]}
            for side, index in (("lhs", bucket.lhs), ("rhs", bucket.rhs))
        }
        needed = {key for keys in sides.values() for key in keys.values()}
        self._evict(set(self._resident) - needed, version, info)
        for key in sorted(needed - set(self._resident)):
            self._resident[key] = self._load(key)
        lhs, rhs = ({name: self._resident[key] for name, key in sides[side].items()} for side in ("lhs", "rhs"))
        return lhs, rhs

    def _load(self, key: PartitionKey) -> Table:
        if key not in self._files:
            return self._source.table(key)
        embeddings, sums = read_embeddings(self._files[key])
        return Table.from_arrays(embeddings, sums)

    def _evict(self, keys: Iterable[PartitionKey], version: int, info: IterationInfo) -> None:
        for key in sorted(keys):
            table = self._resident.pop(key)
            if self._keep:
                self._write(key, table, version, info)

    def _write(self, key: PartitionKey, table: Table, version: int, info: IterationInfo) -> None:
        path = self._directory / embeddings_file_name(*key, version)
        embeddings, sums = table.to_arrays()
        write_embeddings(path, embeddings, sums, lr=self._config.lr, iteration=info, config=self._config)
        before = self._files.get(key)
        self._files[key] = path
        if before is not None and before != path:
            before.unlink()

    def write_all(self, version: int, info: IterationInfo) -> list[Path]:
        """Write every partition's file of a version; what is in memory stays there.

        Returns:
            One file a partition, of every type, whether or not an edge touched it.
        """
        for key in partition_keys(self._config):
            table = self._resident.get(key)
            path = self._directory / embeddings_file_name(*key, version)
            if table is None and self._files.get(key) == path:
                continue  # written when it left memory
            self._write(key, table or self._load(key), version, info)
        return [self._files[key] for key in partition_keys(self._config)]
