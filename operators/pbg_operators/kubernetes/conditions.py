"""Phase of a Job or JobSet, by its conditions."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pbg_operators.kubernetes.manifest import Manifest


class Phase(Enum):
    """Phase of a Job."""

    UNDER_WAY = "under way"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


def phase(job: Manifest) -> Phase:
    """Return the phase of a Job or JobSet.

    A Job whose pods are still ending has not ended.
    """
    if condition(job, "Complete") or condition(job, "Completed"):  # of a Job, of a JobSet
        return Phase.SUCCEEDED
    return Phase.FAILED if condition(job, "Failed") else Phase.UNDER_WAY


def condition(thing: Manifest, name: str) -> Manifest | None:
    """Return a condition of a Job or pod, if it is true."""
    listed = thing.get("status", {}).get("conditions") or []
    return next((found for found in listed if found["type"] == name and found["status"] == "True"), None)
