"""The native library under sanitizers, by all of its functions.

They are the address, undefined-behaviour and thread sanitizers. Workers that train the same tables race for rows, as
they are meant to; ``driver.cpp`` names that memory, and any other race is a fault.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pbg_tasks import native
from pbg_tasks.native import library
from pbg_tasks.native.abi import Step
from tests.rotation import of_today, rotation
from tests.training.native_steps import INSTRUCTIONS

SOURCES = Path(native.__file__).parent
SANITIZERS = of_today(["address,undefined", "thread"], days=2)
BATCHES = 3 * 144  # operators x comparators x losses x modes, three times, of other sizes each day

COMPILER = shutil.which("g++")

pytestmark = [
    pytest.mark.skipif(library() is None, reason="no native library"),
    pytest.mark.skipif(COMPILER is None, reason="no g++ to build it with sanitizers"),
]


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """Return a builder of the library and driver under a sanitizer.

    Each is built once.
    """
    made = {}

    def build(sanitizer):
        if sanitizer not in made:
            program = tmp_path_factory.mktemp("sanitizers") / sanitizer.replace(",", "-")
            options = [f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", f"-I{SOURCES}", "-pthread"]
            options += [
                "-std=c++17",
                "-O1",  # without -g, which takes a quarter more of compiling
                "-ffp-contract=fast",
                "-fno-math-errno",
                "-fopenmp-simd",
                "-Wno-psabi",
            ]
            sources = [str(Path(__file__).with_name("driver.cpp")), str(SOURCES / "native.cpp")]
            subprocess.run([COMPILER, *options, *sources, "-o", str(program)], check=True)
            made[sanitizer] = program
        return made[sanitizer]

    return build


def test_driver_sets_every_field_of_steps():
    """A path whose key it leaves out is compiled, and never run."""
    driver = Path(__file__).with_name("driver.cpp").read_text(encoding="utf-8")
    missing = {name for name, _ in Step._fields_ if not re.search(rf"\bstep\.{name}\b", driver)}
    assert missing == {"key", "loss", "penalty", "violators"}  # which the library sets


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_sanitizers_find_nothing(build, sanitizer, instructions):
    done = _run(build(sanitizer), instructions)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout == "done\n"


@pytest.mark.skipif("thread" not in SANITIZERS, reason="the thread sanitizer's turn is on another day")
@pytest.mark.parametrize("instructions", INSTRUCTIONS[:1])
def test_workers_race_for_trained_numbers_alone(build, instructions):
    found = _run(build("thread"), instructions, "races", TSAN_OPTIONS="halt_on_error=1")
    assert "data race" in found.stderr, "two workers trained the same rows, and the sanitizer saw no race"
    done = _run(build("thread"), instructions, "hogwild")
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout == "done\n"


def _run(program, instructions, *arguments, **environment):
    return subprocess.run(
        [str(program), instructions, str(BATCHES), str(rotation()), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | environment,
    )
