"""Configs of models with one entity type."""

from __future__ import annotations

from pbg_tasks.config import ModelConfig


def one_type(*relations, **keys):
    """Return a config of the type ``e`` and some relations.

    Without any it is ``r``; each needs only the keys in which it differs from that. Dynamic relations go without global
    embeddings.
    """
    ends = {"name": "r", "lhs": "e", "rhs": "e"}
    settings = {
        "entities": {"e": {"num_partitions": 1}},
        "relations": [ends | each for each in relations or ({},)],
        "dimension": 4,
        "global_emb": not keys.get("dynamic_relations", False),
    }
    return ModelConfig.model_validate(settings | keys)
