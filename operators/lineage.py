"""What each task reads and writes, as OpenLineage names it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pbg_tasks.config.run import RunLayout

if TYPE_CHECKING:
    from collections.abc import Iterable

SNAPSHOT = "{snapshot}"
"""Stands for the snapshot's location among the places below a run."""
READ = {
    "plan": (SNAPSHOT,),
    "validate": (SNAPSHOT,),
    "partition": (SNAPSHOT,),
    "bucket": (SNAPSHOT, RunLayout.entities),
    "train": (RunLayout.entities, RunLayout.edges),
    "preserve": (RunLayout.checkpoint, RunLayout.entities),
    "eval": (RunLayout.release, RunLayout.edges),
    "drift": (RunLayout.release, RunLayout.edges),
    "gate": (RunLayout.release,),
    "publish": (RunLayout.release,),
    "export-release": (RunLayout.release,),
}
WRITTEN = {
    "plan": (RunLayout.spec,),
    "validate": (RunLayout.snapshot,),
    "partition": (RunLayout.entities,),
    "bucket": (RunLayout.edges,),
    "train": (RunLayout.checkpoint,),
    "preserve": (RunLayout.release,),
}


def places(command: str, run_url: str, snapshots: str) -> tuple[list[str], list[str]]:
    """Return the URLs of what a ``pbg`` command on a run reads, and of what it writes.

    Args:
        command: subcommand of ``pbg``.
        run_url: of the run, ``{store}/runs/{snapshot}-{12 hex digits}``.
        snapshots: location of the graph's snapshots, with ``{snapshot}``.
    """
    run = run_url.rstrip("/")
    snapshot = run.rpartition("/")[2].rpartition("-")[0]

    def located(names: Iterable[str]) -> list[str]:
        return [snapshots.replace(SNAPSHOT, snapshot) if name == SNAPSHOT else f"{run}/{name}" for name in names]

    return located(READ.get(command, ())), located(WRITTEN.get(command, ()))


def dataset_name(url: str) -> tuple[str, str]:
    """Return OpenLineage's namespace and name of a URL: the bucket and the key, or ``file`` and the path."""
    parts = urlsplit(url)
    if parts.scheme == "s3":
        return f"s3://{parts.netloc}", parts.path.strip("/") or "/"
    return "file", str(Path(parts.path).absolute())


def operator_lineage(read: Iterable[str], written: Iterable[str]) -> Any:  # noqa: ANN401 - of an optional provider
    """Return Airflow's ``OperatorLineage`` of what a task reads and writes; the OpenLineage provider asks for it."""
    from airflow.providers.common.compat.openlineage.facet import Dataset
    from airflow.providers.openlineage.extractors import OperatorLineage

    inputs, outputs = ([Dataset(*dataset_name(url)) for url in urls] for urls in (read, written))
    return OperatorLineage(inputs=inputs, outputs=outputs)
