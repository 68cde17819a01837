"""Keys of the schema with PBG's name, type, default and nullability.

Contradictory keys are refused, naming them.
"""

from __future__ import annotations

import pytest

from pbg_tasks.config import ConfigSchema, EntitySchema, ModelConfig, RelationSchema
from pbg_tasks.config.base import parse
from pbg_tasks.config.schema import ENTITY_EXTENSIONS, EXTENSIONS, RELATION_EXTENSIONS
from pbg_tasks.config.support import check_imported, check_nightly
from pbg_tasks.errors import ConfigError

REQUIRED = object()
# Name, type ("?" for nullable), default.
ENTITY = [("num_partitions", "int", REQUIRED), ("featurized", "bool", False), ("dimension", "?int", None)]
RELATION = [
    ("name", "str", REQUIRED),
    ("lhs", "str", REQUIRED),
    ("rhs", "str", REQUIRED),
    ("weight", "float", 1.0),
    ("operator", "str", "none"),
    ("all_negs", "bool", False),
]
CONFIG = [
    ("dimension", "int", REQUIRED),
    ("init_scale", "float", 1e-3),
    ("max_norm", "?float", None),
    ("global_emb", "bool", True),
    ("comparator", "str", "cos"),
    ("bias", "bool", False),
    ("loss_fn", "str", "ranking"),
    ("margin", "float", 0.1),
    ("regularization_coef", "float", 0),
    ("regularizer", "str", "N3"),
    ("entity_path", "str", REQUIRED),
    ("edge_paths", "[str]", REQUIRED),
    ("checkpoint_path", "str", REQUIRED),
    ("init_path", "?str", None),
    ("checkpoint_preservation_interval", "?int", None),
    ("num_epochs", "int", 1),
    ("num_edge_chunks", "?int", None),
    ("max_edges_per_chunk", "int", 1_000_000_000),
    ("bucket_order", "str", "inside_out"),
    ("workers", "?int", None),
    ("batch_size", "int", 1000),
    ("num_batch_negs", "int", 50),
    ("num_uniform_negs", "int", 50),
    ("disable_lhs_negs", "bool", False),
    ("disable_rhs_negs", "bool", False),
    ("lr", "float", 1e-2),
    ("relation_lr", "?float", None),
    ("eval_fraction", "float", 0.05),
    ("eval_num_batch_negs", "?int", 1000),
    ("eval_num_uniform_negs", "?int", 1000),
    ("background_io", "bool", False),
    ("verbose", "int", 0),
    ("hogwild_delay", "float", 2),
    ("dynamic_relations", "bool", False),
    ("num_machines", "int", 1),
    ("num_partition_servers", "int", -1),
    ("distributed_init_method", "?str", None),
    ("distributed_tree_init_order", "bool", True),
    ("num_gpus", "int", 0),
    ("num_groups_for_partition_server", "int", 16),
    ("num_groups_per_sharded_partition_server", "int", 1),
    ("partition_shard_size", "int", 250),
    ("half_precision", "bool", False),
]
TABLE = [
    (schema, *row)
    for schema, rows in ((EntitySchema, ENTITY), (RelationSchema, RELATION), (ConfigSchema, CONFIG))
    for row in rows
]
FITTING = {"int": 1, "float": 0.5, "bool": False, "str": "a", "[str]": ["a"]}
WRONG = {
    "int": [1.0, "1", True, [1]],
    "float": ["0.5", True, float("nan"), float("inf")],
    "bool": [2, "maybe", 0.5],
    "str": [1, ["a"], True],
    "[str]": ["a", [1], {"a": 1}],
}


def config(**changes):
    plain = {
        "entities": {"user": {"num_partitions": 1}},
        "relations": [{"name": "knows", "lhs": "user", "rhs": "user"}],
        "dimension": 8,
        "entity_path": "e",
        "edge_paths": ["d"],
        "checkpoint_path": "c",
    }
    return plain | changes


def placed(schema, key, value):
    """Return a whole config with a value at a key.

    The key is of one of the three schemas.
    """
    whole = config(num_batch_negs=1)
    if key == "num_partition_servers":
        whole |= {"num_machines": 2, "distributed_init_method": "file:///shared"}
    if schema is EntitySchema:
        whole["entities"]["user"][key] = value
    elif schema is RelationSchema:
        whole["relations"][0][key] = value
    else:
        whole[key] = value
    return whole


def test_schema_has_no_other_keys():
    assert {row[0] for row in ENTITY} == set(EntitySchema.model_fields) - set(ENTITY_EXTENSIONS)
    assert {row[0] for row in RELATION} == set(RelationSchema.model_fields) - set(RELATION_EXTENSIONS)
    assert {row[0] for row in CONFIG} | {"entities", "relations"} == set(ConfigSchema.model_fields) - set(EXTENSIONS)


