"""Shapes of stored results: each task's document, and a release's figures.

A stored result outlives the version that wrote it, and may be damaged. Each is checked when it is read, so that readers
can rely on every key that has no default here, and on the type of each key that exists. Keys that are not listed are
allowed and left as they are: ``document`` returns exactly the stored document. The file is longer than others so that
the shapes of all results are found in one place.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    WrapValidator,
    model_validator,
)

from pbg_tasks.config.base import canonical_json, explain, parse
from pbg_tasks.config.costs import Costs
from pbg_tasks.config.names import is_part_of
from pbg_tasks.config.shape import model_at, within
from pbg_tasks.errors import ConfigError, FormatError

if TYPE_CHECKING:
    from collections.abc import Callable

Result = dict[str, JsonValue]
"""JSON object that a command prints or stores; commands read each other's results as models."""


def _check_only(value: float, check: Callable[[float], float]) -> float:
    """Keep a number as stored; pydantic would make ``1`` ``1.0``."""
    check(value)
    return value


_AS_STORED = WrapValidator(_check_only)

Flag = Annotated[bool, Field(strict=True)]
Count = Annotated[int, Field(strict=True, ge=0, lt=1 << 63)]
Number = Annotated[float, Field(strict=True), _AS_STORED]
Seconds = Annotated[float, Field(strict=True, ge=0, lt=1e12), _AS_STORED]
Amount = Annotated[float, Field(strict=True, ge=0, lt=1e24), _AS_STORED]
FORMAT = 1
"""Number of the form of results; documents without a number have this form."""


class Stored(BaseModel):
    """Base of every shape: unknown keys are ignored and kept."""

    model_config = ConfigDict(extra="allow", frozen=True, defer_build=True)

    def document(self) -> Result:
        """Return the JSON object as it is stored, unknown keys included."""
        found: Result = json.loads(canonical_json(self.model_dump(exclude_unset=True)))
        return found


class Figures(Stored):
    """Figures of ranks: any names, each with a number.

    Where nothing was ranked, ``count`` is the only one.
    """

    NAMES: ClassVar[tuple[str, ...]] = ("mrr", "hits1", "hits10", "hits50", "mr", "auc")
    """Names of the figures that this version writes."""

    __pydantic_extra__: dict[str, Number]
    count: Count = 0

    def figures(self) -> dict[str, float]:
        """Return all figures by name."""
        return {"count": self.count, **self.__pydantic_extra__}

    def figure(self, name: str) -> float | None:
        """Return a figure; None where the stored result lacks it."""
        return self.__pydantic_extra__.get(name)


NOTHING_RANKED = Figures.model_validate({})


class BothWays(Stored):
    """Figures of the same ranks, filtered and raw."""

    filtered: Figures = NOTHING_RANKED
    raw: Figures = NOTHING_RANKED


class Health(Stored):
    """Problems of the vectors of an entity type, if any."""

    problems: list[str]
    cosine: Number | None
    norm_median: Number | None = None


class Against(Stored):
    """Comparison of a run with an earlier release, on the same edges.

    Attributes:
        reason: why there are no figures.
        continued: whether the run's training started from the release's vectors.
        run: id of the release's run, where the run would take the place of the release.
        repeats: whether the run then has the files and the start of that run, so that only its settings differ.
    """

    release: Count
    snapshot: str
    reason: str | None
    awaited: str | None = None
    continued: bool = False
    run: str | None = None
    repeats: bool = False
    edges: Count | None = None
    candidate: BothWays = BothWays()
    current: BothWays = BothWays()
    difference: dict[str, Number] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _compared(self) -> Self:
        if self.reason is None and self.current.filtered.count:
            lacking = [f"difference.{end}" for end in ("low", "high") if end not in self.difference]
            if lacking or self.edges is None:
                raise ValueError(f"key {(lacking or ['edges'])[0]!r} is missing")
        return self


class Covered(Stored):
    """Numbers of new entities of a type and of trained ones."""

    new: Count
    covered: Count


