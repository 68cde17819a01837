"""``preserve``: keep the best trained version and its names for good.

The result is a plain PBG directory that can be moved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.checkpoint import ObjectRecord, open_best
from pbg_tasks.checkpoint import preserve as keep
from pbg_tasks.config import RunLayout
from pbg_tasks.config.contract import Contract
from pbg_tasks.config.results import PartitionResult, PreserveFindings, PreserveResult, Result, TrainResult, Vectors
from pbg_tasks.errors import ConfigError
from pbg_tasks.formats.directory import config_bytes
from pbg_tasks.formats.names import EDGE_HASHES, RETURNED, has_name_index
from pbg_tasks.publish.compatibility import space_of
from pbg_tasks.storage import FinalFile
from pbg_tasks.storage.staging import Scratch, put_all_new
from pbg_tasks.tasks.context import RunContext, perform
from pbg_tasks.tasks.files import left_before, open_directory

if TYPE_CHECKING:
    from pbg_tasks.checkpoint import VerifiedFiles


def preserve(url: str) -> Result:
    """Copy version, entity names and ids into ``{run}/release/``.

    The version is the best committed one. Its manifest is written last.
    """
    return perform(PreserveResult, url, _preserve).document()


def _preserve(run: RunContext) -> PreserveFindings:
    trained = run.need(TrainResult)
    prefix = run.key(RunLayout.checkpoint)
    manifest, _ = open_best(run.store, prefix)
    if manifest.spec != run.spec_hash:
        raise ConfigError(f"{run.url}/{RunLayout.checkpoint}: was trained with another run spec")
    entities, edges = open_directory(run, RunLayout.entities), open_directory(run, RunLayout.edges)
    copies = {name: (f"{entities.prefix}/{name}", record) for name, record in entities.records.items()}
    snapshot = open_directory(run, RunLayout.snapshot)
    copies |= {
        name: (f"{files.prefix}/{name}", files.records[name])
        for table, files in ((RETURNED, edges), (EDGE_HASHES, snapshot))
        for name in files.of_tables(table)
    }
    # The directory names itself, so that it stays whole wherever it is copied to.
    here = run.config.model_copy(update={"entity_path": ".", "checkpoint_path": ".", "edge_paths": ()})
    document = keep(
        run.store,
        prefix,
        manifest,
        run.key(RunLayout.release),
        epochs=manifest.best_epoch or trained.epochs,
        copies=copies,
        documents={"config.json": config_bytes(here)},
        stored=_store_indexes(run, entities),
        contract=Contract.of(run.config, _space(run)),
    )
    return PreserveFindings(
        directory=run.key(RunLayout.release),
        version=document.version,
        files=len(document.objects),
        bytes=sum(record.size for record in document.objects.values()),
        manifest_sha256=document.sha256(),
        types={
            name: Vectors(rows=sum(counts), dimension=run.config.entity_dimension(name))
            for name, counts in run.need(PartitionResult).counts.items()
        },
    )


def _store_indexes(run: RunContext, entities: VerifiedFiles) -> dict[str, ObjectRecord]:
    """Store the name index of each large type; return the records."""
    large = {
        entity: counts for entity, counts in run.need(PartitionResult).counts.items() if has_name_index(sum(counts))
    }
    if not large:
        return {}
    # Not above: without large types the task does without DuckDB and NumPy.
    from pbg_tasks.prepare.connection import connect
    from pbg_tasks.prepare.ids import entity_ids_file_name
    from pbg_tasks.prepare.name_index import BUDGET, index_ids

    records = {}
    memory = min(run.spec.graph.resources.memory_gb, BUDGET.memory_gb)
    budget = BUDGET.model_copy(update={"memory_gb": memory})
    with Scratch() as scratch, connect(budget, scratch.path) as connection:
        for entity, counts in large.items():
            ids = entities.fetch_table(entity_ids_file_name(entity), scratch.path)
            for path in index_ids(connection, ids, entity, counts, scratch.path):
                key = run.key(f"{RunLayout.release}/{path.name}")
                with left_before(run, RunLayout.release):
                    stored = put_all_new(run.store, {key: FinalFile(path)})
                records[path.name] = ObjectRecord.model_validate(stored[key])
    return records


def _space(run: RunContext) -> str:
    """Return the space of the release that training continued.

    A training from random vectors begins one.
    """
    previous = run.spec.previous
    return space_of(run.store, previous) if previous is not None and previous.warm_start else run.run_id
