"""Facts of a page, as they were read from the store."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pbg_tasks.checkpoint import ObjectRecord, PartialRecord
    from pbg_tasks.config import RunSpec
    from pbg_tasks.config.night_results import NightResults
    from pbg_tasks.publish import Release
    from pbg_tasks.report.documents import Decided, Failed, ReaderPart, SearchRow
    from pbg_tasks.report.embedding_map import MapDocument


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Facts about a run in its present state.

    Attributes:
        spec: of the run.
        url: of the run.
        spec_hash: of the spec as it is stored; of a key that it lacks the default may have changed.
        tasks: of the chain, in order.
        results: of the tasks that have finished.
        stats: lines of ``training_stats.json`` and ``training_io.json``.
        progress: of the iteration under way; None where there is none.
        heard: time of the training's last report, in seconds since 1970.
        planned: time when the run was planned first, same.
        begun: time when a task of the run was last begun, planned or tried again, or failed, same.
        files: of its release directory, by name; empty before it is preserved.
        refused: reason why later nights go on without its snapshot, if they do so since its last planning.
        failed: error with which its next task ended, unless that was tried again since.
        decisions: decisions about tasks that refused it, by task.
        map: of its embedding, as stored; None where there is none.
        damaged: description of the part that cannot be read, if any; ``results`` and ``decisions`` are empty then.
    """

    spec: RunSpec
    url: str
    spec_hash: str
    tasks: Sequence[str]
    results: NightResults
    stats: Sequence[str] = ()
    progress: PartialRecord | None = None
    heard: float | None = None
    planned: float | None = None
    begun: float | None = None
    files: Mapping[str, ObjectRecord] = field(default_factory=dict)
    refused: str | None = None
    failed: Failed | None = None
    decisions: Mapping[str, Decided] = field(default_factory=dict)
    map: MapDocument | None = None
    damaged: str | None = None

    @property
    def run_id(self) -> str:
        """Id of the run, the last part of its URL."""
        return self.url.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """Facts about the nights of a channel.

    Attributes:
        graph: its name.
        channel: name of the channel.
        store: URL of the graph's store.
        runs: of the channel, in any order, with the facts that the history shows.
        releases: oldest first.
        released: times of publication, by number, in seconds since 1970.
        current: number of the release the channel points to.
        refused: reasons why snapshots were refused or skipped, by snapshot.
        unplanned: errors with which plans of snapshots ended, by snapshot, where none succeeded since.
        reported: ids of the runs that have a page.
        left_out: number of older runs that are not among ``runs`` and made no release.
        searches: of hyper-parameters, the newest first; their runs are not among ``runs``.
        read_channel: name of the channel that readers follow; None: this one.
        readers: of the releases of both channels.
    """

    graph: str
    channel: str
    store: str
    runs: Sequence[RunFacts]
    releases: Sequence[Release]
    released: Mapping[int, float]
    current: int | None
    refused: Mapping[str, str]
    unplanned: Mapping[str, Failed] = field(default_factory=dict)
    reported: frozenset[str] = frozenset()
    left_out: int = 0
    searches: Sequence[SearchRow] = ()
    read_channel: str | None = None
    readers: Sequence[ReaderPart] = ()
