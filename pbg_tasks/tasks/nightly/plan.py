"""``plan``: store a run spec made of spec, snapshot and previous release."""

from __future__ import annotations

import time
from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pbg_tasks.advice import way_to
from pbg_tasks.config import GraphSpec, Previous, RunLayout, RunSpec, SnapshotFile
from pbg_tasks.config.base import digest, parse
from pbg_tasks.config.loading import load_graph_spec
from pbg_tasks.config.nights import Nights, Watch
from pbg_tasks.config.results import ForecastDocument, MemoryDocument, PlanResult, Result, ValidateResult
from pbg_tasks.config.run import check_snapshot_key, id_layout, other_meaning, vector_space
from pbg_tasks.config.support import check_gpu, check_nightly
from pbg_tasks.errors import AccessError, ConfigError, InputError, MissingSnapshotError, OutOfTurnError
from pbg_tasks.native.coverage import check_native
from pbg_tasks.prepare.connection import connect
from pbg_tasks.prepare.counting import count_snapshot
from pbg_tasks.prepare.sources import blamed, lists_files, lists_keys, snapshot_source
from pbg_tasks.progress import counted, human_count, say
from pbg_tasks.publish import Channel
from pbg_tasks.publish.gc_holds import hold, run_with
from pbg_tasks.storage import is_remote, open_store
from pbg_tasks.storage.columnar import NoFilesError, newest_file
from pbg_tasks.storage.probe import probe
from pbg_tasks.storage.staging import Scratch
from pbg_tasks.tasks.context import RunContext, graph_store
from pbg_tasks.tasks.failure import keeping_plan_failure
from pbg_tasks.tasks.nightly.chain_order import release_to_continue
from pbg_tasks.tasks.nightly.forecasting import enforce_limits, in_one_process, outlook
from pbg_tasks.tasks.nightly.key_warnings import warn_of_calendar, warn_of_dates
from pbg_tasks.tasks.nightly.newest import keys_there
from pbg_tasks.tasks.nightly.snapshot_completeness import lacks, snapshot_files
from pbg_tasks.tasks.partitioning import ReleaseSizes, partition_counts, resolve

if TYPE_CHECKING:
    from pathlib import Path

    from pbg_tasks.prepare.counting import SnapshotCounts
    from pbg_tasks.prepare.sources import SnapshotSource
    from pbg_tasks.publish import Release


_AHEAD_SECONDS = 60.0
"""Seconds by which a file just written may be dated ahead, as stores give parts of a second or have several clocks."""


