"""Page from which a night is begun."""

from __future__ import annotations

import pytest

from pbg_operators.plugin.begin import begin_document
from pbg_tasks.report.pages import Links, render


@pytest.mark.parametrize(
    ("resumed", "told"), [(None, "; the last one took 1 min 00 s and cost about 2.00 EUR."), (3, " by its forecast.")]
)
def test_resumed_night_is_no_measure(resumed, told):
    forecast = {"expected_seconds": 90.0, "cost": {"actual": 2.0, "forecast": 3.0, "currency": "EUR"}}
    run = {"seconds": 60.0, "trained": {"resumed_from": resumed}, "forecast": forecast}
    history = {"graph": "toy", "channel": "production", "nights": []}
    document = begin_document(history, run, {}, ([], None), api="/api", runs="/runs")
    assert told in " ".join(render(document, Links(assets="assets")).split())
