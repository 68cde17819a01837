"""Stored sample of entities that edges are ranked against."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.config import RunLayout
from pbg_tasks.errors import NotFoundError
from pbg_tasks.evaluate.candidates import Candidates
from pbg_tasks.progress import say

if TYPE_CHECKING:
    from pbg_tasks.tasks.context import RunContext


def _candidates_key(run_id: str) -> str:
    return f"runs/{run_id}/{RunLayout.candidates}"


def stored_candidates(run: RunContext) -> Candidates | None:
    """Return the candidates that a run uses again; None for new ones.

    They are those of an interrupted try, or of the release that the run continues, so that nights compare. A sample
    that was drawn with another ``eval.max_candidates`` than this run's is not used again.
    """
    previous, limit = run.spec.previous, run.spec.graph.eval.max_candidates
    if (own := _candidates_of(run, run.run_id)) is not None:
        return own
    if previous is None or not previous.keep_ids:
        return None
    sample = _candidates_of(run, previous.run)
    if sample is not None and sample.drawn_with != limit:
        say(
            f"the candidates of release {previous.seq} were drawn with eval.max_candidates {sample.drawn_with}, "
            f"which is {limit} now: they are not used again"
        )
        return None
    return sample


def _candidates_of(run: RunContext, run_id: str) -> Candidates | None:
    try:
        return Candidates.from_bytes(run.store.get(_candidates_key(run_id)).data)
    except NotFoundError:
        return None


def store_candidates(run: RunContext, candidates: Candidates) -> None:
    """Store the candidates of a run, unless an earlier try did."""
    key = _candidates_key(run.run_id)
    if run.store.head(key) is None:
        run.store.put_new(key, candidates.to_bytes())
