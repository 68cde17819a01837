"""Defaults of ``train``.

Types and relations are those of the edges, and the model is one that suits most graphs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pbg_tasks.config.presets import OPERATOR, PRESET, of_size, takes_self_negatives
from pbg_tasks.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

ONE_TYPE = "entity"
ONE_RELATION = "edge"


def model_keys(
    edges: pa.Table,
    relations: Sequence[str | Mapping[str, Any]] | None,
    entity_types: Sequence[str] | Mapping[str, Mapping[str, Any]] | None,
    operator: str | None,
) -> dict[str, Any]:
    """Return PBG's config keys for edges, without paths and dimension.

    Args:
        edges: result of ``edge_table``.
        relations: names, or PBG's keys of each; None takes those of the edges.
        entity_types: names, or PBG's keys of each.
        operator: of relations that do not name theirs.

    Raises:
        ConfigError: ``entity_types`` or ``relations`` do not fit the edges' columns.
    """
    pairs = _type_pairs(edges, entity_types)
    named = "rel" in edges.column_names
    usual = operator or (OPERATOR if named or relations else "none")
    keys: dict[str, Any] = PRESET | of_size(len(edges))
    if relations is not None:
        keys["relations"] = [_relation(relation, pairs, usual) for relation in relations]
    elif named and len(pairs) == 1:
        keys["relations"] = [_keys("all", *pairs[0], usual)]
        keys["dynamic_relations"] = True
    elif named:
        kinds = edges.select(["rel", "lhs_type", "rhs_type"]).group_by(["rel", "lhs_type", "rhs_type"]).aggregate([])
        triples = sorted((row["rel"], row["lhs_type"], row["rhs_type"]) for row in kinds.to_pylist())
        keys["relations"] = [_keys(name, lhs, rhs, usual) for name, lhs, rhs in triples]
    else:
        keys["relations"] = [_keys(ONE_RELATION, *pair, usual) for pair in pairs]
    keys["entities"] = _entities(entity_types, [name for pair in pairs for name in pair])
    if any(takes_self_negatives(relation, keys["entities"]) for relation in keys["relations"]):
        keys["self_negatives"] = True
    return keys


def _type_pairs(edges: pa.Table, entity_types: Any) -> list[tuple[str, str]]:  # noqa: ANN401 - as model_keys
    """Return the pairs of types that edges join, sorted."""
    if "lhs_type" in edges.column_names:
        kinds = edges.select(["lhs_type", "rhs_type"]).group_by(["lhs_type", "rhs_type"]).aggregate([])
        return sorted((row["lhs_type"], row["rhs_type"]) for row in kinds.to_pylist())
    names = list(entity_types or [ONE_TYPE])
    if len(names) > 2:  # noqa: PLR2004 - the two ends
        raise ConfigError(f"entity_types: {len(names)} types need the columns lhs_type and rhs_type to tell them apart")
    return [(names[0], names[-1])]


def _entities(entity_types: Any, used: list[str]) -> dict[str, Any]:  # noqa: ANN401 - as model_keys
    given = dict(entity_types) if hasattr(entity_types, "keys") else {name: {} for name in entity_types or ()}
    if given and (strangers := sorted(set(used) - set(given))):
        raise ConfigError(f"entity_types: the edges also have {', '.join(map(repr, strangers))}")
    return {name: {"num_partitions": 1, **given.get(name, {})} for name in given or sorted(set(used))}


def _relation(relation: str | Mapping[str, Any], pairs: list[tuple[str, str]], operator: str) -> dict[str, Any]:
    if not isinstance(relation, str) and {"lhs", "rhs"} <= relation.keys():
        return {"operator": operator, **relation}
    if len(pairs) != 1:
        raise ConfigError(
            f"relations: {relation!r} needs lhs and rhs, for the edges join several pairs of entity types"
        )
    keys = {"name": relation} if isinstance(relation, str) else relation
    return {**_keys("", *pairs[0], operator), **keys}


def _keys(name: str, lhs: str, rhs: str, operator: str) -> dict[str, Any]:
    return {"name": name, "lhs": lhs, "rhs": rhs, "operator": operator}
