"""Training and ranking of one candidate in one rung.

Only edges of the train and the valid split are read. Edges of the test split are not even filtered from the answers.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from pbg_tasks.checkpoint import open_committed
from pbg_tasks.checkpoint.writer import LEASE
from pbg_tasks.checkpoint.writer_heartbeat import WriterHeartbeat, may_be_held
from pbg_tasks.config import RunLayout
from pbg_tasks.config.base import digest
from pbg_tasks.config.registry import COMPARATORS, LOSSES, OPERATORS, REGULARIZERS
from pbg_tasks.config.results import BucketResult
from pbg_tasks.config.support import check_nightly
from pbg_tasks.config.tune_results import Outcome
from pbg_tasks.config.tune_space import changed, named_parts
from pbg_tasks.errors import ConfigError, ConflictError, QualityGateError, ResourceError
from pbg_tasks.evaluate.evaluation import BLOCK_EDGES, EdgeRanking
from pbg_tasks.memory.machine import usable_cpus
from pbg_tasks.model.registry import comparator, loss, operator, regularizer
from pbg_tasks.progress import human_seconds, say
from pbg_tasks.publish.gc_holds import hold
from pbg_tasks.storage.staging import Scratch
from pbg_tasks.tasks.files import open_directory
from pbg_tasks.tasks.runs.base import bring_model
from pbg_tasks.tasks.runs.night import NightRun
from pbg_tasks.tasks.search import described
from pbg_tasks.tasks.training.devices import train_on
from pbg_tasks.tasks.training.eviction import GRACE
from pbg_tasks.tasks.training.gang import TrainingTarget, train_here
from pbg_tasks.tasks.training.train import devices_of, job_of
from pbg_tasks.training.environment import number_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pbg_tasks.checkpoint import VerifiedFiles
    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.evaluate.report import EvaluationReport
    from pbg_tasks.plugins import Kind
    from pbg_tasks.tasks.context import RunContext
    from pbg_tasks.tasks.search import SearchContext

_FAULTS = (ConfigError, QualityGateError)
"""Errors that are a candidate's own: a contradiction of its values, or a training that diverged."""
_OTHERS = 1.0  # seconds until another process's result is looked for again
_LOADED_BY: dict[Kind, Callable[[str], object]] = {
    OPERATORS: operator,
    COMPARATORS: partial(comparator, bias=False),
    LOSSES: loss,
    REGULARIZERS: regularizer,
}


def try_candidate(context: SearchContext, trial: str, rung: int, *, patient: bool = True) -> Outcome:
    """Train and rank a candidate, or return its stored result.

    A failure that is the candidate's own is a result, too.

    Args:
        context: the search.
        trial: name of the candidate.
        rung: its number.
        patient: whether to wait for another process that trains the candidate.

    Raises:
        ConflictError: another process trains it, and the call is not patient.
        ConfigError: the run is not prepared, the rung before is not decided, ``GRACE`` is no number, or a package's
            part is at fault.
        ResourceError: memory would run out, or a package is not installed here.
        EvictedError: SIGTERM came; what was trained is stored.
    """
    run = context.run
    if trial not in context.trials(rung):
        raise ConfigError(f"{context.url}: candidate {trial!r} is not in rung {rung}")
    run.need(BucketResult)
    number_of(GRACE)  # its training reads this; an error there would be kept as a failure of the candidate
    hold(run.store, run.run_id)
    while True:
        if (before := context.outcome(trial, rung)) is not None:
            return before
        _require_parts(context, trial)
        try:
            return context.keep_outcome(_tried(context, trial, rung, patient=patient), rung)
        except ConflictError as error:
            if not patient:
                raise
            say(f"tune: {error}; waiting for its result")
            time.sleep(_OTHERS)


def _require_parts(context: SearchContext, trial: str) -> None:
    """Load the parts that a candidate names.

    An error of its training would be kept as a failure of the candidate, while another machine may have the package.

    Raises:
        ResourceError: a part is not installed here.
        ConfigError: its package is at fault.
    """
    source = f"candidate {trial}"
    for kind, name in named_parts(context.run.spec.graph, context.changes(trial).changes, source=source):
        if name not in kind.names():
            raise ResourceError(
                f"{source}: no {kind.noun} is named {name!r} here: install the package with that entry point of the "
                f"group {kind.group!r} on every machine of the search"
            )
        _LOADED_BY[kind](name)


