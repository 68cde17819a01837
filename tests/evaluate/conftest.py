"""Fixtures of tests of evaluation."""

from __future__ import annotations

import pytest

from pbg_tasks.evaluate import evaluation
from pbg_tasks.progress import Progress


@pytest.fixture
def scored(monkeypatch):
    """Return the number of scores computed under each progress line."""
    counts = {}

    class Counted(Progress):
        def advance(self, amount):
            counts[self.what] = counts.get(self.what, 0) + amount
            super().advance(amount)

    monkeypatch.setattr(evaluation, "Progress", Counted)
    return counts
