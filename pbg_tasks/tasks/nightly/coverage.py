"""Coverage: the new entities of a night that training reached.

The evaluation looks at the training edges for it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from pbg_tasks.config.results import PartitionResult
from pbg_tasks.errors import ConfigError, FormatError
from pbg_tasks.evaluate.coverage import Coverage
from pbg_tasks.evaluate.ids import Numbering
from pbg_tasks.formats.embeddings import embeddings_file_name, read_sums
from pbg_tasks.model.families import Families
from pbg_tasks.tasks.runs.night import open_start

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pbg_tasks.checkpoint import CheckpointFiles
    from pbg_tasks.tasks.context import RunContext
    from pbg_tasks.tasks.nightly.baseline import Baseline


def open_coverage(
    run: RunContext, baseline: Baseline, paths: Mapping[tuple[str, int], Path], relation_count: int, directory: Path
) -> Coverage:
    """Prepare to count what training did with new entities.

    New are those that the release before does not have.

    Args:
        run: of tonight, preserved.
        baseline: the release before.
        paths: tonight's embeddings by (type, partition).
        relation_count: tonight's relations.
        directory: an empty local one.

    Raises:
        FormatError: the embeddings have no optimizer sums, which show the rows that moved.
    """
    start: CheckpointFiles | None = None
    if baseline.continued:
        with suppress(ConfigError):  # no entity is new, or new ones start at random
            start = open_start(run)
    counts = run.need(PartitionResult).counts
    moved = {}
    for entity, listed in counts.items():
        stored = [(paths[entity, part], embeddings_file_name(entity, part, 0)) for part in range(len(listed))]
        moved[entity] = np.concatenate([_moved(path, name, start, directory) for path, name in stored])
    families = Families(run.config, relation_count)
    # Entities of a type that is not trained are not supposed to move.
    new = {entity: ~known & run.config.entities[entity].trainable for entity, known in baseline.known.items()}
    return Coverage(run.config, Numbering(run.config, counts, families), families, new, moved)


def _moved(path: Path, name: str, start: CheckpointFiles | None, directory: Path) -> np.ndarray:
    """Return the rows that the optimizer moved: bool (n,).

    A row's sum grows with every step, so it is larger than at the start of the training.

    Args:
        path: embeddings of a partition.
        name: of the file that holds its new rows as they began.
        start: holds such files; without one, sums begin at 0.
        directory: local one for it.
    """
    sums = read_sums(path)
    if sums is None:
        raise FormatError(f"{path}: holds no optimizer sums")
    began = np.zeros_like(sums)
    if start is not None and name in start.names:
        new = read_sums(start.fetch(name, directory))
        if new is not None:
            began[len(sums) - len(new) :] = new
    moved: np.ndarray = sums > began
    return moved
