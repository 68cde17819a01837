"""A data set of a PBG config with its checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.formats.edges import edge_file_name
from pbg_tasks.tasks.model_source import open_config
from pbg_tasks.tasks.runs.base import read_buckets
from pbg_tasks.tasks.runs.dataset import EdgePaths, EntityPath
from pbg_tasks.training.data.edge_files import FiledEdges
from pbg_tasks.training.schedule import Bucket, grid

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.tasks.runs.base import BucketEdges


class DirectoryRun:
    """Data and newest checkpoint of a PBG config.

    Args:
        config: PBG's.
        scratch: local directory for downloads.

    Attributes:
        config: PBG's.
        entities: counts and names.
        files: of the checkpoint.

    Raises:
        ConfigError: an import was cut off.
        NotFoundError: entities or the checkpoint are missing.
        FormatError: a file is damaged, or counts and names disagree.
    """

    def __init__(self, config: ConfigSchema, scratch: Path) -> None:
        self.config, self._scratch = config, scratch
        self.entities = EntityPath(config, scratch)
        self.entities.check_names()
        self.files = open_config(config)

    @property
    def counts(self) -> Mapping[str, list[int]]:
        """Entities of each partition, by type."""
        return self.entities.listed

    def relation_names(self) -> list[str]:
        """Return the names of the relations, by id."""
        return self.entities.relation_names()

    def hidden(self) -> None:
        """Return None: PBG shows all entities."""

    def edges(self, *parts: str, size: int | None = None) -> Iterator[BucketEdges]:
        """Yield the edges of each bucket of some edge paths.

        Raises:
            ConfigError: a bucket is outside the grid of partitions.
            NotFoundError: an edge path holds no bucket at all.
            FormatError: a file is damaged, or names entities or relations that there are not.
        """
        sides = (self.config.partitions("lhs"), self.config.partitions("rhs"))
        for path in parts:
            files = EdgePaths((path,), self._scratch)
            files.check_grid(*sides)
            for bucket, edges in read_buckets(FiledEdges(files, where=files.where), grid(*sides), size):
                self.entities.check_edges(edges, Bucket(*bucket), f"{path}/{edge_file_name(*bucket)}")
                yield bucket, edges
            files.clear()
