"""Graph spec: one YAML file with all settings for one graph's nights.

The file is longer than others so that rules between sections stand beside the sections.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, JsonValue, field_validator, model_validator

from pbg_tasks.config.airflow import AirflowSettings
from pbg_tasks.config.base import Frozen, Growing
from pbg_tasks.config.costs import Costs, Limits
from pbg_tasks.config.exports import FAISS_COMPARATORS, Export, no_metric
from pbg_tasks.config.gates import EVERY_OTHER, Gates
from pbg_tasks.config.launch import Launch
from pbg_tasks.config.names import Name
from pbg_tasks.config.nights import Nights, snapshot_folder
from pbg_tasks.config.promote import Promote
from pbg_tasks.config.registry import SOURCES
from pbg_tasks.config.relations import relation_labels
from pbg_tasks.config.schema import ModelConfig, NonNegativeFloat, NonNegativeInt, PositiveInt, named
from pbg_tasks.config.sinks import collection_of
from pbg_tasks.config.sources import OPTIONS as TABLES
from pbg_tasks.config.sources import check_table
from pbg_tasks.config.tune import Tune

# Defaults of a night that differ from PBG's: the spec's ``split`` holds edges out for good, and a run can be replayed.
# Besides, ``global_emb`` is false where ``dynamic_relations`` is true.
NIGHTLY = {"eval_fraction": 0.0, "workers": 1}
EngineName = Literal["auto", "torch", "native"]
DeviceName = Literal["cpu", "cuda", "auto"]
Fraction = Annotated[float, Field(ge=0, lt=0.5)]
Factor = Annotated[float, Field(gt=0, le=1)]
_SPARK_TYPES = 127
"""Largest number of entity types on Spark, whose ids have a sign."""


class Snapshots(Growing):
    """Location and format of a day's edges.

    Attributes:
        location: a file, a folder or a glob, local or ``s3://``, or a table, with ``{snapshot}`` at the place of the
            key.
        format: ``parquet``, ``csv``, ``tsv`` (these also as ``.gz``, ``.bz2`` or ``.zst``), ``iceberg``, ``delta``,
            ``changes``, or a package's.
        header: of text: whether the first line names the columns; else they are ``column0``, ``column1`` and so on.
        delimiter: of text: one character; null: a comma for ``csv``, a tab for ``tsv``.
        quote: of text: one character; null: no quoting.
        options: of a table, or of a package's format, which the package checks when a task reads the snapshot.
    """

    later_keys: ClassVar[tuple[str, ...]] = ("options",)

    location: str = Field(min_length=1)
    format: Annotated[str, *named(SOURCES)] = "parquet"
    header: bool = True
    delimiter: str | None = Field(default=None, min_length=1, max_length=1)
    quote: str | None = Field(default='"', min_length=1, max_length=1)
    options: dict[str, JsonValue] = Field(default={})

    @field_validator("location", mode="before")
    @classmethod
    def _quoted(cls, value: object) -> object:
        if isinstance(value, dict):
            raise ValueError(  # noqa: TRY004 - pydantic makes a message of it
                'braces at the beginning are a mapping in YAML: write it in quotes, "{snapshot}"'
            )
        return value

    @model_validator(mode="after")
    def _located(self) -> Self:
        if "{snapshot}" not in self.location:
            raise ValueError("location must contain {snapshot}, or every night would read the same edges")
        if self.format not in {"csv", "tsv", "changes"} and self.delimiter is not None:
            raise ValueError(f"delimiter has no meaning for format {self.format}")
        if self.format in TABLES:
            check_table(self.format, self.location, self.options)
        elif self.format in SOURCES.built_in and self.options:
            raise ValueError(f"format {self.format} has no option {next(iter(self.options))!r}")
        return self

    def resolve(self, snapshot: str) -> str:
        """Return the location of one snapshot."""
        return self.location.replace("{snapshot}", snapshot)


class Columns(Frozen):
    """Names of the columns of a snapshot.

    Attributes:
        lhs: of an edge's left end.
        rel: of the relation's name; null where the graph has one relation.
        rhs: of an edge's right end.
        weight: of numbers that are finite and at least 0; null: every edge weighs 1.
        lhs_type: of the left end's entity type, with ``rhs_type`` or neither; with the relation's name they pick the
            relation.
        rhs_type: of the right end's entity type.
    """

    lhs: str = "lhs"
    rel: str | None = "rel"
    rhs: str = "rhs"
    weight: str | None = None
    lhs_type: str | None = None
    rhs_type: str | None = None

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        named = [name for name in self.model_dump().values() if name is not None]
        if len(set(named)) != len(named):
            raise ValueError("two of the columns have the same name")
        if (self.lhs_type is None) != (self.rhs_type is None):
            raise ValueError("lhs_type and rhs_type must be given together")
        return self


class Split(Frozen):
    """Shares of the edges that are held out of training for ever.

    They are chosen by a stable hash of the unordered pair of their ends. Every edge between the same two entities is
    treated alike, so that no held-out edge has its inverse in training; of a held-out pair one edge is kept for
    evaluation. A pair is held out only when both ends keep a training edge.

    Attributes:
        valid: share of the pairs, below 0.5.
        test: share of the pairs, below 0.5; ranked by `eval` unless `eval.split` is `valid`.
        salt: another text holds out other pairs.
    """

    valid: Fraction = 0.01
    test: Fraction = 0.01
    salt: str = ""


class Shrink(Frozen):
    """Factors at the start of a warm-started night.

    Ash and Adams 2020, "On Warm-Starting Neural Network Training", without their noise.

    Attributes:
        vectors: of every embedding of a trainable type.
        sums: of the optimizer sums of known entities; below 1 the first steps of the night are longer.
    """

    vectors: Factor = 0.9
    sums: Factor = 1.0


class DeltaEpochs(Frozen):
    """Rule for the edges that a warm-started night trains.

    The edges that are new since the release before are always trained.

    Attributes:
        touching: also train the edges of entities of whose edges at least this share is new; null: no such edges.
        sample: share of all other edges; each night draws its own.
    """

    touching: Annotated[float, Field(gt=0, le=1)] | None = None
    sample: Annotated[float, Field(ge=0, le=1)] = 0.1


class EarlyStoppingRule(Frozen):
    """Rule that ends a training by the valid split.

    A sample of it is ranked after each epoch.

    Attributes:
        patience: epochs in a row without a new best one, after which training ends; the best epoch is released.
    """

    patience: PositiveInt = 3


class Training(Growing):
    """Settings of the training, beyond PBG's own keys.

    Attributes:
        engine: ``auto`` picks the fastest one that covers the config.
        device: on which it computes; ``auto`` is a GPU where torch finds one, but a CPU for what no GPU trains:
            ``train.engine: native``, ``model.gradient: sampled``, ``model.mask_known_negatives: true`` and
            ``model.embedding_precision: bf16``. ``model.num_gpus`` > 0 means ``cuda``.
        warm_start: begin from the previous release of the channel when there is one.
        warm_epochs: epochs of a warm-started night; null means ``model.num_epochs``. Independent nights have none.
        new_entities: start of entities that are new to a warm-started night: from their neighbours' embeddings and the
            relations between them, or at random.
        anchor: weight of the pull of known entities to their vectors of the night before, after each epoch of a
            warm-started night; 0 is none.
        shrink: factors of the embeddings and optimizer sums that a warm-started night begins with; null: as they are.
        delta: rule for the edges that a warm-started night trains; null: all of the train split.
        early_stopping: ends training when a sample of the valid split is ranked no better; null: never. A spec's file
            without the key has it with its defaults, where there is a valid split that the gates do not judge by;
            stored runs without the key were trained without.
        seed: every random choice of a run follows from it.
    """

    later_keys: ClassVar[tuple[str, ...]] = ("shrink", "delta", "early_stopping")

    engine: EngineName = "auto"
    device: DeviceName = "cpu"
    warm_start: bool = True
    warm_epochs: PositiveInt | None = None
    new_entities: Literal["neighbours", "random"] = "neighbours"
    anchor: NonNegativeFloat = 0.0
    shrink: Shrink | None = None
    delta: DeltaEpochs | None = None
    early_stopping: EarlyStoppingRule | None = None
    seed: NonNegativeInt = 0

    @model_validator(mode="after")
    def _of_warm_starts(self) -> Self:
        for name in ("shrink", "delta"):
            if getattr(self, name) is not None and not self.warm_start:
                raise ValueError(f"{name} is of warm starts, which warm_start: false rules out; remove one of the two")
        if self.shrink is not None and self.delta is not None:
            raise ValueError("shrink takes every vector back, and delta trains only some; remove one of the two")
        if self.shrink is not None and self.anchor:
            raise ValueError("anchor draws vectors back to where shrink takes them from; remove one of the two")
        return self


class Vanished(Frozen):
    """Rule for entities that are in no edge any more.

    Attributes:
        rule: ``keep``: nothing changes for them. ``expire``: once ``nights`` nights in a row have not seen them, they
            are no candidates of the evaluation, no answers of look-ups, and in no export, until they come back. Either
            way they keep their row.
        nights: number of these nights; ``pbg repartition --compact`` drops the rows of such entities, whatever the
            rule.
    """

    rule: Literal["keep", "expire"] = "keep"
    nights: PositiveInt = 28


class Evaluation(Growing):
    """Settings of the ranking of held-out edges.

    Attributes:
        split: of the held-out edges.
        max_candidates: with more entities than this of one type, that many are sampled once and stored, also for the
            nights that follow; another number samples all types anew, the expiry of most candidates their type.
        max_edges: evaluate at most this many edges, of each relation its share, the first by their stable hash: fewer
            where these are enough for the decisions of the gates, with ``min_edges`` of each relation that has a floor
            there; null means all.
        exclude_self: leave the known end of an edge out of the candidates of the filtered figures, unless its relation
            had loops in training. PBG leaves it in.
        parts: number of mapped tasks of the DAGs that count the candidates, by partitions; 1: ``eval`` counts them. Not
            with ``airflow.few_tasks``.
        device: on which candidates are compared; ``auto`` is a GPU where torch finds one. Ranks are the same on each.
    """

    later_keys: ClassVar[tuple[str, ...]] = ("exclude_self", "parts", "device")

    split: Literal["valid", "test"] = "test"
    max_candidates: PositiveInt = 1_000_000
    max_edges: PositiveInt | None = 20_000
    exclude_self: bool = False
    parts: Annotated[int, Field(ge=1, le=1000)] = 1
    device: DeviceName = "cpu"


class Resources(Growing):
    """Resources that one task may use.

    Attributes:
        engine: of ``validate``, ``partition``, ``bucket``, and counts of ``plan``. ``duckdb`` runs in the task's
            process, ``spark`` on a cluster, whose executors write the same files.
        memory_gb: 10^9 bytes for preparation, which spills beyond them; for queries and scores of the evaluation; and
            for training with ``auto`` partitions. With written numbers ``plan`` only warns of a larger training.
        threads: CPU threads of preparation and evaluation; null means all this process may use. Training has
            ``model.workers``.
    """

    later_keys: ClassVar[tuple[str, ...]] = ("engine",)

    engine: Literal["duckdb", "spark"] = "duckdb"
    memory_gb: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 4.0
    threads: PositiveInt | None = None


class GraphSpec(Frozen):
    """One graph, embedded every night.

    Attributes:
        graph: its name, part of the DAG id: up to 64 letters, digits, ``_`` and ``-``, a letter or digit first.
        store: root of everything written for this graph, ``s3://bucket/prefix`` or a directory.
        channel: to which nights publish; the pointer that readers follow, unless ``promote`` names another.
        model: PBG's config without its paths.
        exports: files for other tools and tables of vector stores, written after each release.
        nights: order and beginning of nights. No part of a run.
        launch: how training is started. No part of a run: runs that differ in nothing else are one run.
        costs: prices of machines and traffic; null: no costs are computed. No part of a run.
        limits: limits of a night's forecast. No part of a run.
        airflow: settings of Airflow's tasks. No part of a run.
        tune: search of hyper-parameters; null: none. No part of a run.
        promote: rules by which another channel, which readers follow then, takes over releases; null: readers follow
            ``channel``. No part of a run.
    """

    graph: Name
    store: str = Field(min_length=1)
    channel: Name = "production"
    snapshots: Snapshots
    columns: Columns = Columns()
    model: ModelConfig
    split: Split = Split()
    train: Training = Training()
    vanished: Vanished = Vanished()
    eval: Evaluation = Evaluation()
    gates: Gates = Gates()
    resources: Resources = Resources()
    exports: tuple[Export, ...] = ()
    nights: Nights = Field(default=Nights(), exclude=True)
    launch: Launch = Field(default=Launch(), exclude=True)
    costs: Costs | None = Field(default=None, exclude=True)
    limits: Limits = Field(default=Limits(), exclude=True)
    airflow: AirflowSettings = Field(default=AirflowSettings(), exclude=True)
    tune: Tune | None = Field(default=None, exclude=True)
    promote: Promote | None = Field(default=None, exclude=True)

    @property
    def read_channel(self) -> str:
        """Name of the channel that readers follow."""
        return self.channel if self.promote is None else self.promote.to

    @property
    def collection(self) -> str:
        """Collection of the channel, where the options of an export name none."""
        return collection_of(self.graph, self.channel)

    @property
    def continues(self) -> bool:
        """Whether nights begin with the vectors of a release."""
        return self.train.warm_start and self.nights.walk == "chain"

    @property
    def held_out_share(self) -> float:
        """Share of the entity pairs that is held out for the evaluation."""
        return self.split.valid if self.eval.split == "valid" else self.split.test

    @model_validator(mode="before")
    @classmethod
    def _nightly(cls, data: Any) -> Any:  # noqa: ANN401 - validators see any input
        if isinstance(data, dict) and isinstance(data.get("model"), dict):
            model = NIGHTLY | data["model"]
            if model.get("dynamic_relations") is True:  # PBG's default contradicts it
                model.setdefault("global_emb", False)
            return data | {"model": model}
        return data

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.columns.rel is None and len(self.model.relations) > 1:
            raise ValueError("columns.rel is null, yet model.relations has several entries to choose from")
        if self.columns.rel is None and self.model.relations_from_data:
            raise ValueError("columns.rel is null, yet model.dynamic_relations takes the relations from that column")
        if self.snapshots.format == "changes" and self.snapshots.options.get("weight") != self.columns.weight:
            raise ValueError(
                "snapshots.options.weight and columns.weight differ; a log of changes needs its column in both"
            )
        if self.columns.lhs_type is None and not self.model.relations_from_data:
            names = [relation.name for relation in self.model.relations]
            if len(set(names)) != len(names):
                raise ValueError("relation names repeat: name columns.lhs_type and columns.rhs_type to tell them apart")
        return self

    @model_validator(mode="after")
    def _stoppable(self) -> Self:
        if self.train.early_stopping is None:
            return self
        if not self.split.valid:
            raise ValueError("train.early_stopping ranks the valid split, yet split.valid is 0; give it a share")
        if self.model.eval_fraction:
            raise ValueError(
                "train.early_stopping ranks the valid split after each epoch, and model.eval_fraction other edges; set "
                "one of the two to null or 0"
            )
        return self

    @model_validator(mode="after")
    def _sparkable(self) -> Self:
        if self.resources.engine != "spark":
            return self
        featurized = [name for name, entity in self.model.entities.items() if entity.featurized]
        refused = {
            f"model.entities.{featurized[0] if featurized else ''}.featurized is true": bool(featurized),
            f"model.entities has more than {_SPARK_TYPES} types": len(self.model.entities) > _SPARK_TYPES,
        }
        if problems := [problem for problem, found in refused.items() if found]:
            raise ValueError(f"resources.engine is spark, and {problems[0]}, which takes engine: duckdb")
        return self

    @model_validator(mode="after")
    def _launchable(self) -> Self:
        exports = {f"destination of export {each.name}": each.place(self.store) for each in self.exports}
        snapshots = {"snapshots.location": self.snapshots.location} if self.snapshots.format in SOURCES.built_in else {}
        self.launch.check_engine(self.resources.engine)
        self.launch.check_places(self.store, snapshots=snapshots, exports=exports)
        export_parts = max((each.parts for each in self.exports), default=1)
        if self.model.embedding_precision == "bf16" and (self.launch.ranks > 1 or self.train.device == "cuda"):
            key = f"launch.ranks is {self.launch.ranks}" if self.launch.ranks > 1 else "train.device is cuda"
            raise ValueError(
                f"model.embedding_precision: bf16 is for one process on the CPU, yet {key}; leave one of them out"
            )
        if self.model.num_gpus > 1 and self.launch.ranks > 1:
            raise ValueError(
                f"model.num_gpus is {self.model.num_gpus}, for one process, yet launch.ranks is {self.launch.ranks}, "
                "each with one GPU; set one of them to 1"
            )
        few = self.airflow.few_tasks
        self.launch.check_tasks(few_tasks=few, eval_parts=self.eval.parts, export_parts=export_parts)
        if self.airflow.few_tasks and self.eval.parts > 1:
            raise ValueError(
                f"eval.parts is {self.eval.parts}, yet with airflow.few_tasks the task 'finish' evaluates as a whole; "
                "leave one of them out"
            )
        return self

    @model_validator(mode="after")
    def _continuing(self) -> Self:
        if self.nights.walk != "independent":
            return self
        for name in ("anchor", "shrink", "delta"):
            if getattr(self.train, name):
                raise ValueError(
                    f"train.{name} is of warm starts, which nights.walk: independent rules out; remove one of the two"
                )
        return self

    @model_validator(mode="after")
    def _watchable(self) -> Self:
        watch = None if self.snapshots.format in TABLES else self.nights.watch  # a listed version of a table is whole
        if watch is not None and watch.complete != "settled" and snapshot_folder(self.snapshots.location) is None:
            raise ValueError(
                f"nights.watch.complete is {watch.complete}, which looks into a snapshot's own folder, and those of "
                f"{self.snapshots.location} have none; use complete: settled"
            )
        return self

    @model_validator(mode="after")
    def _asked(self) -> Self:
        collect = self.nights.collect
        self.gates.check_asking(None if collect is None else collect.grace_hours, few_tasks=self.airflow.few_tasks)
        return self

    @model_validator(mode="after")
    def _promotable(self) -> Self:
        if self.promote is not None:
            self.promote.check(self.channel, self.nights.walk, self.exports)
        return self

    @model_validator(mode="after")
    def _priced(self) -> Self:
        if self.limits.max_cost.asked and self.costs is None:
            raise ValueError("limits.max_cost needs prices: add the section costs, such as {hour: 1.2, currency: EUR}")
        return self

    @model_validator(mode="after")
    def _judged(self) -> Self:
        if strange := [name for name in self.gates.data.entities if name not in self.model.entities]:
            types = ", ".join(self.model.entities)
            raise ValueError(f"gates.data.entities names {strange[0]!r}; entity types of the model: {types}")
        if self.model.relations_from_data:
            return self  # the names of relations are known only from the snapshot
        labels = relation_labels(self.model, [relation.name for relation in self.model.relations])
        if unknown := [name for name in self.gates.relations if name not in (EVERY_OTHER, *labels)]:
            raise ValueError(f"gates.relations names {unknown[0]!r}; relations of the model: {', '.join(labels)}")
        return self

    @model_validator(mode="after")
    def _exports_apart(self) -> Self:
        names = [export.name for export in self.exports]
        if len(set(names)) < len(names):
            raise ValueError("two exports have the same name: give them different ones with key 'name'")
        for export in self.exports:
            parts = (export.part_task(f"{number}/{export.parts}") for number in range(1, export.parts + 1))
            if export.parts > 1 and {f"export-{export.name}_part", *parts} & {other.task for other in self.exports}:
                raise ValueError(
                    f"the parts of export {export.name!r} have the name of another export; rename that one"
                )
            searched = export.format == "faiss" or export.is_sink
            if searched and self.model.comparator not in FAISS_COMPARATORS:
                raise ValueError(f"export {export.name!r}: {no_metric(export.format, self.model.comparator)}")
            if unknown := [entity for entity in export.types if entity not in self.model.entities]:
                raise ValueError(f"export {export.name!r} names entity type {unknown[0]!r}, which the model has not")
        return self
