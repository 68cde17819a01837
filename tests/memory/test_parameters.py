from __future__ import annotations

import pytest

from pbg_tasks.config import ModelConfig
from pbg_tasks.config.base import parse
from pbg_tasks.config.registry import OPERATORS
from pbg_tasks.memory.parameters import parameter_count
from pbg_tasks.model.stored_parameters import initial_parameters


@pytest.mark.parametrize("operator", OPERATORS.built_in)
@pytest.mark.parametrize(("dynamic", "listed", "relations"), [(True, 1, 7), (True, 3, 3), (False, 3, 3)])
def test_count_of_parameters_is_right(operator, dynamic, listed, relations):
    model = {
        "entities": {"n": {"num_partitions": 1}, "m": {"num_partitions": 1}},
        "relations": [{"name": f"r{i}", "lhs": "n", "rhs": "m", "operator": operator} for i in range(listed)],
        "dimension": 6,
        "dynamic_relations": dynamic,
        "global_emb": not dynamic,
    }
    config = parse(ModelConfig, model, source="test")
    made = initial_parameters(config, relations)
    assert parameter_count(config, relations) == sum(value.size for value in made.values())
