"""Where a Job stands, by the conditions its controller has set."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pbg_operators.kubernetes.manifest import Manifest


class Phase(Enum):
    """What is left to wait for."""

    UNDER_WAY = "under way"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


def phase(job: Manifest) -> Phase:
    """Return where a Job stands; one whose pods are still ending has not ended."""
    if condition(job, "Complete"):
        return Phase.SUCCEEDED
    return Phase.FAILED if condition(job, "Failed") else Phase.UNDER_WAY


def condition(thing: Manifest, name: str) -> Manifest | None:
    """Return a condition of a Job or pod that is true."""
    listed = thing.get("status", {}).get("conditions") or []
    return next((found for found in listed if found["type"] == name and found["status"] == "True"), None)
