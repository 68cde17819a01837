"""Airflow layer: ``pbg`` commands as operators, and the nightly DAGs.

Nothing here imports torch, h5py, boto3, numpy, duckdb, pyarrow or s3fs: the scheduler parses these modules. This module
itself imports no Airflow either, because every Airflow process loads it for the plugins.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from airflow.sdk import DAG

    from pbg_operators.group import PbgTaskGroup, build_dag

__all__ = ["PbgTaskGroup", "build_dag", "build_dags"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any name may be asked for
    """Import the parts for own DAGs when first used."""
    if name not in {"PbgTaskGroup", "build_dag"}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("pbg_operators.group"), name)


def build_dags(graphs: Path | None = None) -> dict[str, DAG]:
    """Build the DAGs of a graph spec or a folder of them.

    A DAG file is ``globals().update(build_dags())``, and a comment with the words *Airflow* and *DAG*: Airflow parses
    no file without them.

    Args:
        graphs: a spec file; or the folder where neither ``PBG_GRAPHS`` nor ``[pbg] graphs_folder`` of Airflow's config
            names one.

    Returns:
        The DAGs by id. A spec that cannot be read is a DAG ``broken_{file}`` that shows the error.

    Raises:
        ConfigError: no folder is named, or there is no file or folder of that name.
    """
    from pbg_operators import graphs as specs

    return {dag.dag_id: dag for dag in specs.build_dags(specs.graphs_place(graphs))}
