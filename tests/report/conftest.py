"""Four nights of a small graph with hostile names.

Two good ones, one that the data gate refuses, one after it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from pbg_tasks.errors import QualityGateError
from pbg_tasks.storage import open_store
from pbg_tasks.tasks.context import RunContext
from pbg_tasks.tasks.nightly.chain import run_chain
from tests.tasks.conftest import Workplace, ring, workplace

HOSTILE = "<script>alert('entity')</script>"
HOSTILE_RELATION = "x\"'><img src=x onerror=alert('relation')>"
DAYS = ("2026-11-01", "2026-11-02", "2026-11-03", "2026-11-04")


@dataclass(frozen=True)
class Nights:
    """The nights' store and spec."""

    place: Workplace

    @property
    def store(self):
        return open_store(self.place.store)

    def run(self, day):
        """Open the run of a day."""
        (url,) = (Path(self.place.store) / "runs").glob(f"{day}-*")
        return RunContext.open(str(url))

    def page(self, key):
        """Return a stored page."""
        return (Path(self.place.store) / key).read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def nights(tmp_path_factory):
    with workplace(tmp_path_factory.mktemp("nights")) as place:
        # both ends of a partition type, so that the matrix has several buckets
        gates = {
            "max_mrr_drop": 1.0,
            "data": {"min_volume": {"warn": 0.5}},
        }  # the third night is refused for its entities
        place.write_spec(model={"num_epochs": 2}, train={"warm_epochs": 1}, gates=gates)
        hostile = [(HOSTILE, HOSTILE_RELATION, f"e{i}") for i in range(12)]
        rows = {
            DAYS[0]: ring(120),
            DAYS[1]: ring(124) + hostile,
            DAYS[2]: ring(9),
            DAYS[3]: ring(126) + hostile,
        }
        for day, edges in rows.items():
            place.snapshot(day, edges)
            with suppress(QualityGateError):
                run_chain(place.spec, day)
        yield Nights(place)
