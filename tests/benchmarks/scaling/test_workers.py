"""Modelled speed of the workers of one process."""

from __future__ import annotations

import pytest

from benchmarks.scaling.workers import speed_up


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5])
def test_speed_of_workers_follows_the_share_of_python(share):
    assert speed_up(1, share) == pytest.approx(1)
    assert speed_up(2, share) == pytest.approx(2 / (1 + share**2))
    assert speed_up(16, share) < min(16, 1 / share)
    assert speed_up(1000, share) == pytest.approx(1 / share, rel=1e-3)
