"""Gangs of real processes on this machine.

Their commands are small ones where no training is needed.
"""

from __future__ import annotations

import datetime as dt
import errno
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from cryptography.x509 import load_pem_x509_certificate

from pbg_tasks.checkpoint import open_committed
from pbg_tasks.errors import ConfigError, EvictedError, RankLostError, ResourceError, TrainingDivergedError
from pbg_tasks.storage import open_store
from pbg_tasks.tasks.context import RunContext
from pbg_tasks.tasks.nightly.chain import run_chain
from pbg_tasks.tasks.training import launch as module
from pbg_tasks.tasks.training.launch import launch
from pbg_tasks.tasks.training.train import train
from tests.fence_ranks import start_rank, wait_for_end
from tests.kill_ranks import Graph, kill_often
from tests.tasks.conftest import ring
from tests.waiting import wait_until


@pytest.fixture
def ranks(tmp_path, monkeypatch):
    """Let every rank run a piece of Python instead of ``pbg``."""

    python = sys.executable

    def play(code):
        script = tmp_path / "rank.py"
        script.write_text(f"import os, sys, time, signal\nrank = int(os.environ['RANK'])\n{code}\n")
        stand_in = tmp_path / "python"
        stand_in.write_text(f"#!/bin/sh\nexec {python} {script}\n")
        stand_in.chmod(0o755)
        monkeypatch.setattr(module.sys, "executable", str(stand_in))

    return play


def test_result_is_that_of_rank_zero(ranks):
    ranks(
        'print(\'{"rank": %d, "world": %s, "token": "%s"}\' % (rank, os.environ[\'WORLD_SIZE\'],'
        " os.environ['PBG_RUN_TOKEN']))"
    )
    found = launch([], ranks=2, servers=1, max_restarts=0)
    assert (found["rank"], found["world"]) == (0, 3)
    assert launch([], ranks=2, servers=1, max_restarts=0)["token"] != found["token"]


def test_ranks_leave_file_of_errors_alone(ranks, monkeypatch, tmp_path):
    monkeypatch.setenv("PBG_ERROR_FILE", str(tmp_path / "note"))
    ranks("print('{\"note\": \"%s\"}' % os.environ['PBG_ERROR_FILE'])")
    assert launch([], ranks=1, servers=0, max_restarts=0) == {"note": ""}


def test_most_informative_error_is_raised(ranks):
    """Let one rank diverge; another one only notices its end."""
    ranks(
        "print('error: diverged: loss is nan' if rank == 2 else 'error: rank_lost: rank 2 is gone', file=sys.stderr)\n"
        "sys.exit(11 if rank == 2 else 12)"
    )
    with pytest.raises(TrainingDivergedError, match="loss is nan"):
        launch([], ranks=3, servers=0, max_restarts=5)


def test_rank_that_was_ended_is_no_cause(ranks, monkeypatch):
    """Others that still wait for it get a signal to end."""
    monkeypatch.setattr(module, "NOTICE_SECONDS", 0.2)
    ranks(
        "def end(*_):\n    print('error: evicted: at once', file=sys.stderr)\n    sys.exit(13)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "os.kill(os.getpid(), signal.SIGKILL) if rank else time.sleep(60)"
    )
    with pytest.raises(RankLostError, match="rank 1 was ended by SIGKILL; if not on purpose, memory ran out"):
        launch([], ranks=2, servers=0, max_restarts=0)


