"""One interface to nights and to directories of PBG."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pbg_tasks.evaluate.local_model import LocalModel
from pbg_tasks.formats.embeddings import embeddings_file_name
from pbg_tasks.formats.model import model_file_name
from pbg_tasks.storage import FinalFile
from pbg_tasks.storage.staging import named
from pbg_tasks.tasks.model_source import read_shared
from pbg_tasks.training.data.partitions import partition_keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from pbg_tasks.checkpoint import CheckpointFiles
    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.formats.edges import EdgeList
    from pbg_tasks.formats.entity_sets import EntitySet
    from pbg_tasks.tasks.runs.part_files import PartFiles
    from pbg_tasks.training.data.edge_files import EdgeFiles
    from pbg_tasks.training.schedule import Bucket

    BucketEdges = tuple[tuple[int, int], EdgeList]


class Run(Protocol):
    """A version of a model with the graph that it learned.

    ``NightRun`` reads what the tasks of a night stored, ``DirectoryRun`` the directories that a PBG config names. Files
    are verified when they are brought: by the manifest that lists them, else by their counts.
    """

    @property
    def config(self) -> ConfigSchema:
        """Config of the model: entity types, partitions, relations."""
        ...

    @property
    def files(self) -> CheckpointFiles:
        """Files of the version: embeddings and shared parameters."""
        ...

    @property
    def counts(self) -> Mapping[str, list[int]]:
        """Entities of each partition, by type."""
        ...

    def relation_names(self) -> list[str]:
        """Return the names of the relations, by id."""
        ...

    def hidden(self) -> EntitySet | None:
        """Return the entities that readers are not shown.

        None where they are shown all.
        """
        ...

    def edges(self, *parts: str, size: int | None = None) -> Iterator[BucketEdges]:
        """Yield the edges of each bucket.

        Args:
            parts: splits of a night, or edge paths.
            size: largest number of edges at a time; None: those of a whole bucket.

        Raises:
            FormatError: a file is damaged.
        """
        ...


def bring_model(run: Run, scratch: Path, part: PartFiles | None = None, *, apart: bool = False) -> LocalModel:
    """Download the model of a run.

    Args:
        run: the model and its graph.
        scratch: local directory.
        part: of an evaluation, which reads rows of most files alone; None: all files are brought whole.
        apart: whether all are copied, also from a directory on the same disk, since PBG may write there in place.

    Raises:
        FormatError: a file is damaged, or the parameters are of another config.
    """
    files, relations = run.files, run.relation_names()
    names = {(*key,): embeddings_file_name(*key, files.version) for key in partition_keys(run.config)}
    name = model_file_name(files.version)
    if part is None:
        *paths, path = files.fetch_all([*names.values(), name], scratch if apart else FinalFile(scratch))
    else:
        paths, path = list(part.bring(files, names, scratch).values()), files.fetch(name, scratch)
    with named(path, f"{files.url}/{name}"):
        state = read_shared(path, run.config, len(relations), grown=True)
    tables = dict(zip(names, paths, strict=True))
    return LocalModel(run.config, state.params, tables, run.counts, relations, state.loops, run.hidden())


def read_buckets(edges: EdgeFiles, buckets: Iterable[Bucket], size: int | None) -> Iterator[BucketEdges]:
    """Yield buckets of an edge path, ``size`` edges at a time."""
    for bucket in buckets:
        total = edges.count(0, bucket)
        step = size or max(total, 1)
        for start in range(0, max(total, 1), step):
            yield bucket, edges.read(0, bucket, start, min(start + step, total))
