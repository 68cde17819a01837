"""Heartbeats of a writer whose clock is an hour wrong.

As any other, it is taken over when it is silent, and not before.
"""

from __future__ import annotations

import json
from itertools import count, cycle

import pytest

from pbg_tasks.checkpoint.writer_heartbeat import (
    BEAT_SECONDS,
    PATIENCE_SECONDS,
    SILENCE_SECONDS,
    process_identity,
    wait_until_free,
)
from pbg_tasks.errors import ConflictError
from pbg_tasks.storage import LocalStore
from tests.clocks import HOUR, clock_wrong_by

KEY = "lease.json"
CLOCKS = [0.0, HOUR, -HOUR]


@pytest.fixture
def store(tmp_path):
    return LocalStore(tmp_path)


class Holder:
    """A writer on another machine.

    Args:
        clocks: error of its clock at each beat, in seconds.
        beats: number after which it is silent.
    """

    def __init__(self, store, clocks, beats):
        self._store, self._clocks, self._left, self._beats = store, cycle(clocks), beats, count()
        self.watched = 0.0
        self._beat()

    def _beat(self):
        holder = process_identity() | {"machine": "elsewhere"}
        with clock_wrong_by(next(self._clocks)):
            self._store.put(KEY, json.dumps({"holder": holder, "beat": next(self._beats)}).encode())

    def pass_time(self, seconds):
        """Pass time for the observer, in place of its sleep."""
        self.watched += seconds
        if self._left and self.watched % BEAT_SECONDS == 0:
            self._left -= 1
            self._beat()


@pytest.mark.parametrize("observer", CLOCKS)
@pytest.mark.parametrize("clocks", [*([clock] for clock in CLOCKS), [HOUR, -HOUR, 0.0]])
class TestClocks:
    def test_beating_writer_is_not_taken_over(self, store, clocks, observer):
        holder = Holder(store, clocks, beats=100)
        with clock_wrong_by(observer), pytest.raises(ConflictError, match="is alive and owns this run"):
            wait_until_free(store, KEY, sleep=holder.pass_time)
        assert holder.watched == PATIENCE_SECONDS

    @pytest.mark.parametrize("beats", [0, 1, 4])
    def test_silent_writer_is_taken_over_in_time(self, store, clocks, observer, beats):
        holder = Holder(store, clocks, beats)
        with clock_wrong_by(observer):
            wait_until_free(store, KEY, sleep=holder.pass_time)
        assert holder.watched == beats * BEAT_SECONDS + SILENCE_SECONDS