def test_only_temporary_failures_are_repeated(ranks, tmp_path, capsys):
    log = tmp_path / "log"
    ranks(f"open({str(log)!r}, 'a').write('x')\nos.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(RankLostError, match=r"ended by SIGKILL.*; run it again, it goes on"):
        launch([], ranks=1, servers=0, max_restarts=2)
    assert log.read_text() == "xxx"
    assert "gang 2 ended" in capsys.readouterr().err
    ranks("print('error: config: no', file=sys.stderr); sys.exit(2)")
    with pytest.raises(ConfigError, match="no"):
        launch([], ranks=2, servers=0, max_restarts=2)


def test_ranks_that_ignore_sigterm_are_killed(ranks, monkeypatch):
    monkeypatch.setattr(module, "NOTICE_SECONDS", 0.2)
    monkeypatch.setattr(module, "GRACE_SECONDS", 1.0)
    ranks("signal.signal(signal.SIGTERM, signal.SIG_IGN)\nsys.exit(12) if rank else time.sleep(60)")
    started = time.monotonic()
    with pytest.raises(RankLostError):
        launch([], ranks=2, servers=0, max_restarts=0)
    assert time.monotonic() - started < 20


def test_ranks_store_for_as_long_as_the_grace(ranks, monkeypatch, tmp_path):
    """Notice may be minutes, and one rank end long before another."""
    monkeypatch.setattr(module, "GRACE_SECONDS", 1.0)
    monkeypatch.setenv("PBG_GRACE_SECONDS", "30")
    ranks(
        f"place = os.path.join({str(tmp_path)!r}, str(rank))\n"
        "def store(*_):\n    time.sleep(2.5 * rank)\n    open(place + '.stored', 'x')\n    sys.exit(13)\n"
        "signal.signal(signal.SIGTERM, store)\nopen(place + '.ready', 'x')\ntime.sleep(60)"
    )

    def end():
        wait_until(lambda: len(list(tmp_path.glob("*.ready"))) == 2, 30)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=end, daemon=True)
    thread.start()
    with pytest.raises(EvictedError):
        launch([], ranks=2, servers=0, max_restarts=0)
    thread.join()
    assert len(list(tmp_path.glob("*.stored"))) == 2


def test_signal_between_looks_leaves_the_grace(ranks, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "GRACE_SECONDS", 1.0)
    monkeypatch.setenv("PBG_GRACE_SECONDS", "30")
    ranks(
        f"place = {str(tmp_path / 'rank')!r}\n"
        "def store(*_):\n    time.sleep(2.5)\n    open(place + '.stored', 'x')\n    sys.exit(13)\n"
        "signal.signal(signal.SIGTERM, store)\nopen(place + '.ready', 'x')\ntime.sleep(60)"
    )

    class Ending(threading.Event):
        """Is set at the second question of a look."""

        asked = 0

        def is_set(self):
            self.asked += (tmp_path / "rank.ready").exists()
            return self.asked > 1

    with module._LocalGang([], 1, encrypted=False) as gang:
        assert isinstance(gang.wait(Ending()), EvictedError)
    assert (tmp_path / "rank.stored").exists()


class Refusing(io.StringIO):
    """Standard error that takes no line."""

    def __init__(self, number):
        super().__init__()
        self._number = number

    def write(self, _text):
        raise OSError(self._number, os.strerror(self._number))


def test_gang_whose_lines_nothing_reads_ends(ranks, monkeypatch):
    ranks("signal.alarm(20)\nwhile True:\n    print('x' * 1000, file=sys.stderr)")
    monkeypatch.setattr(module.sys, "stderr", Refusing(errno.EPIPE))
    with pytest.raises(RankLostError, match="ended by SIGTERM"):
        launch([], ranks=2, servers=0, max_restarts=0)


def test_gang_outlives_lines_that_are_lost(ranks, monkeypatch):
    ranks("print('x' * 1000, file=sys.stderr, flush=True)\ntime.sleep(0.5)\nprint('{\"rank\": 0}')")
    monkeypatch.setattr(module.sys, "stderr", Refusing(errno.EAGAIN))
    assert launch([], ranks=2, servers=0, max_restarts=0) == {"rank": 0}


def test_gang_that_cannot_start_leaves_no_process(ranks, monkeypatch):
    ranks("time.sleep(60)")
    start, started = subprocess.Popen, []

    def refused(*args, **kwargs):
        if started:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        started.append(start(*args, **kwargs))
        return started[0]

    monkeypatch.setattr(module.subprocess, "Popen", refused)
    with pytest.raises(ResourceError, match=r"process 2 of 3 cannot be started: .*temporarily unavailable"):
        launch([], ranks=3, servers=0, max_restarts=0)
    assert started[0].poll() == -signal.SIGKILL


