"""Circumstances that figures of speed depend on beside the code."""

from __future__ import annotations

import datetime as dt
import hashlib
import os
import platform
import subprocess
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_CODE = (
    "pbg_tasks",
    "benchmarks/speed",
    "benchmarks/quality/*.py",  # the race is run by its commands
    "examples/configs/fb15k.yaml",
    "setup.py",
    "pyproject.toml",
)
_FEATURES = ("avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16", "amx_tile")
_PACKAGES = ("torch", "numpy", "h5py", "duckdb", "pyarrow", "boto3")
_MACHINE = ("cpu", "features", "cores")
_BUSY = 1.5  # processes a core; the benchmark before leaves up to one
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def revision(root: Path) -> str | None:
    """Return the code's last commit, and a hash of later changes.

    None outside git.
    """
    try:
        commit = _git(root, "log", "-1", "--format=%h", "--", *_CODE).strip()
        changes = _git(root, "diff", "HEAD", "--", *_CODE) + _untracked(root)
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{commit}+{hashlib.sha256(changes.encode()).hexdigest()[:8]}" if changes else commit


def _untracked(root: Path) -> str:
    """Return name and hash of each file unknown to git."""
    names = _git(root, "ls-files", "--others", "--exclude-standard", "-z", "--", *_CODE).split("\0")[:-1]
    return "".join(f"{name} {hashlib.sha256((root / name).read_bytes()).hexdigest()}\n" for name in names)


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout  # noqa: S607 - the user's own git


def counts_here(measured: Mapping[str, str | int | float], here: Mapping[str, str | int | float]) -> bool:
    """Return whether figures come from a machine like this, little used.

    Args:
        measured: the environment in which they were.
        here: this one.
    """
    alike = all(measured.get(name) == here[name] for name in _MACHINE)
    return alike and float(measured.get("load", 0)) <= _BUSY * float(here["cores"])


def environment() -> dict[str, str | int | float]:
    """Return machine, versions, load and date."""
    features = set(_cpu("flags").split())
    return {
        "cpu": _cpu("model name") or platform.machine(),
        "features": " ".join(name for name in _FEATURES if name in features),
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 2),
        "huge_pages": _chosen(_HUGE_PAGES),
        "python": platform.python_version(),
        **{name: version(name) for name in _PACKAGES if find_spec(name) is not None},
        "torchbiggraph": "1.0.0",
        "date": f"{dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M}",
    }


def _cpu(field: str) -> str:
    """Return a field of the first CPU; empty where it is unknown."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(field)), "")


def _chosen(path: Path) -> str:
    """Return the setting in brackets."""
    try:
        return path.read_text(encoding="ascii").partition("[")[2].partition("]")[0]
    except OSError:
        return "unknown"
