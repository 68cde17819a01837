"""``report``: static HTML pages about a run and its graph.

They are stored beside the data.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypedDict

from pbg_tasks.checkpoint import open_preserved, watch_progress
from pbg_tasks.checkpoint.stats import FILE_NAME as STATS
from pbg_tasks.checkpoint.stats import IO_FILE_NAME
from pbg_tasks.config import RunLayout
from pbg_tasks.config.loading import load_graph_spec
from pbg_tasks.config.night_results import NightResults
from pbg_tasks.config.results import SHAPES
from pbg_tasks.errors import ConfigError, FormatError, NotFoundError
from pbg_tasks.progress import say
from pbg_tasks.publish import Channel
from pbg_tasks.publish.gc_holds import hold_key
from pbg_tasks.publish.skips import skipped, why_skipped
from pbg_tasks.report.comparison import comparison_document
from pbg_tasks.report.facts import GraphFacts, RunFacts
from pbg_tasks.report.history import history_document
from pbg_tasks.report.pages import Links, assets, plotly_name, render
from pbg_tasks.report.run import run_document
from pbg_tasks.storage.parallel import in_parallel
from pbg_tasks.tasks.approval import decisions
from pbg_tasks.tasks.context import CHAIN, RunContext, graph_store
from pbg_tasks.tasks.failure import failure_key, plan_failures, read_failure
from pbg_tasks.tasks.search import FOLDER, PATCH, SEARCH, SearchContext, read_search, searches
from pbg_tasks.tasks.view.embedding_map import read_map, write_map
from pbg_tasks.tasks.view.readers import release_readers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from pbg_tasks.checkpoint import ObjectRecord
    from pbg_tasks.config.graph import GraphSpec
    from pbg_tasks.config.results import PreserveResult
    from pbg_tasks.report.documents import Decided, SearchRow
    from pbg_tasks.storage import ObjectInfo, Store

STATS_BYTES = 32 << 20
"""Statistics of a longer training are not read: its curve is in its result."""
SHOWN_RUNS = 120
THREADS = 16
ASSETS = "report/_assets"
PAGE = "report/index.html"
COMPARISON = "report/comparison.html"
SEARCH_PAGE = "report/search-{search}.html"
_OF_OTHERS: dict[str, tuple[str, str]] = {}
"""Graph and channel of the runs that pages left out, by id.

An id is a hash of both, so that a process reads such a run once, not for each page of each graph of a store.
"""


class Reported(TypedDict):
    """The pages of a run that were written."""

    task: str
    run: str
    pages: list[str]


class ReportedGraph(TypedDict):
    """The pages of a graph that were written."""

    graph: str
    channel: str
    pages: list[str]


def report(url: str) -> Reported:
    """Write the pages of a run and of its channel.

    Writing them again brings them up to date.

    Raises:
        ConfigError: there is no such run.
    """
    run = RunContext.open(url)
    _write_assets(run.store)
    pages = [*_write_run(run), *_write_searches(run)]
    channel = Channel(run.store, run.spec.graph.channel)
    pages.append(_write_history(run.spec.graph, channel))
    say(f"report: {run.url}/{PAGE}")
    return {"task": "report", "run": run.url, "pages": pages}


def report_graph(spec: Path) -> ReportedGraph:
    """Write the pages of a graph's channel and of all its runs.

    Raises:
        ConfigError: the spec is wrong.
    """
    graph = load_graph_spec(spec)
    store = graph_store(graph)
    _write_assets(store)
    channel = Channel(store, graph.channel)
    runs = _runs(channel, graph.graph, store.list("runs/"))[:SHOWN_RUNS]
    pages = []
    for run in runs:
        try:
            pages += [*_write_run(run), *_write_searches(run)]
        except FormatError as error:  # the page of the channel shows it too
            say(f"warning: the pages of this run were not written: {error}")
    pages.append(_write_history(graph, channel))
    say(f"report: {pages[-1]}")
    return {"graph": graph.graph, "channel": channel.name, "pages": pages}


def report_nights(graph: GraphSpec) -> None:
    """Write the page of a graph's channel alone."""
    store = graph_store(graph)
    _write_assets(store)
    _write_history(graph, Channel(store, graph.channel))


def read_run(run: RunContext) -> RunFacts:
    """Read everything a run's page shows."""
    prefix = run.key(RunLayout.checkpoint)
    results = read_results(run)
    watched = None if results.train is not None else watch_progress(run.store, prefix)
    stats, committed = _stats(run.store, f"{prefix}/{STATS}")
    io, _ = _stats(run.store, f"{prefix}/{IO_FILE_NAME}")
    spec = run.store.head(run.key(RunLayout.spec))
    return RunFacts(
        spec=run.spec,
        url=run.url,
        spec_hash=run.spec_hash,
        tasks=CHAIN,
        results=results,
        stats=[*stats, *io],
        progress=watched[0] if watched else None,
        heard=max((each for each in (committed, watched and watched[1]) if each), default=None),
        planned=spec.modified if spec else None,
        begun=None if results.publish is not None else _begun(run),
        files=_files(run, results.preserve),
        refused=_refusal(run),
        failed=run.failure(results.finished),
        decisions=_decisions(run),
        map=read_map(run),
    )


