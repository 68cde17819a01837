from __future__ import annotations

import threading

import pytest

from pbg_operators.plugin.cache import Recent


def test_value_is_kept_while_fresh():
    now, made = [0.0], []

    def make():
        made.append(now[0])
        return made[-1]

    recent = Recent(2, clock=lambda: now[0])
    assert recent.get("a", make, lambda _: 5.0) == 0.0
    now[0] = 5.0
    assert recent.get("a", make, lambda _: 5.0) == 0.0
    now[0] = 5.1
    assert recent.get("a", make, lambda _: 5.0) == 5.1
    assert made == [0.0, 5.1]


def test_least_recently_used_value_goes_first():
    recent = Recent(2, clock=lambda: 0.0)
    made = []
    for key in "abacb":
        recent.get(key, lambda key=key: made.append(key), lambda _: 9.0)
    assert made == ["a", "b", "c", "b"]


def test_failure_is_not_kept():
    recent = Recent(2)
    with pytest.raises(ZeroDivisionError):
        recent.get("a", lambda: 1 // 0, lambda _: 9.0)
    assert recent.get("a", lambda: 1, lambda _: 9.0) == 1


def test_failure_removes_no_value():
    recent, made = Recent(2), []
    for key in "ab":
        recent.get(key, lambda key=key: made.append(key), lambda _: 9.0)
    for key in "xyz":
        with pytest.raises(ZeroDivisionError):
            recent.get(key, lambda: 1 // 0, lambda _: 9.0)
    for key in "ab":
        recent.get(key, lambda key=key: made.append(key), lambda _: 9.0)
    assert made == ["a", "b"]


def test_simultaneous_requests_wait_for_one_result():
    recent, made, begun = Recent(2), [], threading.Barrier(4)

    def ask():
        begun.wait()
        recent.get("a", lambda: made.append(1), lambda _: 60.0)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1]
