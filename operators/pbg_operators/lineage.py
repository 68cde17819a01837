"""Inputs and outputs of each task, by OpenLineage's names."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pbg_tasks.config.airflow import TOGETHER
from pbg_tasks.config.results import FINDINGS, Stored
from pbg_tasks.config.run import RunLayout

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pydantic import JsonValue

log = logging.getLogger(__name__)
SNAPSHOT = "{snapshot}"
"""Placeholder of the snapshot's location among the places below a run."""
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
    "prepare": (SNAPSHOT,),
    "finish": (RunLayout.checkpoint, RunLayout.entities, RunLayout.edges),
}
WRITTEN = {
    "plan": (RunLayout.spec,),
    "validate": (RunLayout.snapshot,),
    "partition": (RunLayout.entities,),
    "bucket": (RunLayout.edges,),
    "train": (RunLayout.checkpoint,),
    "preserve": (RunLayout.release,),
    "prepare": (RunLayout.snapshot, RunLayout.entities, RunLayout.edges),
    "finish": (RunLayout.release,),
}


def tasks_of(command: str, result: Mapping[str, JsonValue]) -> Mapping[str, Mapping[str, JsonValue]]:
    """Return the results of the tasks that a command did, by name."""
    if command not in TOGETHER:
        return {command: result}
    tasks = result.get("tasks")
    return {task: found for task, found in tasks.items() if isinstance(found, dict)} if isinstance(tasks, dict) else {}


def places(command: str, run_url: str, snapshots: str) -> tuple[list[str], list[str]]:
    """Return the URLs of a ``pbg`` command's inputs and outputs.

    The command is one on a run.

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
    """Return OpenLineage's namespace and name of a URL.

    They are the bucket and the key, a catalog and the name within it, or ``file`` and the path.
    """
    parts = urlsplit(url)
    if parts.netloc and parts.scheme != "file":
        return f"{parts.scheme}://{parts.netloc}", parts.path.strip("/") or "/"
    return "file", str(Path(parts.path).absolute())


def operator_lineage(
    command: str,
    urls: tuple[Sequence[str], Sequence[str]],
    *,
    result: Mapping[str, JsonValue],
    columns: Mapping[str, str | None],
) -> Any:  # noqa: ANN401 - of an optional provider
    """Return Airflow's ``OperatorLineage`` of a task, with facets.

    The OpenLineage provider calls for it.

    Args:
        command: subcommand of ``pbg``.
        urls: of its inputs, and of its outputs.
        result: of the command; empty before it ends.
        columns: of the snapshot, by role.
    """
    from airflow.providers.openlineage.extractors import OperatorLineage
    from openlineage.client.event_v2 import InputDataset, OutputDataset

    lineage: OperatorLineage[Any, Any] = OperatorLineage(
        inputs=[InputDataset(*dataset_name(url)) for url in urls[0]],
        outputs=[OutputDataset(*dataset_name(url)) for url in urls[1]],
    )
    try:
        _describe(lineage, command, result, columns)
    except Exception as error:  # noqa: BLE001 - places are reported, whatever a stored result looks like
        log.warning("OpenLineage gets places only, no figures: %r", error)
    return lineage


def _describe(
    lineage: Any,  # noqa: ANN401 - of an optional provider
    command: str,
    result: Mapping[str, JsonValue],
    columns: Mapping[str, str | None],
) -> None:
    """Add facets to a task's lineage."""
    from pbg_operators.facets import facets_of, joined

    for task, found in tasks_of(command, result).items():
        facets = facets_of(FINDINGS.get(task, Stored).model_validate(found) if found else None, columns)
        if SNAPSHOT in READ.get(task, ()):
            for dataset in lineage.inputs[:1]:  # the snapshot comes first, and its first reader describes it
                dataset.facets = dataset.facets or facets.snapshot
                dataset.inputFacets = joined(dataset.inputFacets or {}, facets.reading)
        # The only output of several tasks, as the channel, is that of the last one.
        if command == task or (len(lineage.outputs) == 1 and task == TOGETHER[command][-1]):
            for dataset in lineage.outputs:
                dataset.facets, dataset.outputFacets = facets.written, facets.writing
        lineage.run_facets = {**lineage.run_facets, **facets.run}