class Change(Stored):
    """Filtered MRR of a run and of an earlier release.

    Attributes:
        release: number of the earlier one.
        edges: number of edges ranked by both.
        candidate: of the run.
        current: of the release.
    """

    release: Count
    edges: Count
    candidate: Number
    current: Number


class Metrics(Stored):
    """Figures that are kept with a release; an adopted one has none."""

    raw: Figures = NOTHING_RANKED
    filtered: Figures = NOTHING_RANKED
    random: Figures | None = None
    popularity: Figures | None = None
    relations: dict[str, BothWays] = Field(default_factory=dict)
    health: dict[str, Health] = Field(default_factory=dict)
    edges: Count | None = None
    held_out: Count | None = None
    interval: dict[str, Number] | None = None
    changes: list[Change] = Field(default_factory=list)


class Entities(Stored):
    """Numbers of entities of a graph, or of one type."""

    total: Count
    new: Count
    kept: Count
    gone: Count
    returned: Count = 0
    absent: Count = 0


class KnownEntities(Stored):
    """Numbers of a release's entities; of an adopted one, only the total."""

    total: Count | None = None
    new: Count | None = None
    gone: Count | None = None


class ReleaseData(Stored):
    """Facts with which later nights compare their snapshots.

    An adopted release has none.
    """

    edges: Count | None = None
    entities: KnownEntities | None = None
    earlier_edges: dict[str, Count] = Field(default_factory=dict)
    columns: dict[str, list[str]] = Field(default_factory=dict)
    degrees: dict[str, list[Count]] = Field(default_factory=dict)
    accepted: str | None = None
    decisions: list[Result] = Field(default_factory=list)
    fall_approved: Flag = False


class CheckDocument(Stored):
    """One check of a gate."""

    name: str
    passed: Flag
    sentence: str
    warned: Flag = False
    value: Number | None = None
    limit: Number | None = None


class VerdictDocument(Stored):
    """Verdict of a gate."""

    passed: Flag
    checks: list[CheckDocument]
    accepted: str | None = None
    snapshot: str = ""


class Taken(Stored):
    """Resources that a task used, besides time."""

    cpu_seconds: Seconds
    memory_bytes: Amount
    store_bytes_read: Amount
    store_bytes_written: Amount


class Expected(Taken):
    """Forecast of a task's resources and time."""

    model_config = ConfigDict(extra="forbid")

    seconds: Seconds


class Intervals(Stored):
    """Intervals that contain the figures of nine nights of ten."""

    seconds: dict[str, tuple[Seconds, Seconds]]


class ForecastDocument(Stored):
    """Forecast of a night; ``modelled`` is of the form that ``rates`` names."""

    tasks: dict[str, Expected]
    intervals: Intervals
    calibrated_on: list[str]
    prices: Costs | None
    machines: Annotated[int, Field(strict=True, ge=1, lt=1 << 31)]
    rates: Count | None = None
    engine: str
    kind: str = ""
    modelled: dict[str, tuple[Seconds, Seconds, Amount, Amount, Amount]]

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if lacking := sorted(self.tasks.keys() - self.intervals.seconds.keys()):
            raise ValueError(f"key 'intervals.seconds.{lacking[0]}' is missing")
        return self


class MemoryDocument(Stored):
    """Forecast of a task's memory in bytes, and the measured peak."""

    peak: Amount
    lines: dict[str, Amount] = Field(default_factory=dict)
    measured_peak: Amount | None = None


class TaskResult(Stored):
    """Keys of every task's result, beside its findings."""

    TASK: ClassVar[str] = ""

    format: Literal[1] = 1
    task: str
    run: str
    seconds: Seconds
    usage: Taken | None = None


class PlanFindings(Stored):
    """Figures of ``plan``."""

    snapshot: str = ""
    files: Count | None = None
    bytes: Count | None = None
    previous_release: Count | None = None
    read_channel: str | None = None
    warm_start: Flag | None = None
    epochs: Count | None = None
    partitions: dict[str, Count] = Field(default_factory=dict)
    degrees: dict[str, list[Count]] = Field(default_factory=dict)
    memory: dict[str, MemoryDocument] = Field(default_factory=dict)
    forecast: ForecastDocument | None = None


