"""Environments of rivals that borrow the packages of this one."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from typing import TYPE_CHECKING

from pbg_tasks.progress import say

if TYPE_CHECKING:
    from pathlib import Path

_INSTALL_SECONDS = 600


def borrowing(home: Path, requirement: str) -> Path | None:
    """Return the interpreter of an environment with a package, made once.

    None, with a report of the reason, where the package cannot be installed.

    Args:
        home: directory of the environment.
        requirement: the package with its version, as pip takes it.
    """
    python, ready = home / "bin" / "python", home / "ready"
    if ready.exists():
        return python
    venv.create(home, symlinks=True, with_pip=False, clear=True)
    (packages,) = home.glob("lib/python*/site-packages")
    (packages / "borrowed.pth").write_text(f"{sysconfig.get_path('purelib')}\n{sysconfig.get_path('platlib')}\n")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--disable-pip-version-check"]
    try:
        subprocess.run(
            [*pip, "--only-binary=:all:", requirement],
            capture_output=True,
            text=True,
            check=True,
            timeout=_INSTALL_SECONDS,
        )
    except subprocess.CalledProcessError as error:
        say(f"{requirement}: skipped, it cannot be installed: {error.stderr.strip().rpartition(chr(10))[2]}")
        return None
    except subprocess.TimeoutExpired:
        say(f"{requirement}: skipped, it was not installed in {_INSTALL_SECONDS} s")
        return None
    ready.touch()
    return python