@pytest.mark.parametrize(
    ("schema", "key", "kind", "default"), TABLE, ids=lambda value: getattr(value, "__name__", None)
)
def test_each_key_has_pbgs_type_and_default(schema, key, kind, default):
    field = schema.model_fields[key]
    assert field.is_required() == (default is REQUIRED)
    if default is not REQUIRED:
        assert field.default == default
        assert type(field.default) in {type(default), *([float] if kind.endswith("float") else [])}
    nullable, kind = kind.startswith("?"), kind.removeprefix("?")
    for value in [*WRONG[kind], *([] if nullable else [None])]:
        with pytest.raises(ConfigError, match=key):
            parse(ConfigSchema, placed(schema, key, value), source="a.json")
    accepted = [FITTING[kind]] if kind != "str" else []  # names must be known: the tests of their classes check that
    for value in [*accepted, *([None] if nullable else [])]:
        parse(ConfigSchema, placed(schema, key, value), source="a.json")


@pytest.mark.parametrize("text", ["1", "y", "Yes", "TRUE", "on", 1, True])
def test_true_is_accepted_as_by_pbg(text):
    assert parse(ConfigSchema, config(bias=text), source="a.json").bias is True


@pytest.mark.parametrize("text", ["0", "n", "No", "FALSE", "off", 0, False])
def test_false_is_accepted_as_by_pbg(text):
    assert parse(ConfigSchema, config(global_emb=text), source="a.json").global_emb is False


def test_integer_serves_as_a_float():
    assert parse(ConfigSchema, config(lr=1), source="a.json").lr == 1.0


@pytest.mark.parametrize("name", ["user", "Ünïcode", "a.b", "with space", "x" * 200, "a:b", "-"])
def test_names_of_entity_types_are_checked(name):
    relations = [{"name": "knows", "lhs": name, "rhs": name}]
    given = config(entities={name: {"num_partitions": 1}}, relations=relations, global_emb=False)
    assert list(parse(ConfigSchema, given, source="a.json").entities) == [name]


@pytest.mark.parametrize("name", ["", "a/b", "a\\b", "a\nb", "a\0b", " a", "a ", "é" * 101, "\ud800"])
def test_names_impossible_for_files_are_refused(name):
    relations = [{"name": "knows", "lhs": name, "rhs": name}]
    with pytest.raises(ConfigError, match="cannot name an entity type"):
        parse(ConfigSchema, config(entities={name: {"num_partitions": 1}}, relations=relations), source="a.json")


