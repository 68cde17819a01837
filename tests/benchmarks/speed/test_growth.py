from __future__ import annotations

import pytest

from benchmarks.speed.growth import _projected
from benchmarks.speed.measurement import Measurement


def test_each_model_of_projection_has_a_row():
    grown = Measurement("growth of an import with edges", "exponent", 1.5, points=((1, 1), (10, 10), (100, 1000)))
    by_all, by_last = _projected(grown, 10_000)
    assert by_all.ours == pytest.approx(10 ** (35 / 6))
    assert by_last.ours == pytest.approx(1e7)
    assert by_last.name == f"{by_all.name} by the last two sizes"
