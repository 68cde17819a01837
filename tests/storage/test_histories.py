"""Concurrent operations on one object are linearizable.

Reads, creations and swaps happen as if one after the other.

All that decides between two writers rests on this: a run's ``HEAD.json``, a channel's ``CURRENT.json``.
"""

from __future__ import annotations

import os
import time
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbg_tasks.errors import ConflictError
from pbg_tasks.storage import LocalStore, open_store
from tests.storage.histories import Read, Write, faults, race

OPERATIONS = int(os.environ.get("PBG_OPERATIONS", "1500"))
OF_ONE_OBJECT = 200
THREADS = 4


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.s3)])
def url(request, tmp_path, swift_disk):
    return str(tmp_path) if request.param == "local" else request.getfixturevalue("s3_bucket")


def kind(operation):
    if isinstance(operation, Write):
        return operation.outcome, "creation" if operation.expected is None else "swap"
    return "read", "nothing" if operation.value is None else "something"


@pytest.mark.rotated(3)
def test_concurrent_history_has_one_order(url):
    stores = [open_store(url) for _ in range(THREADS)]
    seen = Counter()
    for number in range(-(-OPERATIONS // OF_ONE_OBJECT)):
        history = race(stores, f"{number}/HEAD.json", OF_ONE_OBJECT, seed=number)
        assert faults(history) == []
        seen.update(map(kind, history))
    assert seen.total() >= OPERATIONS
    assert all(seen[outcome, what] for outcome in ("done", "refused") for what in ("creation", "swap"))
    assert not any(outcome == "unknown" for outcome, _ in seen)


A, B = Write(0, 1, None, "a"), Write(2, 3, "a", "b")
RIGHT = {
    "one after the other": [A, Read(1, 2, "a"), B, Read(3, 4, "b")],
    "a read during a write": [A, B, Read(2, 3, "a"), Read(2, 3, "b")],
    "a write that is answered late": [Write(0, 9, None, "a"), Read(1, 2, "a"), B],
    "refused by one that was under way": [A, Write(2, 9, "a", "b"), Write(3, 4, "a", "c", "refused")],
    "no answer, and it took place": [A, Write(2, 3, "a", "b", "unknown"), Read(5, 6, "a"), Read(7, 8, "b")],
    "no answer, and it did not": [A, Write(2, 3, "a", "b", "unknown"), Write(4, 5, "a", "c"), Read(5, 6, "c")],
    "refused by one without an answer": [A, Write(2, 3, "a", "b", "unknown"), Write(4, 5, "a", "c", "refused")],
}
RIGHT |= {
    "overtaken after it took place": [A, Write(2, 9, "a", "b", "overtaken"), Write(4, 5, "b", "c"), Read(9, 10, "c")],
    "overtaken before it could": [A, Write(2, 9, "a", "b", "overtaken"), Write(4, 5, "a", "c"), Read(9, 10, "c")],
}
WRONG = {
    "overtaken by none": [A, Write(2, 3, "a", "b", "overtaken"), Read(4, 5, "b")],
    "overtaken, and it did not take place": [A, Write(2, 3, "a", "b", "overtaken"), Read(4, 5, "a")],
    "overtaken by one that came later": [A, Write(2, 3, "a", "b", "overtaken"), Write(4, 5, "b", "c"), Read(6, 7, "c")],
    "a value that was written twice": [A, B, Write(4, 5, "b", "a"), Read(6, 7, "a")],
    "a stale read": [A, B, Read(4, 5, "a")],
    "nothing, after it was created": [A, Read(2, 3, None)],
    "a value of the future": [A, Read(1, 1.5, "b"), B],
    "back and forth": [A, Write(2, 9, "a", "b"), Read(3, 4, "b"), Read(5, 6, "a")],
    "two that replaced the same": [A, B, Write(2, 3, "a", "c")],
    "two creations": [A, Write(0, 1, None, "b")],
    "a write that was lost": [A, B, Write(4, 5, "a", "c"), Read(6, 7, "c")],
    "a write that nobody ever sees again": [A, B, Read(4, 5, "a"), Read(6, 7, "a")],
    "what was refused and took place": [A, Write(2, 3, "a", "b", "refused"), Read(4, 5, "b")],
    "refused, and nobody was first": [A, Write(2, 3, "a", "b", "refused"), Read(4, 5, "a")],
    "refused by one that came later": [A, Write(2, 3, "a", "b", "refused"), Write(4, 5, "a", "c")],
    "replaced before it was there": [Write(2, 3, None, "a"), Write(0, 1, "a", "b")],
    "a value that nobody wrote": [A, Read(1, 2, "z")],
    "no answer, it took place and was undone": [A, Write(2, 3, "a", "b", "unknown"), Read(4, 5, "b"), Read(6, 7, "a")],
}


@pytest.mark.parametrize("history", RIGHT.values(), ids=RIGHT)
def test_possible_history_has_no_faults(history):
    assert faults(history) == []


@pytest.mark.parametrize("history", WRONG.values(), ids=WRONG)
def test_impossible_history_has_faults(history):
    assert len(faults(history)) > 0


class LooksFirst(LocalStore):
    """Store that checks first whether it may write, and writes afterwards."""

    def swap(self, key, source, *, expected, metadata=None):
        found = self.head(key)
        if (found and found.tag) != (expected and expected.tag):
            raise ConflictError(key)
        time.sleep(0.0005)
        return self.put(key, source, metadata=metadata)


class Remembers(LocalStore):
    """Store that returns an earlier read a few times."""

    kept = (0, None)

    def get(self, key):
        left, value = self.kept
        self.kept = (left - 1, value) if left else (3, super().get(key))
        return self.kept[1]


@pytest.mark.parametrize("store", [LooksFirst, Remembers])
def test_store_that_breaks_the_order_is_detected(tmp_path, store):
    history = race([store(tmp_path) for _ in range(THREADS)], "HEAD.json", 400)
    assert len(faults(history)) > 0


@st.composite
def histories(draw):
    """Draw operations of a few threads; one answer may be wrong."""
    calls = []
    for thread in range(draw(st.integers(1, 3))):
        clock = draw(st.integers(0, 3))
        for count in range(draw(st.integers(1, 3))):
            began, moment, ended = sorted(draw(st.tuples(*[st.integers(clock, clock + 6)] * 3)))
            calls.append((moment, thread, began, ended, f"{thread}.{count}"))
            clock = ended + 1
    answers = ["done", "refused", "unknown"]
    known, there, history = {}, None, []
    wrong = draw(st.none() | st.integers(0, len(calls) - 1))
    for index, (_, thread, began, ended, value) in enumerate(sorted(calls)):
        if draw(st.booleans()):
            found = draw(st.sampled_from([None, *(call[-1] for call in calls)])) if index == wrong else there
            history.append(Read(began, ended, found))
            known[thread] = found
            continue
        expected = known.get(thread) if draw(st.booleans()) else None
        takes_place = expected == there
        there = value if takes_place else there
        outcome = draw(st.sampled_from(answers)) if index == wrong else answers[not takes_place]
        history.append(Write(began, ended, expected, value, outcome))
        if outcome == "done":
            known[thread] = value
    return history


def can_be(left, there=None):
    """Try every order of a history's operations; return whether one explains it."""
    ends = [float("inf") if getattr(each, "outcome", "") == "unknown" else each.ended for each in left]
    for index, each in enumerate(left):
        if each.began > min(ends):
            continue
        rest = left[:index] + left[index + 1 :]
        if any(can_be(rest, then) for then in outcomes(each, there)):
            return True
    return not left


def outcomes(operation, there):
    """Return the values possible after an operation; none if it is impossible."""
    if isinstance(operation, Read):
        return [there] if operation.value == there else []
    fits = operation.expected == there
    return {
        "done": [operation.value] if fits else [],
        "refused": [] if fits else [there],
        "unknown": [there, operation.value] if fits else [there],
    }[operation.outcome]


@settings(max_examples=400, deadline=None)
@given(histories())
def test_faults_are_found_where_no_order_explains(history):
    assert (faults(history) == []) == can_be(history)
