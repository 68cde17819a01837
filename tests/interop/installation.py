"""PBG's own environment for the tests, made once.

It is never part of the package.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
CACHE = "PBG_TEST_CACHE"
_INSTALL_SECONDS = 300


class UnavailableError(Exception):
    """PBG could not be installed or does not run; has the reason."""


def pbg_python(cache: Path) -> Path:
    """Return the interpreter of an environment in ``cache`` with PBG.

    The environment is made where it is missing.

    Raises:
        UnavailableError: it could not be made.
    """
    cache.mkdir(parents=True, exist_ok=True)
    identity = f"{sys.version} {sys.prefix} {REQUIREMENTS.read_text()}"
    home = cache / f"torchbiggraph-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
    python = home / "bin" / "python"
    ready = home / "ready"
    with _locked(cache / "lock"):
        if not ready.exists():
            shutil.rmtree(home, ignore_errors=True)
            _make(home, python)
            ready.touch()
    return python


def _make(home: Path, python: Path) -> None:
    venv.create(home, symlinks=True, with_pip=False)
    packages = home / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    # A path file adds its folder after the environment's own, so that torch is not downloaded again.
    (packages / "borrowed.pth").write_text(f"{sysconfig.get_path('purelib')}\n{sysconfig.get_path('platlib')}\n")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--disable-pip-version-check"]
    options = ["--no-deps", "--ignore-installed", "--only-binary=:all:", "--require-hashes"]
    _run([*pip, *options, "--requirement", str(REQUIREMENTS)], "cannot be installed")
    _run([str(python), "-c", "import torchbiggraph.train"], "does not start")


def _run(command: list[str], failure: str) -> None:
    environment = os.environ | {"PYTHONWARNINGS": "ignore"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_INSTALL_SECONDS, env=environment
        )
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"torchbiggraph 1.0.0 {failure}: no answer in {_INSTALL_SECONDS} s") from None
    if done.returncode:
        reason = ([line for line in done.stderr.splitlines() if line.strip()] or [f"status {done.returncode}"])[-1]
        raise UnavailableError(f"torchbiggraph 1.0.0 {failure}: {reason}")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