def _tried(context: SearchContext, trial: str, rung: int, *, patient: bool) -> Outcome:
    started = time.monotonic()
    changes = context.changes(trial).changes
    say(f"tune: candidate {trial}, rung {rung}: {described(changes)}")
    try:
        found = _trained(context, trial, rung, patient=patient)
    except _FAULTS as error:
        say(f"tune: candidate {trial} failed: {error}")
        found = Outcome(trial=trial, epochs=context.search.epochs[rung], status="failed", reason=str(error))
    seconds = time.monotonic() - started
    say(f"tune: candidate {trial}: {found.status} in {human_seconds(seconds)}")
    return found.model_copy(update={"seconds": round(seconds, 3)})


def _trained(context: SearchContext, trial: str, rung: int, *, patient: bool) -> Outcome:
    run, changes = context.run, context.changes(trial).changes
    graph = changed(run.spec.graph, changes, source=f"candidate {trial}")
    epochs = context.search.epochs[rung] or graph.model.num_epochs
    graph = graph.model_copy(update={"model": graph.model.model_copy(update={"num_epochs": epochs})})
    check_nightly(graph.model, source=f"candidate {trial}: model")
    # Learning rates that fall over a training depend on its length, so a longer one has to begin anew.
    anew = graph.model.lr_schedule != "constant"
    # Policies let trainings delete in folders of this name.
    place = f"trials/{trial}/{epochs}/checkpoint" if anew else f"trials/{trial}/checkpoint"
    candidate = replace(run, spec=run.spec.model_copy(update={"graph": graph}))
    config = candidate.config.model_copy(update={"checkpoint_path": f"{context.url}/{place}"})
    devices = devices_of(graph.train.device, config, None, graph.train.engine)
    with Scratch() as scratch:
        target = TrainingTarget(
            config=config,
            store=run.store,
            prefix=context.key(place),
            spec=digest([run.spec_hash, changes, epochs if anew else None]),
            job=lambda version: replace(job_of(candidate, version, scratch.path, ignore_memory=False), config=config),
        )
        lease = f"{target.prefix}/{LEASE}"
        if not patient and may_be_held(run.store, lease):
            raise ConflictError(f"{config.checkpoint_path}: another process trains it")
        found = train_on(devices, target, scratch.path) if devices else train_here(target, scratch.path)
        manifest, files = open_committed(run.store, target.prefix)
        iteration = manifest.iteration
        if iteration is None or iteration.epoch_idx + 1 != epochs:
            raise ConflictError(f"{target.config.checkpoint_path}: another process has trained it further")
        directory = scratch.path / "now"
        directory.mkdir()
        # The lease of its training is gone; others decide without a candidate that none is at.
        with WriterHeartbeat(run.store, lease):
            report = _ranks(candidate, config, files, directory)
    before = context.search.epochs[rung - 1] if rung and not anew else None
    interval = report.interval or {}
    return Outcome(
        trial=trial,
        epochs=epochs,
        status="finished",
        figures=report.filtered,
        low=interval.get("low"),
        high=interval.get("high"),
        continued=before or 0,
        loss=found.loss,
    )


def _ranks(run: RunContext, config: ConfigSchema, files: VerifiedFiles, directory: Path) -> EvaluationReport:
    """Rank the valid split among all entities by the newest version."""
    graph = run.spec.graph
    night = NightRun(run, directory, config=config, files=files, names=open_directory(run, RunLayout.entities))
    ranking = EdgeRanking(
        bring_model(night, directory),
        dict(night.edges("valid")),
        lambda: night.edges("valid", size=BLOCK_EDGES),
        lambda: night.edges("train", size=BLOCK_EDGES),
        evaluation=graph.eval,
        seed=0,  # also where candidates try seeds: all are ranked among the same entities
    )
    ranking.rank(graph.resources.threads or usable_cpus(), int(graph.resources.memory_gb * 1e9))
    return ranking.report(interval=True)
