"""Memory of an engine's workers while they train."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from pbg_tasks.config.comparators import facts_of
from pbg_tasks.memory.parameters import operator_size
from pbg_tasks.native.abi import compared_with_all

if TYPE_CHECKING:
    from pbg_tasks.config import ModelConfig, RelationSchema
    from pbg_tasks.memory.training import TrainingSize

FLOAT = 4
"""Bytes of a float32."""
_ID = 8
MAPPED = 31 << 20
"""Size from which on freed blocks go back to the kernel (``formats.memory``)."""

_KEPT = 1.3  # factor for smaller blocks, which stay with the allocator, with gaps between them
_WORKER = 12_000_000  # an allocator's arena, and the scratch of matrix products
_KERNEL, _MOST_KERNELS = 300_000, 1024  # oneDNN keeps a compiled product for each shape
_CHUNK_PRODUCTS, _ROW_PRODUCTS = 6, 6  # shapes with chunks of edges, and with rows and a relation's matrix
_GROUP_SIZES = 60  # number of different group sizes of a batch's edges by relation
# Temporaries of an operator's forward and backward pass, in rows of embeddings. A plugin's operator uses autograd.
_OPERATOR_ROWS = {
    "none": 0.0,
    "translation": 1.0,
    "diagonal": 3.0,
    "complex_diagonal": 5.5,
    "linear": 3.0,
    "affine": 4.0,
}
_PLUGIN_ROWS = 6.0
_MATRIX_COPIES = 5  # copies of the matrices of a batch's relations: gradients, stacked, for both sides
_MATRICES = {"linear", "affine"}
_TOUCHED = 24  # bytes kept for each distinct row that is looked up
_USE = 4  # bytes kept for each look-up
_SLOT = 4  # bytes of each slot of a hash table
_CANDIDATE = 60  # bytes of the pointers, norms and sums of each negative drawn for a chunk
_EDGE = 546  # bytes of each of a chunk's edges, whose factors and numbers are packed: native/packed.inc
_HELD_OUT = 1000  # held-out edges that are ranked at a time, and more up to a whole chunk
_BLOCK = 50  # negatives whose gradients are made at once: ``kBlock`` of native/chunk.inc


class WorkerMemory(NamedTuple):
    """Bytes of all workers of an engine.

    Attributes:
        kept: from batch to batch and bucket to bucket.
        passing: within a batch.
        ranking: within a batch of held-out edges, which are evaluated while no worker trains.
    """

    kept: int
    passing: int
    ranking: int = 0


def worker_memory(size: TrainingSize) -> WorkerMemory:
    """Return the memory of all workers of an engine."""
    config = size.config
    step = _native_step if size.engine == "native" else _torch_step
    alike = {
        (each.lhs, each.rhs, each.operator, each.all_negs, each.reciprocal): each for each in config.relations
    }.values()
    trained = _largest([step(size, relation) for relation in alike])
    ranking = _ranking_workers(size)
    ranked = _largest([_torch_ranking(size, relation) for relation in alike if ranking])
    # The native library has buffers of its own, in addition to those of torch, which evaluates the held-out edges.
    native = size.engine == "native"
    more = max(ranked.kept - (_WORKER if native else trained.kept), 0)
    kept = trained.kept * size.workers + more * ranking + (0 if native else _kernels(config))
    return WorkerMemory(kept, trained.passing * size.workers, ranked.passing * ranking)


def _ranking_workers(size: TrainingSize) -> int:
    """Return the number of workers that rank held-out or valid edges.

    Held-out ones are a share of the bucket, and busy all of them.
    """
    if size.config.eval_fraction:
        return size.workers
    return min(size.workers, -(-size.ranked // held_out_batch(size.config, _negatives_of_ranking(size.config)[0])))


def _largest(steps: list[WorkerMemory]) -> WorkerMemory:
    """Return the largest of each figure; zeros where there is no step."""
    return WorkerMemory(*map(max, zip(WorkerMemory(0, 0), *steps, strict=True)))


def _kernels(config: ModelConfig) -> int:
    """Return the bytes of compiled products.

    The last batch of a relation's edges in a bucket has a size of its own.
    """
    last = relation_kinds(config) * config.partitions("lhs") * config.partitions("rhs")
    chunk = config.num_batch_negs or config.num_uniform_negs or config.batch_size
    shapes = _CHUNK_PRODUCTS * min(-(-config.batch_size // chunk), 1 + last)
    if any(relation.operator in _MATRICES for relation in config.relations):
        shapes += _ROW_PRODUCTS * (_GROUP_SIZES if config.dynamic_relations else 1 + last)
    return min(_MOST_KERNELS, shapes) * _KERNEL


def relation_kinds(config: ModelConfig) -> int:
    """Return the number of kinds of relations.

    Edges of relations of different kinds cannot share a batch.
    """
    if config.relations_from_data:
        return 1
    if not config.dynamic_relations:
        return len(config.relations)
    return len({(each.lhs, each.rhs, each.operator, each.side_weights, each.all_negs) for each in config.relations})


class _Rows:
    """Bytes of the blocks of a batch.

    Attributes:
        row: of an embedding.
        ends: of one side's ends.
        drawn: of the negatives drawn for one side.
        numbers: of those negatives' ids.
        chunks: number of chunks of a batch.
        scores: of one side's negatives.
    """

    def __init__(
        self, size: TrainingSize, relation: RelationSchema, batch_negs: int, uniform_negs: int, *, native: bool = False
    ) -> None:
        config = size.config
        self.row = row = config.entity_dimension(relation.lhs) * FLOAT
        self.ends = config.batch_size * row
        if relation.all_negs:
            entities, edges = _largest_table(size, relation), config.batch_size
            self.chunks = 1
            if native:
                at_a_time = compared_with_all(relation.operator, edges, dynamic=config.has_two_operators(relation))
                self.chunks = -(-edges // at_a_time)
            self.drawn, self.scores = self.chunks * entities * row, edges * entities * FLOAT
            self.numbers = entities * _ID
            return
        self.chunks = -(-config.batch_size // min(batch_negs or uniform_negs, config.batch_size))
        self.drawn = self.chunks * uniform_negs * row
        self.numbers = self.chunks * uniform_negs * _ID
        self.scores = config.batch_size * (batch_negs + uniform_negs) * FLOAT


def _largest_table(size: TrainingSize, relation: RelationSchema) -> int:
    """Return the rows of the largest partition of a relation's ends."""
    return max(max(size.counts[entity]) for entity in (relation.lhs, relation.rhs))


