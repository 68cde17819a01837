from __future__ import annotations

import json

from pbg_tasks.tasks.nightly import watermark
from pbg_tasks.tasks.nightly.watermark import Watermark


def test_late_snapshot_is_awaited_until_announced():
    mark = Watermark("2026-11-02").passing(["2026-11-02", "2026-11-05"])
    assert not mark.awaits("2026-11-01")  # from before the watch began
    assert not mark.awaits("2026-11-05")
    assert mark.awaits("2026-11-03")
    assert mark.awaits("2026-11-06")
    assert not mark.passing(["2026-11-03"]).awaits("2026-11-03")


def test_announcing_twice_changes_nothing():
    mark = Watermark("v1").passing(["v9", "v10"])
    assert mark.passing(["v9"]) == mark


def test_watermark_survives_as_json():
    mark = Watermark("v1").passing(["v10", "v9"])
    stored = json.loads(json.dumps(mark.to_json()))
    assert stored == {"begin": "v1", "announced": ["v9", "v10"]}
    assert Watermark.from_json(stored) == mark


def test_watermark_has_bounded_size(monkeypatch):
    monkeypatch.setattr(watermark, "REMEMBERED", 3)
    mark = Watermark("v1").passing(["v1", "v2", "v4", "v5"])
    assert mark == Watermark("v2", frozenset({"v2", "v4", "v5"}))
    assert not mark.awaits("v1")
    assert mark.awaits("v3")


def test_watermark_fits_the_storage_of_airflow():
    keys = [f"{'x' * 60}{number:04}" for number in range(2000)]
    assert len(json.dumps(Watermark(keys[0]).passing(keys).to_json())) < 65535
