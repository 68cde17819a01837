"""PBG's text of relation parameters, compared line by line."""

from __future__ import annotations

import io

import numpy as np
import pytest

from pbg_tasks.config import ConfigSchema
from pbg_tasks.errors import FormatError
from pbg_tasks.model.stored_parameters import initial_parameters
from pbg_tasks.publish import tsv

DIMENSION = 4
MATRIX = DIMENSION * DIMENSION


def config_of(operators, *, dynamic):
    return ConfigSchema(
        entities={"n": {"num_partitions": 1}},
        relations=[
            {"name": f"r{i}", "lhs": "n", "rhs": "n", "operator": operator} for i, operator in enumerate(operators)
        ],
        dynamic_relations=dynamic,
        global_emb=False,
        dimension=DIMENSION,
        entity_path="e",
        edge_paths=["edges"],
        checkpoint_path="c",
    )


def numbered(config, count):
    """Return parameters whose numbers all differ."""
    rng = np.random.default_rng(0)
    start = initial_parameters(config, count)
    return {path: rng.normal(size=value.shape).astype(np.float32) for path, value in start.items()}


def written(config, names, params):
    out = io.BytesIO()
    count = tsv.write_relations_tsv(out, config, names, params)
    lines = out.getvalue().decode().splitlines()
    assert count == len(lines)
    return lines


def line(name, side, operator, parameter, value):
    shape = "x".join(map(str, value.shape))
    return "\t".join([name, side, operator, parameter, shape, *(f"{number:.9f}" for number in value.ravel().tolist())])


@pytest.mark.parametrize("numbers", [1, 3 * MATRIX, 1 << 16])
def test_listed_relations_of_several_operators(numbers, monkeypatch):
    monkeypatch.setattr(tsv, "_BLOCK_NUMBERS", numbers)
    operators = ["affine", "none", "diagonal", "translation", "affine"]
    config = config_of(operators, dynamic=False)
    params = numbered(config, len(operators))
    of = {
        "affine": ("linear_transformation", "translation"),
        "diagonal": ("diagonal",),
        "translation": ("translation",),
    }
    assert written(config, [f"r{i}" for i in range(5)], params) == [
        line(f"r{i}", "rhs", operator, name, params[f"relations/{i}/operator/rhs/{name}"])
        for i, operator in enumerate(operators)
        for name in of.get(operator, ())
    ]


@pytest.mark.parametrize("numbers", [1, 3 * DIMENSION, 1 << 16])
def test_relations_of_the_data_have_two_operators_each(numbers, monkeypatch):
    monkeypatch.setattr(tsv, "_BLOCK_NUMBERS", numbers)
    config, names = config_of(["complex_diagonal"], dynamic=True), [f"é{i}" for i in range(7)]
    params = numbered(config, len(names))
    assert written(config, names, params) == [
        line(name, side, "complex_diagonal", part, params[f"relations/0/operator/{side}/{part}"][row])
        for row, name in enumerate(names)
        for side in ("lhs", "rhs")
        for part in ("real", "imag")
    ]


@pytest.mark.parametrize("name", ["a\tb", "a\nb", "a\rb", "\ud800"])
def test_name_that_no_line_can_hold_is_refused(name):
    config = config_of(["diagonal"], dynamic=True)
    with pytest.raises(FormatError, match=r"which (this text format cannot|no text file can) hold"):
        written(config, ["good", name], numbered(config, 2))
