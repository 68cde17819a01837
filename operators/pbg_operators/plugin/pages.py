"""Documents of the pages, read from the store and briefly kept.

The store is opened through Airflow's connection.
"""

from __future__ import annotations

import re
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict

from airflow.sdk import conf
from airflow.sdk.exceptions import AirflowException

from pbg_operators.connection import with_store
from pbg_operators.plugin.begin import SHOWN
from pbg_operators.plugin.cache import Recent
from pbg_tasks.checkpoint import open_preserved
from pbg_tasks.config.airflow import CONNECTION
from pbg_tasks.config.base import digest
from pbg_tasks.config.run import RUN_ID
from pbg_tasks.errors import AccessError, ConfigError, InputError, NotFoundError, PbgError
from pbg_tasks.publish import Channel
from pbg_tasks.report.comparison import comparison_document
from pbg_tasks.report.documents import RunDocument
from pbg_tasks.report.history import history_document
from pbg_tasks.report.neighbours import Neighbourhood
from pbg_tasks.report.run import run_document
from pbg_tasks.storage import LocalStore, open_store
from pbg_tasks.tasks.context import RunContext
from pbg_tasks.tasks.search import SearchContext, read_search
from pbg_tasks.tasks.view.report import read_graph, read_run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pbg_operators.plugin.database import Planned
    from pbg_tasks.publish import Release
    from pbg_tasks.report.documents import ComparisonDocument, HistoryDocument, TuneDocument
    from pbg_tasks.storage import Store

LOOKUP_BYTES = 1 << 29
"""Default of ``[pbg] lookup_bytes``: bytes of a release's files that a look-up may copy."""
SUGGESTED = 12
"""Most names that a look-up suggests."""
MOVING_SECONDS = 2.0
HISTORY_SECONDS = 10.0
SETTLED_SECONDS = 60.0
STORE_SECONDS = 300.0
RELEASE_SECONDS = 3600.0

ABSENT = (ConfigError, InputError, NotFoundError)
"""Errors that mean that there is nothing to show."""
OUTSIDE = "This run is not one of the DAG's graph in the store of that graph, and no other run is shown here."


class VersionedRun(RunDocument):
    """Document of a run; ``version`` distinguishes its states."""

    version: str


class Neighbour(TypedDict):
    """Entity near another one."""

    name: str
    score: float


class LookupDocument(TypedDict):
    """Page of the look-up of neighbours.

    ``problem`` is the reason why there is no answer, ``suggestions`` are names that begin with what was asked.
    """

    kind: Literal["lookup"]
    graph: str
    entity: str
    types: list[str]
    type: str | None
    releases: list[int]
    release: int | None
    k: int
    comparator: str
    answers: list[Neighbour]
    suggestions: list[str]
    problem: str | None


class NamesDocument(TypedDict):
    """Names that are suggested; ``problem`` is why there can be none."""

    names: list[str]
    problem: str | None


