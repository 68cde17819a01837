from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack

import pytest

from pbg_tasks.errors import ConfigError, EvictedError, PbgError, RankLostError, ResourceError, StorageError
from pbg_tasks.training.ranks.group.member_registry import SERVICE, MemberRegistry, Membership
from pbg_tasks.training.ranks.transport.wire import Credentials, Listener, connect
from tests.waiting import wait_until

OURS = "a token of a run"
SILENCE = 2.0


def credentials(rank):
    return Credentials(OURS.encode(), "spec", rank, "trainer")


class Hall:
    """Rank 0's side, and members that are threads of the test."""

    def __init__(self, stack, size, patience=60.0):
        self.registry = MemberRegistry(range(size), silence=SILENCE, patience=patience)
        self.listener = stack.enter_context(Listener(credentials(0), {SERVICE: self.registry.serve}, host="127.0.0.1"))
        stack.enter_context(self.registry)

    def member(self, rank):
        return Membership(self.listener.address, credentials(rank), beat=0.05, silence=SILENCE, limit=None)


@pytest.fixture
def hall():
    with ExitStack() as stack:
        yield lambda size, **options: Hall(stack, size, **options)


@pytest.fixture
def start(hall):
    """Starts real processes beside rank 0, which is the test."""
    processes = []

    def run(opened, rank, what="train"):
        host, port = opened.listener.address
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.training.ranks.member_process", host, str(port), str(rank), what],
            env={**os.environ, "PBG_RUN_TOKEN": OURS},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield run
    for process in processes:
        process.kill()
        process.communicate()


def assert_broken(member, error, message):
    """Wait until a member knows that its gang is broken, and why."""
    assert member.broken.wait(5)
    with pytest.raises(error, match=message):
        member.check()


def test_all_members_leave_in_order(hall):
    opened = hall(3)
    members = [opened.member(rank) for rank in range(3)]
    for member in members:
        member.doing = "bucket (0, 0)"
        member.check()
    for member in reversed(members):
        member.leave()
        member.leave()
    assert opened.registry.verdict is None
    assert not any(member.broken.is_set() for member in members)


def test_end_of_rank_zero_ends_all(hall):
    opened = hall(2)
    with opened.member(1) as member:
        with pytest.raises(StorageError, match=r"^the disk is full$"), opened.registry:
            raise StorageError("the disk is full")
        assert_broken(member, StorageError, r"^rank 0: the disk is full$")


def test_rank_is_not_missed_before_first_arrival(hall):
    opened = hall(1, patience=0.1)
    time.sleep(0.3)
    assert opened.registry.verdict is None


def test_rank_zero_may_leave_first(hall):
    opened = hall(2)
    member = opened.member(1)
    wait_until(lambda: 1 in opened.registry._present)  # a member is accepted a moment before it is registered
    opened.registry.close()
    opened.listener.close()
    time.sleep(0.2)
    member.check()
    member.leave()


def test_late_member_may_leave_when_all_is_done(hall):
    opened = hall(2)
    opened.registry.close()
    member = opened.member(1)
    assert member._parted.wait(5)
    opened.listener.close()
    time.sleep(0.2)
    member.check()
    member.leave()


def test_failure_of_one_member_reaches_all(hall):
    opened = hall(3)
    members = [opened.member(rank) for rank in range(3)]
    with pytest.raises(StorageError, match=r"^the disk is full$"), members[2]:
        raise StorageError("the disk is full")
    for member in members[:2]:
        assert_broken(member, StorageError, r"^rank 2: the disk is full$")
        member.leave()
    assert str(opened.registry.verdict) == "rank 2: the disk is full"


def test_first_verdict_counts(hall):
    opened = hall(3)
    members = [opened.member(rank) for rank in range(3)]
    members[1].fail(EvictedError("told to end"))
    assert members[2].broken.wait(5)
    members[2].fail(StorageError("the disk is full"))
    members[2].leave(StorageError("the disk is full"))
    for member in members[:2]:
        assert_broken(member, EvictedError, "rank 1: told to end")
        member.leave()


def test_defect_counts_as_failure(hall):
    opened = hall(2)
    other = opened.member(0)
    with pytest.raises(ZeroDivisionError), opened.member(1):
        raise ZeroDivisionError("division by zero")
    assert_broken(other, PbgError, "rank 1: ZeroDivisionError: division by zero")
    other.leave()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MemoryError("no memory for 8 bytes"), ResourceError),
        (OSError(errno.ENOSPC, "No space left on device"), ResourceError),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), ResourceError),
        (KeyboardInterrupt(), EvictedError),
    ],
)
def test_foreign_error_keeps_its_kind_for_others(hall, error, kind):
    """After a bug no gang is started again."""
    opened = hall(2)
    other = opened.member(0)
    with pytest.raises(type(error)), opened.member(1):
        raise error
    assert_broken(other, kind, "rank 1: ")
    other.leave()


