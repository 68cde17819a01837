"""``replay``: make a release again and compare its files.

The new files go to another place; each is compared with the published one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal, TypedDict

from pbg_tasks.checkpoint import is_preserved, open_preserved
from pbg_tasks.checkpoint.preserve import MANIFEST
from pbg_tasks.config import RunLayout
from pbg_tasks.config.loading import load_graph_spec
from pbg_tasks.config.results import PreserveResult, TrainResult
from pbg_tasks.errors import ConfigError, InputError, NotFoundError
from pbg_tasks.formats.name_index import INDEX
from pbg_tasks.progress import say
from pbg_tasks.publish import Channel
from pbg_tasks.publish.gc_holds import hold, run_with
from pbg_tasks.storage import open_store
from pbg_tasks.storage.names import join
from pbg_tasks.storage.staging import Scratch, put_all_new
from pbg_tasks.tasks.context import RunContext, graph_store
from pbg_tasks.tasks.nightly.chain import run_task

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pbg_tasks.checkpoint import ObjectRecord
    from pbg_tasks.storage import Store

FileVerdict = Literal["equal", "different", "missing", "new"]


class Replayed(TypedDict):
    """A run that was done again beside the first."""

    run: str
    equal: bool
    files: dict[str, FileVerdict]


REPLAYED = ("validate", "partition", "bucket", "train", "preserve")
"""The tasks that make a release's files."""


def replay_release(spec: Path, number: int, *, into: str | None = None) -> Replayed:
    """Do the tasks of a release's run again, as ``replay`` does.

    Args:
        spec: the graph spec's file; only its store and channel count.
        number: of the release.
        into: store that keeps what is made; unless given it goes into scratch and is removed.

    Raises:
        InputError: there is no such release; or as ``replay``.
        ConfigError: as ``replay``.
    """
    graph = load_graph_spec(spec)
    channel = Channel(graph_store(graph), graph.channel)
    return replay(f"{channel.store.url}/runs/{channel.release(number).run}", into=into)


def replay(url: str, *, into: str | None = None) -> Replayed:
    """Do a run's tasks again, from the same inputs.

    They are its spec, its snapshot and the release it continued.

    Args:
        url: of the run, or of its release directory.
        into: store that keeps what is made; unless given it goes into scratch and is removed.

    Returns:
        Whether all files are equal, and of each whether it is ``equal``, ``different``, ``missing`` or ``new``.

    Raises:
        ConfigError: the run's bytes depend on more than its spec: several workers or machines trained it; or the store
        holds the run already, so that nothing would be made.
        InputError: the snapshot has changed since, or the release it continued has been removed; or no training made
        the release.
    """
    run = _trained_run(url.rstrip("/").removesuffix(f"/{RunLayout.release}"))
    _check_deterministic(run)
    published = open_preserved(
        run.store, run.key(RunLayout.release), expected_sha256=run.need(PreserveResult).manifest_sha256
    )
    with Scratch() as scratch:
        store = open_store(into if into is not None else scratch.path / "store")
        _check_not_made(run, store)
        _bring_previous(run, store)
        again = _plan(run, store)
        for task in REPLAYED:
            run_task(task, again.url)
        made = open_preserved(store, again.key(RunLayout.release))
        files = _compare(published.records, made.records)
    unequal = [name for name, verdict in files.items() if verdict != "equal"]
    say(f"replay: {len(files) - len(unequal)} of {len(files)} files of {run.run_id} are equal")
    return {"run": run.url, "equal": not unequal, "files": files}


def _trained_run(url: str) -> RunContext:
    store, _, run_id = url.rpartition("/runs/")
    try:
        return RunContext.open(url)
    except ConfigError:
        if store and run_id and is_preserved(open_store(store), f"runs/{run_id}/{RunLayout.release}"):
            raise InputError(
                f"{url}: was adopted, or moved by `pbg repartition`: there is no training that could be replayed"
            ) from None
        raise


def _check_deterministic(run: RunContext) -> None:
    model = run.spec.graph.model
    ranks = run.need(TrainResult).ranks
    for key, value in (("workers", model.workers), ("num_machines", model.num_machines), ("number of ranks", ranks)):
        if value != 1:
            raise ConfigError(f"{run.url}: {key} is {value!r}, so its bytes depend on timing and cannot be made again")


def _check_not_made(run: RunContext, store: Store) -> None:
    """Refuse a store in which the run's tasks were done before.

    Its stored files would be compared instead of new ones.
    """
    if store.url == run.store.url:
        raise ConfigError(f"{run.url}: {store.url} is the run's own store; replay into another, or into none")
    there = replace(run, store=store)
    if there.find(PreserveResult) is not None:
        raise ConfigError(f"{there.url}: was made there before; name another store, or remove that run and try again")


def _bring_previous(run: RunContext, store: Store) -> None:
    """Copy the release that the run continued into the replay's store."""
    previous = run.spec.previous
    if previous is None:
        return
    try:
        files = open_preserved(run.store, previous.directory, expected_sha256=previous.manifest_sha256)
    except NotFoundError:
        raise InputError(
            f"{run.url}: continued release {previous.seq} ({previous.run}), which is there no more"
        ) from None
    # The hold comes first, as for all runs: `pbg gc` treats what is held as a run.
    hold(store, run_with(previous.directory, previous.run))
    with Scratch() as scratch:
        for path in files.fetch_all(files.names, scratch.path):
            put_all_new(store, {join(previous.directory, path.name): path})
    # An earlier replay into this store has written the same bytes.
    store.put(join(previous.directory, MANIFEST), run.store.get(join(previous.directory, MANIFEST)).data)


def _plan(run: RunContext, store: Store) -> RunContext:
    """Store the run's spec once more.

    The files of the replay will name the paths of the first run.
    """
    again = RunContext(store, run.run_id, run.spec, run.document, replays=run.replays or run.url)
    again.store_spec()
    return again


def _compare(published: Mapping[str, ObjectRecord], made: Mapping[str, ObjectRecord]) -> dict[str, FileVerdict]:
    verdicts: dict[str, FileVerdict] = {}
    # Releases of earlier versions have no indexes of names.
    added = {name for name in made.keys() - published.keys() if name.startswith(INDEX)}
    for name in sorted({*published, *made} - added):
        if name not in made:
            verdicts[name] = "missing"
        elif name not in published:
            verdicts[name] = "new"
        else:
            verdicts[name] = "equal" if made[name] == published[name] else "different"
    return verdicts