class Pages:
    """Maker of documents, safe for use by several threads.

    Args:
        connection: Airflow connection of the stores; None: the process finds its own credentials.
    """

    def __init__(self, connection: str | None = CONNECTION) -> None:
        self._connection = connection
        self._stores: Recent[Store] = Recent(16)
        self._runs: Recent[VersionedRun] = Recent(128)
        self._histories: Recent[HistoryDocument] = Recent(128)
        self._searches: Recent[TuneDocument] = Recent(32)
        self._snapshots: Recent[list[str]] = Recent(128)
        self._neighbourhoods: Recent[Neighbourhood] = Recent(2)

    def by(self, connection: str | None) -> Pages:
        """Return the same, with another connection.

        Both keep what was read, by connection: an endpoint is the connection's, so one URL may be two stores.
        """
        pages = copy(self)
        pages._connection = connection  # noqa: SLF001 - of its own class
        return pages

    def own(self, planned: Sequence[Planned]) -> tuple[Pages, str]:
        """Return pages and URL of the first run of its graph.

        It must be in the store of that graph. Only the id of the run is taken from a task's result: the store that is
        opened is the one that the DAG names.

        Raises:
            NotFoundError: none of them is one, or exists any more.
            StorageError: the store cannot be read.
        """
        problems = []
        for each in planned:
            try:
                pages = self.by(each.connection)
                return pages, pages._own(each)  # noqa: SLF001 - of its own class
            except ABSENT as error:
                problems.append(error)
        raise problems[0]

    def _own(self, planned: Planned) -> str:
        if not planned.store:
            raise NotFoundError("The DAG does not name the store of its graph; give graph and store to PlanOperator.")
        store, run_id = self._store(planned.store), planned.run.rpartition("/")[2]
        url = f"{store.url}/runs/{run_id}"
        is_in_store = url == planned.run and re.fullmatch(RUN_ID, run_id)
        if not is_in_store or self._opened(url).spec.graph.graph != planned.graph:
            raise NotFoundError(OUTSIDE)
        return url

    def run(self, url: str) -> VersionedRun:
        """Return the document of a run.

        Raises:
            PbgError: there is no such run, or the store cannot be read.
        """
        return self._document(self._opened(url))

    def another_run(self, url: str, run_id: str) -> VersionedRun:
        """Return the document of another run of the same graph.

        A user with access to one graph may have no access to another one.

        Raises:
            PbgError: there is no such run, or it is another graph's.
        """
        return self._document(self.other(url, run_id))

    def _document(self, run: RunContext) -> VersionedRun:
        def make() -> VersionedRun:
            document = run_document(read_run(run))
            return {**document, "version": digest(document)[:16]}

        return self._runs.get((self._connection, run.url), make, _freshness)

    def other(self, url: str, run_id: str) -> RunContext:
        """Open another run of the same graph.

        Raises:
            PbgError: there is no such run, or it is another graph's.
        """
        graph, run = self._opened(url).spec.graph.graph, self._opened(beside(url, run_id))
        if run.spec.graph.graph != graph:
            raise ConfigError(f"{run_id!r} is not a run of graph {graph!r}")
        return run

    def history(self, url: str) -> HistoryDocument:
        """Return the document of a run's channel."""
        run = self._opened(url)
        graph = run.spec.graph
        return self._histories.get(
            (self._connection, run.store.url, graph.channel, graph.graph),
            lambda: history_document(read_graph(graph.graph, Channel(run.store, graph.channel), reported=True)),
            lambda _: HISTORY_SECONDS,
        )

    def search(self, url: str, run_id: str, search: str) -> TuneDocument:
        """Return the document of a search of the same graph.

        Raises:
            PbgError: there is no such run or search, or it is another graph's.
        """
        run = self.other(url, run_id)
        return self._searches.get(
            (self._connection, run.url, search),
            lambda: read_search(SearchContext.within(run, search)),
            lambda _: HISTORY_SECONDS,
        )

    def comparison(self, url: str, left: str, right: str) -> ComparisonDocument:
        """Return the document of two runs of one graph."""
        return comparison_document(self.another_run(url, left), self.another_run(url, right))

    def snapshots(self, source: Mapping[str, object]) -> tuple[list[str], str | None]:
        """Return the keys of snapshots, or why they cannot be listed."""
        try:
            return self._snapshots.get(
                (self._connection, digest(source)), lambda: self._keys(source), lambda _: HISTORY_SECONDS
            ), None
        except PbgError as error:
            return [], f"The snapshots cannot be listed here: {error}"

    def _keys(self, source: Mapping[str, object]) -> list[str]:
        # These load DuckDB, which only this page needs.
        from pbg_tasks.config import Snapshots
        from pbg_tasks.config.base import parse
        from pbg_tasks.tasks.nightly.newest import keys_with_files

        if not source:
            raise ConfigError("the DAG does not name them; it is known once its file was parsed again")
        return keys_with_files(parse(Snapshots, dict(source), source="snapshots"), SHOWN, self._environment())

    def neighbours(
        self, url: str, *, entity: str, entity_type: str | None, release: int | None, count: int
    ) -> LookupDocument:
        """Return the document of a look-up.

        Where there is no answer, its ``problem`` is the reason.
        """
        run = self._opened(url)
        channel = Channel(run.store, run.spec.graph.channel)
        document: LookupDocument = {
            "kind": "lookup",
            "graph": run.spec.graph.graph,
            "entity": entity,
            "types": list(run.spec.graph.model.entities),
            "type": entity_type,
            "releases": channel.numbers(),
            "release": release,
            "k": count,
            "comparator": run.spec.graph.model.comparator,
            "answers": [],
            "suggestions": [],
            "problem": None,
        }
        try:
            chosen = _release(channel, release, run.spec.graph.graph)
            document["release"] = chosen.seq
            if entity:
                found = self._neighbourhood(channel, chosen.directory, chosen.manifest_sha256, entity_type)
                document["type"], document["comparator"] = found.entity_type, found.config.comparator
                document["suggestions"] = [name for name in found.beginning(entity, SUGGESTED) if name != entity]
                answers = found.nearest(entity, count)
                document["answers"] = [{"name": answer.name, "score": answer.score} for answer in answers]
        except PbgError as error:
            document["problem"] = str(error)
        return document

    def names(self, url: str, *, prefix: str, entity_type: str | None, release: int | None) -> NamesDocument:
        """Return names that begin with a text, or why none are there."""
        run = self._opened(url)
        channel = Channel(run.store, run.spec.graph.channel)
        try:
            chosen = _release(channel, release, run.spec.graph.graph)
            found = self._neighbourhood(channel, chosen.directory, chosen.manifest_sha256, entity_type)
            return {"names": found.beginning(prefix, SUGGESTED), "problem": None}
        except PbgError as error:
            return {"names": [], "problem": str(error)}

    def _neighbourhood(self, channel: Channel, directory: str, manifest: str, entity_type: str | None) -> Neighbourhood:
        limit = conf.getint("pbg", "lookup_bytes", fallback=LOOKUP_BYTES)

        def make() -> Neighbourhood:
            files = open_preserved(channel.store, directory, expected_sha256=manifest)
            return Neighbourhood(files, entity_type, limit=limit)

        return self._neighbourhoods.get((channel.store.url, manifest, entity_type), make, lambda _: RELEASE_SECONDS)

    def _opened(self, url: str) -> RunContext:
        root, _, run_id = url.rpartition("/runs/")
        if not root or not re.fullmatch(RUN_ID, run_id):
            raise ConfigError(f"{url!r} is not a run")
        store = self._store(root)
        require_inside(store, f"runs/{run_id}")
        return RunContext.within(store, run_id)

    def _store(self, root: str) -> Store:
        def make() -> Store:
            return open_store(root, environment=self._environment())

        return self._stores.get((self._connection, root), make, lambda _: STORE_SECONDS)

    def _environment(self) -> dict[str, str]:
        try:
            return with_store({}, self._connection)
        except AirflowException as error:
            raise AccessError(str(error)) from None


