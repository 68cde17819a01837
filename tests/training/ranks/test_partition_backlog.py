from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from pbg_tasks.training.data.partitions import PartitionKey
from pbg_tasks.training.ranks.partitions.backlog import Backlog


def key(number):
    return PartitionKey("user", number)


def measured(interval, seconds):
    """Return a backlog that has measured one write."""
    backlog = Backlog(interval)
    backlog.add(key(0), 0.0)
    backlog.begin(0.0)
    backlog.end(seconds)
    return backlog


def test_partition_is_stored_after_its_interval():
    backlog = measured(60.0, 5.0)
    assert backlog.begin_at() is None
    backlog.add(key(1), 100.0)
    backlog.add(key(1), 130.0)  # again: the age counts from the first waiting change
    assert backlog.begin_at() == 160.0
    assert backlog.age(130.0) == 30.0
    assert backlog.begin(160.0) == key(1)
    assert (len(backlog), backlog.begin_at(), backlog.age(161.0)) == (1, None, 61.0)
    backlog.end(165.0)
    assert (len(backlog), backlog.age(165.0)) == (0, 0.0)


def test_many_partitions_begin_early_enough_for_all():
    backlog = measured(60.0, 5.0)
    for number in range(10):
        backlog.add(key(number), 100.0)
    assert backlog.begin_at() == 160.0 - 9 * 5.0


def test_second_partition_before_measurement_begins_first():
    backlog = Backlog(60.0)
    backlog.add(key(0), 100.0)
    assert backlog.begin_at() == 160.0
    backlog.add(key(1), 110.0)
    assert backlog.begin_at() == 110.0


def test_change_during_store_is_a_new_one():
    backlog = measured(60.0, 5.0)
    backlog.add(key(1), 100.0)
    backlog.begin(160.0)
    backlog.add(key(1), 162.0)
    assert backlog.age(163.0) == 63.0
    backlog.end(165.0)
    assert backlog.age(165.0) == 3.0
    assert backlog.begin_at() == 222.0


@given(
    writes=st.floats(0.1, 5.0),
    changes=st.lists(st.tuples(st.floats(0, 20.0), st.integers(0, 9)), min_size=1, max_size=100),
)
def test_fast_store_bounds_the_unsaved_time(writes, changes):
    interval = 60.0  # 10 partitions, 5 seconds each at most: all can be stored in time
    backlog, now, end = measured(interval, writes), 10.0, math.inf
    times = []
    for pause, number in changes:
        times.append(((times[-1][0] if times else now) + pause, number))
    while times or backlog:
        begin = backlog.begin_at()
        begin = math.inf if begin is None or end < math.inf else max(begin, now)
        now = min(begin, end, times[0][0] if times else math.inf)
        assert backlog.age(now) <= interval + writes + 1e-6
        if times and times[0][0] == now:
            backlog.add(key(times.pop(0)[1]), now)
        elif end == now:
            backlog.end(now)
            end = math.inf
        else:
            backlog.begin(now)
            end = now + writes