def plan(
    spec: Path,
    snapshot: str,
    *,
    overrides: list[str] | None = None,
    written: GraphSpec | None = None,
    alone: bool = False,
    epochs: int | None = None,
    dimension: int | None = None,
    partitions: int | None = None,
    engine: str | None = None,
    publish: bool = True,
    accept_data: str | None = None,
    due: datetime | None = None,
) -> Result:
    """Make the run of one snapshot.

    The same inputs make the same run. The error of a night whose snapshot is there is stored for people until a plan of
    it succeeds.

    Args:
        spec: the graph spec's file.
        snapshot: key of the edges.
        overrides: ``key.path=value`` changes of the spec.
        written: the spec with these changes; None: it is read here.
        alone: whether this process does all tasks, so that the night is forecast for it.
        epochs: instead of the spec's, on warm nights too.
        dimension: instead of the spec's.
        partitions: instead of the spec's, of every entity type that is partitioned (of all, when none is).
        engine: instead of the spec's.
        publish: whether the run may become a release.
        accept_data: reason for which the night goes on although the data gate or a limit of its forecast refuses it.
        due: when the snapshot was expected, with its timezone. Then a missing snapshot may still come, and one that was
            written just now has to be left alone for a while. None: it is there, or its key is wrong.

    Raises:
        ConfigError: the spec is wrong, the store ignores conditions, or the channel serves another graph, or rows that
        were moved since the release this night continues, so that it would undo the move.
        InputError: the snapshot is missing, and was not due or has missed its deadline.
        OutOfTurnError: the snapshot is not there or not whole yet, or the night before has not finished.
        QualityGateError: the night would take more than ``limits`` allow.
        ConflictError: the run, or the release it continues, is being removed.
    """
    started = time.monotonic()
    written = load_graph_spec(spec, overrides) if written is None else written
    try:
        check_snapshot_key(snapshot)
    except ConfigError as error:
        raise ConfigError(f"{error}{keys_there(written.snapshots, snapshot)}") from None
    graph = _adjusted(written, str(spec), epochs, dimension, partitions, engine)
    if graph.train.device == "cuda" or graph.model.num_gpus:
        check_gpu(graph.model, engine=graph.train.engine, source=str(spec))
    if written.train.warm_epochs is not None and not written.continues:
        say(
            f"warning: {spec}: train.warm_epochs counts for no night, because none continues a release; each trains "
            f"model.num_epochs, {graph.model.num_epochs}"
        )
    warn_of_calendar(written, spec, snapshot)
    store = graph_store(graph)
    probe(store)
    files = _files(written, snapshot, due=due)
    channel = Channel(store, graph.channel)
    channel.check_graph(graph.graph)
    with keeping_plan_failure(channel, graph.graph, snapshot) if publish else nullcontext():
        nights = written.nights
        if publish:
            release = release_to_continue(channel, nights, graph.snapshots, snapshot)
        else:  # an experiment does not wait for other nights
            release = channel.before(snapshot) if nights.walk == "chain" else None
        if release is not None:
            hold(store, run_with(release.directory, release.run))
        counts = _counted(graph, files)
        sizes = ReleaseSizes.of(store, release) if release else None
        done = in_one_process(written) if alone else written
        graph, expected = resolve(graph, counts, sizes, ranks=done.launch.ranks)
        previous = continued(graph, release, sizes) if release and sizes else None
        if publish and previous is not None and not previous.keep_ids:
            _check_not_moved(channel, graph, previous)
        fields = {
            "graph": graph,
            "snapshot": snapshot,
            "files": files,
            "previous": previous,
            "publish": publish,
            "walk": nights.walk,
            "accepted": accept_data,
        }
        run_spec = parse(RunSpec, fields, source=f"run of snapshot {snapshot!r}")
        run = RunContext(store, run_spec.run_id, run_spec, run_spec.to_bytes())
        _check_start(run, source=str(spec))
        run.store_spec()
        if previous and sizes and previous.reason:
            # Not in the stored reason, for the run's id depends on that.
            others = other_meaning(sizes.model, graph.model) if previous.keep_ids else ""
            say(f"{'plan' if previous.keep_ids else 'warning'}: {previous.reason}{others and f' (other {others})'}")
        coming = outlook(run, expected, done)
        coming.say(graph.resources.memory_gb)
        size = sum(file.size for file in files)
        say(f"plan: {counted(len(files), 'file')}, {human_count(size)}B; run {run.url}")
        findings = PlanResult(
            task="plan",
            run=run.url,
            seconds=round(time.monotonic() - started, 3),
            snapshot=snapshot,
            files=len(files),
            bytes=size,
            previous_release=previous.seq if previous else None,
            read_channel=written.read_channel,
            warm_start=bool(previous and previous.warm_start),
            epochs=run_spec.epochs,
            partitions=partition_counts(graph.model),
            degrees=counts.degrees,
            memory={name: MemoryDocument.model_validate(needed.to_json()) for name, needed in coming.memory.items()},
            forecast=ForecastDocument.model_validate(coming.night.to_json()),
        )
        result = run.save_result(PlanResult, "plan", findings.document())
        if run.find(ValidateResult) is None:  # else the night has begun, so its limits were checked before
            enforce_limits(run, written.limits, coming.night)
        run.begin()
    return result.document()


def _adjusted(
    graph: GraphSpec, source: str, epochs: int | None, dimension: int | None, partitions: int | None, engine: str | None
) -> GraphSpec:
    """Apply the fields of a trigger form, and validate the whole again."""
    data = graph.model_dump(mode="json")
    model = data["model"]
    if epochs is not None:
        model["num_epochs"] = epochs
        data["train"]["warm_epochs"] = epochs or None
    if dimension is not None:
        model["dimension"] = dimension
    if partitions is not None:
        entities = model["entities"].values()
        for entity in [each for each in entities if each["num_partitions"] != 1] or entities:
            entity["num_partitions"] = partitions
    if engine is not None:
        data["train"]["engine"] = engine
    adjusted = parse(GraphSpec, data, source=source)
    check_nightly(adjusted.model, source=f"{source}: model")
    check_native(adjusted.train.engine, adjusted.model, source=source)
    return adjusted


