"""Reasons of skips: the first since the snapshot was planned."""

from __future__ import annotations

import time

from pbg_tasks.publish import Channel
from pbg_tasks.publish.skips import skip, skipped
from pbg_tasks.storage import open_store


def test_refusal_after_plan_replaces_earlier_reason(tmp_path):
    channel = Channel(open_store(str(tmp_path)), "production")
    skip(channel, "d1", "skipped by hand")
    skip(channel, "d1", "another run is refused", planned=time.time() - 60)
    assert skipped(channel) == {"d1": "skipped by hand"}
    skip(channel, "d1", "planned again and refused", planned=time.time() + 60)
    assert skipped(channel) == {"d1": "planned again and refused"}
