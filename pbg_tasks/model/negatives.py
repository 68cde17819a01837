"""Negatives of a batch: entities for comparison (PBG's prepare_negatives).

A batch of B edges is cut into C chunks of S, the last one padded. The negatives of an edge on one side are the entities
of the other edges of its chunk on that side, and U entities drawn uniformly, once a chunk; or only the drawn ones; or
all entities of the partition. With ``negatives_by_degree``, which PBG lacks, entities with many edges are drawn more
often.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from pbg_tasks.config import ModelConfig, RelationSchema
    from pbg_tasks.model.parameters import Side

MASKED = -1e9
Kind = Literal["batch_uniform", "uniform", "all"]


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """Division of a batch into chunks.

    Attributes:
        kind: source of the negatives.
        edges: B.
        size: S.
        chunks: C.
        uniform: U, entities drawn a chunk.
    """

    kind: Kind
    edges: int
    size: int
    chunks: int
    uniform: int

    @property
    def padding(self) -> int:
        """Number of rows of the last chunk that are no edges."""
        return self.chunks * self.size - self.edges

    def chunked(self, x_BD: Tensor) -> Tensor:
        """Return (B, D) as (C, S, D), padded with zero rows."""
        if self.padding:
            x_BD = torch.cat((x_BD, x_BD.new_zeros(self.padding, x_BD.shape[1])))
        return x_BD.view(self.chunks, self.size, -1)

    def flat(self, x_CSD: Tensor) -> Tensor:
        """Return (C, S, ...) as (B, ...), without the padding.

        It shares the memory of its argument if that is contiguous.
        """
        return x_CSD.reshape(self.chunks * self.size, *x_CSD.shape[2:])[: self.edges]


def chunk_plan(config: ModelConfig, relation: RelationSchema, edges: int) -> ChunkPlan:
    """Divide a batch of ``edges`` edges into chunks."""
    if relation.all_negs:
        return ChunkPlan("all", edges, edges, 1, 0)
    uniform = config.num_uniform_negs
    if config.num_batch_negs == 0:
        size = min(uniform, edges)
        return ChunkPlan("uniform", edges, size, -(-edges // size), uniform)
    size = min(config.num_batch_negs, edges)
    return ChunkPlan("batch_uniform", edges, size, -(-edges // size), uniform)


def mask_own(score_CSS: Tensor, plan: ChunkPlan) -> None:
    """Mask each edge's own entity and the padding, in place.

    The scores are those with the chunk's own entities.
    """
    score_CSS.diagonal(dim1=1, dim2=2).fill_(MASKED)
    if plan.padding:
        score_CSS[-1, :, plan.size - plan.padding :].fill_(MASKED)


def mask_true(score_BK: Tensor, true_B: Tensor) -> None:
    """Mask each edge's true entity in scores with all entities, in place."""
    score_BK.scatter_(1, true_B.unsqueeze(1), MASKED)


class NegativeSampler(Protocol):
    """Sampler of entities with which edges are compared.

    Attributes:
        generator: the stream of draws, on the device of the drawn numbers.
    """

    generator: torch.Generator

    def draw(self, chunks: int, negatives: int, entities: int, side: Side, entity: str) -> Tensor:
        """Return int64 (chunks, negatives) offsets of entities.

        Args:
            chunks: of the batch.
            negatives: number for each chunk.
            entities: size of the side's partition of the type.
            side: of the edges.
            entity: the type.
        """
        ...

    def key(self) -> int:
        """Return a random number below 2^63 for other draws of a batch."""
        ...


class _Sampler:
    """Sampler with a stream of draws."""

    generator: torch.Generator

    def key(self) -> int:
        """Return a random number below 2^63 for other draws of a batch."""
        return int(torch.randint(2**63 - 1, (), generator=self.generator))


class UniformSampler(_Sampler):
    """Sampler that draws entities of a partition uniformly, with replacement.

    Args:
        generator: the stream of draws.
    """

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def draw(self, chunks: int, negatives: int, entities: int, side: Side, entity: str) -> Tensor:
        """Return int64 (chunks, negatives) offsets below ``entities``."""
        del side, entity
        generator = self.generator
        return torch.randint(entities, (chunks, negatives), generator=generator, device=generator.device)


class ShareSampler(_Sampler):
    """Sampler that draws entities of a partition by chances, with replacement.

    Args:
        generator: the stream of draws.
        shares: float64 (N,), chances summed up to each entity, by side and entity type; on the generator's device.
    """

    def __init__(self, generator: torch.Generator, shares: Mapping[tuple[Side, str], Tensor]) -> None:
        self.generator, self._shares = generator, shares

    def draw(self, chunks: int, negatives: int, entities: int, side: Side, entity: str) -> Tensor:
        """Return int64 (chunks, negatives) offsets below ``entities``."""
        del entities
        device = self.generator.device
        chosen = torch.rand((chunks, negatives), generator=self.generator, dtype=torch.float64, device=device)
        return torch.searchsorted(self._shares[side, entity], chosen, right=True)


def draw_negatives(
    config: ModelConfig,
    relation: RelationSchema,
    plan: ChunkPlan,
    entities: Mapping[Side, int],
    sampler: NegativeSampler,
) -> dict[Side, Tensor]:
    """Draw the candidates of each side, left first, as PBG does.

    Bags of features cannot be drawn.

    Args:
        config: the model.
        relation: of the batch.
        plan: division of the batch.
        entities: number of entities in each side's table.
        sampler: draws them.

    Returns:
        int64 (C * U,) offsets by side, all of them (n,) with ``all_negs``; a side may have none.
    """
    drawn: dict[Side, Tensor] = {}
    sides: tuple[tuple[Side, str, bool], ...] = (
        ("lhs", relation.lhs, config.disable_lhs_negs),
        ("rhs", relation.rhs, config.disable_rhs_negs),
    )
    for side, entity, disabled in sides:
        if disabled or config.entities[entity].featurized:
            continue
        if plan.kind == "all":
            drawn[side] = torch.arange(entities[side], device=sampler.generator.device)
        elif plan.uniform:
            drawn[side] = sampler.draw(plan.chunks, plan.uniform, entities[side], side, entity).view(-1)
    return drawn