def _native_step(size: TrainingSize, relation: RelationSchema) -> WorkerMemory:
    """Count the buffers of ``native/step.hpp``.

    Most rows are read in place. In memory are the gradients of rows from their first use in a batch to their last,
    besides a chunk's own, and each row's place.
    """
    config, dimension = size.config, size.config.entity_dimension(relation.lhs)
    rows = _Rows(size, relation, config.num_batch_negs, config.num_uniform_negs, native=True)
    kept = _native_gradients(size, relation, rows)
    kept += _native_copies(config, relation, rows) + _native_chunk(config, rows)
    present = min(size.relation_count, config.batch_size) if config.dynamic_relations else 1
    kept += _directions(config, relation) * present * operator_size(relation.operator, dimension) * FLOAT
    return WorkerMemory(_WORKER + kept, 2 * rows.numbers)


def _native_gradients(size: TrainingSize, relation: RelationSchema, rows: _Rows) -> int:
    """Count the gradients of rows, and the records of their places."""
    config, table = size.config, _largest_table(size, relation)
    row, looked_up = rows.row, (rows.ends + rows.drawn) // rows.row
    # Gradients of negatives that nothing else needs are added block by block, unless an operator is applied to them.
    drawn_at_once = rows.drawn / rows.chunks / row if _operator_on_drawn(config, relation) else _BLOCK
    found = 0
    for sides in _sides_by_table(config, relation):
        uses = sides * looked_up
        at_once = sides * rows.ends / rows.chunks / row + drawn_at_once
        # Chance picks some rows both in the first and in the second half of a batch: at its middle most of them are
        # held.
        held = min(uses, table, table * math.expm1(-uses / (2 * max(table, 1))) ** 2 + at_once)
        distinct = min(uses, table)  # with all_negs, each row is looked up once a chunk
        slots = min(table, 1 << (2 * uses - 1).bit_length())  # ``Places`` of native/step.hpp
        found += slots * _SLOT + distinct * _TOUCHED + uses * _USE + int(held) * row
    return found


def _native_copies(config: ModelConfig, relation: RelationSchema, rows: _Rows) -> int:
    """Count rows that are not read in place.

    They are made by global embeddings and operators, or are gradients on their way. With l2, rows to which no operator
    is applied are copied, too; and all rows of bfloat16.
    """
    matrices, operates = relation.operator in _MATRICES, relation.operator != "none"
    facts = facts_of(config.comparator)
    distances = facts.metric == "l2" and not facts.squared
    narrow = config.embedding_precision == "bf16"
    copied = 2 if config.global_emb or narrow else (2 - operates) * distances
    directions = 2 if config.has_self_negatives(relation) else _directions(config, relation)
    of_ends = directions * (2 * operates + copied)
    of_drawn = int(config.global_emb or narrow or distances)
    if _operator_on_drawn(config, relation):
        of_drawn += 3 if matrices else 2
    return of_ends * rows.ends // (1 if matrices else rows.chunks) + of_drawn * rows.drawn // rows.chunks


