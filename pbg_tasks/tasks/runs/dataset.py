"""A data set named by a PBG config.

Its entity path, edge paths and checkpoint path are each local or ``s3://``.
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pbg_tasks.errors import AccessError, ConfigError, FormatError, NotFoundError, StorageError
from pbg_tasks.formats.distinct_names import check_distinct
from pbg_tasks.formats.edges import edge_facts, edge_file_name
from pbg_tasks.formats.entities import (
    RELATION_COUNT,
    RELATION_NAMES,
    check_relation_count,
    count_names,
    entity_count_file_name,
    entity_names_file_name,
    read_entity_names,
    read_relation_names,
)
from pbg_tasks.formats.files import parse_natural
from pbg_tasks.formats.hdf5_header import read_header
from pbg_tasks.model.families import Families
from pbg_tasks.storage import LocalStore, RangedStore, open_store
from pbg_tasks.storage.copies import Copies
from pbg_tasks.storage.parallel import in_parallel
from pbg_tasks.storage.staging import named
from pbg_tasks.tasks.files import Directory, check_imported, import_records, refuse_unfinished
from pbg_tasks.training.data.partitions import Layout, counts_by_type, partition_keys
from pbg_tasks.training.engine.batching import check_edges

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.formats.edges import EdgeFacts, EdgeList
    from pbg_tasks.storage import ObjectInfo, Store
    from pbg_tasks.training.data.partitions import PartitionKey
    from pbg_tasks.training.schedule import Bucket

_LOOKS_AT_ONCE = 16


class EntityPath:
    """PBG's entity path: numbers and names of entities and relations.

    Args:
        config: names the types and the path.
        scratch: local directory for downloads.

    Raises:
        ConfigError: an import was cut off.
        NotFoundError: a partition's count is missing.
        FormatError: a count is no number.
    """

    def __init__(self, config: ConfigSchema, scratch: Path) -> None:
        self._config, self._scratch = config, scratch
        self._store = open_store(config.entity_path)
        refuse_unfinished(self._store)
        self._files = Directory.imported(self._store)
        self.counts: Mapping[PartitionKey, int] = {key: self._count(key) for key in partition_keys(config)}

    def _count(self, key: PartitionKey) -> int:
        name = entity_count_file_name(*key)
        return parse_natural(self._text(name).strip(), source=f"{self._store.url}/{name}")

    def _text(self, name: str) -> str:
        data = self._files.read(name)
        if data is None:
            raise NotFoundError(
                f"{self._store.url}/{name}: missing; run `pbg import` first, or correct entity_path and num_partitions"
            )
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise FormatError(f"{self._store.url}/{name}: not UTF-8 text") from None

    @property
    def listed(self) -> dict[str, list[int]]:
        """Entities of each partition, by type."""
        return counts_by_type(self.counts, self._config)

    @property
    def relation_count(self) -> int:
        """Number of relations."""
        if not self._config.relations_from_data:
            return len(self._config.relations)
        return parse_natural(self._text(RELATION_COUNT).strip(), source=f"{self._store.url}/{RELATION_COUNT}")

    def check_names(self) -> None:
        """Compare numbers of entities and relations with their names.

        Types without files of names are left out.

        Raises:
            FormatError: naming the file that has more or fewer, or a name that an entity of its type has already.
        """
        in_parallel(self._check_names, self.counts.items(), _LOOKS_AT_ONCE)
        if not self._files.whole:  # a manifest vouches for the names
            for entity, counts in self.listed.items():
                self._check_distinct(entity, len(counts))
        self.relation_names()

    def _check_names(self, item: tuple[PartitionKey, int]) -> None:
        key, count = item
        name = entity_names_file_name(*key)
        if self._store.head(name) is None:
            return
        (path,) = self._files.bring([name], self._scratch)
        with named(path, f"{self._store.url}/{name}"):
            found = count_names(path)
        if found != count:
            raise FormatError(
                f"{self._store.url}/{name}: holds {found} names, but {entity_count_file_name(*key)} says {count} "
                f"entities of type {key.entity!r}; restore both as one import wrote them"
            )
        if path.is_relative_to(self._scratch):
            path.unlink()

    def _check_distinct(self, entity: str, partitions: int) -> None:
        names = [entity_names_file_name(entity, partition) for partition in range(partitions)]
        present = [name for name in names if self._store.head(name) is not None]
        paths = self._files.bring(present, self._scratch)
        with ExitStack() as stack:
            for path, name in zip(paths, present, strict=True):
                stack.enter_context(named(path, f"{self._store.url}/{name}"))
            check_distinct(paths)
        for path in paths:
            if path.is_relative_to(self._scratch):
                path.unlink()

    def check_edges(self, edges: EdgeList, bucket: Bucket, source: str) -> None:
        """Refuse edges that name relations or entities there are not.

        Raises:
            FormatError: naming ``source`` and the column.
        """
        rows = {key: range(count) for key, count in self.counts.items()}
        lhs, rhs = Layout(self._config).by_side(bucket, rows)
        try:
            check_edges(edges, self._config, Families(self._config, self.relation_count), lhs, rhs)
        except FormatError as error:
            raise FormatError(f"{source}: {error}") from None

    def relation_names(self) -> list[str]:
        """Return the relations' names, by id.

        Where the data has no names for them, the names are the numbers.
        """
        if not self._config.relations_from_data:
            return [relation.name for relation in self._config.relations]
        if self._store.head(RELATION_NAMES) is None:
            return [str(number) for number in range(self.relation_count)]
        (path,) = self._files.bring([RELATION_NAMES], self._scratch)
        with named(path, f"{self._store.url}/{RELATION_NAMES}"):
            names = read_relation_names(path.parent)
        check_relation_count(names, self.relation_count, directory=self._store.url)
        return names

    def entity_names(self, key: PartitionKey) -> list[str]:
        """Return a partition's names by offset.

        Raises:
            NotFoundError: there are none.
            FormatError: they are damaged, or not as many as its entities.
        """
        name = entity_names_file_name(*key)
        if self._store.head(name) is None:
            raise NotFoundError(f"{self._store.url}/{name}: missing; entities can only be told apart by number")
        (path,) = self._files.bring([name], self._scratch)
        with named(path, f"{self._store.url}/{name}"):
            return read_entity_names(path.parent, *key, count=self.counts[key])


class EdgePaths:
    """The bucket files below edge paths, downloaded when they are needed.

    PBG's importer leaves out the files of empty buckets. So a missing file is an empty bucket, as long as there are
    other files.

    Args:
        paths: URLs.
        scratch: local directory for downloads, which stay there while its disk has room.
        reserve: bytes of that disk that are left to others.

    Raises:
        NotFoundError: an edge path holds no bucket at all.
    """

    def __init__(self, paths: tuple[str, ...], scratch: Path, *, reserve: int = 0) -> None:
        self._stores: list[Store] = [open_store(path) for path in paths]
        self._files = [self._listed(store) for store in self._stores]
        self._records = [import_records(store) for store in self._stores]
        self._compared: set[tuple[int, str]] = set()
        self._scratch = Path(tempfile.mkdtemp(prefix="edges-", dir=scratch))
        self._copies = Copies(reserve)

    @staticmethod
    def _listed(store: Store) -> dict[str, ObjectInfo]:
        refuse_unfinished(store)
        files = {info.key: info for info in store.list("edges_") if info.key.endswith(".h5")}
        if not files:
            raise NotFoundError(f"{store.url}: holds no edges_*.h5; run `pbg import` first, or correct edge_paths")
        return files

    def check_grid(self, lhs: int, rhs: int) -> None:
        """Refuse buckets outside the grid of partitions: they would never be trained.

        Raises:
            ConfigError: naming one.
        """
        wanted = {edge_file_name(i, j) for i in range(lhs) for j in range(rhs)}
        for store, files in zip(self._stores, self._files, strict=True):
            for name in sorted(name for name in files.keys() - wanted if ".tmp" not in name):
                raise ConfigError(
                    f"{store.url}/{name}: the config has {lhs} x {rhs} buckets, so this one would never be trained; "
                    "is num_partitions what the edges were imported with?"
                )

    def facts(self, buckets: Sequence[Bucket]) -> dict[tuple[int, Bucket], EdgeFacts]:
        """Return what the files of buckets hold, by edge path and bucket.

        Buckets without a file are left out. For a file in a remote store some kilobytes are read; the whole file is
        downloaded only where its header is scattered over it, or where the server does not answer requests for parts.

        Raises:
            FormatError: a file is damaged or foreign.
            NotFoundError: one was removed since it was listed.
        """
        files = {
            (index, bucket): listed[edge_file_name(*bucket)]
            for index, listed in enumerate(self._files)
            for bucket in buckets
            if edge_file_name(*bucket) in listed
        }
        seen = in_parallel(lambda item: self._read_header(item[0][0], item[1]), files.items(), _LOOKS_AT_ONCE)
        return {
            key: self._look(key[0], info) if facts is None else facts
            for (key, info), facts in zip(files.items(), seen, strict=True)
        }

    def _read_header(self, edge_path_idx: int, info: ObjectInfo) -> EdgeFacts | None:
        store = self._stores[edge_path_idx]
        if isinstance(store, LocalStore) or not isinstance(store, RangedStore):
            return None  # the file itself is opened, or brought
        try:
            return read_header(f"{store.url}/{info.key}", info.size, partial(store.get_range, info), edge_facts)
        except (NotFoundError, AccessError):
            raise
        except StorageError:  # a server that gives no parts may yet give the whole
            return None

    def _look(self, edge_path_idx: int, info: ObjectInfo) -> EdgeFacts:
        path = self._bring(edge_path_idx, info)
        with named(path, f"{self._stores[edge_path_idx].url}/{info.key}"):
            return edge_facts(path)

    def clear(self) -> None:
        """Remove what was downloaded."""
        shutil.rmtree(self._scratch, ignore_errors=True)

    def where(self, edge_path_idx: int, bucket: Bucket) -> str:
        """Return what messages call the file of a bucket."""
        return f"{self._stores[edge_path_idx].url}/{edge_file_name(*bucket)}"

    def local(self, edge_path_idx: int, bucket: Bucket) -> Path | None:
        """Return the local file of a bucket; None for an empty one.

        The file stays until the next one is asked for.
        """
        info = self._files[edge_path_idx].get(edge_file_name(*bucket))
        if info is None:
            return None
        path = self._bring(edge_path_idx, info)
        if (edge_path_idx, info.key) not in self._compared:
            url = f"{self._stores[edge_path_idx].url}/{info.key}"
            check_imported(url, path, self._records[edge_path_idx].get(info.key))
            self._compared.add((edge_path_idx, info.key))
        return path

    def _bring(self, edge_path_idx: int, info: ObjectInfo) -> Path:
        store = self._stores[edge_path_idx]
        if isinstance(store, LocalStore):
            return Path(store.url) / info.key
        path = self._scratch / str(edge_path_idx) / info.key
        return self._copies.bring(path, info.size, partial(_fetch_listed, store, info, path))


def _fetch_listed(store: Store, info: ObjectInfo, path: Path) -> None:
    """Download the listed version of a file.

    Its edges were counted and its ids checked, so no other version may be trained.

    Raises:
        StorageError: there is another version now, for example of an import that ran meanwhile.
    """
    if store.fetch(info.key, path).tag != info.tag:
        path.unlink()
        raise StorageError(
            f"{store.url}/{info.key}: was changed since its edges were counted; its ids may be others, so start again, "
            "and let imports write to a new place"
        )
