"""``dag-file`` and ``dag-files``: files that make the DAGs of graph specs."""

from __future__ import annotations

import ast
import hashlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from pbg_tasks.errors import ConfigError
from pbg_tasks.progress import say
from pbg_tasks.storage.files import disk_errors, landing, write_all

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NAME = "reembed.py"
"""Name of the file of a folder of specs where only the destination's folder was given."""
PREFIX = "pbg_graph_"
"""First part of the name of a file of one spec."""

# Airflow parses a file only if it contains the words "dag" and "airflow".
_TITLE = '"""Airflow DAGs of the graph specs of a folder."""\n'
_TITLE_OF_ONE = '"""Airflow DAGs of one graph spec."""\n'
_DEFAULT = """
from pbg_operators import build_dags

globals().update(build_dags())
"""
_OF_PATH = """
from pathlib import Path

from pbg_operators import build_dags

globals().update(build_dags(Path(__file__).parent / {path}))
"""
_MARK = "# Written by `pbg dag-file`, sha256 {digest}\n"
_MARKED = re.compile(_MARK.format(digest="([0-9a-f]{64})"))
_NAMED = re.compile(r"Path\(__file__\)\.parent / (.+)\)\)\n")
_ANOTHER = "{path}: not a file as `pbg dag-file` wrote it; choose another name, or --force to replace it"


class WrittenFile(TypedDict):
    """A DAG file; ``written``: it was not there as it is."""

    path: str
    written: bool


class WrittenFiles(TypedDict):
    """The DAG files of a folder of specs."""

    folder: str
    files: int
    written: list[str]
    removed: list[str]


def write_dag_file(destination: str, *, graphs: Path | None = None, force: bool = False) -> WrittenFile:
    """Write the DAG file of a folder of specs.

    A second call with equal arguments changes nothing.

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
    content = dag_file(None if graphs is None else _seen_from(path.parent, graphs))
    if not force and not _may_replace(path):
        raise ConfigError(_ANOTHER.format(path=path))
    return {"path": str(path), "written": _write(path, content)}


def write_dag_files(graphs: Path, destination: str, *, force: bool = False) -> WrittenFiles:
    """Write a DAG file for each spec; remove those of lost specs.

    Airflow parses files side by side, and one that takes too long hides no other. A second call changes nothing. Files
    of another folder's specs stay. Warns of a file of all specs beside them, and of specs that end with ``.yml``.

    Args:
        graphs: folder of graph specs; a relative path is kept relative to the files.
        destination: folder, which is made in an existing one; a file there is ``pbg_graph_{name of the spec}.py``.
        force: replace and remove files that were changed since they were written.

    Raises:
        ConfigError: there is no such folder or the destination is no local folder; or, where ``force`` is not set, a
            file of such a name is another or of another folder's spec, or all files would be removed. Nothing has
            changed then.
        StorageError: the disk failed or refused.
    """
    folder = Path(destination)
    if "://" in destination:
        raise ConfigError(f"{destination}: not a local path; write the files here and copy them")
    if not graphs.is_dir():
        raise ConfigError(f"{graphs}: no such folder of graph specs; name one that exists")
    if not folder.is_dir() and (folder.exists() or not folder.parent.is_dir()):
        raise ConfigError(f"{folder}: no folder, nor is it within one; name Airflow's folder of DAGs, or one in it")
    with disk_errors(graphs):
        specs = {folder / f"{PREFIX}{spec.stem}.py": spec for spec in sorted(graphs.glob("*.yaml"))}
    with disk_errors(folder):
        others = {path: _named_by(path) for path in sorted(set(folder.glob(f"{PREFIX}*.py")) - set(specs))}
    gone = [path for path, named in others.items() if named is None or _is_same(named.parent, graphs)]
    if not force:
        _check_unforced(graphs, folder, specs, gone)
    _warn(graphs, folder)
    with disk_errors(folder):
        folder.mkdir(exist_ok=True)
    written = [path.name for path, spec in specs.items() if _write(path, _dag_file_of(_seen_from(folder, spec)))]
    for path in gone:
        with disk_errors(path):
            path.unlink(missing_ok=True)
    return {"folder": str(folder), "files": len(specs), "written": written, "removed": [path.name for path in gone]}


def _check_unforced(graphs: Path, folder: Path, specs: Mapping[Path, Path], gone: Sequence[Path]) -> None:
    """Refuse changes that only ``force`` allows."""
    for path in [*specs, *gone]:
        if not _may_replace(path):
            raise ConfigError(_ANOTHER.format(path=path))
    for path in specs:
        if (named := _named_by(path)) is not None and not _is_same(named.parent, graphs) and named.is_file():
            raise ConfigError(
                f"{path}: makes the DAGs of {named}, another spec of that name; rename one of them, choose another "
                "folder of DAG files, or --force to replace it"
            )
    if gone and not specs:
        raise ConfigError(
            f"{graphs}: holds no graph spec (*.yaml), and {len(gone)} DAG files in {folder} are of its specs, such as "
            f"{gone[0].name}; name the folder that holds them, or --force to remove the files"
        )


def _warn(graphs: Path, folder: Path) -> None:
    """Warn of specs that are passed over, and of DAGs made twice."""
    with disk_errors(graphs):
        for path in sorted(graphs.glob("*.yml")):
            say(f"warning: {path}: gets no DAG file, because graph specs end with .yaml; rename it")
    with disk_errors(folder):
        beside = [path for place in (folder, folder.absolute().parent) for path in sorted(place.glob("*.py"))]
    for path in beside:
        text = "" if path.name.startswith(PREFIX) else _readable(path)
        if not text.startswith(_TITLE):
            continue
        named = _named_by(path)
        if named is None or _is_same(named, graphs):
            where = "" if named else "where that is the configured folder of graph specs, "
            say(
                f"warning: {path}: {where}makes the DAGs of {graphs} a second time; remove it, because Airflow expects "
                "a DAG in one file only"
            )


def _readable(path: Path) -> str:
    """Return the text of any file; empty where it is not readable."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:  # it may be of another user, and only a warning depends on it
        return ""


