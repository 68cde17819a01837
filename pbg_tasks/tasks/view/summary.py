"""Answers of ``show`` and ``history``: a run, and a channel's releases."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from pbg_tasks.publish.descent import Way

if TYPE_CHECKING:
    from pbg_tasks.forecast.outcome import Outcome
    from pbg_tasks.report.documents import Decided, Failed, Stored


class TaskSummary(TypedDict):
    """Seconds of a finished task."""

    seconds: float


class ReleaseSummary(TypedDict):
    """The release of a run.

    It is ``published`` unless a later one is served, and ``rolled_back`` while the channel is back at one before.
    """

    channel: str | None
    release: int
    directory: str | None
    published: bool
    rolled_back: bool


class DriftSummary(TypedDict):
    """Means over all types, weighted by the entities in common."""

    cosine: float | None
    overlap: float | None


class AgainstSummary(TypedDict):
    """Filtered MRR of run and release before, on the same edges."""

    candidate: float
    current: float


class DataSummary(TypedDict):
    """News of the snapshot, and the verdict of the data gate."""

    difference: Stored | None
    passed: bool | None
    accepted: str | None
    checks: list[Stored]


class Changes(TypedDict, total=False):
    """A run beside the release it continues; empty where none is there.

    ``filtered_mrr`` is of the edges that both know.
    """

    since: str
    edges: int | None
    new_entities: int | None
    gone_entities: int | None
    filtered_mrr: float | None


class Summary(TypedDict):
    """Everything known of a run.

    ``refused`` is the task that refused it, unless a person approved; ``failed`` the error with which its next task
    ended, unless that was tried again since; ``advice`` what to do about either. ``best_epoch`` is released where early
    stopping compared epochs, and ``delta_edges`` are trained by each epoch of a night with delta epochs.
    """

    graph: str
    snapshot: str
    run: str
    finished: list[str]
    refused: str | None
    failed: Failed | None
    advice: str | None
    release: ReleaseSummary | None
    exports: dict[str, str]
    forecast: Outcome | None
    tasks: dict[str, TaskSummary]
    edges: Stored
    entities: Stored
    relations: int | None
    epochs: int | None
    best_epoch: int | None
    delta_edges: int | None
    warm_start: bool | None
    loss: float | None
    curve: list[float]
    edges_per_second: int | None
    metrics: dict[str, Stored]
    against: AgainstSummary | None
    drift: DriftSummary
    gate: Stored
    decisions: list[Decided]
    data: DataSummary
    changes: Changes


class ReaderRow(TypedDict):
    """Reader of a release.

    Attributes:
        reader: name of the service; of the channel for all its followers, or a share of their keys.
        share: of the channel's keys; None for a service.
        owner: of a service; the person or rule that moved a channel or set a share; None for a night, or if unknown.
        since: time of the pin, move or share; None: unknown.
        until: last day of a pin.
        expired: whether that day is over.
    """

    reader: str
    share: float | None
    owner: str | None
    since: str | None
    until: str | None
    expired: bool


class ReleaseRow(Way):
    """A release of a channel, with its readers.

    ``pinned`` is true if it is kept without a reader, by ``pbg pin`` without a service. ``promoted_from`` has the
    channel and number that it was promoted from.
    """

    channel: str
    release: int
    snapshot: str
    run: str
    filtered_mrr: float | None
    current: bool
    pinned: bool
    promoted_from: str | None
    readers: list[ReaderRow]


class FailedNight(TypedDict):
    """Night that broke, and the error of its task.

    ``run`` is None where the night could not be planned.
    """

    snapshot: str
    run: str | None
    failed: Failed


class Overview(TypedDict):
    """Releases of a graph's channels by name, and the newest one's run.

    ``without_release`` has by channel the days after its newest release that were refused or skipped, with the reason,
    and ``failed`` those of which a task ended with an error.
    """

    store: str
    channels: dict[str, list[ReleaseRow]]
    without_release: dict[str, dict[str, str]]
    failed: dict[str, list[FailedNight]]
    newest: Summary | None
