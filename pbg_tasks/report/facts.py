"""What a page is made of, as it was read from the store."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pbg_tasks.checkpoint import ObjectRecord, PartialRecord
    from pbg_tasks.config import RunSpec
    from pbg_tasks.config.night_results import NightResults
    from pbg_tasks.publish import Release
    from pbg_tasks.report.documents import Decided


@dataclass(frozen=True, slots=True)
class RunFacts:
    """A run as it stands.

    Attributes:
        spec: what it is.
        url: where it lies.
        tasks: of the chain, in order.
        results: of the tasks that have finished.
        stats: lines of ``training_stats.json`` and ``training_io.json``.
        progress: of the iteration under way; None where there is none.
        heard: when training last said something, in seconds since 1970.
        planned: when the run was made first, same.
        files: of its release directory, by name; empty before it is preserved.
        refused: why the nights after it go on without its snapshot, if they do since it was planned last.
        decisions: those about a task that refused it, by task.
        damaged: what of it cannot be read, if anything; ``results`` and ``decisions`` are empty then.
    """

    spec: RunSpec
    url: str
    tasks: Sequence[str]
    results: NightResults
    stats: Sequence[str] = ()
    progress: PartialRecord | None = None
    heard: float | None = None
    planned: float | None = None
    files: Mapping[str, ObjectRecord] = field(default_factory=dict)
    refused: str | None = None
    decisions: Mapping[str, Decided] = field(default_factory=dict)
    damaged: str | None = None

    @property
    def run_id(self) -> str:
        """The last part of its URL."""
        return self.url.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """The nights of a channel.

    Attributes:
        graph: its name.
        channel: name of the channel.
        store: URL of the graph's store.
        runs: of the channel, any order; of each, what the history shows.
        releases: oldest first.
        released: when each was published, by number, in seconds since 1970.
        current: number of the release the channel points to.
        refused: why snapshots were refused or skipped, by snapshot.
        reported: ids of the runs that have a page.
        left_out: how many older runs are not among ``runs``.
    """

    graph: str
    channel: str
    store: str
    runs: Sequence[RunFacts]
    releases: Sequence[Release]
    released: Mapping[int, float]
    current: int | None
    refused: Mapping[str, str]
    reported: frozenset[str] = frozenset()
    left_out: int = 0