def _check_start(run: RunContext, *, source: str) -> None:
    """Refuse an ``init_path`` with nothing in it, before hours of preparation.

    A directory is left to training where pods or other machines may do that, as is a place that only its role may list.

    Raises:
        ConfigError: nothing is stored there, and the run has yet to begin.
    """
    graph, previous = run.spec.graph, run.spec.previous
    place = graph.model.init_path
    if place is None or (is_remote(graph.store) and not is_remote(place)):
        return
    if (previous and previous.warm_start) or run.find(ValidateResult) is not None:
        return
    with suppress(AccessError):
        if next(open_store(place).list(), None) is None:
            raise ConfigError(
                f"{source}: model.init_path: {place} holds nothing, so training has no start there; correct the path, "
                "put a checkpoint or arrays with names there, or leave the key out"
            )


def _files(graph: GraphSpec, snapshot: str, *, due: datetime | None) -> tuple[SnapshotFile, ...]:
    """List a snapshot's files; none for an empty one.

    Where the spec's watch names the sign of a whole snapshot, one without it is refused. The watch may not have started
    this plan: calendars, backfills and users do not know whether a producer has finished.
    """
    watch, missing = graph.nights.watch, None
    wrong: InputError | None = None
    if not lists_files(source := snapshot_source(graph.snapshots)):
        return _parts(graph, source, snapshot, due=due)
    if watch is not None and watch.complete != "settled":
        # Checked before the files are listed: a whole snapshot stays whole, while one that is still being written could
        # become whole after only half of its files were listed.
        missing = lacks(graph.snapshots.location, snapshot, watch.complete)
    try:
        found = snapshot_files(graph.snapshots.location, snapshot, None if watch is None else watch.complete)
    except NoFilesError as error:
        if due is None:
            raise InputError(f"{error}{keys_there(graph.snapshots, snapshot)}") from None
        raise _not_yet(graph.nights, due, f"snapshot {snapshot!r} has not come yet: {error}") from None
    except InputError as error:  # a wrong name, which its producer may still change
        found, wrong = [], error
    if due is not None and (watch is None or watch.complete == "settled"):
        _check_quiet(graph, snapshot)
    if watch is not None and missing is not None:
        raise _not_yet(
            graph.nights,
            due,
            f"snapshot {snapshot!r} is not whole (nights.watch.complete: {watch.complete}): {missing}; its producer "
            "has to finish it, and `-p nights.watch=null` plans what is there all the same",
        )
    if wrong is not None:
        raise wrong
    warn_of_dates(graph.snapshots.location, snapshot, [uri for uri, _, _ in found])
    return tuple(SnapshotFile(uri=uri, size=size, version=version) for uri, size, version in found)


def _parts(
    graph: GraphSpec, source: SnapshotSource, snapshot: str, *, due: datetime | None
) -> tuple[SnapshotFile, ...]:
    """Return a snapshot's parts of a source that has no files."""
    form = graph.snapshots.format
    if graph.nights.watch is not None and not lists_keys(source):
        raise ConfigError(f"nights.watch lists snapshots, which format {form} does not: use nights.calendar")
    try:
        with blamed(form):
            return tuple(source.parts(graph.snapshots.resolve(snapshot)))
    except MissingSnapshotError as error:
        if due is None:
            raise
        raise _not_yet(graph.nights, due, f"snapshot {snapshot!r} has not come yet: {error}") from None


def _not_yet(nights: Nights, due: datetime | None, sentence: str) -> InputError | OutOfTurnError:
    """Return the error for a snapshot that is not whole.

    It may still come, but for one that was due and has missed its deadline.
    """
    if due is not None and nights.deadline is not None and nights.patience_hours is None:
        last = nights.deadline.after(due)
        if datetime.now(UTC) > last:
            return InputError(
                f"{sentence}; it was expected by {last.isoformat(timespec='minutes')} (nights.deadline): once it is "
                "whole, clear this run or begin one by hand; with nights.patience_hours later nights wait longer"
            )
    return OutOfTurnError(sentence)


