"""Local files of a run's preserved model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pbg_tasks.checkpoint import open_preserved
from pbg_tasks.config.results import PreserveResult
from pbg_tasks.formats.embeddings import embeddings_file_name
from pbg_tasks.formats.entities import RELATION_NAMES, read_relation_names
from pbg_tasks.formats.model import model_file_name, read_model
from pbg_tasks.train import partition_keys

if TYPE_CHECKING:
    from pathlib import Path

    from pbg_tasks.checkpoint import VerifiedFiles
    from pbg_tasks.formats.model import ModelState
    from pbg_tasks.tasks.context import RunContext


@dataclass(frozen=True, slots=True)
class Tonight:
    """A run's preserved model, downloaded and verified once.

    Attributes:
        files: of the preserved version.
        paths: embeddings by (type, partition).
        model: shared parameters, and relations with loops.
        relations: names of the relations, by id.
    """

    files: VerifiedFiles
    paths: dict[tuple[str, int], Path]
    model: ModelState
    relations: list[str]


def bring_tonight(run: RunContext, directory: Path) -> Tonight:
    """Download a run's preserved model.

    Args:
        run: preserved.
        directory: an empty local one.

    Raises:
        ConfigError: the run is not preserved yet.
        FormatError: a file is damaged.
    """
    preserved = run.need(PreserveResult)
    files = open_preserved(run.store, preserved.directory, expected_sha256=preserved.manifest_sha256)
    paths: dict[tuple[str, int], Path] = {
        key: directory / embeddings_file_name(*key, files.version) for key in partition_keys(run.config)
    }
    model_name = model_file_name(files.version)
    files.fetch_all([*(path.name for path in paths.values()), model_name, RELATION_NAMES], directory)
    return Tonight(files, paths, read_model(directory / model_name), read_relation_names(directory))
