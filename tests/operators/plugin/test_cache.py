from __future__ import annotations

import threading

import pytest

from pbg_operators.plugin.cache import Recent


def test_a_value_is_kept_while_it_is_fresh():
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


def test_the_one_asked_for_longest_ago_goes():
    recent = Recent(2, clock=lambda: 0.0)
    made = []
    for key in "abacb":
        recent.get(key, lambda key=key: made.append(key), lambda _: 9.0)
    assert made == ["a", "b", "c", "b"]


def test_a_failure_is_not_kept():
    recent = Recent(2)
    with pytest.raises(ZeroDivisionError):
        recent.get("a", lambda: 1 // 0, lambda _: 9.0)
    assert recent.get("a", lambda: 1, lambda _: 9.0) == 1


def test_nothing_goes_for_a_failure():
    recent, made = Recent(2), []
    for key in "ab":
        recent.get(key, lambda key=key: made.append(key), lambda _: 9.0)
    for key in "xyz":
        with pytest.raises(ZeroDivisionError):
            recent.get(key, lambda: 1 // 0, lambda _: 9.0)
    for key in "ab":
        recent.get(key, lambda key=key: made.append(key), lambda _: 9.0)
    assert made == ["a", "b"]


def test_many_who_ask_at_once_wait_for_one():
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
