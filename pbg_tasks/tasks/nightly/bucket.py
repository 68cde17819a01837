"""``bucket``: hold edges out, and write the others by the partitions of their ends."""

from __future__ import annotations

from pbg_tasks.config import RunLayout
from pbg_tasks.config.results import PartitionResult, SplitEdges
from pbg_tasks.prepare import connect, write_buckets
from pbg_tasks.storage.staging import Scratch
from pbg_tasks.tasks.context import Result, RunContext, perform
from pbg_tasks.tasks.files import open_directory, upload_directory
from pbg_tasks.tasks.nightly.data_gate import enforce
from pbg_tasks.tasks.nightly.edge_buckets import require_held_out
from pbg_tasks.tasks.nightly.partition import previous_ids
from pbg_tasks.tasks.nightly.staged import staged_snapshot


def bucket(url: str) -> Result:
    """Write ``edges/{train,valid,test}/edges_{i}_{j}.h5``, empty buckets included.

    Raises:
        QualityGateError: nothing could be held out for the evaluation, so training would be for nothing.
    """
    return perform("bucket", url, _bucket)


def _bucket(run: RunContext) -> Result:
    enforce(run.need(PartitionResult))
    graph = run.spec.graph
    with Scratch() as scratch, connect(graph.resources, scratch.path) as connection:
        entities, out = scratch.path / "entities", scratch.path / "edges"
        for directory in (entities, out):
            directory.mkdir()
        files = open_directory(run, RunLayout.entities)
        files.fetch_all([name for name in files.records if not name.startswith("entity_names")], entities)
        previous = previous_ids(run, scratch.path / "previous")
        returned = previous / "returned.parquet" if previous else None
        staged = staged_snapshot(run, scratch.path)
        report = write_buckets(connection, graph, staged, entities=entities, returned_previous=returned, out=out)
        found = report.to_json()
        require_held_out(run, SplitEdges.model_validate(found["edges"]), found["returned_pairs"])
        upload_directory(run, RunLayout.edges, out)
    return found
