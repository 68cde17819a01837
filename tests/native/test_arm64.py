"""The native library of arm64, under qemu and beside float64."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.native import arm64

REPOSITORY = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(bool(arm64.LACKING), reason=arm64.LACKING)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return arm64.build(tmp_path_factory.mktemp("arm64"))


def test_library_of_arm64_has_vector_instructions(program):
    command = [shutil.which("aarch64-linux-gnu-objdump"), "--disassemble", str(program)]
    assert len(re.findall(r"\tfmla\tv\d+\.4s", subprocess.check_output(command, text=True))) > 100


@pytest.mark.parametrize(
    ("file", "chosen"),
    [
        ("training/test_engine_native.py", "gradients_are_those_of_autograd"),
        ("evaluate/test_comparison.py", "portable"),
        ("publish/test_decimals.py", "native"),
    ],
)
def test_library_of_arm64_passes_tests_of_library(program, file, chosen):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.native.arm64", f"tests/{file}", "-k", chosen]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider"],
        cwd=REPOSITORY,
        env={**os.environ, arm64.PROGRAM: str(program)},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert re.search(r"^[1-9]\d* calls of arm64's library$", done.stdout, re.MULTILINE)
