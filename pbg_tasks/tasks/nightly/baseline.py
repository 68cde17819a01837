"""The release that a night is compared with, with tonight's ids."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pbg_tasks.checkpoint import open_preserved
from pbg_tasks.config.results import PartitionResult, PreserveResult
from pbg_tasks.evaluate.compared_model import ComparedModel
from pbg_tasks.formats.directory import read_config
from pbg_tasks.formats.embeddings import embeddings_file_name, embeddings_shape, write_embeddings
from pbg_tasks.formats.entities import RELATION_NAMES, read_relation_names
from pbg_tasks.formats.metadata import IterationInfo
from pbg_tasks.formats.model import model_file_name, read_model
from pbg_tasks.prepare.connection import connect
from pbg_tasks.prepare.ids import entity_ids_file_name
from pbg_tasks.prepare.lookup import returned_pairs
from pbg_tasks.prepare.moved_rows import MovedRows
from pbg_tasks.prepare.reassignment import Matching
from pbg_tasks.prepare.split import RETURNED
from pbg_tasks.storage import FinalFile
from pbg_tasks.tasks.model_source import CONFIG
from pbg_tasks.tasks.nightly.moved_vectors import with_compared_rows
from pbg_tasks.tasks.runs.part_files import NOTHING, row_counts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pbg_tasks.checkpoint import VerifiedFiles
    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.evaluate.kept_counts import KeptCounts
    from pbg_tasks.publish import Release
    from pbg_tasks.tasks.context import RunContext
    from pbg_tasks.tasks.runs.part_files import PartFiles

_UNKNOWN = IterationInfo(0, 0, 1, 0, "", 1, 0)


@dataclass(frozen=True, slots=True)
class Baseline:
    """A release, each of its rows at the place of tonight's ids.

    Attributes:
        release: the release.
        files: its own.
        config: of its model.
        params: shared parameters of its model, by PBG's path.
        relations: names of its relations, by id.
        continued: whether tonight's vectors started from its.
        paths: its embeddings by (type, tonight's partition).
        rows: how many rows each of those files has, by type; those that it does not know are zeros, or lack at the end.
        known: bool (N,) by tonight's type: which of tonight's entities it knows, over all partitions.
        gone: entities of its snapshot that no edge has tonight, by type; where tonight's ids are others, of all that it
            knows.
        trained: int64 (M, 2) by types, ends of edges that its run trained though the split had drawn them.
    """

    release: Release
    files: VerifiedFiles
    config: ConfigSchema
    params: Mapping[str, np.ndarray]
    relations: list[str]
    continued: bool
    paths: dict[tuple[str, int], Path] = field(default_factory=dict)
    rows: dict[str, list[int]] = field(default_factory=dict)
    known: dict[str, np.ndarray] = field(default_factory=dict)
    gone: dict[str, int] = field(default_factory=dict)
    trained: dict[tuple[str, str], np.ndarray] = field(default_factory=dict)

    def compared(self, config: ConfigSchema, relations: list[str], kept: KeptCounts | None = None) -> ComparedModel:
        """Return its model in the form that is ranked beside tonight's.

        Args:
            config: tonight's.
            relations: names of tonight's relations.
            kept: counts of its own night; None: there are none.
        """
        theirs = {each: number for number, each in enumerate(_relations(self.config, self.relations))}
        return ComparedModel(
            config=self.config,
            params=self.params,
            paths=self.paths,
            rows=self.rows,
            known=self.known,
            relations=np.array([theirs.get(each, -1) for each in _relations(config, relations)], np.int64),
            relation_count=len(theirs),
            trained=self.trained,
            continued=self.continued,
            kept=kept,
        )


def bring_baseline(
    run: RunContext, release: Release, counts: Mapping[str, list[int]], directory: Path, part: PartFiles | None = None
) -> Baseline:
    """Download a release and put its rows at tonight's places.

    Where the run kept the release's ids, its files are used as they are, because nights only add rows. Else entities
    are matched by their names and their rows written anew.

    Args:
        run: of tonight, preserved.
        release: to compare with.
        counts: tonight's entities of each partition, by type.
        directory: an empty local one.
        part: of an evaluation, which reads rows of most files alone where the ids are the release's, those for the
            drift included; ``NOTHING``: no vectors at all; None: all.

    Raises:
        FormatError: a file of the release is damaged.
        NotFoundError: the release's files are there no more.
    """
    previous = run.spec.previous
    baseline = _opened(run, release, directory, continued=previous is not None and previous.warm_start)
    if previous is not None and previous.keep_ids:
        _take_files(baseline, run, counts, directory, part)
        types = run.need(PartitionResult).types
        baseline.gone.update({entity: types[entity].gone for entity in counts})
    else:
        _move_rows(baseline, run, counts, directory, part)
    return baseline


def bring_by_name(
    run: RunContext, release: Release, counts: Mapping[str, list[int]], directory: Path, part: PartFiles | None = None
) -> Baseline:
    """Do as ``bring_baseline``, but always match entities by name."""
    baseline = _opened(run, release, directory, continued=False)
    _move_rows(baseline, run, counts, directory, part)
    return baseline


def _opened(run: RunContext, release: Release, directory: Path, *, continued: bool) -> Baseline:
    """Download what a release has besides embeddings."""
    files = open_preserved(run.store, release.directory, expected_sha256=release.manifest_sha256)
    files.fetch_all([CONFIG, RELATION_NAMES, model_name := model_file_name(files.version)], directory)
    return Baseline(
        release,
        files,
        read_config((directory / CONFIG).read_bytes(), source=f"{files.url}/{CONFIG}"),
        read_model(directory / model_name).params,
        read_relation_names(directory),
        continued=continued,
    )


def _take_files(
    baseline: Baseline, run: RunContext, counts: Mapping[str, list[int]], directory: Path, part: PartFiles | None
) -> None:
    names = {
        (entity, partition): embeddings_file_name(entity, partition, baseline.files.version)
        for entity, listed in counts.items()
        for partition in range(len(listed))
    }
    rows = None if part is None else row_counts(baseline.files, names)
    if part is None or rows is None:
        baseline.files.fetch_all(names.values(), FinalFile(directory))
        baseline.paths.update({key: directory / name for key, name in names.items()})
        rows = {key: embeddings_shape(path)[0] for key, path in baseline.paths.items()}
    for entity, listed in counts.items():
        there = baseline.rows[entity] = [rows[entity, partition] for partition in range(len(listed))]
        baseline.known[entity] = np.concatenate(
            [np.arange(count) < own for count, own in zip(listed, there, strict=True)]
        )
    if not baseline.paths and part is not None:
        more = with_compared_rows(run, part, baseline)
        baseline.paths.update(more.bring(baseline.files, names, directory))


def _move_rows(
    baseline: Baseline, run: RunContext, counts: Mapping[str, list[int]], directory: Path, part: PartFiles | None
) -> None:
    """Match entities by name, and write the release's rows in tonight's places."""
    reads_vectors = part is not NOTHING  # also in a part without partitions of its own: it asks the whole's questions
    ours = open_preserved(run.store, run.need(PreserveResult).directory)
    before, after = directory / "ids-before", directory / "ids-after"
    for path in (before, after):
        path.mkdir()
    every = {entity: np.concatenate(([0], np.cumsum(listed))) for entity, listed in counts.items()}
    ours.fetch_all(ours.of_tables(*map(entity_ids_file_name, counts)), after)
    with connect(run.spec.graph.resources, directory) as connection:
        if RETURNED in baseline.files.names:
            baseline.trained.update(returned_pairs(connection, after, baseline.files.fetch(RETURNED, directory), every))
        for entity, listed in counts.items():
            bases = every[entity]
            known = baseline.known[entity] = np.zeros(bases[-1], bool)
            baseline.rows[entity], baseline.gone[entity] = list(listed), 0
            if entity not in baseline.config.entities:
                continue
            baseline.files.fetch_table(entity_ids_file_name(entity), before)
            matching = Matching(connection, entity, before, after)
            dimension, moved = baseline.config.entity_dimension(entity), f"moved-{entity}"
            rows = MovedRows(listed, dimension, directory, moved) if reads_vectors else None
            for partition in range(baseline.config.entities[entity].num_partitions):
                places = matching.places(partition)
                if rows is not None:
                    name = embeddings_file_name(entity, partition, baseline.files.version)
                    path = baseline.files.fetch(name, directory)
                    rows.take(path, places)
                    path.unlink()
                there = places.partition >= 0
                known[bases[places.partition[there]] + places.offset[there]] = True
                baseline.gone[entity] += int((~there).sum())
            baseline.paths.update(
                {
                    (entity, each): directory / f"moved-{embeddings_file_name(entity, each, 0)}"
                    for each in range(len(listed))
                }
            )
            if rows is not None:
                _write(baseline, entity, rows)


def _write(baseline: Baseline, entity: str, rows: MovedRows) -> None:
    for partition, embeddings in enumerate(rows.embeddings):
        path = baseline.paths[entity, partition]
        write_embeddings(path, embeddings, None, lr=0.0, iteration=_UNKNOWN, config=baseline.config)
        Path(str(embeddings.filename)).unlink()


def _relations(config: ConfigSchema, names: list[str]) -> list[tuple[str, str, str]]:
    """Return name and types of each relation, by id."""
    if config.relations_from_data:
        (only,) = config.relations
        return [(name, only.lhs, only.rhs) for name in names]
    return [(relation.name, relation.lhs, relation.rhs) for relation in config.relations]