def read_graph(graph: str, channel: Channel, *, reported: bool = False) -> GraphFacts:
    """Read everything the page of a channel shows.

    Args:
        graph: its name.
        channel: of the graph.
        reported: whether every run has a page, because one is made when it is asked for.
    """
    store = channel.store
    objects = [info for info in store.list("runs/") if _is_of_pages(info.key)]
    runs = _runs(channel, graph, objects)
    listed_searches = _searches({run.run_id: run.spec.snapshot for run in runs}, objects)
    searched = {search["run"] for search in listed_searches}
    runs = [run for run in runs if run.run_id not in searched]
    planned = {info.key: info.modified for info in objects}
    refused = skipped(channel)

    def facts(run: RunContext) -> RunFacts:
        moment = planned[run.key(RunLayout.spec)]
        signs = (run.key(RunLayout.planned), failure_key(run.run_id), hold_key(run.run_id))
        begun = max(planned.get(key) or 0.0 for key in signs)
        found = RunFacts(run.spec, run.url, run.spec_hash, CHAIN, NightResults(), planned=moment, begun=begun)
        try:
            results = read_results(run, threads=1)  # the runs are read side by side
            return replace(
                found,
                results=results,
                begun=max(begun, _heard(run, results)),
                failed=run.failure(results.finished) if failure_key(run.run_id) in planned else None,
                refused=_refusal(run) if run.spec.snapshot in refused else None,
                decisions=_decisions(run),
            )
        except FormatError as error:  # the other nights are shown all the same
            return replace(found, damaged=str(error))

    listed = {info.key: info.modified for info in store.list(f"channels/{channel.name}/releases/")}
    releases = [release for release in channel.releases() if release.graph == graph]
    current, released_runs = channel.current().release, {release.run for release in releases}
    shown = in_parallel(facts, runs[:SHOWN_RUNS], THREADS)
    # A stored spec lacks `promote`, which is no part of a run.
    plans = (run.results.plan for run in shown if run.spec.publish)
    read_channel = next((plan.read_channel for plan in plans if plan and plan.read_channel), channel.name)
    channels = [channel, *([Channel(store, read_channel)] if read_channel != channel.name else ())]
    return GraphFacts(
        graph=graph,
        channel=channel.name,
        store=store.url,
        runs=shown,
        releases=releases,
        released={each.seq: moment for each in releases if (moment := listed.get(channel.release_key(each.seq)))},
        current=current.seq if current else None,
        refused=refused,
        unplanned={key: found.told() for (of, key), found in plan_failures(store, channel.name).items() if of == graph},
        reported=frozenset(
            info.key.split("/")[1] for info in objects if info.key.endswith(f"/{RunLayout.spec if reported else PAGE}")
        ),
        left_out=sum(run.run_id not in released_runs for run in runs[SHOWN_RUNS:]),
        searches=listed_searches,
        read_channel=read_channel,
        readers=release_readers(channels, {(channel.name, each.seq): each for each in releases}),
    )


def read_results(run: RunContext, *, threads: int = len(CHAIN)) -> NightResults:
    """Read the results of finished tasks, several at a time."""
    return NightResults.of(in_parallel(run.find, SHAPES.values(), threads))


def _is_of_pages(key: str) -> bool:
    """Return whether a channel's page needs an object of a run.

    Edges and checkpoints, of which a store has millions, would fill the memory.
    """
    _, _, name, *rest = [*key.split("/"), ""]
    return rest == [""] or name in {FOLDER, PAGE.partition("/")[0]}


def _searches(snapshots: Mapping[str, str], objects: Iterable[ObjectInfo]) -> list[SearchRow]:
    """List the searches of some runs, the newest first.

    Args:
        snapshots: of the runs, by id.
        objects: of all runs.
    """
    infos = {info.key: info for info in objects if info.key.split("/")[2:3] == [FOLDER]}
    found: list[SearchRow] = []
    for key, info in infos.items():
        _, run, _, search, name, *_ = [*key.split("/"), ""]
        if key.count("/") == 4 and name == SEARCH and run in snapshots:  # noqa: PLR2004 - runs/{run}/tune/{search}/
            found.append(
                {
                    "snapshot": snapshots[run],
                    "run": run,
                    "search": search,
                    "begun": info.modified,
                    "finished": f"runs/{run}/{FOLDER}/{search}/{PATCH}" in infos,
                }
            )
    return sorted(found, key=lambda each: -(each["begun"] or 0.0))