def _native_chunk(config: ModelConfig, rows: _Rows) -> int:
    """Count a chunk's scores and its records of its negatives.

    With bfloat16, numbers are rounded into buffers of half the bytes: rows once, scores for each of two products.
    Of sampled gradients, at most a quarter of the pairs are listed, in 8 bytes each.
    """
    scores, ends, drawn = (each // rows.chunks for each in (rows.scores, rows.ends, rows.drawn))
    halves = scores + (ends + drawn) // 2 if config.product_precision == "bf16" else 0
    listed = scores // 2 if config.gradient == "sampled" else 0
    packed = ends + ends // rows.row * _EDGE
    return scores + halves + listed + packed + drawn // rows.row * _CANDIDATE


def _directions(config: ModelConfig, relation: RelationSchema) -> int:
    """Return the number of operators of an edge."""
    return 2 if config.has_two_operators(relation) else 1


def _operator_on_drawn(config: ModelConfig, relation: RelationSchema) -> bool:
    """Return whether operators work on negatives instead of on queries.

    They do so for the negatives of the right-hand side.
    """
    return relation.operator != "none" and not config.has_two_operators(relation)


def _sides_by_table(config: ModelConfig, relation: RelationSchema) -> tuple[int, ...]:
    """Return the number of sides for each buffer of gradients.

    There are fewer buffers where two tables are one.
    """
    if relation.lhs != relation.rhs:
        return (1, 1)
    return (2,) if config.entities[relation.lhs].num_partitions == 1 else (2, 1)


def _torch_step(size: TrainingSize, relation: RelationSchema) -> WorkerMemory:
    """Count the tensors of ``training.engine.step`` that exist at the same time.

    The time is that at which its second side's gradients are made.
    """
    config = size.config
    rows = _Rows(size, relation, config.num_batch_negs, config.num_uniform_negs)
    dimension = config.entity_dimension(relation.lhs)
    numbers, matrices = operator_size(relation.operator, dimension), relation.operator in _MATRICES
    prepared = facts_of(config.comparator).normalized or config.bias
    operator_rows = _OPERATOR_ROWS.get(relation.operator, _PLUGIN_ROWS)

    ends = 4.0 + 2 * (1 + prepared) + operator_rows
    if config.has_two_operators(relation):
        gathered = 0 if matrices else numbers / dimension
        ends += 2 * (1 + prepared) + 2 * gathered
    if config.has_self_negatives(relation):
        ends += 2.0 + (0 if config.has_two_operators(relation) else 2 * (1 + prepared) + operator_rows)
    drawn = 3.0 * prepared + (0 if config.has_two_operators(relation) else operator_rows)
    passing = sum(
        count * block * (1 if block > MAPPED else _KEPT)
        for count, block in ((ends, rows.ends), (drawn, rows.drawn), (2.7, rows.scores))
    )
    if matrices:
        present = min(size.relation_count, config.batch_size) if config.dynamic_relations else 1
        passing += _MATRIX_COPIES * present * numbers * FLOAT
    # The rows that both sides look up, and their gradients. The latter are in other buffers where both sides are one
    # table.
    buffers = 2 + (4 if _sides_by_table(config, relation) == (2, 1) else 2)
    return WorkerMemory(_WORKER + buffers * (rows.ends + rows.drawn), int(passing))


def held_out_batch(config: ModelConfig, batch_negs: int) -> int:
    """Return the number of held-out edges that are ranked at a time.

    Their scores must not take more memory than a step, however large its batch is. Chunks of batch negatives stay
    whole, because the edges of a cut one would be ranked among fewer negatives.

    Args:
        config: of the training.
        batch_negs: of an edge that is ranked.
    """
    chunk = max(batch_negs, 1)
    return min(config.batch_size, -(-_HELD_OUT // chunk) * chunk)


def _torch_ranking(size: TrainingSize, relation: RelationSchema) -> WorkerMemory:
    """Count the tensors of a batch of held-out edges.

    As in ``training.engine.held_out``, there are no gradients, and other negatives.
    """
    config = size.config
    batch_negs, uniform_negs = _negatives_of_ranking(config)
    edges = held_out_batch(config, batch_negs)
    ranked = config.model_copy(update={"batch_size": edges if config.eval_fraction else min(edges, size.ranked)})
    rows = _Rows(replace(size, config=ranked), relation, batch_negs, uniform_negs)
    passing = (2 * rows.ends + rows.drawn + 5 * rows.scores) * _KEPT
    return WorkerMemory(_WORKER + 2 * (rows.ends + rows.drawn), int(passing))


def _negatives_of_ranking(config: ModelConfig) -> tuple[int, int]:
    """Return batch and uniform negatives, as ``evaluation_config`` does."""
    trained = config.num_batch_negs, config.num_uniform_negs
    own = config.eval_num_batch_negs, config.eval_num_uniform_negs
    batch_negs, uniform_negs = (usual if chosen is None else chosen for chosen, usual in zip(own, trained, strict=True))
    return (batch_negs, uniform_negs) if batch_negs or uniform_negs else trained
