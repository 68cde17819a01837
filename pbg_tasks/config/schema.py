"""PyTorch-BigGraph's config: every key with name, type and default.

It follows PBG's ``ConfigSchema``. ``ModelConfig`` has the keys that a user tunes; ``ConfigSchema`` adds the three paths
and is the content of ``config.json`` in a checkpoint. Rules that span several keys are together in ``contradictions``,
one sentence each. It is longer than other files so that all keys of PBG's config are found in one place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, WithJsonSchema, model_validator

from pbg_tasks.config.base import Frozen, Growing
from pbg_tasks.config.comparators import facts_of
from pbg_tasks.config.names import EntityName
from pbg_tasks.config.registry import COMPARATORS, LOSSES, OPERATORS, REGULARIZERS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pbg_tasks.plugins import Kind

# As in PBG, an integer is accepted as a float, but a float, a text or a bool is not accepted as an integer.
PositiveInt = Annotated[int, Field(strict=True, gt=0)]
NonNegativeInt = Annotated[int, Field(strict=True, ge=0)]
Float = Annotated[float, Field(strict=True, allow_inf_nan=False)]
PositiveFloat = Annotated[Float, Field(gt=0)]
NonNegativeFloat = Annotated[Float, Field(ge=0)]


def named(kind: Kind) -> tuple[AfterValidator, Any]:
    """Return the validators of a string that names a part.

    The part is built in, or an entry point of an installed package.
    """
    description = f"a {kind.noun}: built in, or an entry point of the group {kind.group}"
    return AfterValidator(kind.check), Field(description=description, examples=list(kind.built_in))


Operator = Annotated[str, *named(OPERATORS)]
Comparator = Annotated[str, *named(COMPARATORS)]
Loss = Annotated[str, *named(LOSSES)]
Regularizer = Annotated[str, *named(REGULARIZERS)]

# Keys that PBG lacks.
EXTENSIONS = (
    "lr_schedule",
    "lr_warmup_epochs",
    "lr_final",
    "mask_known_negatives",
    "self_negatives",
    "negatives_by_degree",
    "gradient",
    "gradient_variance",
    "embedding_precision",
    "checksums",
    "partition_buffer",
    "precision",
    "store_interval",
    "parameter_interval",
    "parameter_bandwidth",
    "partitions_ahead",
    "rank_tls",
)
ENTITY_EXTENSIONS = ("trainable",)
RELATION_EXTENSIONS = ("lhs_weight", "rhs_weight", "reciprocal")


def _drop_defaults(data: dict[str, Any], model: type[Frozen], keys: tuple[str, ...]) -> None:
    for key in keys:
        if key in data and data[key] == model.model_fields[key].default:
            del data[key]


AUTO = 0
"""Number that stands for the word ``auto`` until a plan has chosen another."""


def _read_auto(value: Any) -> Any:  # noqa: ANN401 - validators see any input
    if value == "auto":
        return AUTO
    if type(value) is int and value < 1:
        raise ValueError("must be greater than 0, or auto")
    return value


Partitions = Annotated[
    NonNegativeInt,
    BeforeValidator(_read_auto),
    PlainSerializer(lambda value: value or "auto", when_used="json"),
    WithJsonSchema({"anyOf": [{"type": "integer", "exclusiveMinimum": 0}, {"const": "auto"}]}),
]


PartitionBuffer = Annotated[
    NonNegativeInt | None,
    BeforeValidator(_read_auto),
    PlainSerializer(lambda value: "auto" if value == AUTO else value, when_used="json"),
    WithJsonSchema({"anyOf": [{"type": "integer", "exclusiveMinimum": 0}, {"const": "auto"}, {"type": "null"}]}),
]


Precision = Literal["f32", "tf32", "bf16"]
EmbeddingPrecision = Literal["f32", "bf16"]


class EntitySchema(Frozen):
    """One entity type.

    Attributes:
        num_partitions: parts in which its embeddings are stored and trained; ``auto``: a number that fits into memory,
            which ``pbg import`` or ``pbg plan`` chooses.
        featurized: an entity is a bag of features, its embedding their mean.
        dimension: instead of the config's.
        trainable: false freezes the type's vectors and global embedding.
    """

    num_partitions: Partitions
    featurized: bool = False
    dimension: PositiveInt | None = None
    trainable: bool = True

    @property
    def written_partitions(self) -> str:
        """The value of ``num_partitions`` as a spec has it."""
        return str(self.num_partitions or "auto")


class RelationSchema(Growing):
    """One relation type; its index in the list is its id.

    Attributes:
        name: in the relation column and in exports.
        lhs: entity type of the left end.
        rhs: entity type of the right end.
        weight: multiplies its loss.
        lhs_weight: multiplies its loss with negatives on the left: how much (?, r, t) counts.
        rhs_weight: multiplies its loss with negatives on the right: how much (h, r, ?) counts.
        operator: ``none``, ``diagonal``, ``translation``, ``linear``, ``affine``, ``complex_diagonal`` or a package's.
        all_negs: all entities of the partition are negatives.
        reciprocal: (?, r, t) and (h, r, ?) are asked by operators of their own, as with dynamic relations; PBG cannot
            read such a model.
    """

    later_keys: ClassVar[tuple[str, ...]] = RELATION_EXTENSIONS

    name: str = Field(min_length=1)
    lhs: EntityName
    rhs: EntityName
    weight: PositiveFloat = 1.0
    lhs_weight: PositiveFloat = 1.0
    rhs_weight: PositiveFloat = 1.0
    operator: Operator = "none"
    all_negs: bool = False
    reciprocal: bool = False

    @property
    def side_weights(self) -> tuple[float, float]:
        """Factors of the losses by side: left-hand, right-hand."""
        return self.weight * self.lhs_weight, self.weight * self.rhs_weight


@dataclass(frozen=True, slots=True)
class Family:
    """Relations whose parameters are stacked: same entity types and operator.

    Without dynamic relations every relation is a family of its own. With dynamic relations their parameters are
    stacked, in the order of ``relations``, under the index of the first.

    Attributes:
        first: index of the first in the config.
        relations: ids of all; None when the config does not list them (its one entry stands for all of them).
    """

    first: int
    relations: tuple[int, ...] | None


class ModelConfig(Growing):
    """All keys of PBG's config but its paths.

    Attributes:
        entities: the entity types.
        relations: the relation types; the index is the id.
        dimension: numbers of an embedding.
        init_scale: standard deviation of new embeddings.
        max_norm: longest embedding; longer ones are shortened when looked up.
        global_emb: a vector for each entity type, added to each of its embeddings. Where a graph spec has
            ``dynamic_relations``, it is false unless set.
        comparator: ``dot``, ``cos``, ``l2``, ``squared_l2`` or a package's.
        bias: the first number of an embedding is added to its scores.
        loss_fn: ``ranking``, ``logistic``, ``softmax`` or a package's.
        margin: of ``ranking``.
        regularization_coef: 0: off.
        regularizer: ``N3``, ``N3_edge``, ``L2`` or a package's.
        init_path: a checkpoint to begin with, or arrays with names.
        checkpoint_preservation_interval: epochs between checkpoints that are kept.
        checksums: edges and embeddings are written with HDF5's checksum (fletcher32), which its readers compare.
        num_epochs: passes over all edges.
        num_edge_chunks: parts in which each bucket is trained; null: as many as ``max_edges_per_chunk`` asks for.
        max_edges_per_chunk: largest number of edges in such a part.
        bucket_order: order in which an epoch trains the buckets; PBG lacks ``min_swaps``.
        partition_buffer: largest number of partitions of an entity type in memory; null: two for each side on which the
            type stands; ``auto``: more where a plan's memory allows that.
        workers: threads that train; null: one for each CPU that this process may use.
        batch_size: edges; a multiple of ``num_batch_negs``.
        num_batch_negs: negatives of an edge, drawn from its batch.
        num_uniform_negs: negatives drawn from all entities of the partition.
        disable_lhs_negs: no negatives on the left.
        disable_rhs_negs: no negatives on the right.
        lr: learning rate.
        relation_lr: learning rate of operators and global embeddings; null: ``lr``.
        lr_schedule: ``linear`` or ``cosine``: both learning rates fall to ``lr_final`` of themselves.
        lr_warmup_epochs: epochs over which they rise from 0.
        lr_final: share of the learning rates at the end.
        mask_known_negatives: a negative that is an edge of the bucket, and of its edge chunk, is not trained against.
        self_negatives: the end that a question names is one more negative.
        negatives_by_degree: ``num_uniform_negs`` are drawn with chances of (1 + edges) to this power; 0: uniformly.
        gradient: ``sampled``: most negatives of next to no weight have no part in a step, and the others a larger one,
            so that the expected gradients are the same.
        gradient_variance: of ``sampled``: largest variance of an edge's weights, as a share of their squares' sum.
        embedding_precision: type of the embeddings in memory while they are trained; files have float32. ``bf16`` takes
            half the memory, and rounds a trained row up or down by chance.
        precision: type of the numbers that the matrix products of training multiply; sums are float32.
        eval_fraction: share of the edges held out for evaluation while training.
        eval_num_batch_negs: negatives of that evaluation; null: as in training.
        eval_num_uniform_negs: same.
        background_io: no effect: reading and writing are always in the background.
        verbose: no effect: progress is always shown.
        hogwild_delay: seconds that the other workers begin later in the first epoch.
        dynamic_relations: the relations are in the data; needs ``global_emb: false``.
        num_machines: ranks that train together, where the environment does not set their number.
        num_partition_servers: -1: each rank is one.
        distributed_init_method: address at which ranks meet, unless the environment sets it.
        distributed_tree_init_order: in the first epoch of a cold start a bucket waits until a partition of it was
            trained, so that all vectors are in one space.
        num_gpus: GPUs of this machine on which one process trains, each a bucket of its own; 0: none, unless
            ``device`` asks for one.
        num_groups_for_partition_server: no effect: a transfer is one stream.
        num_groups_per_sharded_partition_server: same.
        partition_shard_size: same.
        half_precision: same as ``precision: bf16``, where PBG takes float16; needs ``num_gpus``.
        store_interval: seconds within which a partition server begins to store a partition that it got; a crash can
            lose that much.
        parameter_interval: seconds between two exchanges of a shared parameter, at least.
        parameter_bandwidth: bytes a second that a rank spends on that, at most.
        partitions_ahead: a rank moves partitions while it trains. That takes memory for two buckets more, and a rank
            that is killed can lose two.
        rank_tls: ranks refuse to train without certificates, with which they encrypt what they send each other.
            ``--ranks`` makes them; on several machines they are also used where this is false.
    """

    later_keys: ClassVar[tuple[str, ...]] = (
        "self_negatives",
        "negatives_by_degree",
        "gradient",
        "gradient_variance",
        "embedding_precision",
        "checksums",
        "partitions_ahead",
        "rank_tls",
    )

    entities: dict[EntityName, EntitySchema] = Field(min_length=1)
    relations: tuple[RelationSchema, ...] = Field(min_length=1)
    dimension: PositiveInt

    init_scale: PositiveFloat = 1e-3
    max_norm: PositiveFloat | None = None
    global_emb: bool = True
    comparator: Comparator = "cos"
    bias: bool = False
    loss_fn: Loss = "ranking"
    margin: Float = 0.1
    regularization_coef: NonNegativeFloat = 0.0
    regularizer: Regularizer = "N3"

    init_path: str | None = None
    checkpoint_preservation_interval: PositiveInt | None = None
    checksums: bool = False

    num_epochs: NonNegativeInt = 1
    num_edge_chunks: PositiveInt | None = None
    max_edges_per_chunk: PositiveInt = 1_000_000_000
    bucket_order: Annotated[
        Literal["random", "affinity", "inside_out", "outside_in", "min_swaps"],
        BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value),
    ] = "inside_out"
    partition_buffer: PartitionBuffer = None
    workers: PositiveInt | None = None
    batch_size: PositiveInt = 1000
    num_batch_negs: NonNegativeInt = 50
    num_uniform_negs: NonNegativeInt = 50
    disable_lhs_negs: bool = False
    disable_rhs_negs: bool = False
    lr: NonNegativeFloat = 1e-2
    relation_lr: NonNegativeFloat | None = None
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    lr_warmup_epochs: NonNegativeFloat = 0.0
    lr_final: Annotated[Float, Field(ge=0, le=1)] = 0.0
    mask_known_negatives: bool = False
    self_negatives: bool = False
    negatives_by_degree: Annotated[Float, Field(ge=0, le=1)] = 0.0
    gradient: Literal["dense", "sampled"] = "dense"
    gradient_variance: Annotated[Float, Field(gt=0, le=10)] = 0.1
    embedding_precision: EmbeddingPrecision = "f32"
    precision: Precision = "f32"

    eval_fraction: Annotated[Float, Field(ge=0, lt=1)] = 0.05
    eval_num_batch_negs: NonNegativeInt | None = 1000
    eval_num_uniform_negs: NonNegativeInt | None = 1000

    background_io: bool = False
    verbose: NonNegativeInt = 0
    hogwild_delay: NonNegativeFloat = 2.0
    dynamic_relations: bool = False

    num_machines: PositiveInt = 1
    num_partition_servers: Annotated[int, Field(strict=True, ge=-1)] = -1
    distributed_init_method: str | None = None
    distributed_tree_init_order: bool = True
    num_gpus: NonNegativeInt = 0
    num_groups_for_partition_server: PositiveInt = 16
    num_groups_per_sharded_partition_server: PositiveInt = 1
    partition_shard_size: PositiveInt = 250
    half_precision: bool = False
    store_interval: PositiveFloat = 60.0
    parameter_interval: PositiveFloat = 0.01
    parameter_bandwidth: PositiveFloat = 1e8
    partitions_ahead: bool = False
    rank_tls: bool = False

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems = list(contradictions(self))
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def entity_dimension(self, entity_type: str) -> int:
        """Return the embedding dimension of an entity type."""
        return self.entities[entity_type].dimension or self.dimension

    def has_self_negatives(self, relation: RelationSchema) -> bool:
        """Return whether a relation's known ends are used as negatives.

        They are so on the other side, where ``self_negatives`` is set and possible. With ``all_negs`` the known end is
        a negative anyway, and a bag of features is no entity of its own.
        """
        entity = self.entities.get(relation.lhs)
        single = entity is not None and not entity.featurized
        return self.self_negatives and single and relation.lhs == relation.rhs and not relation.all_negs

    def has_two_operators(self, relation: RelationSchema) -> bool:
        """Return whether a relation has an operator for each question.

        It works on the end that is known. Otherwise one serves both, and works on the right-hand end.
        """
        return self.dynamic_relations or relation.reciprocal

    @property
    def product_precision(self) -> Precision:
        """The ``precision``, or the one that ``half_precision`` means.

        PBG's float16 would overflow where bfloat16 does not.
        """
        return "bf16" if self.half_precision else self.precision

    def always_stored(self) -> tuple[str, ...]:
        """Return the key of sampled gradients whose default was 1 once."""
        return ("gradient_variance",) if self.gradient == "sampled" else ()

    @property
    def has_random_steps(self) -> bool:
        """Whether a batch's step takes random bits."""
        return self.gradient == "sampled" or self.embedding_precision == "bf16"

    @property
    def auto_partitioned(self) -> list[str]:
        """Entity types whose number of partitions is not chosen yet.

        Only a plan may work with them.
        """
        return [name for name, entity in self.entities.items() if entity.num_partitions == AUTO]

    @property
    def frozen_types(self) -> list[str]:
        """Entity types whose vectors are not trained."""
        return [name for name, entity in self.entities.items() if not entity.trainable]

    @property
    def relations_from_data(self) -> bool:
        """Whether the one entry of ``relations`` stands for all in the data.

        These are PBG's dynamic relations.
        """
        return self.dynamic_relations and len(self.relations) == 1

    @property
    def families(self) -> tuple[Family, ...]:
        """Sets of relations whose parameters are stacked.

        They are in the order of their first relations.
        """
        if not self.dynamic_relations:
            return tuple(Family(index, (index,)) for index in range(len(self.relations)))
        if self.relations_from_data:
            return (Family(0, None),)
        members: dict[tuple[Any, ...], list[int]] = {}
        for index, relation in enumerate(self.relations):
            members.setdefault((relation.lhs, relation.rhs, relation.operator), []).append(index)
        return tuple(Family(indices[0], tuple(indices)) for indices in members.values())

    def partitions(self, side: Literal["lhs", "rhs"]) -> int:
        """Return the number of partitions of the entity types of one side.

        It is 1 when none is partitioned.
        """
        return max(self.entities[getattr(relation, side)].num_partitions for relation in self.relations)


