"""Sample of a snapshot's edges on Spark."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pbg_tasks.prepare.spark import counting, open_tables
from pbg_tasks.prepare.spark.reading import FITTING

pytestmark = pytest.mark.timeout(1800)
HASHES = [0, 1, 3, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 2, 2**64 - 1]


def test_sample_is_that_of_duckdb(cluster, monkeypatch):
    """Spark has hashes with a sign."""
    monkeypatch.setattr(counting, "SAMPLE", 1)
    numbers = [each - ((each >> 63) << 64) for each in HASHES]
    spec = SimpleNamespace(model=SimpleNamespace(entities={"n": None}))
    with open_tables("sample") as opened:
        opened.made("fitting", [(0, 0, 1, 2, None, number, number, None) for number in numbers], FITTING)
        found = counting._sample(opened, spec, 3)
    assert sorted(found.spread.tolist()) == [each for each in HASHES if each % 3 == 0]
