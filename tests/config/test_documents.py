"""JSON, YAML and Python documents.

Equal contents give equal dicts, bad ones one clear error.
"""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pbg_tasks.config.documents import parse_document
from pbg_tasks.config.loading import load_config
from pbg_tasks.errors import ConfigError
from tests.config.examples import FB15K, FREEBASE_YAML, LIVEJOURNAL


def test_pbgs_own_examples_load():
    fb15k = load_config(FB15K.encode(), source="fb15k_config.py")
    assert (fb15k.dimension, fb15k.relations[0].operator, fb15k.eval_fraction) == (400, "complex_diagonal", 0.0)
    assert len(fb15k.edge_paths) == 3
    livejournal = load_config(LIVEJOURNAL.encode(), source="s3://bucket/livejournal_config.py")
    assert livejournal.edge_paths[1] == "data/livejournal/edges/test_partitioned"
    assert (livejournal.bucket_order, livejournal.num_uniform_negs, livejournal.lr) == ("random", 1000, 1e-3)
    freebase = load_config(FREEBASE_YAML.encode(), source="freebase.yaml")
    assert (freebase.entities["all"].num_partitions, freebase.lr) == (16, 0.1)


def test_config_written_by_pbg_is_read_unchanged():
    config = load_config(FB15K.encode(), source="fb15k_config.py")
    assert load_config(json.dumps(config.to_pbg(), indent=4).encode(), source="config.json") == config


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("a.json", '{"lr": 1e-3, "names": ["x", null], "deep": {"on": true}}'),
        ("a.YAML", "lr: 1e-3\nnames: [x, null]\ndeep: {'on': true}\n"),
        ("a.yml", "\ufefflr: 1E-03\nnames:\n- x\n-\ndeep: {'on': yes}\n"),
        ("a.py", "def get_torchbiggraph_config():\n    return dict(lr=1e-3, names=('x', None), deep={'on': True})"),
    ],
)
def test_all_forms_have_equal_contents(source, text):
    assert parse_document(text.encode(), source=source) == {
        "lr": 0.001,
        "names": ["x", None],
        "deep": {"on": True},
    }


@pytest.mark.parametrize("key", ["on", "off", "yes", "no", "On", "true"])
def test_keys_that_yaml_takes_for_booleans_stay_words(key):
    assert parse_document(f"a: {{{key}: [x]}}\n".encode(), source="a.yaml") == {"a": {key: ["x"]}}
    with pytest.raises(ConfigError, match=f"key '{key}' appears twice"):
        parse_document(f"{key}: 1\n'{key}': 2\n".encode(), source="a.yaml")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e5", 1e5),
        (".5e3", 500.0),
        ("-1.e+2", -100.0),
        ("12e", "12e"),
        ("2026-11-20", "2026-11-20"),
        ("2026-13-45", "2026-13-45"),
        ("1_000", 1000),
        ("1:30", "1:30"),
        ("-10:00:00.5", "-10:00:00.5"),
    ],
)
def test_yaml_scalars_are_read(text, value):
    assert parse_document(f"a: {text}".encode(), source="a.yaml") == {"a": value}


def test_yaml_merge_keys_work():
    text = b"base: &base {a: 1, b: 2}\nmore: {<<: *base, b: 3}"
    assert parse_document(text, source="a.yaml")["more"] == {"a": 1, "b": 3}


def test_merged_yaml_may_be_merged_before_its_turn():
    """Mappings nearer to the top are built first."""
    text = b"base: &base {on: 1, b: 2}\ndeep: {more: &more {<<: *base, b: 3}}\nlast: {<<: *more, c: 4}"
    found = parse_document(text, source="a.yaml")
    assert (found["deep"]["more"], found["last"]) == ({"on": 1, "b": 3}, {"on": 1, "b": 3, "c": 4})


@pytest.mark.parametrize(
    ("source", "data", "expected"),
    [
        ("a.json", b'{"a": 1, "a": 2}', "not valid JSON: key 'a' appears twice"),
        ("a.json", b'{"a": {"b": 1, "b": 2}}', "not valid JSON: key 'b' appears twice"),
        ("a.json", b'{"a": NaN}', "NaN is no number"),
        ("a.json", b'{"a": 1', "not valid JSON"),
        ("a.json", b'{"a": ' + b"9" * 5000 + b"}", "not valid JSON"),
        ("a.json", b"[]", "expected a mapping of keys at the top, found list"),
        ("a.json", b"\xff", "not UTF-8 text"),
        ("a.json", b"[" * 100_000, "nested too deeply"),
        ("a.json", b" " * (9 << 20), "are no config"),
        ("a.yaml", b"", "expected a mapping"),
        ("a.yaml", b"a: 1\na: 2", "key 'a' appears twice"),
        ("a.yaml", b"? [a]\n: 1", "a key must be a word"),
        ("a.yaml", b"a: !!int x", "not valid YAML"),
        ("a.yaml", b"a: !!timestamp x", "not valid YAML"),
        ("a.yaml", b"a: !!bool x", "not valid YAML"),
        ("a.yaml", b"a: !!python/object/apply:os.system [true]", "not valid YAML"),
        ("a.yaml", b"[" * 5000, "nested too deeply"),
        ("a.py", b"def get_torchbiggraph_config():\n    return " + b"1+" * 50_000 + b"1", "nested too deeply"),
        ("a.py", b"def get_torchbiggraph_config():\n    return " + b"[" * 150 + b"]" * 150, "found list"),
        ("a.py", b"def get_torchbiggraph_config():\n    return " + b"a" + b".b" * 50_000, "nested too deeply"),
        ("a.py", b"def get_torchbiggraph_config():\n    return " + b"(" * 5000, "not valid Python"),
        ("a.toml", b"", "a config is a file named *.py, *.json, *.yaml, *.yml"),
        ("a", b"", "a config is a file named"),
    ],
)
def test_documents_without_config_are_refused(source, data, expected):
    with pytest.raises(ConfigError) as caught:
        parse_document(data, source=source)
    assert str(caught.value).startswith(source)
    assert expected in str(caught.value)


def test_yaml_document_containing_itself_is_refused():
    with pytest.raises(ConfigError, match="an alias stands for what it is a part of"):
        load_config(FREEBASE_YAML.encode() + b"init_path: &a [*a]\n", source="a.yaml")


@given(st.sampled_from(["a.json", "a.yaml", "a.py"]), st.text() | st.binary())
def test_any_bytes_fail_with_config_error_only(source, data):
    data = data if isinstance(data, bytes) else data.encode("utf-8", "surrogatepass")
    for each in (data, b"def get_torchbiggraph_config():\n    return " + data):
        with suppress(ConfigError):
            assert isinstance(parse_document(each, source=source), dict)


def test_suspicious_keys_give_warnings(capsys):
    overrides = ["verbose=3", "background_io=true", "comparator=cos", "loss_fn=logistic"]
    assert load_config(FB15K.encode(), source="a.py", overrides=overrides).verbose == 3
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("a.py: ")[1].split()[0] for line in lines] == ["background_io", "verbose:", "loss_fn"]
    load_config(FB15K.encode(), source="a.py")
    assert not capsys.readouterr().err