class ConfigSchema(ModelConfig):
    """Whole PBG config: the model and its paths.

    Attributes:
        entity_path: directory of ``entity_count_*``, ``entity_names_*`` and relation names.
        edge_paths: directories of ``edges_*_*.h5``.
        checkpoint_path: directory of the checkpoint.
    """

    entity_path: str
    edge_paths: tuple[str, ...]
    checkpoint_path: str

    @model_validator(mode="after")
    def _partitioned(self) -> Self:
        if self.auto_partitioned:
            raise ValueError(
                f"entities.{self.auto_partitioned[0]}.num_partitions: auto is a word of config files, for which `pbg "
                "import` chooses the number and all other commands find it in the entity path; here, give the number"
            )
        return self

    def to_pbg(self) -> dict[str, Any]:
        """Return the dict that PBG writes into ``config.json``.

        It has every key, and enums by lower-case name. Keys that PBG lacks are left out where they have their default,
        because PBG refuses a config with any other key.
        """
        data = self.model_dump(mode="json")
        _drop_defaults(data, type(self), EXTENSIONS)
        for entity in data["entities"].values():
            _drop_defaults(entity, EntitySchema, ENTITY_EXTENSIONS)
        return data


def contradictions(config: ModelConfig) -> Iterator[str]:
    """Yield one sentence for every broken rule between keys.

    The sentence names the keys.
    """
    yield from _relation_contradictions(config)
    yield from _negative_contradictions(config)
    for side in ("lhs", "rhs"):
        types = {getattr(relation, side) for relation in config.relations}
        counts = {
            name: entity.num_partitions
            for name, entity in config.entities.items()
            if name in types and entity.num_partitions > 1
        }
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"{name}={count}" for name, count in sorted(counts.items()))
            yield f"all partitioned entity types of the {side} need the same num_partitions, got {listed}"
    yield from _place_contradictions(config)
    if config.product_precision == "bf16" and not facts_of(config.comparator).bfloat16:
        yield (
            "precision: bf16 (or half_precision) needs comparator dot or cos: the distances of "
            f"{config.comparator} are differences of products, and would drown in their rounding"
        )
    if config.embedding_precision == "bf16":
        yield from _narrow_contradictions(config)
    if config.bias and min(map(config.entity_dimension, config.entities)) == 1:
        yield "bias takes the first of each entity's numbers, so dimension must be at least 2"