def _runs(channel: Channel, graph: str, objects: Iterable[ObjectInfo]) -> list[RunContext]:
    """Open the runs of a channel, the last planned one first.

    Runs that are removed meanwhile are left out. So are those of other graphs: permission to read one graph may not
    cover another one in the same store.
    """
    specs = [info for info in objects if info.key.count("/") == 2 and info.key.endswith(f"/{RunLayout.spec}")]  # noqa: PLR2004 - runs/{id}/spec.json
    specs.sort(key=lambda info: -(info.modified or 0.0))

    def opened(info: ObjectInfo) -> RunContext | None:
        own, name = (graph, channel.name), info.key.split("/")[1]
        if _OF_OTHERS.get(name, own) != own:
            return None
        try:
            run = RunContext.within(channel.store, name)
        except (ConfigError, FormatError):
            return None
        found = run.spec.graph.graph, run.spec.graph.channel
        if found != own:
            _OF_OTHERS[name] = found
        return run if found == own else None

    return [run for run in in_parallel(opened, specs, THREADS) if run is not None]


def _stats(store: Store, key: str) -> tuple[list[str], float | None]:
    """Return the lines of a training's statistics, and their time.

    It is the time of the last write.
    """
    info = store.head(key)
    if info is None or info.size > STATS_BYTES:
        return [], info.modified if info else None
    try:
        return store.get(key).data.decode("utf-8", "replace").splitlines(), info.modified
    except NotFoundError:
        return [], None


def _files(run: RunContext, preserved: PreserveResult | None) -> Mapping[str, ObjectRecord]:
    if preserved is None:
        return {}
    try:
        return open_preserved(run.store, preserved.directory, expected_sha256=preserved.manifest_sha256).records
    except NotFoundError:  # collected
        return {}


def _refusal(run: RunContext) -> str | None:
    """Return why the channel goes on without the run's snapshot.

    Refusals of another run of the snapshot, or of an earlier try, do not count.
    """
    channel = Channel(run.store, run.spec.graph.channel)
    return run.refusal() or why_skipped(channel, run.spec.snapshot, since=run.planned())


def _begun(run: RunContext) -> float:
    """Return when a run was last planned, begun or failed."""
    failed = read_failure(run.store, run.run_id)
    held = next(iter(run.store.list(hold_key(run.run_id))), None)  # which a role that reads pages may not open
    infos = (held, failed[1].info if failed is not None else None)
    return max(run.planned(), *((info.modified or 0.0) if info is not None else 0.0 for info in infos))


def _heard(run: RunContext, results: NightResults) -> float:
    """Return when a training under way last stored something; 0.0 without one."""
    if results.bucket is None or results.train is not None:
        return 0.0
    prefix = run.key(RunLayout.checkpoint)
    committed, watched = run.store.head(f"{prefix}/{STATS}"), watch_progress(run.store, prefix)
    return max((committed.modified if committed else None) or 0.0, (watched[1] if watched else None) or 0.0)


def _decisions(run: RunContext) -> dict[str, Decided]:
    return {decision["task"]: decision for decision in decisions(run)}


def _write_run(run: RunContext) -> list[str]:
    """Write a run's page, and its comparison with the run it continues."""
    write_map(run)
    document = run_document(read_run(run))
    before = before_it(run)
    links = Links(
        assets=f"../../../{ASSETS}",
        history=f"../../../report/{run.spec.graph.channel}/index.html",
        run="../../{run}/report/index.html",
        comparison=COMPARISON.rpartition("/")[2] if before else None,
        files="..",
    )
    pages: dict[str, Mapping[str, object]] = {PAGE: document}
    if before is not None:
        pages[COMPARISON] = comparison_document(run_document(read_run(before)), document)
    for name, page in pages.items():
        run.store.put(run.key(name), render(page, links).encode())
    return [f"{run.url}/{name}" for name in pages]


def _write_searches(run: RunContext) -> list[str]:
    """Write the pages of the searches on a run."""
    names = {each.id: SEARCH_PAGE.format(search=each.id) for each in searches(run)}
    links = Links(assets=f"../../../{ASSETS}", history=f"../../../report/{run.spec.graph.channel}/index.html")
    for search, name in names.items():
        page = render(read_search(SearchContext.within(run, search)), links)
        run.store.put(run.key(name), page.encode())
    return [f"{run.url}/{name}" for name in names.values()]


def before_it(run: RunContext) -> RunContext | None:
    """Open the run that made the release a run continues.

    None where there is none, or where it was removed.
    """
    previous = run.spec.previous
    if previous is None:
        return None
    try:
        return RunContext.within(run.store, previous.run)
    except (ConfigError, FormatError):
        return None


def _write_history(graph: GraphSpec, channel: Channel) -> str:
    facts = read_graph(graph.graph, channel)
    key = f"report/{channel.name}/index.html"
    links = Links(
        assets="../_assets",
        history="index.html",
        run="../../runs/{run}/report/index.html",
        search=f"../../runs/{{run}}/{SEARCH_PAGE}",
    )
    channel.store.put(key, render(history_document(facts), links).encode())
    return f"{channel.store.url}/{key}"


def _write_assets(store: Store) -> None:
    """Store the files that all pages load.

    plotly.js, which has its version in its name, is stored only once.
    """
    for name, path in assets().items():
        key = f"{ASSETS}/{name}"
        if name != plotly_name() or store.head(key) is None:
            store.put(key, path)