def test_gang_has_certificates_of_its_own_if_encrypted(ranks):
    ranks("import json; print(json.dumps({name: os.environ.get(name) for name in ('PBG_TLS_CA', 'PBG_TLS_KEY')}))")
    first, second = (launch([], ranks=2, servers=0, max_restarts=0, encrypted=True) for _ in range(2))
    assert first["PBG_TLS_CA"].startswith("-----BEGIN CERTIFICATE")
    assert first["PBG_TLS_CA"] != second["PBG_TLS_CA"]
    assert launch([], ranks=1, servers=0, max_restarts=0) == {"PBG_TLS_CA": None, "PBG_TLS_KEY": None}


@pytest.mark.parametrize("name", ["PBG_TLS_CA", "PBG_TLS_CERTIFICATE"])
def test_certificates_outlast_training_of_months(ranks, name):
    """Connections are made anew as long as it lasts."""
    ranks(f"import json; print(json.dumps({{'pem': os.environ[{name!r}]}}))")
    made = load_pem_x509_certificate(launch([], ranks=1, servers=0, max_restarts=0, encrypted=True)["pem"].encode())
    assert made.not_valid_after_utc - dt.datetime.now(dt.UTC) > dt.timedelta(days=300)


def test_killed_gang_restarts_until_all_edges_trained(tmp_path):
    """This is the short form of ``python -m tests.kill_ranks``."""
    graph = Graph.random(tmp_path / "graph", epochs=2, edges=30_000)
    findings = kill_often(graph, ranks=2, times=2, seed=1, longest=0.5)
    assert not findings.problems
    assert sum(findings.kills.values()) >= 1


def test_stopped_gang_is_continued_by_another_size(tmp_path):
    graph = Graph.random(tmp_path / "graph", epochs=1, edges=200_000)
    command = [sys.executable, "-m", "pbg_tasks", "train", str(graph.config), "--json"]
    first = subprocess.Popen([*command, "--ranks", "2"], stderr=subprocess.PIPE, text=True, env=os.environ.copy())
    while not graph.head().get("progress"):
        assert first.poll() is None
        time.sleep(0.02)
    first.send_signal(signal.SIGTERM)
    said = first.communicate(timeout=90)[1]
    assert first.returncode == 13, said
    assert "error: evicted: told to end (SIGTERM)" in said
    record = json.loads((tmp_path / "graph/model" / graph.head()["progress"]["name"]).read_text())
    assert not record["active"], "something was lost, although there was time to store it"
    stored = sum(edge_chunk["edges"] for edge_chunk in (*record["done"], *record["begun"]))
    assert stored < graph.total
    second = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(second.stdout)["edges_retrained"] == 0
    manifest, _ = open_committed(open_store(str(tmp_path / "graph/model")), "")
    assert (manifest.edges, manifest.retrained) == ((graph.total,), ())


@pytest.mark.timeout(60)
def test_rank_of_trained_run_awaits_no_other(place, monkeypatch):
    place.snapshot("d1", ring(60))
    run = run_chain(place.spec, "d1", publish=False)["run"]
    environment = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert train(run) == RunContext.open(run).require("train")


def test_full_disk_of_one_rank_ends_all(tmp_path, small_disk):
    graph = Graph.random(tmp_path / "graph", epochs=1, edges=1_000, rows=20_000)
    meeting, token = f"file://{tmp_path}/meeting", "t" * 32
    scratch = ({}, {"PBG_SCRATCH": str(small_disk)})
    gang = [start_rank(graph, rank, 2, meeting, PBG_RUN_TOKEN=token, **scratch[rank]) for rank in range(2)]
    assert wait_for_end(gang, 90) == [7, 7]
    for rank in range(2):
        said = (graph.directory / f"log-{rank}").read_text()
        assert "error: resource: " in said
        assert str(small_disk) in said
