"""Samplers of negatives by degree (``negatives_by_degree``).

The degree of an entity is the number of the bucket's edges that end at it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from pbg_tasks.model.negatives import ShareSampler, UniformSampler
from pbg_tasks.model.parameters import SIDES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence, Sized

    from torch import Tensor

    from pbg_tasks.config import ModelConfig
    from pbg_tasks.formats.edges import EdgeList
    from pbg_tasks.model.families import Families
    from pbg_tasks.model.negatives import NegativeSampler
    from pbg_tasks.model.parameters import Side


def bucket_samplers(
    config: ModelConfig,
    families: Families,
    generators: Sequence[torch.Generator],
    edges: EdgeList,
    tables: Mapping[Side, Mapping[str, Sized]],
) -> Sequence[NegativeSampler]:
    """Return a sampler of the bucket's negatives for each generator.

    See ``degree_shares``. All generators are on one device.
    """
    if not config.negatives_by_degree:
        return [UniformSampler(generator) for generator in generators]
    shares = degree_shares(config, families, edges, tables)
    there = {key: of_type.to(generators[0].device) for key, of_type in shares.items()}
    return [ShareSampler(generator, there) for generator in generators]


def degree_shares(
    config: ModelConfig, families: Families, edges: EdgeList, tables: Mapping[Side, Mapping[str, Sized]]
) -> dict[tuple[Side, str], Tensor]:
    """Return cumulative chances of the entities of a bucket's partitions.

    An entity's chance is proportional to (1 + d)^a, where d is the number of the bucket's edges that end at it on that
    side and a is ``negatives_by_degree``. The 1 leaves a chance to entities without such an edge.

    Args:
        config: the model.
        families: families of the relations.
        edges: edges of the bucket.
        tables: tables of each side by entity type.

    Returns:
        float64 (N,) by side and entity type, ascending to 1; featurized types have none.
    """
    shares: dict[tuple[Side, str], Tensor] = {}
    first = families.first[edges.rel]
    for side in SIDES:
        types = np.array([getattr(relation, side) for relation in config.relations])
        for entity in sorted(set(types.tolist())):
            count = len(tables[side][entity])
            if config.entities[entity].featurized or not count:
                continue
            degrees = np.bincount(getattr(edges, side)[(types == entity)[first]], minlength=count)
            summed = np.cumsum((1.0 + degrees) ** config.negatives_by_degree)
            shares[side, entity] = torch.from_numpy(summed / summed[-1])
    return shares
