"""The native library: built where possible, with the best instructions.

It lets other threads go on.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pbg_tasks import native
from pbg_tasks.errors import ResourceError
from pbg_tasks.evaluate.comparison import Tile, compare
from pbg_tasks.formats.edges import EdgeList
from pbg_tasks.native import library
from pbg_tasks.training.data.tables import Table
from pbg_tasks.training.engine.native import NativeEngine
from tests.model.configs import one_type

LEAST_GCC = 12
CPU = Path("/proc/cpuinfo")

built = pytest.mark.skipif(library() is None, reason="no native library")


def gcc_version():
    compiler = shutil.which("g++")
    if compiler is None:
        return 0
    return int(
        subprocess.run([compiler, "-dumpversion"], capture_output=True, text=True, check=True).stdout.split(".")[0]
    )


@pytest.mark.skipif("PBG_NO_NATIVE" in os.environ, reason="PBG_NO_NATIVE: it is not wanted here")
@pytest.mark.skipif(gcc_version() < LEAST_GCC, reason="no g++ that could build it")
def test_library_exists_where_a_compiler_does():
    """An installation continues without it.

    Every other test of it is skipped then.
    """
    assert library() is not None, "the build failed (or set PBG_NO_NATIVE): see `pip install --verbose --editable .`"


@built
def test_library_is_built_of_present_sources():
    """The interface's version stays the same where only the computation changes."""
    folder = Path(native.__file__).parent
    sources = sorted(path for path in folder.iterdir() if path.suffix in {".cpp", ".hpp", ".inc"})
    of_sources = getattr(library(), "pbg_sources", lambda: b"")
    of_sources.restype = ctypes.c_char_p
    present = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    assert of_sources().decode() == present, "older sources: `make setup`, or `pip install --no-deps --editable .`"


def test_library_that_cannot_be_loaded_is_named(tmp_path, monkeypatch):
    (tmp_path / "_native.abi3.so").write_bytes(b"of another system")
    monkeypatch.setattr(sys.modules[library.__module__], "__file__", str(tmp_path / "library.py"))
    with pytest.raises(ResourceError, match=r"_native\.abi3\.so: cannot be loaded here .*; install the package again"):
        library.__wrapped__()


@built
@pytest.mark.skipif(platform.machine() != "x86_64" or not CPU.exists(), reason="there is nothing to choose from")
def test_best_instructions_of_cpu_are_chosen():
    has = set(next(line for line in CPU.read_text().splitlines() if line.startswith("flags")).split())
    avx2 = {"avx2", "fma", "bmi2"}
    if avx2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= has:
        needed = {
            "amx": {"amx_tile", "amx_bf16", "amx_int8", "avx512_bf16", "avx512_vnni"},
            "avx512_bf16": {"avx512_bf16", "avx512_vnni"},
            "avx512_vnni": {"avx512_vnni"},
            "avx512": set(),
        }
        best = next(name for name, features in needed.items() if features <= has)
    else:
        best = "avx2" if avx2 <= has else "portable"
    program = "from pbg_tasks.native import instruction_set; print(instruction_set())"  # tests may choose others here
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == best


def train_with(native, watch):
    """Train a batch whose step takes tens of milliseconds."""
    engine = NativeEngine(one_type(dimension=200, batch_size=1500, num_batch_negs=1500), 1)
    engine._library = SimpleNamespace(pbg_train_steps=watch(native.pbg_train_steps))
    ends = np.arange(1500)
    table = Table.random(1500, 200, 1.0, torch.Generator().manual_seed(0))
    edges = EdgeList(ends, (ends + 1) % 1500, np.zeros(1500, np.int64))
    engine.train_bucket(edges, {"e": table}, {"e": table}, generator=torch.Generator().manual_seed(0))


def rank_with(native, watch):
    """Compare a row of scores with many true entities.

    It takes tens of milliseconds.
    """
    edges = 300
    tile = Tile(
        scores=np.zeros((1, 1 << 20), np.float32),
        question=np.zeros(edges, np.int64),
        ties=np.ones(edges, np.float32),
        wins=np.ones(edges, np.float32),
        own=np.full(edges, -1),
        answer_start=np.zeros(2, np.int64),
        answers=np.zeros(0, np.int64),
    )
    with pytest.MonkeyPatch.context() as patch:
        watched = SimpleNamespace(pbg_rank=watch(native.pbg_rank))
        patch.setattr("pbg_tasks.evaluate.comparison.library", lambda: watched)
        compare(tile, 1)


def goes_on(function):
    """Return a wrapped function, and a list of its threads' progress.

    The list has for each call whether another thread of Python ran before the call was over. That thread waits at a
    gate which is opened right before the call. As no thread is made to release the interpreter for a long time, the
    other one runs when the call releases it, and not before.
    """
    found = []

    def call(*arguments):
        ready, gate, ran = threading.Event(), threading.Lock(), []
        gate.acquire()

        def other():
            ready.set()
            with gate:
                ran.append(True)

        usual = sys.getswitchinterval()
        sys.setswitchinterval(100)
        try:
            thread = threading.Thread(target=other)
            thread.start()
            ready.wait()
            gate.release()
            result = function(*arguments)
            found.append(bool(ran))
        finally:
            sys.setswitchinterval(usual)
        thread.join()
        return result

    return call, found


@built
@pytest.mark.parametrize("work", [train_with, rank_with])
def test_other_threads_continue_during_computation(work):
    def went_on(native, tries):
        """Try several times.

        On a busy machine the other thread may get no core before a call is over.
        """
        for _ in range(tries):
            watched = []

            def watch(function, watched=watched):
                call, found = goes_on(function)
                watched.append(found)
                return call

            work(native, watch)
            assert watched[0]
            if all(watched[0]):
                return True
        return False

    keeps_the_lock = ctypes.PyDLL(library()._name)
    for name in ("pbg_train_steps", "pbg_rank"):
        ours, other = getattr(library(), name), getattr(keeps_the_lock, name)
        other.argtypes, other.restype = ours.argtypes, ours.restype
    assert went_on(library(), 10)
    assert not went_on(keeps_the_lock, 2)  # a call that keeps the lock would be noticed