class PlanResult(PlanFindings, TaskResult):
    """Result of ``plan``."""

    TASK = "plan"


class RelationChanges(Stored):
    """Changes of the edges of a relation, in numbers."""

    rows: Count | None = None
    before: Count | None = None
    added: Count | None = None
    removed: Count | None = None


class EdgeChangesDocument(Stored):
    """Changes of the edges since the snapshot before, in numbers."""

    before: Count
    added: Count
    removed: Count
    exact: Flag
    relations: dict[str, RelationChanges] = Field(default_factory=dict)


class Volume(Stored):
    """Number of edges relative to the median of the snapshots before."""

    snapshots: Count
    window: Count
    ratio: Number


class DifferenceDocument(Stored):
    """Differences of a snapshot from the one before."""

    since: str | None = None
    awaited: str | None = None
    edges: EdgeChangesDocument | None = None
    degrees: dict[str, Number] = Field(default_factory=dict)
    columns: list[str] = Field(default_factory=list)
    volumes: list[Volume] = Field(default_factory=list)


class Judged(Stored):
    """Findings of a task that judges the snapshot."""

    data_gate: VerdictDocument


class ValidateFindings(Judged):
    """Figures of ``validate``."""

    edges: Count
    duplicates: Count | None = None
    self_loops: Count | None = None
    columns: dict[str, list[str]]
    relations: dict[str, Count] = Field(default_factory=dict)
    weights: tuple[Number, Number] | None = None
    earlier_edges: dict[str, Count] = Field(default_factory=dict)
    difference: DifferenceDocument | None = None


class ValidateResult(ValidateFindings, TaskResult):
    """Result of ``validate``."""

    TASK = "validate"


class PartitionFindings(Judged):
    """Figures of ``partition``."""

    counts: dict[str, list[Count]]
    entities: Entities
    types: dict[str, Entities]
    relations: Count | None = None
    expired: dict[str, Count] = Field(default_factory=dict)


class PartitionResult(PartitionFindings, TaskResult):
    """Result of ``partition``."""

    TASK = "partition"


class SplitEdges(Stored):
    """Numbers of a snapshot's edges by split."""

    total: Count
    train: Count
    valid: Count
    test: Count


class BucketFindings(Stored):
    """Figures of ``bucket``.

    Attributes:
        edges: by split.
        matrix: numbers of edges of the train split, by bucket.
        returned_pairs: number of pairs of entities that were drawn to be held out and went back to training, because an
            end would keep no training edge.
        delta_matrix: numbers of edges to train by bucket; None: all of the train split.
    """

    edges: SplitEdges
    matrix: Annotated[list[list[Count]], Field(min_length=1)]
    returned_pairs: Count = 0
    delta_matrix: list[list[Count]] | None = None

    @property
    def trained(self) -> list[list[int]]:
        """Numbers of edges to train of each bucket."""
        return self.matrix if self.delta_matrix is None else self.delta_matrix

    @model_validator(mode="after")
    def _rectangular(self) -> Self:
        if not self.matrix[0] or len(set(map(len, self.matrix))) > 1:
            raise ValueError("matrix: the rows must be of one length, and not empty")
        if self.delta_matrix is not None and list(map(len, self.delta_matrix)) != list(map(len, self.matrix)):
            raise ValueError("delta_matrix: must have the rows and columns of matrix")
        return self


class BucketResult(BucketFindings, TaskResult):
    """Result of ``bucket``."""

    TASK = "bucket"


class EarlyStopped(Stored):
    """Of ``train`` with early stopping: the epoch to release.

    Attributes:
        stopped: whether training ended before its last epoch.
        best_epoch: that is released, from 1; None where nothing was compared.
        version: of the checkpoint, that is released; None: the newest.
        reason: a sentence.
        edges: of the valid split that were to be ranked after each epoch; ``held_out`` has the real number.
        mrr: of them, by epoch.
        patience: of the rule.
    """

    stopped: Flag
    best_epoch: Count | None = None
    version: Count | None = None
    reason: str
    edges: Count | None = None
    mrr: list[Number] = Field(default_factory=list)
    patience: Count | None = None


