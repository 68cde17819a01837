"""``partition``: give every entity its partition and offset for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.checkpoint import open_preserved
from pbg_tasks.config import RunLayout
from pbg_tasks.config.limits import Verdict
from pbg_tasks.config.results import Entities, PartitionFindings, PartitionResult, Result, ValidateResult
from pbg_tasks.formats.tables import present_files
from pbg_tasks.prepare.connection import connect
from pbg_tasks.prepare.data_gate import judge_entities
from pbg_tasks.prepare.difference import EDGE_HASHES
from pbg_tasks.prepare.ids import assign_ids, entity_ids_file_name
from pbg_tasks.prepare.reassignment import kept_and_gone
from pbg_tasks.storage.staging import Scratch
from pbg_tasks.tasks.context import RunContext, perform
from pbg_tasks.tasks.files import upload_directory
from pbg_tasks.tasks.nightly.comparison_target import awaited, measured_between, nights_apart, release_before
from pbg_tasks.tasks.nightly.data_gate import enforce, settle
from pbg_tasks.tasks.nightly.staged import staged_snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    import duckdb

    from pbg_tasks.prepare.ids import EntityReport


def partition(url: str) -> Result:
    """Assign ids.

    Those of the previous release stay, new entities come after them.

    Raises:
        QualityGateError: the snapshot is beyond a limit of ``gates.data``.
    """
    result = perform(PartitionResult, url, _partition)
    enforce(result)
    return result.document()


def _partition(run: RunContext) -> PartitionFindings:
    enforce(run.need(ValidateResult))
    on = _on_duckdb
    if run.spec.graph.resources.engine == "spark":
        from pbg_tasks.tasks.nightly.on_spark import partition as on
    report, (since, types) = on(run)
    verdict = _judge(run, types, since)
    return PartitionFindings(
        counts=report.counts,
        entities=Entities.model_validate(report.entities),
        types={entity: Entities.model_validate(counts) for entity, counts in report.types.items()},
        relations=report.relations,
        expired=report.expired,
        data_gate=settle(run, verdict),
    )


def judge_ahead(run: RunContext) -> Verdict:
    """Judge the entities as this task will.

    The question about the edges then names both. On Spark the ids are stored, since executors write them in their
    place; the task finds equal bytes there.

    Raises:
        PbgError: the ids cannot be given.
    """
    graph, gates = run.spec.graph, run.spec.graph.gates.data
    if not any(limit.asked for limit in (gates.max_gone_entities, *gates.gone_entities.values())):
        return Verdict(())
    if graph.resources.engine == "spark":
        from pbg_tasks.tasks.nightly import on_spark

        _, (since, types) = on_spark.partition(run)
    else:
        _, (since, types) = _assign(run, store=False)
    return _judge(run, types, since)


def _judge(run: RunContext, types: Mapping[str, Mapping[str, int]], since: str | None) -> Verdict:
    gates, missing = run.spec.graph.gates.data, awaited(run)
    verdict = judge_entities(gates, types, since=since, awaited=missing)
    if verdict.passed:
        return verdict
    nights, measured = nights_apart(run, since), measured_between(run, since)
    return judge_entities(gates, types, since=since, awaited=missing, apart=nights, measured=measured)


def _on_duckdb(run: RunContext) -> tuple[EntityReport, tuple[str | None, dict[str, dict[str, int]]]]:
    return _assign(run, store=True)


def _assign(run: RunContext, *, store: bool) -> tuple[EntityReport, tuple[str | None, dict[str, dict[str, int]]]]:
    """Give ids; return the report, and what it is compared with."""
    graph = run.spec.graph
    with Scratch() as scratch, connect(graph.resources, scratch.path) as connection:
        out = scratch.path / "entities"
        out.mkdir()
        report = assign_ids(
            connection,
            graph,
            staged_snapshot(run, scratch.path),
            snapshot=run.spec.snapshot,
            previous=previous_ids(run, scratch.path / "previous"),
            out=out,
        )
        if store:
            upload_directory(run, RunLayout.entities, out)
        previous = run.spec.previous
        if previous is not None and previous.keep_ids:
            return report, (previous.snapshot, report.types)
        return report, _by_name(run, connection, graph.model.entities, out, scratch.path / "before")


def _by_name(
    run: RunContext, connection: duckdb.DuckDBPyConnection, types: Iterable[str], out: Path, directory: Path
) -> tuple[str | None, dict[str, dict[str, int]]]:
    """Count by name which entities of the release before are there.

    Its ids are not kept by this run.

    Args:
        run: the run.
        connection: for the work.
        types: of tonight's entities.
        out: has tonight's ids.
        directory: local one for the release's ids, made here.

    Returns:
        Key of the release's snapshot, None without one, and how many entities are ``kept`` and ``gone``, by type.
    """
    release, counts = release_before(run), dict[str, dict[str, int]]()
    if release is None:
        return None, counts
    files = open_preserved(run.store, release.directory, expected_sha256=release.manifest_sha256)
    directory.mkdir()
    for entity in types:
        name = entity_ids_file_name(entity)
        if present_files(name, files.names):
            counts[entity] = kept_and_gone(connection, files.fetch_table(name, directory), out / name)
    return release.snapshot, counts


def previous_ids(run: RunContext, directory: Path) -> Path | None:
    """Download the ids of the release that a run continues.

    None when the run starts anew.
    """
    previous = run.spec.previous
    if previous is None or not previous.keep_ids:
        return None
    files = open_preserved(run.store, previous.directory, expected_sha256=previous.manifest_sha256)
    hashes = files.of_tables(EDGE_HASHES)
    tables = [name for name in files.records if name.endswith(".parquet") and name not in hashes]
    wanted = [*tables, *(name for name in files.records if name.startswith("dynamic_rel"))]
    directory.mkdir()
    files.fetch_all(wanted, directory)
    return directory
