"""Hostile graph specs and configs.

Each gives one clear error in bounded time, or a harmless value; nothing of them runs.
"""

from __future__ import annotations

import time

import pytest

from pbg_tasks.config import load_graph_spec
from pbg_tasks.config.base import parse
from pbg_tasks.config.documents import parse_document
from pbg_tasks.config.graph import GraphSpec
from pbg_tasks.config.loading import load_config
from pbg_tasks.errors import ConfigError
from pbg_tasks.redaction import credentials_in, redacted
from tests.commands import pbg

SECONDS = 2.0
"""CPU seconds that a document of these sizes may take; without its bound, each bomb takes minutes or forever."""
SPEC = """\
graph: shop
store: /data/shop
snapshots: {location: "/data/edges/{snapshot}/*.csv", format: csv}
model: {entities: {u: {num_partitions: 1}}, relations: [{name: r, lhs: u, rhs: u}], dimension: 4}
"""
CONFIG = """{"entities": {"u": {"num_partitions": 1}}, "relations": [{"name": "r", "lhs": "u", "rhs": "u"}],
"dimension": 4, "entity_path": "data/e", "edge_paths": ["data/t"], "checkpoint_path": "model"}"""
RETURN = "def get_torchbiggraph_config():\n    return "


def bomb(pattern, levels=30):
    """Write a document whose lines each multiply the one before.

    Each stands for ten times its predecessor.
    """
    lines = (f"x{level}: &x{level} {pattern([f'*x{level - 1}'] * 10)}\n" for level in range(1, levels))
    return "x0: &x0 " + pattern(["{a: b}"]) + "\n" + "".join(lines)


def sequence(parts):
    return f"[{', '.join(parts)}]"


def merge(parts):
    return f"{{<<: {sequence(parts)}}}"


def python_bomb(levels=30):
    lines = (f"x{level} = [{', '.join([f'x{level - 1}'] * 10)}]\n" for level in range(1, levels))
    return f"x0 = [1]\n{''.join(lines)}{RETURN}dict(relations=x{levels - 1})"


def model(change):
    return SPEC.replace("dimension: 4", f"dimension: {change}")


def store(text):
    return SPEC.replace("/data/shop", text)


