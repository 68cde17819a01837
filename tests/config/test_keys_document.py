"""Pages of all keys, made from the models.

Those of a graph spec and of PBG's config have every key with the default in force, and a meaning for each.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import get_args

import pytest
import yaml
from pydantic import BaseModel

from pbg_tasks.config import GraphSpec, ModelConfig, reference, sinks, sources
from pbg_tasks.config.base import parse
from pbg_tasks.config.schema import ConfigSchema
from pbg_tasks.config.support import of_cpus
from tests.config.specs import SPEC as SHOP

REPOSITORY = Path(__file__).resolve().parents[2]
SPEC, CONFIG = GraphSpec.model_json_schema(), ConfigSchema.model_json_schema()
TITLES = {"EntitySchema": "An entity type", "RelationSchema": "A relation"}
SECTIONS = {"The spec": SPEC, "A config": CONFIG} | {
    TITLES.get(name, name): found
    for name, found in SPEC["$defs"].items()
    if "properties" in found and name != "ModelConfig"
}
OPTIONS = {
    model.__name__: model.model_json_schema()
    for model in (sinks.SinkOptions, *sinks.OPTIONS.values(), *sources.OPTIONS.values())
}
"""Options of sinks and of tables, which the spec's own model does not have."""
SECTIONS |= {name: found for name, found in OPTIONS.items() if found["properties"]}
MODELS = {"The spec": "GraphSpec", "A config": "ConfigSchema"} | {title: name for name, title in TITLES.items()}


@pytest.fixture(scope="module")
def tables():
    """Return the cells of each key, by section and key."""
    pytest.importorskip("mkdocs", reason="the site's tools are not installed")
    module = importlib.util.spec_from_file_location("site_pages", REPOSITORY / ".ci" / "site_pages.py")
    pages = importlib.util.module_from_spec(module)
    module.loader.exec_module(pages)
    found = {}
    for part in re.split(r"^## ", pages.spec_keys() + pages.pbg_keys(), flags=re.MULTILINE)[1:]:
        rows = [line.strip("| ").split(" | ") for line in part.splitlines() if re.match(r"\| \*?`", line)]
        found[part.splitlines()[0]] = {cells[0].strip("`*"): cells[1:] for cells in rows}
    return found


def test_every_key_is_listed_with_its_meaning(tables):
    assert tables.keys() == SECTIONS.keys()
    for name, section in SECTIONS.items():
        assert tables[name].keys() == section["properties"].keys()
        assert [key for key, cells in tables[name].items() if len(cells) != 3 or not cells[2].strip()] == [], name


def test_device_names_keys_kept_on_cpus():
    keys = {"gradient": "sampled", "mask_known_negatives": True, "embedding_precision": "bf16"}
    config = ModelConfig.model_construct(**keys)
    (device,) = reference.matching("train.device")
    assert [key for key in of_cpus(config, "native") if key not in device.meaning] == []


def test_command_prints_every_key_with_default():
    found = {key.path: key for key in reference.matching("")}
    assert {re.split(r"[.\[]", path)[0] for path in found} == set(SPEC["properties"])
    assert [key.path for key in found.values() if not key.meaning.strip()] == []
    assert found["gates.min_over_start.block"].default == "0.95"  # of this gate, not of any
    assert found["model.num_epochs"].default == "1"
    assert found["gates.min_common_edges"][1:3] == ("integer (above 0)", "100")
    assert [key.path for key in reference.matching("min_common_edges")] == ["gates.min_common_edges"]
    assert {key.path.partition(".")[0] for key in reference.matching("gates")} == {"gates"}
    assert reference.matching("gate") == []
    assert {key.path for key in reference.matching("exports.options")} >= {"exports[].options.collection"}
    assert [key.path for key in reference.matching("model.entities.num_partitions")] == [
        "model.entities.NAME.num_partitions"
    ]


def test_command_prints_default_of_nights():
    model = parse(GraphSpec, SHOP, source="g.yaml").model.model_dump()
    printed = {key.path.removeprefix("model."): key.default for key in reference.matching("model")}
    found = {name: yaml.safe_load(printed[name]) for name in model if printed[name] != "required"}
    assert found == {name: model[name] for name in found}
    assert (printed["workers"], printed["eval_fraction"]) == ("1", "0.0")


def test_schema_has_default_of_nights():
    model = parse(GraphSpec, SHOP, source="g.yaml").model
    found = reference.spec_schema()["$defs"]["ModelConfig"]["properties"]
    assert (found["workers"]["default"], found["eval_fraction"]["default"]) == (model.workers, model.eval_fraction)


def test_command_prints_keys_of_range():
    found = {key.path: key[1:3] for key in reference.matching("tune.space")}
    assert found["tune.space"] == ("by name: list of any or section", "required")
    assert found["tune.space.NAME.low"] == ("number", "required")
    assert found["tune.space.NAME.step"][1] == "null"


def test_every_key_is_listed_with_its_default(tables):
    def within(kind):
        """Return the models of a type by name."""
        model = isinstance(kind, type) and issubclass(kind, BaseModel)
        parts = [field.annotation for field in kind.model_fields.values()] if model else get_args(kind)
        found = {kind.__name__: kind} if model else {}
        return found | {name: each for part in parts for name, each in within(part).items()}

    options = (sinks.SinkOptions, *sinks.OPTIONS.values(), *sources.OPTIONS.values())
    found = {name: each for root in (GraphSpec, ConfigSchema, *options) for name, each in within(root).items()}
    for name in SECTIONS:
        for key, (_, printed, _) in tables[name].items():
            field = found[MODELS.get(name, name)].model_fields[key]
            if field.is_required():
                assert printed == "required"
            elif printed != "`{...}`":
                default = field.get_default(call_default_factory=True)
                expected = default.model_dump(exclude_none=True) if isinstance(default, BaseModel) else default
                value = printed[1:-1] if expected and isinstance(expected, str) else yaml.safe_load(printed[1:-1])
                assert value == (list(expected) if isinstance(expected, tuple) else expected), f"{name}.{key}"


def test_limits_of_numbers_are_listed(tables):
    assert tables["Launch"]["ranks"][0] == "integer (at least 1, at most 256)"
    assert tables["A config"]["lr_final"][0] == "number (at least 0, at most 1)"
    assert tables["Split"]["valid"][0] == "number (at least 0, below 0.5)"
