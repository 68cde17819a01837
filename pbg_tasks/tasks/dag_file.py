"""``dag-file``: the file that makes the DAGs of all graph specs."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Any

from pbg_tasks.errors import ConfigError
from pbg_tasks.storage.files import disk_errors, landing, write_all

NAME = "reembed.py"
"""Name of the file where only a folder was given."""

# Airflow parses a file only if it contains the words "dag" and "airflow".
_TITLE = '"""Airflow DAGs of the graph specs of a folder."""\n'
_DEFAULT = """
from pbg_operators import build_dags

globals().update(build_dags())
"""
_OF_FOLDER = """
from pathlib import Path

from pbg_operators import build_dags

globals().update(build_dags(Path(__file__).parent / {folder}))
"""
_MARK = "# Written by `pbg dag-file`, sha256 {digest}\n"
_MARKED = re.compile(_MARK.format(digest="([0-9a-f]{64})"))


def write_dag_file(destination: str, *, graphs: Path | None = None, force: bool = False) -> dict[str, Any]:
    """Write the DAG file; a second call with equal arguments changes nothing.

    Args:
        destination: path of the file, or an existing folder, in which it is ``reembed.py``.
        graphs: folder of graph specs where neither ``PBG_GRAPHS`` nor Airflow's config names one; a relative path is
            kept relative to the file.
        force: replace a file that this command did not write, or that was changed since.

    Raises:
        ConfigError: the destination is not a local Python file, or is another file and ``force`` is not set.
        StorageError: the disk failed or refused.
    """
    path = _path_of(destination)
    if graphs is not None and not graphs.is_absolute():
        graphs = Path(os.path.relpath(graphs, path.parent))
    content = dag_file(graphs)
    with disk_errors(path):
        present = path.read_text(errors="replace") if path.exists() else None
    if present is not None and not force and not _is_ours(present):
        raise ConfigError(
            f"{path}: not a file as `pbg dag-file` wrote it; choose another name, or --force to replace it"
        )
    if present != content:
        with landing(path) as sink:
            write_all(sink, content.encode(), 0)
    return {"path": str(path), "written": present != content}


def dag_file(graphs: Path | None = None) -> str:
    """Return the text of the DAG file.

    Args:
        graphs: default folder of graph specs, absolute or relative to the file; None for no default.
    """
    code = _DEFAULT if graphs is None else _OF_FOLDER.format(folder=_literal(str(graphs)))
    return _TITLE + _MARK.format(digest=_digest(_TITLE + code)) + code


def _path_of(destination: str) -> Path:
    path = Path(destination)
    if "://" in destination:
        raise ConfigError(f"{destination}: not a local path; write the file here and copy it")
    path = path / NAME if path.is_dir() else path
    if path.suffix != ".py":
        raise ConfigError(f"{path}: neither a folder nor a name that ends with .py, as Airflow's DAG files do")
    return path


def _literal(text: str) -> str:
    """Return a Python literal, in double quotes if possible."""
    literal = repr(text)
    return literal if '"' in text else f'"{literal[1:-1]}"'


def _is_ours(text: str) -> bool:
    marked = _MARKED.search(text)
    return marked is not None and marked[1] == _digest(text.replace(marked[0], "", 1))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