def _narrow_contradictions(config: ModelConfig) -> Iterator[str]:
    """Yield the keys that embeddings in bfloat16 exclude."""
    if config.num_gpus > 0:
        yield "embedding_precision: bf16 is for the CPU: set num_gpus: 0, or leave it out"
    if config.num_machines > 1:
        yield "embedding_precision: bf16 is for a process that trains alone: set num_machines: 1, or leave it out"
    for index, relation in enumerate(config.relations):
        if relation.all_negs:
            yield (
                f"relations.{index}: all_negs cannot be true with embedding_precision: bf16, since every chunk would "
                "make all embeddings float32"
            )


def _place_contradictions(config: ModelConfig) -> Iterator[str]:
    """Yield the broken rules about machines, GPUs and the checkpoint format."""
    if config.global_emb and config.dynamic_relations:
        yield "global_emb cannot be used with dynamic_relations: set global_emb: false"
    dotted = [name for name in config.entities if "." in name]
    if config.global_emb and dotted:
        yield (
            f"entities {', '.join(map(repr, dotted))}: PBG's checkpoints have no place for the global embedding of a "
            "name with dots: set global_emb: false"
        )
    if config.num_machines > 1 and config.distributed_init_method is None:
        yield "num_machines > 1 needs distributed_init_method"
    if config.num_partition_servers > 0 and config.num_machines == 1:
        yield "num_partition_servers > 0 needs num_machines > 1"
    if config.num_gpus > 1 and config.num_machines > 1:
        yield "num_gpus > 1 is for one process; set num_gpus: 1, and start a rank for each GPU"
    if config.half_precision:
        yield from _half_contradictions(config)