class TrainFindings(Stored):
    """Figures of ``train``."""

    epochs: Count
    version: Count | None = None
    engine: str | None = None
    device: str | None = None
    workers: Count | None = None
    ranks: Annotated[int, Field(strict=True, ge=1, lt=1 << 31)] = 1
    warm_start: Flag | None = None
    loss: Number | None = None
    curve: list[Number] = Field(default_factory=list)
    edges_per_second: Count | None = None
    edges_trained: Count | None = None
    edges_retrained: Count | None = None
    resumed_from: Count | None = None
    memory: MemoryDocument | None = None
    held_out: dict[str, JsonValue] | None = None
    rank_0: dict[str, Number] | None = None
    early_stopping: EarlyStopped | None = None


class RankFindings(Stored):
    """Figures of another rank than 0, which are printed and not stored.

    Attributes:
        rank: its number.
        role: of a partition server.
        buckets: that it trained.
        edges: of them.
        training_seconds: that they took.
    """

    rank: Count
    role: str | None = None
    buckets: Count | None = None
    edges: Count | None = None
    training_seconds: Seconds | None = None


class TrainResult(TrainFindings, TaskResult):
    """Result of ``train``."""

    TASK = "train"


class Vectors(Stored):
    """Vectors of an entity type."""

    rows: Count
    dimension: Count


class PreserveFindings(Stored):
    """Figures of ``preserve``."""

    directory: str
    version: Count | None = None
    files: Count | None = None
    bytes: Count | None = None
    manifest_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    types: dict[str, Vectors] = Field(default_factory=dict)


class PreserveResult(PreserveFindings, TaskResult):
    """Result of ``preserve``."""

    TASK = "preserve"


class Spread(Stored):
    """Mean over entities, and figures of its distribution."""

    mean: Number | None
    median: Number | None = None
    p05: Number | None = None
    p01: Number | None = None


class Overlap(Stored):
    """Share of nearest neighbours that were kept."""

    mean: Number | None
    k: Count


class TypeDrift(Stored):
    """Drift of the vectors of an entity type."""

    common: Count
    new: Count
    gone: Count
    cosine: Spread
    overlap: Overlap


class Decile(Stored):
    """Drift of a tenth of the entities, by degree."""

    decile: Count
    cosine: Number | None


class ChangedEdge(Stored):
    """Changed edge of an entity that moved."""

    change: str
    lhs: str
    rel: str
    rhs: str


class Moved(Stored):
    """Entity that moved, and the changes of its edges."""

    entity: str
    type: str
    cosine: Number
    changes: dict[str, Count] = Field(default_factory=dict)
    edges: list[ChangedEdge]


class RelationDrift(Stored):
    """Drift of the entities of a relation."""

    cosine: Number | None = None


class DriftFindings(Stored):
    """Figures of ``drift``; ``release`` is null on the first night."""

    release: Count | None
    snapshot: str | None
    types: dict[str, TypeDrift]
    relations: dict[str, RelationDrift] = Field(default_factory=dict)
    degree_deciles: dict[str, list[Decile]]
    most_moved: list[Moved]


class DriftResult(DriftFindings, TaskResult):
    """Result of ``drift``."""

    TASK = "drift"


class KeptCountsRecord(Stored):
    """Counts of a run's model that later nights correct.

    Attributes:
        rule: number of the rule by which candidates were counted.
        manifest_sha256: hash of the manifest of the evaluated vectors.
        sha256: of the file of counts, whose name it is.
        edges: number of edges that have counts.
    """

    rule: Count
    manifest_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    edges: Count


class PartsTaken(Stored):
    """Time and resources of an evaluation's parts, which run at once.

    Attributes:
        count: number of the parts.
        seconds: of the longest.
        all_seconds: of all together.
        usage: of all; its memory is that of the largest.
    """

    count: Count
    seconds: Seconds
    all_seconds: Seconds
    usage: Taken