def _check_quiet(graph: GraphSpec, snapshot: str) -> None:
    """Refuse a snapshot that may still grow.

    Only the age of its files shows whether it may: its producer may be at work while its night is due.

    Raises:
        OutOfTurnError: it may.
    """
    minutes = (graph.nights.watch or Watch(complete="settled")).quiet_minutes
    with suppress(InputError):  # a whole snapshot without files
        location = graph.snapshots.location
        above = location.partition("{snapshot}")[0].rpartition("/")[0]
        newest, age = newest_file(location.replace("{snapshot}", snapshot), above)
        if age < minutes * 60:
            dated = f"its newest file is {max(age, 0):.0f} s old"
            if age < -_AHEAD_SECONDS:
                dated = f"{newest} is dated {-age:.0f} s ahead (set the clock that dated it, or `touch` it)"
            raise OutOfTurnError(
                f"snapshot {snapshot!r} may still grow: {dated}, and it counts as whole after {minutes:g} min; "
                "nights.watch.complete can name a sign instead"
            )


def _counted(graph: GraphSpec, files: tuple[SnapshotFile, ...]) -> SnapshotCounts:
    """Count the snapshot's entities, relations and edges."""
    if graph.resources.engine == "spark":
        from pbg_tasks.tasks.nightly.on_spark import count

        if (found := count(graph, files)) is not None:
            return found
    with Scratch() as scratch, connect(graph.resources, scratch.path) as connection:
        return count_snapshot(connection, graph, files)


def continued(graph: GraphSpec, release: Release, sizes: ReleaseSizes) -> Previous:
    """Return how a run of ``graph`` continues a release.

    With its ids and vectors, with its ids alone, or with neither.
    """
    keep_ids = release.id_layout == id_layout(graph.model)
    same_space = release.vector_space == vector_space(graph.model)
    same_split = release.split == digest(graph.split.model_dump(mode="json"))
    reason = ""
    if not keep_ids and (types := _other_types(graph, sizes)):
        reason = f"the entity types differ from release {release.seq}'s ({types}): ids and vectors start anew"
    elif not keep_ids:
        reason = f"num_partitions differ from release {release.seq}: ids and vectors start anew; "
        reason += "to keep them, move its rows with `pbg repartition` and plan again"
    elif not same_space:
        reason = f"the model differs from release {release.seq}'s: ids are kept, vectors start anew"
    elif not same_split:
        reason = f"the split differs from release {release.seq}'s, which may have trained on what is held out now: "
        reason += "ids are kept, vectors start anew"
    elif not graph.train.warm_start:
        reason = "train.warm_start is false: ids are kept, vectors start anew"
    return Previous(
        seq=release.seq,
        snapshot=release.snapshot,
        run=release.run,
        directory=release.directory,
        manifest_sha256=release.manifest_sha256,
        keep_ids=keep_ids,
        warm_start=not reason,
        reason=reason,
    )


def _check_not_moved(channel: Channel, graph: GraphSpec, previous: Previous) -> None:
    """Refuse a repeated night whose release was moved to other partitions since.

    If the spec has the partitions of the moved release, the night would give all entities new ids.
    """
    wanted = id_layout(graph.model)
    every = {release.seq: release for release in channel.releases()}
    release = channel.current().release
    while release is not None and release.seq > previous.seq:
        no_training = channel.store.head(f"runs/{release.run}/{RunLayout.spec}") is None
        if no_training and release.id_layout == wanted:
            raise ConfigError(
                f"channel {channel.name!r} has had these partitions since release {release.seq}, of snapshot "
                f"{release.snapshot!r}; this night would continue release {previous.seq}, which has others, and start "
                f"all ids anew. To redo it: {way_to(channel.name, previous.seq)}, `pbg repartition SPEC`, then plan "
                "again; or go on with the next snapshot"
            )
        release = every.get(release.previous) if release.previous is not None else None


def _other_types(graph: GraphSpec, sizes: ReleaseSizes) -> str:
    """Name the entity types that only one of spec and release has."""
    new = [f"{name} is new" for name in graph.model.entities if name not in sizes.partitions]
    return ", ".join([*new, *(f"{name} is gone" for name in sizes.partitions if name not in graph.model.entities)])
