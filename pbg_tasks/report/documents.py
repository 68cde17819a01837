"""Documents of the pages, with plain JSON values.

The file is longer than others so that what the pages read is found in one place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypedDict

from pydantic import JsonValue

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pbg_tasks.forecast.outcome import Cost, Pair
    from pbg_tasks.report.embedding_map import MapDocument

State = Literal["damaged", "running", "refused", "failed", "finished", "released"]
Stored = dict[str, JsonValue]
"""Part of a stored document, as it is stored."""

TaskState = Literal["done", "now", "waiting", "refused", "failed"]


class TaskRow(TypedDict):
    """Task of a run."""

    name: str
    state: TaskState
    seconds: float | None


class RelationRow(TypedDict):
    """Figures of a relation."""

    name: str
    edges: int | None
    added: int | None
    removed: int | None
    queries: int | None
    mrr: float | None
    hits1: float | None
    hits10: float | None
    cosine: float | None


class Cell(TypedDict):
    """Cell of the matrix; ``shade`` from 0, darker for more loss."""

    edges: int
    state: Literal["waiting", "active", "done"]
    loss: float | None
    seconds: float | None
    rank: int | None
    shade: int | None


class IterationRow(TypedDict):
    """Committed iteration of training."""

    epoch: int
    loss: float
    edges: int
    mrr: float | None
    seconds: float | None
    waited: float | None


class Training(TypedDict):
    """State of the training: ``done`` of ``buckets`` in ``epoch`` (from 1).

    A cell of ``matrix`` is ``block`` by ``block`` buckets.
    """

    state: Literal["waiting", "running", "done"]
    epochs: int
    epoch: int
    done: int
    buckets: int
    block: int
    matrix: list[list[Cell]]
    iterations: list[IterationRow]
    heard: float | None


class Trained(TypedDict):
    """Figures of a finished training; ``early_stopping`` is a sentence."""

    engine: str | None
    device: str | None
    workers: int | None
    edges_per_second: int | None
    edges_trained: int | None
    edges_retrained: int | None
    loss: float | None
    resumed_from: int | None
    ranks: int
    early_stopping: str | None


class Data(TypedDict):
    """Findings of ``validate`` in the snapshot."""

    edges: int
    duplicates: int | None
    self_loops: int | None
    difference: Stored
    degrees: dict[str, list[int]]


class VerdictPart(TypedDict):
    """Verdict of a gate, with its decision; ``approvable``: an approval helps."""

    task: str
    title: str
    passed: bool
    accepted: str | None
    decision: Decided | None
    approvable: bool
    checks: list[Stored]


class Decided(TypedDict):
    """Decision about a task that refused the night."""

    task: str
    approved: bool
    by: str
    at: str
    reason: str


class ForecastPart(TypedDict):
    """Forecast and actual figures; rows of ``tasks`` have ``task`` and pairs.

    ``total_seconds`` counts finished tasks, ``expected_seconds`` is the forecast of all.
    """

    total_seconds: Pair
    expected_seconds: float
    cost: Cost | None
    warnings: list[str]
    calibrated_on: list[str]
    last_try: list[str]
    tasks: list[dict[str, str | Pair]]


class Lineage(TypedDict):
    """Inputs and files of a run."""

    snapshot: list[Stored]
    previous: Stored | None
    spec_sha256: str
    directory: str | None
    manifest_sha256: str | None
    files: list[FileRow]


class FileRow(TypedDict):
    """File of a release."""

    name: str
    size: int
    sha256: str


class AttemptRow(TypedDict):
    """Run of Airflow that was to be a night.

    ``run`` is the URL of the run that it planned, ``page`` the address of its page, ``log`` that of the failed task,
    ``answers`` that of Airflow's page where people answer. ``ended`` is None while it is under way.
    """

    page: str
    answers: str
    log: str | None
    state: str
    began: float | None
    ended: float | None
    snapshot: str | None
    run: str | None
    task: str | None
    reason: str | None
    awaiting: list[str]


class ModelPart(TypedDict):
    """Settings of a model that people ask for first.

    ``operators`` has the number of relations of each operator, None before they are counted; ``settings`` texts by
    title.
    """

    settings: dict[str, str]
    operators: dict[str, int | None]


class Failed(TypedDict):
    """Error with which a task ended; ``kind`` is that of the error."""

    task: str
    kind: str
    reason: str
    at: str


class RunDocument(TypedDict):
    """Page of a run.

    ``reason`` is why it was refused or failed, ``stopped`` in which task, ``log`` is the address of that task's log.
    ``failed_at`` is when that task failed, in seconds since 1970; None where only Airflow knows of it. ``begun`` is the
    last time at which the store saw the run planned, failed, trained, or a task of it begun. ``relation_count``
    counts relations that ``relations`` lacks, too.
    """

    kind: Literal["run"]
    graph: str
    channel: str
    snapshot: str
    run: str
    url: str
    planned: float | None
    begun: float | None
    state: State
    reason: str | None
    stopped: str | None
    failed_at: float | None
    log: str | None
    accepted: str | None
    tasks: list[TaskRow]
    seconds: float
    release: int | None
    published: bool | None
    unpublished: str
    warm_start: bool
    edges: Stored | None
    entities: Stored | None
    entity_types: dict[str, Stored]
    relations: list[RelationRow]
    relation_count: int | None
    training: Training
    trained: Trained | None
    metrics: dict[str, dict[str, float | None]]
    held_out: int | None
    sampled_from: int | None
    interval: Mapping[str, float] | None
    data: Data | None
    drift: Stored | None
    verdicts: list[VerdictPart]
    forecast: ForecastPart | None
    lineage: Lineage
    model: ModelPart
    map: MapDocument | None
    spec: Stored


class OfRelease(TypedDict):
    """Release of a night; ``published`` in seconds since 1970."""

    release: int | None
    published: float | None
    current: bool


class Night(OfRelease):
    """Night of a channel.

    ``page`` is the address of a night of Airflow that has no run in the store; ``run`` is empty then. ``change`` is
    that of the MRR since the release before, on the edges that both know. ``begun`` is as that of the run's page.
    """

    reported: bool
    page: str | None
    snapshot: str
    run: str
    planned: float | None
    begun: float | None
    state: State
    mrr: float | None
    change: float | None
    hits10: float | None
    edges: int | None
    entities: int | None
    new: int | None
    gone: int | None
    cosine: float | None
    seconds: float | None
    forecast: float | None
    warm_start: bool | None
    reason: str | None


class RefusedSnapshot(TypedDict):
    """Snapshot that the channel went without."""

    snapshot: str
    reason: str


class SearchRow(TypedDict):
    """Search of hyper-parameters on a snapshot."""

    snapshot: str
    run: str
    search: str
    begun: float | None
    finished: bool


Tone = Literal["bad", "warn", "busy", "good", "idle"]


class Need(TypedDict):
    """Thing that a person has to see to.

    ``page`` is where; ``airflow`` whether that is a page of Airflow's own.
    """

    tone: Tone
    text: str
    page: str | None
    airflow: bool


class ScheduleRow(TypedDict):
    """When a DAG begins its next run; ``at`` in seconds since 1970."""

    paused: bool
    at: float | None


class StandingDocument(TypedDict):
    """Row of a graph in the list; lower ranks come first."""

    kind: Literal["standing"]
    graph: str
    channel: str
    page: str
    tone: Tone
    rank: int
    needs: list[Need]
    night: Night | None
    doing: str | None
    forecast: float | None
    took: float | None
    current: Night | None
    age: float | None
    next: str
    readers: list[ReaderPart]


class ReaderPart(TypedDict):
    """Reader of a release: a service, or a share of a channel.

    Attributes:
        reader: name of the service or channel.
        share: of the channel's keys; None for a service.
        channel: of the release.
        release: its number; None where the pointer or pin is damaged; ``reader`` has the reason then.
        snapshot: of the release; None where it was removed.
        promoted_from: channel and number that it was promoted from, if it was.
        owner: of the pin; the person or rule that moved the channel or set the share; None for a night, or if unknown.
        since: time of that, in seconds since 1970.
        until: last day of a pin.
        expired: whether that day is over.
    """

    reader: str
    share: float | None
    channel: str
    release: int | None
    snapshot: str | None
    promoted_from: str | None
    owner: str | None
    since: float | None
    until: str | None
    expired: bool


class MrrLimits(TypedDict):
    """Limits that the next night has to keep.

    ``fall`` is the lowest MRR that the allowed fall from ``current``, that of the current release, leaves.
    """

    floor: float | None
    fall: float | None
    current: float | None


class HistoryDocument(TypedDict):
    """Page of a channel.

    ``read_channel`` is the one that readers follow, which takes over releases of this one if it is another. ``limits``
    are those of the newest run: the floor of the MRR, and the MRR to which it may fall from the current one.
    """

    kind: Literal["history"]
    graph: str
    channel: str
    read_channel: str
    store: str
    current: int | None
    readers: list[ReaderPart]
    limits: MrrLimits
    nights: list[Night]
    refused: list[RefusedSnapshot]
    left_out: int
    searches: list[SearchRow]


Verdict = Literal["same", "better", "worse"]


class Compared(TypedDict):
    """Figure of two runs."""

    title: str
    unit: str
    left: float | None
    right: float | None
    difference: float | None
    verdict: Verdict


class ComparedRelation(Compared):
    """MRR of a relation in two runs."""

    queries: int | None


class Setting(TypedDict):
    """Key of the specs that differs."""

    key: str
    left: object
    right: object


class ComparisonDocument(TypedDict):
    """Page of two runs.

    ``ranked_alike`` is whether their specs choose edges and candidates of the ranking by the same keys.
    """

    kind: Literal["comparison"]
    graph: str
    runs: list[RunDocument]
    figures: list[Compared]
    ranked_alike: bool
    relations: list[ComparedRelation]
    settings: list[Setting]


class TuneRow(TypedDict):
    """Candidate of a search, with the best of its results.

    ``rank`` is None before its first result; ``epochs`` are those of the best result, ``trained`` all of them, and
    ``seconds`` those of all rungs.
    """

    rank: int | None
    trial: str
    changes: dict[str, str]
    values: dict[str, JsonValue]
    mrr: float | None
    low: float | None
    high: float | None
    metric: float | None
    epochs: int | None
    trained: int | None
    continued: int
    seconds: float | None
    state: str
    reason: str | None


class TuneDocument(TypedDict):
    """Page of a search.

    ``alike`` counts the other candidates whose interval reaches that of the best.
    """

    kind: Literal["tune"]
    graph: str
    snapshot: str
    store: str
    run: str
    search: str
    metric: str
    keys: list[str]
    epochs: list[int | None]
    decided: int
    rows: list[TuneRow]
    best: str | None
    alike: int
    patch: str | None
