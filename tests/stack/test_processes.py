"""Services that outlive their starter are found and stopped.

Services of other stacks are left alone.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from examples.stack.processes import MARK, Identity, Service, members, services, stop
from tests.waiting import wait_until

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = "import signal as s, time; s.signal(s.SIGTERM, s.SIG_IGN); print('child', flush=True); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", child], start_new_session=True)
print("up", flush=True)
time.sleep(600)
"""


def wait_for_line(service, text):
    wait_until(lambda: text in service.tail(10).splitlines(), seconds=20)


@pytest.fixture
def directory(tmp_path):
    yield tmp_path
    stop(tmp_path, grace=0)


@pytest.fixture
def service(directory):
    return Service("sleeper", directory)


def test_service_runs_in_own_session_and_is_stopped(directory, service):
    identity = service.start(SLEEP, os.environ)
    wait_for_line(service, "up")
    assert os.getsid(identity.pid) == identity.pid
    assert service.identity() == identity
    assert services(directory) == [service]
    assert set(members(directory)) == {identity}
    assert stop(directory) == 1
    assert service.identity() is None
    assert services(directory) == []


def test_service_outlives_its_starter(directory, service):
    source = f"""
import os, sys
from pathlib import Path
from examples.stack.processes import Service
Service("sleeper", Path({str(directory)!r})).start({SLEEP!r}, os.environ)
os.kill(os.getpid(), 9)
"""
    starter = subprocess.run(
        [sys.executable, "-c", source], check=False, env={**os.environ, "PYTHONPATH": str(Path.cwd())}
    )
    assert starter.returncode == -signal.SIGKILL
    assert service.identity() is not None
    assert stop(directory) == 1


def test_processes_ignoring_term_or_leaving_session_are_killed(directory, service):
    service.start([sys.executable, "-c", STUBBORN], os.environ)
    wait_for_line(service, "up")
    wait_for_line(service, "child")
    started = time.monotonic()
    assert stop(directory, grace=0.5) == 2
    assert time.monotonic() - started < 5
    assert not list(members(directory))


def test_process_that_overwrites_its_environment_is_found(directory, service):
    """Airflow's API server does so to show a title."""
    source = "import setproctitle, time; setproctitle.setproctitle('x' * 500); print('up', flush=True); time.sleep(600)"
    process = service.start([sys.executable, "-c", source], os.environ)
    wait_for_line(service, "up")
    assert f"{MARK}={directory}".encode() in Path(f"/proc/{process.pid}/environ").read_bytes()
    assert set(members(directory)) == {process}
    forgotten = subprocess.Popen(
        ["/usr/bin/env", "-i", sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True
    )
    (directory / "processes" / "sleeper.json").write_text(
        json.dumps({"pid": forgotten.pid, "born": Identity.of(forgotten.pid).born})
    )
    assert {member.pid for member in members(directory)} == {process.pid, forgotten.pid}
    assert stop(directory) == 2
    assert forgotten.wait(timeout=5) == -signal.SIGTERM


def test_orphans_of_a_killed_service_are_found(directory, service):
    identity = service.start([sys.executable, "-c", STUBBORN], os.environ)
    wait_for_line(service, "child")
    os.kill(identity.pid, signal.SIGKILL)
    wait_until(lambda: not identity.alive, seconds=5)
    assert service.identity() is None
    assert stop(directory, grace=0.2) == 1


def test_reused_process_number_is_not_the_service(directory, service):
    service.start(SLEEP, os.environ)
    stop(directory)
    stranger = subprocess.Popen(SLEEP, stdout=subprocess.PIPE)
    try:
        born = Identity.of(stranger.pid).born
        record = directory / "processes" / "sleeper.json"
        record.write_text(json.dumps({"pid": stranger.pid, "born": born - 1}))
        assert service.identity() is None
        assert stop(directory) == 0
        assert stranger.poll() is None
        Identity(stranger.pid, born - 1).signal(signal.SIGKILL)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.communicate()


def test_stack_with_longer_name_is_left_alone(directory):
    other = directory.with_name(directory.name + "-other")
    process = subprocess.Popen(SLEEP, env={**os.environ, MARK: str(other)}, stdout=subprocess.PIPE)
    try:
        process.stdout.readline()
        assert stop(directory) == 0
        assert [member.pid for member in members(other)] == [process.pid]
    finally:
        process.kill()
        process.communicate()


def test_ended_process_has_no_identity():
    process = subprocess.Popen([sys.executable, "-c", ""])
    wait_until(lambda: Identity.of(process.pid) is None)  # it becomes a zombie, which counts as gone
    process.wait()
    assert Identity.of(process.pid) is None