def test_connection_without_goodbye_is_a_lost_rank(hall):
    opened = hall(2)
    other = opened.member(0)
    with connect(opened.listener.address, credentials(1), SERVICE, timeout=5) as connection:
        connection.send("beat", doing="bucket (3, 4)")
        assert connection.receive(timeout=5).kind == "beat"
    assert_broken(other, RankLostError, r"rank 1 closed the connection; last heard of it: bucket \(3, 4\)")
    other.leave()


def test_member_that_never_comes_is_named(hall):
    opened = hall(4, patience=0.3)
    with opened.member(0) as other:
        assert_broken(other, RankLostError, r"no sign of rank 1, 2, 3 for 0.3 s after others had come")


def test_member_that_comes_after_end_is_refused(hall):
    opened = hall(2)
    opened.registry.condemn(StorageError("the disk is full"))
    with opened.member(1) as late:
        assert_broken(late, StorageError, "the disk is full")


def test_two_members_of_one_rank_are_refused(hall):
    opened = hall(2)
    with opened.member(1), opened.member(0) as first:
        wait_until(lambda: 1 in opened.registry._present)
        with opened.member(1) as second:
            assert_broken(second, ConfigError, "rank 1 came before")
        time.sleep(0.1)
        first.check()


def test_callbacks_run_despite_errors_of_others(hall, capsys):
    opened = hall(1)
    called = threading.Event()

    def fail():
        raise ZeroDivisionError("division by zero")

    with opened.member(0) as member:
        member.on_break(fail)
        member.on_break(called.set)
        opened.registry.condemn(RankLostError("rank 1 is lost"))
        assert called.wait(5)
        late = threading.Event()
        member.on_break(late.set)
        assert late.is_set()
    said = capsys.readouterr().err
    assert "the gang is broken: rank 1 is lost" in said
    assert "while the gang broke: ZeroDivisionError" in said


def test_vanished_rank_zero_ends_members(hall):
    opened = hall(1)
    member = opened.member(0)
    opened.listener.close()  # without the registry's goodbye
    assert_broken(member, RankLostError, "rank 0 closed the connection")
    member.leave()


def test_silent_rank_zero_ends_members():
    over = threading.Event()

    with (
        Listener(credentials(0), {SERVICE: lambda _: over.wait(10)}, host="127.0.0.1") as listener,
        Membership(listener.address, credentials(1), beat=0.05, silence=1.0, limit=None) as member,
    ):
        assert_broken(member, RankLostError, r"rank 0 was silent for 1 s")
        over.set()


def test_killed_stopped_and_woken_processes_are_noticed(hall, start):
    """Stop one rank.

    The others learn of it after the time for silence, and the rank itself when it wakes up.
    """
    opened = hall(3)
    stopped, other = start(opened, 1), start(opened, 2)
    with opened.member(0) as member:
        for process in (stopped, other):
            assert process.stdout.readline() == "ready\n"
        stopped.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        assert other.wait(20) == RankLostError.exit_code
        assert time.monotonic() - began > SILENCE / 2
        reason = "rank 1 was silent for 2 s; last heard of it: bucket (1, 2)"
        assert reason in other.stderr.read()
        with pytest.raises(RankLostError, match=r"rank 1 was silent"):
            member.check()
        stopped.send_signal(signal.SIGCONT)
        assert stopped.wait(20) == RankLostError.exit_code
        assert reason in stopped.stderr.read()


def test_killed_and_hanging_processes_end(hall, start):
    """Kill one rank.

    The others learn of it at once, and those that hang all the same are ended.
    """
    opened = hall(4)
    killed, hanging, locked = (start(opened, rank, what) for rank, what in ((1, "train"), (2, "hang"), (3, "lock")))
    with opened.member(0) as member:
        for process in (killed, hanging, locked):
            assert process.stdout.readline() == "ready\n"
        killed.kill()
        assert_broken(member, RankLostError, r"rank 1 (closed the connection|is out of reach)")
        assert hanging.wait(10) == RankLostError.exit_code
        assert "still running 0.5 s after the gang broke, so this process is ended (rank 1" in hanging.stderr.read()
        assert locked.wait(10) == 1
        assert "member_process.py" in locked.stderr.read()  # where it hung