def require_inside(store: Store, key: str) -> None:
    """Refuse a run or file that a link leads to another place.

    The store's directory itself may be a link.

    Raises:
        NotFoundError: it is outside.
    """
    if isinstance(store, LocalStore):
        root = Path(store.url).resolve()
        if (root / key).resolve() != root / key:
            raise NotFoundError(OUTSIDE)


def _release(channel: Channel, number: int | None, graph: str) -> Release:
    """Return a release of a graph, by default the current one.

    Raises:
        InputError: the channel has none, or it is another graph's.
    """
    chosen = channel.release(number) if number is not None else channel.current().release
    if chosen is None or chosen.graph != graph:
        raise InputError(f"channel {channel.name!r} has no such release of graph {graph!r} yet")
    return chosen


def _freshness(document: VersionedRun) -> float:
    """Return the number of seconds for which a run's document is fresh."""
    moving = ("running", "failed")  # a failed task may be tried again at any time
    return MOVING_SECONDS if document["state"] in moving else SETTLED_SECONDS


def beside(url: str, run_id: str) -> str:
    """Return the URL of another run of the same store.

    Raises:
        ConfigError: it is no run's id.
    """
    if not re.fullmatch(RUN_ID, run_id):
        raise ConfigError(f"{run_id!r} is not a run's id")
    return f"{url.rpartition('/runs/')[0]}/runs/{run_id}"
