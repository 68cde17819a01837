"""Graph specs as DAGs; a broken spec does not hide others."""

from __future__ import annotations

import contextlib
import os
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from airflow.sdk import conf, get_parsing_context

from pbg_operators.broken import broken_dag
from pbg_operators.internals import warn_of_untested_release
from pbg_operators.reembed import build_dags_of
from pbg_tasks.config import load_graph_spec
from pbg_tasks.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from airflow.sdk import DAG

SUFFIX = ".yaml"
_GRAPH = re.compile(rb"""^graph\s*:\s*["']?([A-Za-z0-9_-]+)""", re.MULTILINE)


def graphs_place(default: Path | None = None) -> Path:
    """Return a spec file, or the configured folder of specs.

    It is ``default`` itself where that is a spec file, else ``PBG_GRAPHS``, else ``[pbg] graphs_folder`` of Airflow's
    config, else ``default``.

    Raises:
        ConfigError: there is none of them, or no such file or folder.
    """
    if default is not None and default.suffix == SUFFIX:
        spec = Path(os.path.normpath(default))
        if not spec.is_file():
            raise ConfigError(f"{spec}: no such graph spec; remove its DAG file, or write all anew by `pbg dag-files`")
        return spec
    chosen = os.environ.get("PBG_GRAPHS") or conf.get("pbg", "graphs_folder", fallback="")
    if not chosen and default is None:
        raise ConfigError("no folder of graph specs is named; set PBG_GRAPHS or [pbg] graphs_folder")
    # The path is not resolved: a folder that is synchronised through a symbolic link would have a new path, and each
    # DAG a new version, at every synchronisation.
    folder = Path(chosen).expanduser() if chosen else Path(os.path.normpath(default or ""))
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder of graph specs; set PBG_GRAPHS or [pbg] graphs_folder")
    return folder


def spec_file(spec: Path | str) -> Path:
    """Return the path of a graph spec that a DAG file names.

    A path that is not absolute is one below the configured folder: Airflow's processes have directories of their own.

    Raises:
        ConfigError: there is no such file, or no folder is configured.
    """
    path = Path(spec)
    if not path.is_absolute():
        try:
            path = graphs_place() / path
        except ConfigError as error:
            raise ConfigError(f"{spec}: {error}; or write an absolute path, Path(__file__).parent / ...") from None
    if path.suffix != SUFFIX or not path.is_file():
        raise ConfigError(f"{path}: no such graph spec, which is a file *{SUFFIX}; mend the path in the DAG file")
    return path


def build_dags(place: Path) -> list[DAG]:
    """Build the DAGs of a spec file or a folder.

    They are ordered by file name. A spec that cannot be read becomes a DAG of its own, tagged *broken*, that shows the
    error and fails with it. An import error is no alternative: Airflow retires every DAG of a file that has one. Of two
    specs of one graph the first makes the DAGs; the other is broken, also where each has a DAG file. In the process of
    a task only the DAGs of its graph are built.
    """
    warn_of_untested_release()
    if place.is_file():
        return [dag for path, dag in _built(_namesakes(place)) if path == place]
    paths = sorted(place.glob(f"*{SUFFIX}"))
    for passed in sorted(place.glob("*.yml")):
        warnings.warn(f"{passed}: makes no DAG, because graph specs end with {SUFFIX}; rename it", stacklevel=2)
    needed = get_parsing_context().dag_id
    if needed is not None:
        dags = [dag for _, dag in _built(_naming(needed.partition("_")[2], paths))]
        if any(dag.dag_id == needed for dag in dags):
            return dags
    return [dag for _, dag in _built(paths)]


def _built(paths: Iterable[Path]) -> Iterator[tuple[Path, DAG]]:
    taken: dict[str, Path] = {}
    assets: dict[str, tuple[str, Path]] = {}
    for path in paths:
        try:
            dags = build_dags_of(path)
        except ConfigError as error:
            dags = [broken_dag(path, str(error))]
        if (first := dags[0].dag_id) in taken:
            dags = [broken_dag(path, f"{path}: graph of the same name as in {taken[first]}; rename one of them")]
        elif (clash := _add_assets(assets, path, dags)) is not None:
            dags = [broken_dag(path, clash)]
        taken |= {dag.dag_id: path for dag in dags}
        yield from ((path, dag) for dag in dags)


def _add_assets(known: dict[str, tuple[str, Path]], path: Path, dags: Iterable[DAG]) -> str | None:
    """Add the assets of a graph to those of others.

    Airflow has one URI for each name, and fails every task of the other one. Names are joined by ``_``, which they may
    hold: graph ``a`` with channel ``b_c`` names what graph ``a_b`` with channel ``c`` does.

    Returns:
        Why the graph can have no DAGs beside the others; None: it can.
    """
    tasks = (task for dag in dags for task in dag.tasks)
    found: dict[str, tuple[str, Path]] = {}
    for name, uri in sorted({(each.name, each.uri) for task in tasks for each in (*task.inlets, *task.outlets)}):
        there, where = known.get(name) or found.setdefault(name, (uri, path))
        if there != uri:
            return (
                f"{path}: its Airflow asset {name!r} would be {uri}, and is {there} of {where}; rename the graph, "
                "channel or export of one of them"
            )
    known |= found
    return None


def _namesakes(spec: Path) -> list[Path]:
    """List a spec after those that it may clash with.

    They have the same graph, or an asset of one name: a graph whose name holds this one's, or begins it.
    """
    try:
        name = load_graph_spec(spec).graph
    except ConfigError:
        return [spec]
    earlier = [path for path in sorted(spec.parent.glob(f"*{SUFFIX}")) if path.name < spec.name]
    alike = _naming(name, earlier)
    return [*(path for path in earlier if path in alike or name.startswith(f"{_written_name(path)}_")), spec]


def _naming(graph: str, paths: Iterable[Path]) -> list[Path]:
    """List the files that contain the name of a graph.

    Reading all files is far cheaper than parsing them.
    """
    return [path for path in paths if _contains(path, graph.encode())]


def _written_name(path: Path) -> str:
    """Return the name of a spec's graph, by its line alone.

    It is empty where there is no such line.
    """
    with contextlib.suppress(OSError):
        if (found := _GRAPH.search(path.read_bytes())) is not None:
            return found[1].decode()
    return ""


def _contains(path: Path, text: bytes) -> bool:
    try:
        return text in path.read_bytes()
    except OSError:  # the DAG of that spec reports the error
        return True