class Evaluation(Metrics):
    """Figures of a run that the gate judges.

    Attributes:
        best: comparison with the best release of the last nights; without figures where that is the release of
            ``against``.
        replaced: comparison with the release of its snapshot whose place the run would take.
        drift: findings of ``drift``; results of earlier versions lack them.
        kept: stored counts of the run's model; results of earlier versions lack them.
        parts: time and resources of the parts; None: it was evaluated as a whole, or parts by an earlier version.
    """

    raw: Figures
    filtered: Figures
    against: Against | None = None
    best: Against | None = None
    replaced: Against | None = None
    coverage: dict[str, Covered] = Field(default_factory=dict)
    drift: DriftFindings | None = None
    kept: KeptCountsRecord | None = None
    parts: PartsTaken | None = None


class EvalResult(Evaluation, TaskResult):
    """Result of ``eval``."""

    TASK = "eval"


class EvalReleases(Stored):
    """Releases beside which all parts of an evaluation rank.

    Attributes:
        against: number of the release before; None: there is none.
        best: number of the best release of the last nights; None: there is none.
        replaced: number of the release whose place the run would take; None: there is none.
        awaited: snapshot before an independent run's, where its night is unfinished.
    """

    against: Count | None = None
    best: Count | None = None
    replaced: Count | None = None
    awaited: str | None = None


class EvalReleasesResult(EvalReleases, TaskResult):
    """Result of the choice that comes before the parts."""

    TASK = "eval-releases"


class EvalPart(Stored):
    """Counts of a part of an evaluation.

    Attributes:
        part: ``i/n``.
        counts: names of the stored counts, in their order.
        asked: hash of the questions and candidates.
        edges: number of held-out edges that were asked.
        sha256: of the file of counts, whose name it is.
        against: number of the release before that was ranked; None: there is none.
        best: that of the best release.
        replaced: that of the release whose place the run would take.
        drift: hash of the file with the drift of the part's partitions; None: there is none, as on the first night.
    """

    part: str
    counts: list[str]
    asked: str
    edges: Count
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    against: Count | None = None
    best: Count | None = None
    replaced: Count | None = None
    drift: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None


class EvalPartResult(EvalPart, TaskResult):
    """Result of a part of an evaluation."""


class GateFindings(VerdictDocument):
    """Figures of ``gate``; ``against_release``: number of the compared release."""

    against_release: Count | None = None


class GateResult(GateFindings, TaskResult):
    """Result of ``gate``."""

    TASK = "gate"


class PublishFindings(Stored):
    """Figures of ``publish``, with the release's keys where the run became one."""

    published: Flag
    reason: str = ""
    channel: str | None = None
    release: Count = 0
    directory: str | None = None

    @model_validator(mode="after")
    def _named(self) -> Self:
        if not self.published and "release" not in self.model_fields_set:
            return self
        for key in ("channel", "release", "directory"):
            if not getattr(self, key):
                raise ValueError(f"key {key!r} is missing")
        return self


class PublishResult(PublishFindings, TaskResult):
    """Result of ``publish``."""

    TASK = "publish"


class PublishAnswer(PublishFindings):
    """Answer of ``pbg publish``; ``announced``: the release's event is out."""

    announced: Flag = False


class PromoteAnswer(Stored):
    """Answer of ``pbg promote``; ``announced``: its event is out."""

    channel: str
    promoted: Flag
    reason: str = ""
    run: str | None = None
    release: Count | None = None
    snapshot: str | None = None
    directory: str | None = None
    announced: Flag = False


class RedoneDay(Stored):
    """Day that ``pbg redo`` did again; ``release``: None where it became none."""

    snapshot: str
    directory: str | None = None
    release: Count | None = None


class RedoAnswer(Stored):
    """Answer of ``pbg redo``; ``served``: the channel serves the last day."""

    days: list[str]
    redone: list[RedoneDay]
    served: Flag = True


class StartedAnswer(Stored):
    """Answer of ``pbg tune-start``: the run and the search of later steps."""

    run: str
    search: str
    rungs: Count
    candidates: Count


class CandidatesAnswer(Stored):
    """Answer of ``pbg tune-select``: names of the candidates of a rung."""

    run: str
    search: str
    rung: Count
    trials: list[str]


