"""One real training process that gets SIGTERM at various moments.

It ends in time, and the next one gives the same bits.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import pytest

from pbg_tasks.checkpoint import open_committed
from pbg_tasks.errors import EvictedError
from pbg_tasks.storage import open_store
from pbg_tasks.tasks.training.eviction import Notice
from tests.kill_ranks import Graph
from tests.rotation import of_today
from tests.waiting import wait_until

GRACE = 30.0
"""Seconds after SIGTERM; Kubernetes' default."""


def make_graph(directory, **keys):
    graph = Graph.random(directory, epochs=2, edges=20_000)
    graph.configure(
        entities={"n": {"num_partitions": 4}},
        relations=[{"name": "r", "lhs": "n", "rhs": "n", "operator": "translation"}],
        dimension=32,
        partition_buffer=2,
        **keys,
    )
    return graph


def start(graph, model, *, epochs=2, **environment):
    command = [sys.executable, "-m", "pbg_tasks", "train", str(graph.config), "--json"]
    command += ["-p", f"checkpoint_path={graph.directory / model}", "-p", f"num_epochs={epochs}"]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )


def heeds_sigterm(process):
    """Return whether a process has a handler of SIGTERM yet.

    Before, Python is starting, and SIGTERM just ends it.
    """
    status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1


def tell(process, times=1):
    """Send SIGTERM; return status, seconds and stderr of the process."""
    began = time.monotonic()
    for _ in range(times):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.05 if times > 1 else 0)
    said = process.communicate(timeout=90)[1]
    return process.returncode, time.monotonic() - began, said


def data_digest(path):
    found = []
    with h5py.File(path) as file:
        file.visititems(lambda name, item: found.append((name, item)))
        data = [(name, item[()].tobytes()) for name, item in found if isinstance(item, h5py.Dataset)]
    return hashlib.sha256(repr(data).encode()).hexdigest()


def bits(graph, model):
    """Return the digests of the newest version's data sets.

    The config inside is left out.
    """
    manifest, _ = open_committed(open_store(str(graph.directory / model)), "")
    found = {name: data_digest(graph.directory / model / name) for name in sorted(manifest.objects)}
    return manifest.version, manifest.edges, manifest.retrained, found


def finish(graph, model):
    process = start(graph, model)
    printed, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    return json.loads(printed), said


def head(graph, model):
    try:
        return json.loads((graph.directory / model / "HEAD.json").read_text())
    except (OSError, ValueError):
        return {}


def record(graph, model):
    return json.loads((graph.directory / model / head(graph, model)["progress"]["name"]).read_text())


def live_buckets(graph, model):
    try:
        return len(json.loads((graph.directory / model / "live.json").read_text())["done"])
    except (OSError, ValueError):
        return -1


@pytest.fixture(scope="module", params=of_today([0.0, 0.05], days=2))
def graph(tmp_path_factory, request):
    made = make_graph(tmp_path_factory.mktemp("graph") / "graph", eval_fraction=request.param)
    finish(made, "whole")
    return made


def test_process_interrupted_often_gives_the_same_bits(graph):
    """Interrupt it eight times at random moments, then let it end.

    The moments include commits and the start.
    """
    generator, took = random.Random(3), []
    for _ in range(8):
        process = start(graph, "often")
        wait_until(lambda: heeds_sigterm(process), seconds=30)  # noqa: B023 - called at once
        time.sleep(generator.uniform(0.0, 5.0))
        status, seconds, said = tell(process)
        done = "train: finished in" in said  # and Python is ending
        assert status == 13 or (status in {0, -signal.SIGTERM} and done), said
        took.append(seconds)
    finish(graph, "often")
    assert max(took) < GRACE, took
    assert bits(graph, "often") == bits(graph, "whole")


@pytest.mark.parametrize("times", of_today([1, 2], days=2))
def test_process_interrupted_in_training_loses_no_batch(graph, times):
    model = f"once-{times}"
    process = start(graph, model)
    wait_until(lambda: live_buckets(graph, model) >= 0, seconds=60)
    status, seconds, said = tell(process, times)
    assert status == 13, said
    assert seconds < GRACE
    assert re.search(r"error: evicted: told to end \(SIGTERM\) in epoch 1/2; \d+ of 16 buckets", said)
    stored = record(graph, model)
    assert not stored["active"]
    assert 0 < sum(edge_chunk["edges"] for edge_chunk in (*stored["done"], *stored["begun"])) < graph.total
    result, said = finish(graph, model)
    assert "going on after" in said
    assert result["edges_retrained"] == 0
    assert bits(graph, model) == bits(graph, "whole")