def _half_contradictions(config: ModelConfig) -> Iterator[str]:
    if config.num_gpus == 0:
        yield "half_precision needs num_gpus > 0"
    if config.precision == "tf32":
        yield "half_precision means precision: bf16, so precision cannot be tf32"
    sizes = {"batch_size": config.batch_size, "num_batch_negs": config.num_batch_negs}
    sizes |= {"num_uniform_negs": config.num_uniform_negs}
    sizes |= {f"dimension of {name!r}": config.entity_dimension(name) for name in config.entities}
    for key, size in sizes.items():
        if size % 8:
            yield f"half_precision needs multiples of 8, but {key} is {size}"


def _relation_contradictions(config: ModelConfig) -> Iterator[str]:
    known = ", ".join(sorted(config.entities))
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
        if relation.reciprocal and config.dynamic_relations:
            yield f"relations.{index}.reciprocal: with dynamic_relations all relations are; leave it out"
        elif relation.reciprocal and relation.operator == "none":
            yield f"relations.{index}.reciprocal: operator none has no parameters to keep apart; leave it out"
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
    yield from _featurized_contradictions(config)
    if config.self_negatives and not any(map(config.has_self_negatives, config.relations)):
        yield (
            "self_negatives has no effect on any relation: each has different entity types on its sides, is featurized "
            "or has all_negs; leave it out"
        )
    if config.negatives_by_degree and not _draws_negatives(config):
        yield (
            "negatives_by_degree has no effect, because no negatives are drawn: num_uniform_negs is 0, or every "
            "relation has all_negs or featurized ends; leave it out"
        )
    default = type(config).model_fields["gradient_variance"].default
    if config.gradient == "dense" and config.gradient_variance != default:
        yield "gradient_variance has no effect while gradient is dense; leave it out, or set gradient: sampled"
    if config.eval_fraction > 0 and not all_negs:
        batch, uniform = (
            usual if own is None else own
            for own, usual in (
                (config.eval_num_batch_negs, config.num_batch_negs),
                (config.eval_num_uniform_negs, config.num_uniform_negs),
            )
        )
        if batch == 0 and uniform == 0:
            yield "eval_num_batch_negs and eval_num_uniform_negs cannot both be 0 while eval_fraction is above 0"
    if config.num_batch_negs > 0 and config.batch_size % config.num_batch_negs:
        yield f"batch_size ({config.batch_size}) must be a multiple of num_batch_negs ({config.num_batch_negs})"


def _draws_negatives(config: ModelConfig) -> bool:
    """Return whether any relation has negatives that are drawn."""
    drawn = {name for name, entity in config.entities.items() if not entity.featurized}
    ends = {end for relation in config.relations if not relation.all_negs for end in (relation.lhs, relation.rhs)}
    return config.num_uniform_negs > 0 and bool(ends & drawn)


def _featurized_contradictions(config: ModelConfig) -> Iterator[str]:
    """Yield the broken rules about featurized entity types.

    An entity that is a bag of features cannot be drawn: only the other edges of its chunk are its negatives.
    """
    disabled = {"lhs": config.disable_lhs_negs, "rhs": config.disable_rhs_negs}
    for index, relation in enumerate(config.relations):
        for side in ("lhs", "rhs"):
            entity = config.entities.get(getattr(relation, side))
            if entity is None or not entity.featurized or disabled[side]:
                continue
            where = f"relations.{index}: {side} {getattr(relation, side)!r} is featurized"
            if relation.all_negs:
                yield f"{where}, so all_negs cannot be true"
            elif config.num_batch_negs == 0:
                yield f"{where}, so num_batch_negs cannot be 0"