class ExportFindings(Stored):
    """Figures of an export, or of its part ``i/n`` (``part``)."""

    destination: str
    part: str | None = None
    exchange: str | None = None
    checkpoint: str | None = None
    version: Count | None = None
    types: dict[str, Vectors] = Field(default_factory=dict)
    files: Count | None = None
    bytes: Count | None = None
    measured: dict[str, JsonValue] = Field(default_factory=dict)


class ExportResult(ExportFindings, TaskResult):
    """Result of an export."""


class ExportAnswer(ExportFindings):
    """Answer of ``pbg export-release``; ``announced``: the event is out."""

    announced: Flag = False


Shape = TypeVar("Shape", bound=TaskResult)
FINDINGS: dict[str, type[Stored]] = {
    "plan": PlanFindings,
    "validate": ValidateFindings,
    "partition": PartitionFindings,
    "bucket": BucketFindings,
    "train": TrainFindings,
    "preserve": PreserveFindings,
    "eval": Evaluation,
    "drift": DriftFindings,
    "gate": GateFindings,
    "publish": PublishAnswer,
    "export-release": ExportAnswer,
}
"""Model of the figures that each command of a night prints."""
SHAPES: dict[str, type[TaskResult]] = {
    shape.TASK: shape
    for shape in (
        PlanResult,
        ValidateResult,
        PartitionResult,
        BucketResult,
        TrainResult,
        PreserveResult,
        EvalResult,
        DriftResult,
        GateResult,
        PublishResult,
    )
}
"""Model of the result of each task of the chain."""


def read_result(task: str, data: bytes, *, source: str) -> Result:
    """Return a task's stored result unchanged, after checking its shape.

    Args:
        task: that wrote it.
        data: the document.
        source: URL of the document.

    Raises:
        FormatError: it is not JSON, of another format, or a key is missing or of another type.
    """
    return parse_result(shape_of(task), data, source=source).document()


def shape_of(task: str) -> type[TaskResult]:
    """Return the model of a task's result."""
    if task == EvalReleasesResult.TASK:
        return EvalReleasesResult
    if is_part_of(EvalResult.TASK, task):
        return EvalPartResult
    return SHAPES.get(task, ExportResult if task.startswith("export-") else TaskResult)


def parse_result(shape: type[Shape], data: bytes, *, source: str) -> Shape:
    """Return a task's stored result as its model.

    Args:
        shape: its model.
        data: the document.
        source: URL of the document.

    Raises:
        FormatError: it is not JSON, of another format, or a key is missing or of another type.
    """
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise FormatError(f"{source}: not JSON; it was edited by hand") from None
    check_format(document, source=source)
    try:
        return parse(shape, document, source=source, credentials_pass=True)
    except ConfigError as error:
        raise FormatError(f"{error}; it is damaged, or of another version: restore it, or run the task again") from None


def has_key(shape: type[Stored], *path: str) -> bool:
    """Return whether a result or answer has a key at a path."""
    place: Any = shape
    for key in path:
        model = model_at(place)
        if model is None or key not in {*model.model_fields, *(Figures.NAMES if model is Figures else ())}:
            return False
        place = within(place, key)
    return True


def check_format(document: object, *, source: str) -> None:
    """Refuse a document of a form that a later version writes.

    Raises:
        FormatError: it has another number.
    """
    number = document.get("format", FORMAT) if isinstance(document, dict) else FORMAT
    if isinstance(number, int) and number != FORMAT:
        raise FormatError(
            f"{source}: format {number} is not known to this version, which reads {FORMAT}; read it with the version "
            "that wrote it"
        )


def _shaped(shape: type[Stored]) -> AfterValidator:
    """Return a validator that checks a part's shape and keeps it unchanged."""

    def check(value: Result) -> Result:
        try:
            shape.model_validate(value)
        except ValidationError as error:
            raise ValueError(explain(shape, error)) from None
        return value

    return AfterValidator(check)


ReleaseMetrics = Annotated[Result, _shaped(Metrics)]
ReleaseFacts = Annotated[Result, _shaped(ReleaseData)]