def edge(lhs, rhs, **keys):
    return {"name": "knows", "lhs": lhs, "rhs": rhs} | keys


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"entities": {"a": {"num_partitions": 2}, "b": {"num_partitions": 3}},
             "relations": [edge("a", "a"), edge("b", "a")]},
            "lhs need the same num_partitions, got a=2, b=3",
        ),
        ({"relations": [edge("user", "user")] * 2}, "relation 'knows' from 'user' to 'user' repeats"),
        ({"relations": [edge("user", "item")]}, "entity type 'item' is not one of entities (user)"),
        ({"entities": {"user": {"num_partitions": 1}, "b": {"num_partitions": 1, "dimension": 4}},
          "relations": [edge("user", "b")]}, "'user' and 'b' differ in dimension"),
        ({"dimension": 7, "relations": [edge("user", "user", operator="complex_diagonal")]},
         "needs an even dimension, got 7"),
        ({"eval_fraction": 1}, "eval_fraction: Input should be less than 1"),
        ({"batch_size": 75}, "batch_size (75) must be a multiple of num_batch_negs (50)"),
        ({"disable_lhs_negs": True, "disable_rhs_negs": True},
         "disable_lhs_negs and disable_rhs_negs cannot both be true"),
        ({"num_batch_negs": 0, "num_uniform_negs": 0}, "num_batch_negs and num_uniform_negs cannot both be 0"),
        ({"eval_num_batch_negs": 0, "eval_num_uniform_negs": 0},
         "eval_num_batch_negs and eval_num_uniform_negs cannot both be 0"),
        ({"dynamic_relations": True}, "global_emb cannot be used with dynamic_relations"),
        ({"checkpoint_preservation_interval": 0}, "checkpoint_preservation_interval: Input should be greater than 0"),
        ({"num_partition_servers": 2}, "num_partition_servers > 0 needs num_machines > 1"),
        ({"num_machines": 2}, "num_machines > 1 needs distributed_init_method"),
        ({"num_gpus": 2, "num_machines": 2, "distributed_init_method": "env://"}, "num_gpus > 1 is for one process"),
        ({"half_precision": True}, "half_precision needs num_gpus > 0"),
        ({"half_precision": True, "num_gpus": 1, "precision": "tf32"}, "half_precision means precision: bf16"),
        ({"precision": "bf16", "comparator": "l2"}, "precision: bf16 (or half_precision) needs comparator dot or cos"),
        ({"half_precision": True, "num_gpus": 1}, "half_precision needs multiples of 8, but num_batch_negs is 50"),
        ({"bias": True, "dimension": 1}, "dimension must be at least 2"),
        ({"entities": {"a.b": {"num_partitions": 1}}, "relations": [edge("a.b", "a.b")]}, "set global_emb: false"),
        ({"bucket_order": "sideways"}, "bucket_order"),
        ({"comparator": "DOT"}, "comparator"),
        ({"margin": float("nan")}, "margin"),
        ({"verbose": -1}, "verbose"),
        ({"entities": {}}, "entities"),
        ({"relations": []}, "relations"),
        ({"num_epoch": 1}, "unknown key 'num_epoch'; did you mean 'num_epochs'?"),
        ({"engine": "native"}, "unknown key 'engine'; it is --engine of pbg train, and train.engine of a graph spec"),
        ({"device": "cuda"}, "train.device of a graph spec; num_gpus: 1 means cuda"),
    ],
)  # fmt: skip
def test_contradictions_that_pbg_accepts_are_refused(changes, expected):
    with pytest.raises(ConfigError) as caught:
        parse(ConfigSchema, config(**changes), source="a.json")
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"eval_num_batch_negs": 0},
        {"eval_num_uniform_negs": 0},
        {"eval_num_batch_negs": None, "eval_num_uniform_negs": None},
        {"eval_num_batch_negs": 0, "eval_num_uniform_negs": 0, "eval_fraction": 0},
        {"num_batch_negs": 0},
        {"num_batch_negs": 0, "num_uniform_negs": 0, "relations": [edge("user", "user", all_negs=True)]},
        {"edge_paths": []},
        {"relations": [edge("user", "user"), edge("user", "user", name="likes")]},
        {"bucket_order": "OUTSIDE_IN"},
    ],
)
def test_only_apparent_contradiction_is_accepted(changes):
    parse(ConfigSchema, config(**changes), source="a.json")


def test_all_mistakes_are_named_together():
    with pytest.raises(ConfigError) as caught:
        parse(ConfigSchema, config(disable_lhs_negs=True, disable_rhs_negs=True, batch_size=75), source="a.json")
    assert "disable_rhs_negs" in str(caught.value)
    assert "batch_size" in str(caught.value)


def test_weights_of_sides_unset_are_in_no_dump():
    """PBG refuses unknown keys, and ids of runs are hashes."""
    keys = {
        "entities": {"a": {"num_partitions": 1}},
        "relations": [{"name": "r", "lhs": "a", "rhs": "a"}, {"name": "s", "lhs": "a", "rhs": "a", "rhs_weight": 0.5}],
        "dimension": 4,
    }
    plain, weighted = parse(ModelConfig, keys, source="here").model_dump(mode="json")["relations"]
    assert not {"lhs_weight", "rhs_weight"} & plain.keys()
    assert weighted["rhs_weight"] == 0.5
    assert "lhs_weight" not in weighted


@pytest.mark.parametrize("weight", [0.0, -1.0])
def test_weights_of_sides_are_above_zero(weight):
    keys = {
        "entities": {"a": {"num_partitions": 1}},
        "relations": [{"name": "r", "lhs": "a", "rhs": "a", "lhs_weight": weight}],
        "dimension": 4,
    }
    with pytest.raises(ConfigError, match=r"relations\.0\.lhs_weight: Input should be greater than 0"):
        parse(ModelConfig, keys, source="here")


@pytest.mark.parametrize("check", [check_imported, check_nightly])
@pytest.mark.parametrize(
    ("types", "partitions", "fault"),
    [(257, 1, r"entities: 257 types \(at most 256"), (1, 65537, r"t0\.num_partitions: 65537 \(at most 65536")],
)
def test_ends_without_room_are_refused(check, types, partitions, fault):
    names = [f"t{number}" for number in range(types)]
    relations = [{"name": name, "lhs": name, "rhs": names[0]} for name in names]
    fields = {"dimension": 4, "entities": {name: {"num_partitions": partitions} for name in names}}
    with pytest.raises(ConfigError, match=fault):
        check(ModelConfig(**fields, relations=relations), source="spec")
    fields["entities"] = {name: {"num_partitions": 65536} for name in names[:256]}
    check(ModelConfig(**fields, relations=relations[:256]), source="spec")
