"""Start rows of a run's new entities.

They are computed before the training begins, stored once, and read by every rank.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from pbg_tasks.checkpoint.manifest import sha256
from pbg_tasks.config import RunLayout
from pbg_tasks.errors import ConfigError, ConflictError
from pbg_tasks.formats.entities import entity_count_file_name, read_entity_count
from pbg_tasks.formats.model import ModelState
from pbg_tasks.progress import say
from pbg_tasks.storage.staging import sha256_file
from pbg_tasks.tasks.files import upload_directory
from pbg_tasks.tasks.runs.night import open_start
from pbg_tasks.training.data.newcomers import Newcomers
from pbg_tasks.training.data.parameters import SharedParameters
from pbg_tasks.training.data.partitions import PartitionKey, partition_keys
from pbg_tasks.training.starting_point import StartingPoint

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pbg_tasks.checkpoint import VerifiedFiles
    from pbg_tasks.tasks.context import RunContext
    from pbg_tasks.training.data.edge_files import EdgeFiles


def newcomers(
    run: RunContext,
    release: VerifiedFiles,
    counts: Mapping[PartitionKey, int],
    relation_count: int,
    edges: EdgeFiles,
    scratch: Path,
) -> VerifiedFiles | None:
    """Return the start rows of new entities.

    There is one file for each partition that has any. The first process to call this computes them and stores them in
    ``{run}/start/``, so that a retry, or another rank, starts from the same.

    Args:
        run: a warm-started one.
        release: it continues.
        counts: entities of each partition, tonight.
        relation_count: relations of tonight.
        edges: to be trained.
        scratch: local directory.

    Returns:
        None where there are no new entities, or the spec lets them start at random.
    """
    if run.spec.graph.train.new_entities == "random":
        return None
    known = _known(run, release, scratch)
    if all(count == known[key] for key, count in counts.items()):
        return None
    try:
        return open_start(run)
    except ConfigError:
        say("train: looking where new entities start")
    config, seed = run.config, run.spec.graph.train.seed
    start = StartingPoint(config, counts, release, grows=True, seed=seed, scratch=scratch, trains=False)
    shared = SharedParameters(config, relation_count)
    state = start.model(ModelState(*shared.arrays()))
    if state is not None:
        shared.load(state.params, state.sums)
    work, out = scratch / "newcomers", scratch / "start"
    for directory in (work, out):
        directory.mkdir()
    found = Newcomers(
        config,
        relation_count=relation_count,
        params=shared.arrays()[0],
        known=known,
        source=start,
        edges=edges,
        scratch=work,
    )
    for entity, figures in found.place().items():
        say(
            f"train: {figures['new']} new {entity}: {figures['by_known']} start from known neighbours, "
            f"{figures['by_new']} from new ones, {figures['random']} at random"
        )
    found.write(out)
    return _stored(run, out)


def _known(run: RunContext, release: VerifiedFiles, scratch: Path) -> dict[PartitionKey, int]:
    """Return how many entities of each partition the release before has."""
    directory = scratch / "known"
    directory.mkdir()
    keys = partition_keys(run.config)
    release.fetch_all([entity_count_file_name(*key) for key in keys], directory)
    return {key: read_entity_count(directory, *key) for key in keys}


def _stored(run: RunContext, found: Path) -> VerifiedFiles:
    """Store the rows in a folder named by their hash.

    The first process to finish counts, even if another machine rounds differently.

    Returns:
        The rows that count.
    """
    digests = "".join(map(sha256_file, sorted(found.iterdir()))).encode()
    named = found.with_name("start-named") / sha256(digests)[:12]
    named.parent.mkdir()
    found.rename(named)
    with suppress(ConflictError):
        upload_directory(run, RunLayout.start, named.parent)
    return open_start(run)