def _named_by(path: Path) -> Path | None:
    """Return the spec or folder that a DAG file names; else None."""
    found = _NAMED.search(_text(path) or "")
    try:
        named = None if found is None else ast.literal_eval(found[1])
    except (ValueError, SyntaxError):  # changed by hand
        return None
    return Path(os.path.normpath(path.absolute().parent / named)) if isinstance(named, str) else None


def _is_same(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def dag_file(graphs: Path | None = None) -> str:
    """Return the text of the DAG file of a folder of specs.

    Args:
        graphs: default folder of graph specs, absolute or relative to the file; None for no default.
    """
    return _marked(_TITLE, _DEFAULT if graphs is None else _OF_PATH.format(path=_literal(str(graphs))))


def _dag_file_of(spec: Path) -> str:
    return _marked(_TITLE_OF_ONE, _OF_PATH.format(path=_literal(str(spec))))


def _marked(title: str, code: str) -> str:
    return title + _MARK.format(digest=_digest(title + code)) + code


def _path_of(destination: str) -> Path:
    path = Path(destination)
    if "://" in destination:
        raise ConfigError(f"{destination}: not a local path; write the file here and copy it")
    path = path / NAME if path.is_dir() else path
    if path.suffix != ".py":
        raise ConfigError(f"{path}: neither a folder nor a name that ends with .py, as Airflow's DAG files do")
    return path


def _seen_from(folder: Path, path: Path) -> Path:
    return path if path.is_absolute() else Path(os.path.relpath(path, folder))


def _may_replace(path: Path) -> bool:
    """Return whether a file is missing, or as it was written here."""
    present = _text(path)
    if present is None:
        return True
    marked = _MARKED.search(present)
    return marked is not None and marked[1] == _digest(present.replace(marked[0], "", 1))


def _write(path: Path, content: str) -> bool:
    """Write a file unless it is so already; return whether it was."""
    if _text(path) == content:
        return False
    with landing(path) as sink:
        write_all(sink, content.encode(), 0)
    return True


def _text(path: Path) -> str | None:
    with disk_errors(path):
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else None


def _literal(text: str) -> str:
    """Return a Python literal, in double quotes if possible."""
    literal = repr(text)
    return literal if '"' in text else f'"{literal[1:-1]}"'


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
