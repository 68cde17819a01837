"""Each line of each rank once, whoever reads and however often the reading starts anew."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.kubernetes.logs import RankLogs, instant, recorded
from operators.kubernetes.manifest import logged
from tests.operators.kubernetes.double.logs import since


class Pods:
    """Logs of pods, served as the API does: from the second of ``since`` on."""

    def __init__(self, lines):
        self.lines, self.shown = lines, 0

    def log(self, pod, start):
        return [line for line in self.lines[pod][: self.shown] if start is None or since(line, start)]


def named(*names):
    index = "batch.kubernetes.io/job-completion-index"
    return [{"metadata": {"name": name, "labels": {index: str(rank)}}} for rank, name in enumerate(names)]


def stamp(moment, zone):
    """Spell a time of tenths of a second in one of the ways nodes do."""
    text = f"2026-11-20T{10 + (2 if zone else 0)}:00:{moment // 10:02d}.{moment % 10}00000000"
    return text + ("+02:00" if zone else "Z")


@given(
    moments=st.lists(st.integers(0, 59), max_size=30).map(sorted),
    steps=st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=8).map(sorted),
    zone=st.booleans(),
)
def test_no_line_is_lost_and_none_comes_twice(moments, steps, zone):
    pods = Pods({"a": [f"{stamp(moment, zone)} line {at}" for at, moment in enumerate(moments)]})
    logs, seen = RankLogs(pods), []
    for shown, restarted in [*steps, (30, False)]:
        pods.shown = shown
        if restarted:
            job = {"metadata": json.loads(json.dumps(logged(logs.cursors)))["metadata"]}
            logs = RankLogs(pods, recorded(job))
        seen += logs.step(named("a"))
    assert seen == [f"[rank 0] line {at}" for at in range(len(moments))]


def test_ranks_are_told_apart_and_lines_are_in_the_order_of_their_times():
    pods = Pods({"a": ["2026-11-20T10:00:01.5Z one", "2026-11-20T10:00:03Z three"], "b": ["2026-11-20T10:00:02Z  two"]})
    pods.shown = 9
    assert RankLogs(pods).step(named("a", "b")) == ["[rank 0] one", "[rank 1]  two", "[rank 0] three"]


@pytest.mark.parametrize("text", ["2026-11-20T10:00:01Z", "2026-11-20T11:00:01.0+01:00", "2026-11-20T07:30:01-02:30"])
def test_one_moment_has_many_spellings(text):
    assert instant(text) == instant("2026-11-20T10:00:01.000000000Z")
    assert instant(text) < instant("2026-11-20T10:00:01.000000001Z")


@pytest.mark.parametrize("written", ["", "[]", "null", '{"a": 7}', '{"a": "x"}'])
def test_cursors_nobody_can_read_are_none(written):
    assert recorded({"metadata": {"annotations": {"pbg-tasks/logged": written}}}) == {}
    assert recorded({"metadata": {}}) == {}
