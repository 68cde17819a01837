"""Counts and names: PBG's bytes, and refusals."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbg_tasks.errors import FormatError
from pbg_tasks.formats import entities
from pbg_tasks.formats.arrow_numbers import text_column


def test_file_names_are_pbgs():
    assert entities.entity_count_file_name("user", 3) == "entity_count_user_3.txt"
    assert entities.entity_names_file_name("user", 3) == "entity_names_user_3.json"
    assert (entities.RELATION_NAMES, entities.RELATION_COUNT) == ("dynamic_rel_names.json", "dynamic_rel_count.txt")


@settings(deadline=None)
@given(
    columns=st.lists(st.lists(st.text(st.characters(codec="utf-8")) | st.text(st.characters(codec="ascii")))),
    kind=st.sampled_from([pa.string(), pa.large_string()]),
    start=st.integers(0, 2),
)
def test_columns_have_the_bytes_of_json_dump(columns, kind, start):
    arrays = [pa.array(column, kind)[start:] for column in columns]
    names = [name for column in columns for name in column[start:]]
    with tempfile.TemporaryDirectory() as name:
        assert entities.write_entity_columns(Path(name), "user", 0, iter(arrays)) == len(names)
        written = (Path(name) / "entity_names_user_0.json").read_text(encoding="utf-8")
        assert written == json.dumps(names, indent=4)
        assert entities.read_entity_names(Path(name), "user", 0, count=len(names)) == names


@pytest.mark.parametrize("character", map(chr, range(129)))
def test_a_column_escapes_what_json_does(tmp_path, character):
    names = ["plain", f"a{character}b"]
    entities.write_entity_columns(tmp_path, "user", 0, [pa.array(names)])
    assert (tmp_path / "entity_names_user_0.json").read_text(encoding="ascii") == json.dumps(names, indent=4)


@pytest.mark.parametrize("count", [0, 1, 10**12])
def test_count_round_trip(tmp_path, count):
    entities.write_entity_count(tmp_path, "user", 1, count)
    assert (tmp_path / "entity_count_user_1.txt").read_bytes() == f"{count}\n".encode()
    assert entities.read_entity_count(tmp_path, "user", 1) == count


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "1 2", "٣", "9" * 5000, "1e3"])
def test_a_count_that_is_no_number_is_named(tmp_path, text):
    (tmp_path / "entity_count_user_0.txt").write_text(text, encoding="utf-8")
    with pytest.raises(FormatError, match=r"entity_count_user_0\.txt: expected a whole number"):
        entities.read_entity_count(tmp_path, "user", 0)


def test_a_missing_count_is_named(tmp_path):
    with pytest.raises(FormatError, match=r"entity_count_user_0\.txt: cannot be read: No such file"):
        entities.read_entity_count(tmp_path, "user", 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('["a"', "not readable JSON"),
        ("[" * 100_000, "not readable JSON"),
        ('{"a": 1}', "expected a JSON list of names, found dict"),
        ('["a", 1]', "name 1 is 1, not a string"),
        ('["a"]', "holds 1 names, the partition has 2 entities"),
    ],
)
def test_names_that_are_refused(tmp_path, text, message):
    (tmp_path / "entity_names_user_0.json").write_text(text, encoding="utf-8")
    with pytest.raises(FormatError, match=rf"entity_names_user_0\.json: {message}"):
        entities.read_entity_names(tmp_path, "user", 0, count=2)


def test_names_that_are_not_utf8_are_refused(tmp_path):
    (tmp_path / "entity_names_user_0.json").write_bytes(b'["\xff"]')
    with pytest.raises(FormatError, match=r"entity_names_user_0\.json: not UTF-8 text \(byte 2\)"):
        entities.read_entity_names(tmp_path, "user", 0)


def test_a_failure_while_writing_leaves_the_old_names(tmp_path):
    entities.write_entity_columns(tmp_path, "user", 0, [text_column(["old"])])
    with pytest.raises(AttributeError):
        entities.write_entity_columns(tmp_path, "user", 0, (text_column([name]) for name in ("new", 7)))
    assert entities.read_entity_names(tmp_path, "user", 0) == ["old"]
    assert [path.name for path in tmp_path.iterdir()] == ["entity_names_user_0.json"]


@pytest.mark.parametrize("dynamic", [False, True])
def test_relation_count_exists_for_dynamic_relations_only(tmp_path, dynamic):
    names = ["likes", 'k"é']
    entities.write_relation_names(tmp_path, names, dynamic=dynamic)
    assert (tmp_path / "dynamic_rel_names.json").read_text(encoding="ascii") == json.dumps(names, indent=4)
    assert entities.read_relation_names(tmp_path) == names
    assert (tmp_path / "dynamic_rel_count.txt").exists() == dynamic
    if dynamic:
        assert entities.read_relation_count(tmp_path) == 2


@given(
    names=st.lists(st.text(st.characters(codec="utf-8"), max_size=6)),
    indent=st.sampled_from([None, 4]),
    step=st.integers(1, 9),
)
def test_count_of_names_is_that_of_the_list(tmp_path_factory, names, indent, step):
    path = tmp_path_factory.mktemp("n") / "names.json"
    path.write_text(json.dumps(names, indent=indent, ensure_ascii=step % 2 == 0), encoding="utf-8", newline="")
    with mock.patch.object(entities, "_READ_AT_ONCE", step):
        assert entities.count_names(path) == len(names)


@pytest.mark.parametrize(
    "text",
    ["", "[", '["a"', '["a]', '["a",]', '["a" "b"]', '[,"a"]', '["a"]]', '["a"] 1', "[s]", "[1]", '{"a": "b"}', '"a"'],
)
@pytest.mark.parametrize("step", [1, 1 << 20])
def test_count_of_names_refuses_what_is_no_list(tmp_path, monkeypatch, text, step):
    monkeypatch.setattr(entities, "_READ_AT_ONCE", step)
    (tmp_path / "names.json").write_text(text)
    with pytest.raises(FormatError, match=r"names\.json: (not a JSON|the JSON) list of names"):
        entities.count_names(tmp_path / "names.json")
