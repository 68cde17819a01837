"""A folder of graph specs as a set of DAGs, of which a broken one hides no other."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from airflow.sdk import DAG, conf, task
from airflow.sdk.exceptions import AirflowFailException

from pbg_operators.internals import warn_of_untested_release
from pbg_operators.reembed import build_dags_of
from pbg_tasks.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator


def graphs_folder(default: Path | None = None) -> Path:
    """Return ``PBG_GRAPHS``, else ``[pbg] graphs_folder`` of Airflow's config, else ``default``.

    Raises:
        ConfigError: there is none of them, or it is no folder.
    """
    chosen = os.environ.get("PBG_GRAPHS") or conf.get("pbg", "graphs_folder", fallback="")
    if not chosen and default is None:
        raise ConfigError("no folder of graph specs is named; set PBG_GRAPHS or [pbg] graphs_folder")
    # Not resolved: a folder that is synchronised through a symbolic link would have a new path, and each DAG a new
    # version, every time.
    folder = Path(chosen).expanduser() if chosen else Path(os.path.normpath(default or ""))
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder of graph specs; set PBG_GRAPHS or [pbg] graphs_folder")
    return folder


def build_dags(folder: Path) -> Iterator[DAG]:
    """Yield the DAGs of each ``*.yaml`` of a folder, in the order of their names.

    A spec that cannot be read becomes a DAG of its own, tagged *broken*, that shows the error and fails with it.
    Raising it as an import error is no choice: Airflow retires every DAG of a file that has one.
    """
    warn_of_untested_release()
    taken: dict[str, Path] = {}
    for path in sorted(folder.glob("*.yaml")):
        try:
            dags = build_dags_of(path)
        except ConfigError as error:
            dags = [broken_dag(path, str(error))]
        if (first := dags[0].dag_id) in taken:
            dags = [broken_dag(path, f"{path}: graph of the same name as in {taken[first]}; rename one of them")]
        taken |= {dag.dag_id: path for dag in dags}
        yield from dags


def broken_dag(path: Path, message: str) -> DAG:
    """Make the DAG that stands for a spec nobody can run."""
    with DAG(
        dag_id=f"broken_{''.join(letter if letter.isalnum() or letter in '_.-' else '_' for letter in path.stem)}",
        description=message,
        doc_md=f"**{path.name} is not a graph spec that can be run.**\n\n```\n{message}\n```\n",
        schedule=None,
        tags=["reembed", "broken"],
    ) as dag:

        @task(retries=0)
        def read_spec() -> None:
            raise AirflowFailException(message)

        read_spec()
    return dag