def test_process_interrupted_while_starting_is_evicted(graph):
    for pause in (0.0, 0.2, 0.5, 1.0):
        process = start(graph, "starting")
        wait_until(lambda: heeds_sigterm(process), seconds=30)  # noqa: B023 - called at once
        time.sleep(pause)
        status, seconds, said = tell(process)
        assert status == 13, said
        assert seconds < GRACE
    finish(graph, "starting")
    assert bits(graph, "starting") == bits(graph, "whole")


def changed(directory, lines):
    """Return the PYTHONPATH of a process that runs ``lines`` first."""
    (directory / "sitecustomize.py").write_text(lines)
    return f"{directory}{os.pathsep}{os.environ.get('PYTHONPATH', Path.cwd())}"


def test_gang_continues_the_work_of_a_process(graph, tmp_path):
    """The training may be shorter than the interval of its mirror."""
    path = changed(tmp_path, "from pbg_tasks.checkpoint import live\nlive.INTERVAL_SECONDS, live._SHARE = 0.0, 1.0\n")
    process = start(graph, "gang", PYTHONPATH=path)
    wait_until(lambda: live_buckets(graph, "gang") >= 1, seconds=60)
    assert tell(process)[0] == 13
    command = [sys.executable, "-m", "pbg_tasks", "train", str(graph.config), "--json", "--ranks", "2"]
    command += ["-p", f"checkpoint_path={graph.directory / 'gang'}"]
    second = subprocess.run(command, capture_output=True, text=True, check=False)
    assert second.returncode == 0, second.stderr
    assert json.loads(second.stdout)["edges_retrained"] == 0
    assert bits(graph, "gang")[:2] == bits(graph, "whole")[:2]


def test_process_that_cannot_store_in_time_commits_nothing(graph, tmp_path):
    """The library that stores does not return; the grace is 9 seconds."""
    path = changed(
        tmp_path,
        "import time\nfrom pbg_tasks.checkpoint import partial_record\n"
        "partial_record.PartialObjects.put = lambda *_, **__: time.sleep(1000)\n",
    )
    process = start(graph, "stuck", PYTHONPATH=path, PBG_GRACE_SECONDS="9")
    wait_until(lambda: live_buckets(graph, "stuck") >= 0, seconds=60)
    status, seconds, said = tell(process)
    assert status == 13, said
    assert 2 < seconds < 9
    assert "still running 3 s after it was told to end" in said
    assert head(graph, "stuck").get("progress") is None
    (graph.directory / "stuck" / "lease.json").unlink()  # the lease of a killed process has to expire
    finish(graph, "stuck")
    assert bits(graph, "stuck") == bits(graph, "whole")


def test_second_signal_keeps_the_first_ones_status(graph, tmp_path):
    """Send it while the process logs its reason, slowed to a second."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, time\nfrom pbg_tasks import cli\nfail = cli._fail\n"
        "cli._fail = lambda error: (print('ending', file=sys.stderr, flush=True), time.sleep(1), fail(error))\n"
    )
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', Path.cwd())}"
    process = start(graph, "twice", PYTHONPATH=path)
    wait_until(lambda: live_buckets(graph, "twice") >= 0, seconds=60)
    process.send_signal(signal.SIGTERM)
    wait_until(lambda: "ending" in process.stderr.readline(), seconds=60)
    status, _, said = tell(process)
    assert status == 13, said
    assert "error: evicted: told to end (SIGTERM) in epoch" in said


@pytest.mark.usefixtures("interruptible")
def test_interrupt_ends_as_before(graph):
    process = start(graph, "interrupted", epochs=100)
    wait_until(lambda: live_buckets(graph, "interrupted") >= 0, seconds=60)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert head(graph, "interrupted").get("progress") is None


INTERRUPTED_IMPORT = """
import os, signal, sys

called = None

def interrupt(frame, event, arg):
    global called
    if event == "call" and called == "_c10d_init" and frame.f_code.co_name == "_lock_unlock_module":
        sys.setprofile(None)
        print("interrupted", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGTERM)
    called = getattr(arg, "__name__", None) if event == "c_call" else None

sys.setprofile(interrupt)
"""
"""Sends SIGTERM where torch imports a module from C++, which an error there aborts."""


def test_process_interrupted_in_import_of_torch_is_evicted(tmp_path):
    path = changed(tmp_path, INTERRUPTED_IMPORT)
    command = [sys.executable, "-m", "pbg_tasks", "train", str(tmp_path / "no.json")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path})
    assert "interrupted\n" in ended.stderr
    assert ended.returncode == 13, ended.stderr
    assert "error: evicted: told to end (SIGTERM)" in ended.stderr


def test_eviction_swallowed_by_library_is_not_forgotten():
    with pytest.raises(EvictedError), Notice.taken():  # noqa: PT012 - what comes in between is the point
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
        except Exception:  # noqa: BLE001, S110 - as libraries do
            pass
        with Notice.taken():
            pytest.fail("goes on")
