"""Overrides ``-p key.path=value`` of any key, name and value."""

from __future__ import annotations

import copy
import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pbg_tasks.config import ConfigSchema
from pbg_tasks.config.documents import parse_document
from pbg_tasks.config.overrides import find, override
from pbg_tasks.errors import ConfigError

DATA = {
    "entities": {"user": {"num_partitions": 1}, "my.type": {"num_partitions": 1}, "my.type.b": {"num_partitions": 1}},
    "relations": [{"name": "a", "lhs": "user", "rhs": "user"}, {"name": "b", "lhs": "user", "rhs": "user"}],
    "dimension": 8,
    "max_norm": 1.0,
    "edge_paths": ["x"],
}


def changed(*assignments, data=DATA):
    return override(data, assignments, source="a.json", schema=ConfigSchema)


@pytest.mark.parametrize(
    ("assignment", "path", "value"),
    [
        ("dimension=16", "dimension", 16),
        ("max_norm=null", "max_norm", None),
        ("max_norm=~", "max_norm", None),
        ("lr=1e-3", "lr", 0.001),
        ("bias=true", "bias", True),
        ("relations.0.all_negs=true", "relations.0.all_negs", True),
        ("relations.1.weight=2", "relations.1.weight", 2),
        ("entities.new.num_partitions=2", "entities.new.num_partitions", 2),
        ("entities.new={num_partitions: 2, featurized: true}", "entities.new.featurized", True),
        ("entities.my.type.num_partitions=4", 'entities."my.type".num_partitions', 4),
        ("entities.my.type.b.num_partitions=4", "entities.'my.type.b'.num_partitions", 4),
        ('entities."a=b.c".num_partitions=4', 'entities."a=b.c".num_partitions', 4),
        ("entity_path=s3://b/x?a=b=c", "entity_path", "s3://b/x?a=b=c"),
        ("entity_path=2024", "entity_path", "2024"),
        ("entity_path=x # y: z", "entity_path", "x # y: z"),
        ("entity_path=", "entity_path", ""),
        ("entity_path='null'", "entity_path", "null"),
        ("init_path=null", "init_path", None),
        ("edge_paths=a,b", "edge_paths", ["a", "b"]),
        ("edge_paths=a=1", "edge_paths", ["a=1"]),
        ("edge_paths=['a,b', c]", "edge_paths", ["a,b", "c"]),
        ("edge_paths=", "edge_paths", []),
        ("edge_paths.0=y", "edge_paths.0", "y"),
        ("bucket_order=RANDOM", "bucket_order", "RANDOM"),
    ],
)
def test_values_are_parsed_as_yaml(assignment, path, value):
    assert find(changed(assignment), path, source="a.json", schema=ConfigSchema) == value


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("dimension", "is not of the form key.path=value"),
        ("=3", "character 1"),
        ("a..b=3", "character 3"),
        ("entities.=3", "character 10"),
        ('entities."a=3', "character 10"),
        ("dimension=", "has no value; null is written null"),
        ("dimension=[1", "not valid YAML"),
        ("dimension={a: 1, a: 2}", "key 'a' appears twice"),
        ("dimension.x=3", "'x' leads nowhere, what is before it holds 8"),
        ("relations.2.weight=3", "'2' is no index of a list of 2, counted from 0"),
        ("relations.-1.weight=3", "'-1' is no index"),
        ("relations.name=3", "'name' is no index"),
    ],
)
def test_assignments_that_lead_nowhere_are_refused(assignment, expected):
    with pytest.raises(ConfigError) as caught:
        changed(assignment)
    assert str(caught.value).startswith(f"a.json: override {assignment!r}")
    assert expected in str(caught.value)


def test_index_of_5000_digits_is_refused():
    with pytest.raises(ConfigError, match=r"^a\.json: override 'relations\.9{999}.*9' is no index of a list of 2"):
        changed(f"relations.{'9' * 5000}=3")  # more digits than Python turns into a number


def test_original_document_is_not_changed():
    before = copy.deepcopy(DATA)
    changed("entities.new.num_partitions=9", "entities.new.num_partitions=8")
    changed("entities.user.num_partitions=9", "relations.0.name=z", "edge_paths.0=q")
    assert before == DATA


def test_one_of_two_aliased_values_is_changed():
    text = b"entities: {a: &entity {num_partitions: 1}, b: *entity}"
    data = parse_document(text, source="a.yaml")
    assert changed("entities.a.num_partitions=2", data=data)["entities"]["b"] == {"num_partitions": 1}


def test_last_of_several_overrides_counts():
    assert changed("dimension=1", "dimension=2")["dimension"] == 2


def test_missing_key_is_named_with_the_nearest():
    with pytest.raises(ConfigError, match=r"there is no 'usr'; did you mean 'user'\?"):
        find(DATA, "entities.usr", source="a.json", schema=ConfigSchema)
    with pytest.raises(ConfigError, match="there is no 'zzz'; there are entities, relations"):
        find(DATA, "zzz", source="a.json", schema=ConfigSchema)
    with pytest.raises(ConfigError, match=r"not of the form key\.path"):
        find(DATA, "dimension=3", source="a.json", schema=ConfigSchema)


names = st.text(min_size=1).filter(lambda name: '"' not in name)
texts = st.text().filter(lambda text: text.strip() not in {"null", "Null", "NULL", "~"} and text[:1] not in {"'", '"'})


@given(names, st.integers())
def test_any_name_in_quotes_is_one_key(name, count):
    expected = copy.deepcopy(DATA)
    expected["entities"].setdefault(name, {})["num_partitions"] = count
    assert changed(f'entities."{name}".num_partitions={count}') == expected


@given(texts)
def test_text_is_taken_literally(text):
    assert changed(f"entity_path={text}")["entity_path"] == text


# YAML does not put the halves of an escaped code point above U+FFFF together.
@given(st.lists(st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"]))))
def test_any_list_of_texts_is_valid_json(values):
    assert changed(f"edge_paths={json.dumps(values)}")["edge_paths"] == values


@given(st.none() | st.integers() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False))
def test_any_scalar_can_be_written(value):
    assert changed(f"max_norm={json.dumps(value)}")["max_norm"] == value


@given(st.text())
def test_any_assignment_fails_with_config_error_only(text):
    with suppress(ConfigError):
        assert set(changed(text)) >= set(DATA)
