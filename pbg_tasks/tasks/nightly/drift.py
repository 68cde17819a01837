"""``drift``: how far vectors moved since the release before.

The result has the edges that explain the movement.
"""

from __future__ import annotations

from pbg_tasks.config.results import DriftFindings, DriftResult, EvalResult, PartitionResult, Result
from pbg_tasks.progress import say
from pbg_tasks.storage.staging import Scratch
from pbg_tasks.tasks.context import RunContext, perform
from pbg_tasks.tasks.nightly.comparison_target import release_evaluated_against

NOTHING = DriftFindings(release=None, snapshot=None, types={}, relations={}, degree_deciles={}, most_moved=[])


def drift(url: str) -> Result:
    """Compare the preserved version of a run with the release before."""
    return perform(DriftResult, url, _drift).document()


def _drift(run: RunContext) -> DriftFindings:
    found = run.need(EvalResult).drift
    if found is not None:
        return found
    release = release_evaluated_against(run)  # an earlier version's ``eval`` left the figures to this task
    if release is None:
        say("drift: no release to compare with")
        return NOTHING
    from pbg_tasks.tasks.nightly.baseline import bring_baseline  # here, as the first night has no use for torch
    from pbg_tasks.tasks.nightly.candidates import stored_candidates
    from pbg_tasks.tasks.nightly.moved_vectors import Comparison, partition_drifts
    from pbg_tasks.tasks.runs.base import bring_model
    from pbg_tasks.tasks.runs.night import NightRun

    with Scratch() as scratch:
        directories = scratch.path / "now", scratch.path / "before"
        for directory in directories:
            directory.mkdir()
        now, before = directories
        baseline = bring_baseline(run, release, run.need(PartitionResult).counts, before)
        night = NightRun.preserved(run, now)
        tonight, sample = bring_model(night, now), stored_candidates(run)
        comparison = Comparison(run, baseline, tonight.relations, night, sample)
        return comparison.findings(partition_drifts(run, baseline, tonight, sample))
