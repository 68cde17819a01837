"""PyTorch-BigGraph's config: every key with its name, type, default and meaning (its ``ConfigSchema``).

``ModelConfig`` is what a user tunes; ``ConfigSchema`` adds the three paths and is what ``config.json`` in a checkpoint
holds. Rules that span several keys stand together in ``contradictions``, one sentence each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from pbg_tasks.config.base import Frozen

if TYPE_CHECKING:
    from collections.abc import Iterator

PositiveInt = Annotated[int, Field(gt=0)]
NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
# A name becomes part of file names and HDF5 paths (PBG's own key mapping splits at "." and "/").
Name = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")]

Operator = Literal["none", "translation", "diagonal", "complex_diagonal", "linear", "affine"]
Comparator = Literal["dot", "cos", "l2", "squared_l2"]
Loss = Literal["ranking", "logistic", "softmax"]


def _lower(value: Any) -> Any:  # noqa: ANN401 - validators see any input
    return value.lower() if isinstance(value, str) else value


class EntitySchema(Frozen):
    """One entity type."""

    num_partitions: PositiveInt
    featurized: bool = False
    dimension: PositiveInt | None = None


class RelationSchema(Frozen):
    """One relation type; its index in the list is its id."""

    name: str = Field(min_length=1)
    lhs: Name
    rhs: Name
    weight: PositiveFloat = 1.0
    operator: Operator = "none"
    all_negs: bool = False


class ModelConfig(Frozen):
    """Everything of PBG's config that does not name a place."""

    entities: dict[Name, EntitySchema] = Field(min_length=1)
    relations: tuple[RelationSchema, ...] = Field(min_length=1)
    dimension: PositiveInt

    init_scale: PositiveFloat = 1e-3
    max_norm: PositiveFloat | None = None
    global_emb: bool = True
    comparator: Comparator = "cos"
    bias: bool = False
    loss_fn: Loss = "ranking"
    margin: float = 0.1
    regularization_coef: NonNegativeFloat = 0.0
    regularizer: Literal["N3"] = "N3"

    init_path: str | None = None
    checkpoint_preservation_interval: PositiveInt | None = None

    num_epochs: NonNegativeInt = 1
    num_edge_chunks: PositiveInt | None = None
    max_edges_per_chunk: PositiveInt = 1_000_000_000
    bucket_order: Annotated[Literal["random", "affinity", "inside_out", "outside_in"], BeforeValidator(_lower)] = (
        "inside_out"
    )
    workers: PositiveInt | None = None
    batch_size: PositiveInt = 1000
    num_batch_negs: NonNegativeInt = 50
    num_uniform_negs: NonNegativeInt = 50
    disable_lhs_negs: bool = False
    disable_rhs_negs: bool = False
    lr: NonNegativeFloat = 1e-2
    relation_lr: NonNegativeFloat | None = None

    eval_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.05
    eval_num_batch_negs: NonNegativeInt | None = 1000
    eval_num_uniform_negs: NonNegativeInt | None = 1000

    background_io: bool = False
    verbose: NonNegativeInt = 0
    hogwild_delay: NonNegativeFloat = 2.0
    dynamic_relations: bool = False

    num_machines: PositiveInt = 1
    num_partition_servers: Annotated[int, Field(ge=-1)] = -1
    distributed_init_method: str | None = None
    distributed_tree_init_order: bool = True
    num_gpus: NonNegativeInt = 0
    num_groups_for_partition_server: PositiveInt = 16
    num_groups_per_sharded_partition_server: PositiveInt = 1
    partition_shard_size: PositiveInt = 250
    half_precision: bool = False

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems = list(contradictions(self))
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def entity_dimension(self, entity_type: str) -> int:
        """Return the embedding dimension of an entity type."""
        return self.entities[entity_type].dimension or self.dimension

    def partitions(self, side: Literal["lhs", "rhs"]) -> int:
        """Return how many partitions the entity types of one side have (1 when none is partitioned)."""
        return max(self.entities[getattr(relation, side)].num_partitions for relation in self.relations)


class ConfigSchema(ModelConfig):
    """A whole PBG config: the model and where things lie."""

    entity_path: str
    edge_paths: tuple[str, ...]
    checkpoint_path: str

    def to_pbg(self) -> dict[str, Any]:
        """Return the dict PBG writes into ``config.json``: every key, enums by lower-case name."""
        return self.model_dump(mode="json")


def contradictions(config: ModelConfig) -> Iterator[str]:
    """Yield one sentence for every rule between keys that ``config`` breaks, naming the keys."""
    yield from _relation_contradictions(config)
    yield from _negative_contradictions(config)
    for side in ("lhs", "rhs"):
        counts = {
            name: config.entities[name].num_partitions
            for name in (getattr(relation, side) for relation in config.relations)
            if name in config.entities and config.entities[name].num_partitions > 1
        }
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"{name}={count}" for name, count in sorted(counts.items()))
            yield f"all partitioned entity types of the {side} need the same num_partitions, got {listed}"
    if config.dynamic_relations and config.global_emb:
        yield "global_emb cannot be used with dynamic_relations: set global_emb: false"
    if config.num_partition_servers > 0 and config.num_machines == 1:
        yield "num_partition_servers > 0 needs num_machines > 1"
    if config.half_precision and config.num_gpus == 0:
        yield "half_precision needs num_gpus > 0"


def _relation_contradictions(config: ModelConfig) -> Iterator[str]:
    known = ", ".join(sorted(config.entities))
    if config.dynamic_relations and len(config.relations) != 1:
        yield f"dynamic_relations needs exactly one entry in relations, got {len(config.relations)}"
    seen: set[tuple[str, str, str]] = set()
    for index, relation in enumerate(config.relations):
        missing = [end for end in (relation.lhs, relation.rhs) if end not in config.entities]
        for end in missing:
            yield f"relations.{index}: entity type {end!r} is not one of entities ({known})"
        if missing:
            continue
        dimensions = {config.entity_dimension(relation.lhs), config.entity_dimension(relation.rhs)}
        if len(dimensions) > 1:
            yield f"relations.{index}: entities {relation.lhs!r} and {relation.rhs!r} differ in dimension"
        if relation.operator == "complex_diagonal" and max(dimensions) % 2:
            yield f"relations.{index}: operator complex_diagonal needs an even dimension, got {max(dimensions)}"
        key = (relation.name, relation.lhs, relation.rhs)
        if key in seen:
            yield f"relations.{index}: relation {relation.name!r} from {relation.lhs!r} to {relation.rhs!r} repeats"
        seen.add(key)


def _negative_contradictions(config: ModelConfig) -> Iterator[str]:
    if config.disable_lhs_negs and config.disable_rhs_negs:
        yield "disable_lhs_negs and disable_rhs_negs cannot both be true"
    all_negs = all(relation.all_negs for relation in config.relations)
    if config.num_batch_negs == 0 and config.num_uniform_negs == 0 and not all_negs:
        yield "num_batch_negs and num_uniform_negs cannot both be 0: nothing would be compared with the edges"
    if config.num_batch_negs > 0 and config.batch_size % config.num_batch_negs:
        yield f"batch_size ({config.batch_size}) must be a multiple of num_batch_negs ({config.num_batch_negs})"
