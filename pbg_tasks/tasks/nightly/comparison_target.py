"""Which release a night is compared with, and whether it can be; without torch, for ``plan`` asks it too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.config.base import digest
from pbg_tasks.config.results import EvalResult
from pbg_tasks.errors import InputError
from pbg_tasks.progress import say
from pbg_tasks.publish import Channel
from pbg_tasks.tasks.nightly.chain_order import has_finished, snapshot_before

if TYPE_CHECKING:
    from pbg_tasks.publish import Release
    from pbg_tasks.tasks.context import RunContext


def release_before(run: RunContext) -> Release | None:
    """Return the release that a run is compared with; None where there is none.

    That is the one it continues; for a night that continues none, the channel's of an earlier snapshot.
    """
    if run.spec.previous is None:
        return Channel(run.store, run.spec.graph.channel).before(run.spec.snapshot)
    return _still_there(run, run.spec.previous.seq)


def awaited(run: RunContext) -> str | None:
    """Return the snapshot before a run's, if its night has not finished and the run does not wait for it; else None.

    Only an independent night does not: it would be compared with that one, had the nights run in another order. Ask
    this first and ``release_before`` then, so that a release that comes meanwhile is not taken for a missing one.
    """
    if run.spec.walk != "independent":
        return None
    before = snapshot_before(run.spec.graph.snapshots, run.spec.snapshot)
    if before is None or has_finished(Channel(run.store, run.spec.graph.channel), before):
        return None
    return before


def release_evaluated_against(run: RunContext) -> Release | None:
    """Return the release that ``eval`` compared a run with: the channel may have moved since; None where there is none.

    Raises:
        ConfigError: ``eval`` has not finished.
    """
    against = run.need(EvalResult).against
    return None if against is None else _still_there(run, against.release)


def _still_there(run: RunContext, seq: int) -> Release | None:
    try:
        return Channel(run.store, run.spec.graph.channel).release(seq)
    except InputError:
        say(f"release {seq} is there no more: not compared with it")
        return None


def incomparable(run: RunContext, release: Release) -> str | None:
    """Say why a release cannot be asked a run's held-out edges: it may have been trained on them; None if it can."""
    if release.split != digest(run.spec.graph.split.model_dump(mode="json")):
        return "another split had held out other edges"
    if not release.metrics:
        return "it was adopted, and nobody knows what it was trained on"
    return None
