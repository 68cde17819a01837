"""Scores by the formulas alone, in float64, one edge at a time."""

from __future__ import annotations

import numpy as np


def apply(operator, x, param):
    """Apply a relation's operator to an embedding; ``param`` returns parameters by name."""
    if operator == "none":
        return x
    if operator == "translation":
        return x + param("translation")
    if operator == "diagonal":
        return x * param("diagonal")
    if operator == "linear":
        return param("linear_transformation") @ x
    if operator == "affine":
        return param("linear_transformation") @ x + param("translation")
    half = len(x) // 2
    turned = (x[:half] + 1j * x[half:]) * (param("real") + 1j * param("imag"))
    return np.concatenate((turned.real, turned.imag))


def compare(comparator, a, b):
    if comparator == "dot":
        return a @ b
    if comparator == "cos":
        return a @ b / np.linalg.norm(a) / np.linalg.norm(b)
    squared = ((a - b) ** 2).sum()
    return -squared if comparator == "squared_l2" else -np.sqrt(squared)


def score(data, lhs, rel, rhs, predict="rhs"):
    """Score an edge of ``conftest.Trained``; entities by number, the relation by id."""
    config = data.config
    index = 0 if config.relations_from_data else rel
    relation = config.relations[index]
    x = data.vectors[relation.lhs][lhs].astype(float)
    y = data.vectors[relation.rhs][rhs].astype(float)
    if config.global_emb:
        x = x + data.params[f"entities/{relation.lhs}/global_embedding"]
        y = y + data.params[f"entities/{relation.rhs}/global_embedding"]
    if config.dynamic_relations:
        side = "lhs" if predict == "rhs" else "rhs"
        plural = {"translation": "translations", "diagonal": "diagonals"}
        plural["linear_transformation"] = "linear_transformations"

        def param(name):
            return data.params[f"relations/0/operator/{side}/{plural.get(name, name)}"][rel].astype(float)

        if side == "lhs":
            x = apply(relation.operator, x, param)
        else:
            y = apply(relation.operator, y, param)
    else:
        y = apply(
            relation.operator, y, lambda name: data.params[f"relations/{index}/operator/rhs/{name}"].astype(float)
        )
    bias = 0.0
    if config.bias:
        bias, x, y = x[0] + y[0], x[1:], y[1:]
    return compare(config.comparator, x, y) + bias