SPECS = {
    "billion laughs": (bomb(sequence) + SPEC, "more than 250000 values"),
    "billion laughs in place": (SPEC + f"exports: {sequence(['*x7'] * 9)}\n" + bomb(sequence, 8), "undefined alias"),
    "billion merges": (bomb(merge) + SPEC, "more than 250000 values"),
    "list that holds itself": (SPEC + "exports: &a [*a]\n", "an alias stands for what it is a part of"),
    "mapping that holds itself": (SPEC + "nights: &a {b: *a}\n", "an alias stands for what it is a part of"),
    "argument that holds itself": (
        SPEC + "nights: {notify: [{use: a.b, arguments: &a {x: *a}}]}\n",
        "an alias stands for what it is a part of",
    ),
    "merge of itself": (SPEC + "nights: &a {<<: *a}\n", "an alias stands for what it is a part of"),
    "deep list": (SPEC + f"exports: {'[' * 900}{']' * 900}\n", "nested too deeply"),
    "deep mapping": (SPEC + f"nights: {'{a: ' * 900}1{'}' * 900}\n", "nested too deeply"),
    "deep argument": (SPEC + f"nights: {{notify: [{{use: a.b, arguments: {{x: {'[' * 900}{']' * 900}}}}}]}}", "deeply"),
    "two thousand unknown keys": (SPEC + "".join(f"k{number}: 1\n" for number in range(2000)), "and 1980 more"),
    "thousands of wrong exports": (SPEC + f"exports: [{'1, ' * 5000}]\n", "and 4980 more"),
    "long key": (SPEC + f"? {'x' * 100_000}\n: 1\n", "unknown key"),
    "long name": (SPEC.replace("shop", "x" * 100_000), "at most 64 characters"),
    "too large": (SPEC + f"# {'x' * (9 << 20)}", "at most 8388608 are read"),
    "integer of 4,000 digits": (model("9" * 4000), "model.dimension is a number of more than 64 bits"),
    "integer of 40,000 digits": (model("9" * 40_000), "not valid YAML: Exceeds the limit"),
    "hexadecimal of 80,000 bits": (model("0x" + "f" * 20_000), "model.dimension is a number of more than 64 bits"),
    "integer of base 60": (model("1" + ":59" * 2000), "model.dimension: Input should be a valid integer"),
    "float of base 60": (model("1" + ":59" * 2000 + ".0"), "model.dimension: Input should be a valid integer"),
    "not a number": (model("4, lr: .nan"), "model.lr: Input should be a finite number"),
    "infinity": (model("4, lr: 1e999"), "model.lr: Input should be a finite number"),
    "negative dimension": (model("-4"), "model.dimension"),
    "no partitions": (SPEC.replace("num_partitions: 1", "num_partitions: 0"), "num_partitions"),
    "NUL in the file": (store("/data/sh\0op"), "not valid YAML"),
    "NUL in the store": (store('"/data/sh\\0op"'), "store holds a NUL character"),
    "NUL in the snapshots": (SPEC.replace("/edges/", "/ed\\0ges/"), "snapshots.location holds a NUL character"),
    "half a surrogate": (store('"/data/\\ud800"'), "store: Input should be a valid string"),
    "half a surrogate in a name": (SPEC.replace("name: r", 'name: "\\ud800"'), "relations.0.name"),
    "escape codes of a terminal": (SPEC.replace("u:", '"u\\e[2J":'), "cannot name an entity type"),
    "a second line": (
        SPEC.replace("graph: shop", 'graph: "a\\nerror: config: b"'),
        "graph: a name has up to 64 letters",
    ),
    "another encoding": (SPEC.encode("utf-16"), "not UTF-8 text"),
    "object": (SPEC + "x: !!python/object/apply:os.system ['touch CANARY']\n", "not valid YAML"),
    "function": (SPEC + "x: !!python/name:os.system\n", "not valid YAML"),
    "module": (SPEC + "x: !!python/module:antigravity\n", "not valid YAML"),
    "own tag": (SPEC + "x: !include /etc/passwd\n", "not valid YAML"),
    "bytes": (SPEC + "exports: !!binary aGVsbG8=\n", "exports: Input should be a valid tuple"),
    "ordered mapping": (SPEC + "exports: !!omap [a: 1]\n", "exports.0: takes keys, not a value alone"),
    "key that is a list": (SPEC + "? [a]\n: 1\n", "a key must be a word"),
    "key that is no word": (SPEC + ".nan: 1\n", "Keys should be strings"),
    "repeated key": (SPEC + "graph: other\n", "key 'graph' appears twice"),
    "two documents": (SPEC + "---\n" + SPEC, "expected a single document"),
    "another version": ("%YAML 9.9\n---\n" + SPEC, "found incompatible YAML document"),
    "path as graph": (SPEC.replace("graph: shop", "graph: ../../etc"), "graph: a name has up to 64 letters"),
    "path as entity type": (SPEC.replace("u:", "../u:"), "cannot name an entity type"),
    "SQL as columns": (SPEC + 'columns: {lhs: "lhs\\") FROM x --"}\n', None),
    "markup as relation": (SPEC.replace("name: r", 'name: "<script>alert(1)</script>"'), None),
    "shell as store": (store('"/data/$(touch CANARY);`touch CANARY`"'), None),
}
CONFIGS = {
    "a.py": {
        "code": (f"import os\nos.system('touch CANARY')\n{RETURN}{{}}", "this statement computes"),
        "call": (f"{RETURN}__import__('os').system('touch CANARY')", "this is computed"),
        "comprehension": (f"{RETURN}[x for x in range(10**12)]", "this is computed"),
        "format": (f"{RETURN}f'{{1:999999999}}'", "this is computed"),
        "laughs": (python_bomb(), "more than 1000000 values"),
        "power": (f"{RETURN}9**9**9**9", "too large"),
        "hexadecimal": (f"{RETURN}dict(dimension=0x{'f' * 20_000})", "this number is too large"),
        "brackets": (f"{RETURN}{'[' * 5000}", "not valid Python"),
        "sum": (f"{RETURN}{'1+' * 50_000}1", "nested too deeply"),
    },
    "a.json": {
        "number": ('{"dimension": NaN}', "NaN is no number"),
        "digits": (CONFIG.replace("4", "9" * 4000), "dimension is a number of more than 64 bits"),
        "brackets": ("[" * 100_000, "nested too deeply"),
        "NUL": (CONFIG.replace("data/e", "data\\u0000e"), "entity_path holds a NUL character"),
        "surrogate": (CONFIG.replace("data/e", "\\ud800"), "entity_path holds half of a surrogate pair"),
        "repeated key": ('{"dimension": 1, "dimension": 2}', "key 'dimension' appears twice"),
    },
}


