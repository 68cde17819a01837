"""Each line of each rank once, for any reader and restart."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pbg_operators.kubernetes.logs import RankLogs, instant, recorded
from pbg_operators.kubernetes.manifest import logged
from pbg_tasks.errors import AccessError, ResourceError
from tests.operators.kubernetes.double.logs import since


class Pods:
    """Logs of pods, served from the second of ``since`` on.

    The API serves them so.
    """

    def __init__(self, lines):
        self.lines, self.shown = lines, 0

    def log(self, pod, start):
        return [line for line in self.lines[pod][: self.shown] if start is None or since(line, start)]


def named(*names):
    index = "batch.kubernetes.io/job-completion-index"
    return [{"metadata": {"name": name, "labels": {index: str(rank)}}} for rank, name in enumerate(names)]


def stamp(moment, zone):
    """Write a time of tenths of a second as nodes do.

    There are several ways.
    """
    text = f"2026-11-20T{10 + (2 if zone else 0)}:00:{moment // 10:02d}.{moment % 10}00000000"
    return text + ("+02:00" if zone else "Z")


@given(
    moments=st.lists(st.integers(0, 59), max_size=30).map(sorted),
    steps=st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=8).map(sorted),
    zone=st.booleans(),
)
def test_no_line_is_lost_or_repeated(moments, steps, zone):
    pods = Pods({"a": [f"{stamp(moment, zone)} line {at}" for at, moment in enumerate(moments)]})
    logs, seen = RankLogs(pods), []
    for shown, restarted in [*steps, (30, False)]:
        pods.shown = shown
        if restarted:
            job = {"metadata": json.loads(json.dumps(logged(logs.cursors)))["metadata"]}
            logs = RankLogs(pods, recorded(job))
        seen += logs.step(named("a"))
    assert seen == [f"[rank 0] line {at}" for at in range(len(moments))]


def test_lines_of_ranks_are_in_order_of_time():
    pods = Pods({"a": ["2026-11-20T10:00:01.5Z one", "2026-11-20T10:00:03Z three"], "b": ["2026-11-20T10:00:02Z  two"]})
    pods.shown = 9
    assert RankLogs(pods).step(named("a", "b")) == ["[rank 0] one", "[rank 1]  two", "[rank 0] three"]


class Failing:
    """Logs that fail for some pods.

    Each fails after a line and some seconds of a clock.
    """

    def __init__(self, monkeypatch, errors, seconds=0.0):
        self.errors, self.seconds, self.now, self.asked = errors, seconds, 0.0, []
        monkeypatch.setattr("pbg_operators.kubernetes.logs.time", SimpleNamespace(monotonic=lambda: self.now))

    def log(self, pod, start):
        self.asked.append(pod)
        if start is None:
            yield f"2026-11-20T10:00:01Z first of {pod}"
        if pod in self.errors:
            self.now += self.seconds
            raise self.errors[pod]
        yield f"2026-11-20T10:00:0{2 if start is None else 3}Z more of {pod}"

    def asked_in(self, step):
        self.asked.clear()
        step()
        return self.asked


@pytest.mark.parametrize("error", [ResourceError("no route to host (502)"), AccessError("pods/log is forbidden (403)")])
def test_unreadable_log_is_reported_once_others_continue(monkeypatch, error):
    pods = Failing(monkeypatch, {"b": error})
    logs = RankLogs(pods)
    assert logs.step(named("a", "b", "c")) == [
        f"the log of rank 1 cannot be read: {error}; the Job goes on",
        "[rank 0] first of a",
        "[rank 1] first of b",
        "[rank 2] first of c",
        "[rank 0] more of a",
        "[rank 2] more of c",
    ]
    assert logs.step(named("a", "b", "c")) == ["[rank 0] more of a", "[rank 2] more of c"]
    del pods.errors["b"]
    assert logs.step(named("b")) == ["[rank 0] more of b"]


def test_logs_slow_to_fail_are_read_seldom(monkeypatch):
    pods = Failing(monkeypatch, {name: ResourceError("timed out") for name in "abc"}, seconds=30.0)
    logs, gang = RankLogs(pods), named(*"abcd")
    assert pods.asked_in(lambda: logs.step(gang)) == ["a", "b"]  # a minute has gone
    assert pods.asked_in(lambda: logs.step(gang)) == ["c", "d"]
    assert pods.asked_in(lambda: logs.step(gang)) == ["d"]
    assert pods.asked_in(lambda: logs.step(gang, last=True)) == ["d", "a", "b"]
    pods.now += 300.0
    pods.errors.clear()
    assert pods.asked_in(lambda: logs.step(gang)) == ["d", "a", "b", "c"]
    assert pods.asked_in(lambda: logs.step(gang)) == ["a", "b", "c", "d"]  # a log that recovered waits behind none


def test_log_failing_again_is_not_reported_again(monkeypatch):
    pods = Failing(monkeypatch, {"a": ResourceError("timed out")})
    logs = RankLogs(pods)
    assert logs.step(named("a"))[0] == "the log of rank 0 cannot be read: timed out; the Job goes on"
    failing = pods.errors.pop("a")
    assert logs.step(named("a")) == ["[rank 0] more of a"]
    pods.errors["a"] = failing
    assert not any("cannot be read" in line for line in logs.step(named("a")))


@pytest.mark.parametrize("text", ["2026-11-20T10:00:01Z", "2026-11-20T11:00:01.0+01:00", "2026-11-20T07:30:01-02:30"])
def test_one_moment_has_many_spellings(text):
    assert instant(text) == instant("2026-11-20T10:00:01.000000000Z")
    assert instant(text) < instant("2026-11-20T10:00:01.000000001Z")


@pytest.mark.parametrize("written", ["", "[]", "null", '{"a": 7}', '{"a": "x"}'])
def test_unreadable_cursors_count_as_none(written):
    assert recorded({"metadata": {"annotations": {"pbg-tasks/logged": written}}}) == {}
    assert recorded({"metadata": {}}) == {}
