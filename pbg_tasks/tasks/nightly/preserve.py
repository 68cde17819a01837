"""``preserve``: keep the best trained version and its names for good.

The result is a plain PBG directory that can be moved.
"""

from __future__ import annotations

from pbg_tasks.checkpoint import open_best
from pbg_tasks.checkpoint import preserve as keep
from pbg_tasks.config import RunLayout
from pbg_tasks.config.contract import Contract
from pbg_tasks.config.results import PartitionResult, PreserveFindings, PreserveResult, Result, TrainResult, Vectors
from pbg_tasks.errors import ConfigError
from pbg_tasks.formats.directory import config_bytes
from pbg_tasks.formats.names import EDGE_HASHES, RETURNED
from pbg_tasks.publish.compatibility import space_of
from pbg_tasks.tasks.context import RunContext, perform
from pbg_tasks.tasks.files import open_directory


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
        for name, files in ((RETURNED, edges), (EDGE_HASHES, snapshot))
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


def _space(run: RunContext) -> str:
    """Return the space of the release that training continued.

    A training from random vectors begins one.
    """
    previous = run.spec.previous
    return space_of(run.store, previous) if previous is not None and previous.warm_start else run.run_id
