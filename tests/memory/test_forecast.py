from __future__ import annotations

from pbg_tasks.memory.forecast import Forecast, Line


def test_peak_is_sum_of_nonzero_lines():
    forecast = Forecast.of("train", [Line("process", 300), Line("uploads", 0), Line("edges", 700, ("num_partitions",))])
    assert forecast.to_json() == {"peak": 1000, "lines": {"process": 300, "edges": 700}}


def test_keys_of_largest_terms_come_first():
    forecast = Forecast.of(
        "train", [Line("a", 1, ("workers",)), Line("b", 3, ("dimension", "workers")), Line("c", 2, ("lr",))]
    )
    assert forecast.keys == ["dimension", "workers", "lr"]


def test_table_has_terms_and_peak():
    table = Forecast.of("train", [Line("process", 300_000_000), Line("edges of a bucket", 2_000)]).table()
    assert table == ["process              300 MB", "edges of a bucket      2 kB", "peak of train        300 MB"]