@pytest.fixture(autouse=True)
def _no_canary(tmp_path, monkeypatch):
    """Check for a file that a running document would leave.

    It would be in the working directory.
    """
    monkeypatch.chdir(tmp_path)
    yield
    assert not list(tmp_path.rglob("CANARY*"))


@pytest.fixture
def bounded():
    began = time.process_time()
    yield
    assert time.process_time() - began < SECONDS


def check(error, source, expected):
    said = str(error)
    assert said.startswith(f"{source}:")
    assert expected in said
    assert said.isprintable()
    assert len(said) < 2100


def written(folder, text):
    path = folder / "graph.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_forty_specs_are_hostile():
    assert len(SPECS) >= 40


@pytest.mark.parametrize("name", SPECS)
def test_hostile_spec_gives_one_error_or_plain_values(tmp_path, bounded, name):
    text, expected = SPECS[name]
    path = written(tmp_path, text)
    if expected is None:
        assert isinstance(load_graph_spec(path), GraphSpec)
        return
    with pytest.raises(ConfigError) as caught:
        load_graph_spec(path)
    check(caught.value, path, expected)


@pytest.mark.parametrize(("source", "name"), [(source, name) for source, texts in CONFIGS.items() for name in texts])
def test_hostile_config_gives_one_error(bounded, source, name):
    text, expected = CONFIGS[source][name]
    with pytest.raises(ConfigError) as caught:
        load_config(text.encode(), source=source)
    check(caught.value, source, expected)


@pytest.mark.parametrize(
    "name", ["billion laughs", "list that holds itself", "NUL in the store", "NUL in the snapshots"]
)
def test_command_refuses_hostile_spec_on_one_line(tmp_path, name):
    path = written(tmp_path, SPECS[name][0])
    done = pbg("plan", path, "--snapshot", "d1", timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: config: {path}: ")
    assert done.stderr.count("\n") == 1


def test_override_of_a_billion_laughs_is_refused(tmp_path, bounded):
    path = written(tmp_path, SPEC)
    nested = "&x0 [a]"
    for level in range(1, 40):
        nested = f"&x{level} [{nested}, *x{level - 1}]"
    with pytest.raises(ConfigError, match="more than 250000 values"):
        load_graph_spec(path, [f"exports={nested}"])


def test_parts_used_twice_stay_allowed():
    text = b"base: &base {a: [1, 2]}\nfirst: *base\nsecond: {<<: *base, b: 3}\n"
    found = parse_document(text, source="a.yaml")
    assert found["first"] == {"a": [1, 2]}
    assert found["second"] == {"a": [1, 2], "b": 3}


def test_stored_document_nested_without_end_is_refused():
    looped = {}
    looped["nights"] = looped
    with pytest.raises(ConfigError, match=r"^f: nested too deeply$"):
        parse(GraphSpec, looped, source="f")


@pytest.mark.parametrize(
    "text",
    ["a:/:" * 16_000, "@" + "a:/:" * 16_000, "token" * 12_000, "://" * 20_000, "a:/" * 20_000, " token='" * 8000],
    ids=lambda text: text[:12],
)
def test_search_for_credentials_takes_linear_time(bounded, text):
    """Messages quote names of data, none of which may delay a task."""
    redacted(text)
    credentials_in(text)
