"""Commands under a limit of address space (``ulimit -v``).

They succeed, or end with one sentence.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys

import pytest

from pbg_tasks.errors import ResourceError
from pbg_tasks.memory.machine import usable_bytes
from tests.tasks.conftest import Workplace, ring

MB = 1_000_000
LIMITED = """
import os, resource, sys
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]), resource.RLIM_INFINITY))
del sys.argv[1]
"""
COMMAND = f"{LIMITED}\nfrom pbg_tasks.cli import main\nmain()"
DATABASE = f"""{LIMITED}
from pathlib import Path
from pbg_tasks.config.graph import Resources
from pbg_tasks.errors import ResourceError
from pbg_tasks.prepare.connection import connect
try:
    with connect(Resources(memory_gb=4, threads=1), Path(sys.argv[1])) as connection:
        print(connection.execute("SELECT count(DISTINCT hash(i)) FROM range(1000000) t(i)").fetchall())
        print(connection.execute("SELECT current_setting('memory_limit')").fetchall())
except ResourceError as error:
    print("refused:", error)
"""

STREAM = f"""{LIMITED}
from pathlib import Path
from pbg_tasks.config.graph import Resources
from pbg_tasks.errors import ResourceError
from pbg_tasks.memory.address_space import address_limit, free_addresses
from pbg_tasks.prepare.connection import connect
from pbg_tasks.prepare.buckets import _SortedEdges
from pbg_tasks.storage.files import disk_errors
from tests.prepare.inputs import make_spec
try:
    with connect(Resources(memory_gb=4, threads=1), Path(sys.argv[1])) as connection, disk_errors("edges.h5"):
        connection.execute(
            "CREATE TABLE placed AS SELECT i AS lhs_id, i AS rhs_id, 0 AS rel, 0 AS bucket, 0 AS hash "
            "FROM range(10000000) t(i)"
        )
        edges = _SortedEdges(connection, make_spec(sys.argv[1]), "placed").take(10000000)
        next(edges)
        taken = address_limit() - free_addresses()
        resource.setrlimit(resource.RLIMIT_AS, (taken + 1000000, resource.RLIM_INFINITY))
        kept = [*edges]  # what is freed might suffice for the next piece
except ResourceError as error:
    print("refused:", error, flush=True)
os._exit(0)
"""


@pytest.fixture
def place(tmp_path):
    place = Workplace(tmp_path)
    place.snapshot("d1", ring(40))
    return place


def limited(code, megabytes, *arguments, scratch):
    return subprocess.run(
        [sys.executable, "-c", code, str(megabytes * MB), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PBG_SCRATCH": str(scratch)},
    )


def check_refused(done, megabytes, what):
    assert done.returncode == ResourceError.exit_code, done.stderr[-2000:]
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: resource: {what} needs ")
    assert f"the limit of this process is {megabytes} MB (RLIMIT_AS, `ulimit -v`); raise it to " in line


@pytest.mark.parametrize("megabytes", [300, 500, 800])
def test_run_under_narrow_limit_is_refused(place, tmp_path, megabytes):
    check_refused(
        limited(COMMAND, megabytes, "run", place.spec, "--snapshot", "d1", scratch=tmp_path), megabytes, "`pbg run`"
    )
    assert not place.store.exists()


def test_limit_named_in_refusal_suffices(place, tmp_path):
    """Run the whole chain under the limit named by a refusal."""
    narrow = limited(COMMAND, 300, "run", place.spec, "--snapshot", "d1", scratch=tmp_path)
    needed = int(narrow.stderr.partition("raise it to `ulimit -v ")[2].partition("`")[0]) * 1024
    assert needed < 1300 * MB
    done = limited(COMMAND, -(-needed // MB), "run", place.spec, "--snapshot", "d1", "--json", scratch=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout)["release"]["published"] is True


@pytest.mark.parametrize(("megabytes", "status"), [(500, 7), (1000, 0)])
def test_preparation_needs_less_than_training(place, tmp_path, megabytes, status):
    done = limited(COMMAND, megabytes, "plan", place.spec, "--snapshot", "d1", scratch=tmp_path)
    assert done.returncode == status, done.stderr[-2000:]
    if status:
        check_refused(done, megabytes, "`pbg plan`")


@pytest.mark.parametrize("arguments", [["releases", "SPEC"], ["info"], ["schema"], ["--version"]])
def test_light_commands_run_under_narrow_limit(place, tmp_path, arguments):
    given = [place.spec if each == "SPEC" else each for each in arguments]
    done = limited(COMMAND, 500, *given, scratch=tmp_path)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr[-2000:]


def test_database_of_any_process_is_refused(tmp_path):
    done = limited(DATABASE, 360, tmp_path, scratch=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "refused: preparation needs " in done.stdout
    assert "`ulimit -v`" in done.stdout


def test_database_spills_earlier_under_limit(tmp_path):
    done = limited(DATABASE, 800, tmp_path, scratch=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    count, memory = done.stdout.splitlines()
    assert count == "[(1000000,)]"
    assert "MiB" in memory  # of the 4 GB that were requested


def test_edges_beyond_limit_are_lack_of_memory(tmp_path):
    """Edges are written to a file while they are read.

    The error must not blame that file.
    """
    done = limited(STREAM, 1500, tmp_path, scratch=tmp_path)
    assert done.stdout.startswith("refused: preparation needs more than resources.memory_gb (--memory-gb)"), (
        done.stderr[-2000:]
    )


def test_usable_bytes_stay_within_address_space():
    code = f"{LIMITED}\nfrom pbg_tasks.memory.machine import usable_bytes\nprint(usable_bytes())"
    done = limited(code, 400, scratch=os.curdir)
    assert 0 < int(done.stdout) <= 400 * MB
    if resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
        assert (usable_bytes() or 0) > 400 * MB
