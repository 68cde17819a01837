"""PBG's Python configs, read without running them.

Computed values are refused with their line.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from pbg_tasks.config.literal import read_literal_config
from pbg_tasks.errors import ConfigError
from tests.config.examples import FB15K, LIVEJOURNAL

RETURN = "def get_torchbiggraph_config():\n    return "


def executed(code, tmp_path):
    """Return the config that Python itself makes."""
    (tmp_path / "my_config.py").write_text(code)
    command = "import json, my_config; print(json.dumps(my_config.get_torchbiggraph_config()))"
    done = subprocess.run([sys.executable, "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def refusal(code):
    with pytest.raises(ConfigError) as caught:
        read_literal_config(code, source="my_config.py")
    return str(caught.value)


@pytest.mark.parametrize("code", [FB15K, LIVEJOURNAL])
def test_literal_config_equals_pythons_result(code, tmp_path):
    assert read_literal_config(code, source="my_config.py") == executed(code, tmp_path)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("dict()", {}),
        ("dict(a=1, b=dict(c=(1, 2)))", {"a": 1, "b": {"c": [1, 2]}}),
        ("{'a': -1, 'b': +2.5, 'c': None, 'd': True}", {"a": -1, "b": 2.5, "c": None, "d": True}),
        ("[10 * 1000, 2**20, 7 // 2, 7 % 4, 1 / 4, 3 - 5, 2**-1]", [10_000, 2**20, 3, 3, 0.25, -2, 0.5]),
        ("['a' 'b', 'a' + 'b' + 'c', f'a{1}{\"b\"}']", ["ab", "abc", "a1b"]),
    ],
)
def test_literal_values_are_read(expression, value):
    assert read_literal_config(RETURN + expression, source="my_config.py") == value


def test_local_name_hides_name_of_the_file():
    code = "x = 1\ny = 2\ndef get_torchbiggraph_config():\n    x = 3\n    return dict(x=x, y=y)\n"
    assert read_literal_config(code, source="my_config.py") == {"x": 3, "y": 2}


@pytest.mark.parametrize(
    ("code", "line", "named"),
    [
        (RETURN + "make()", 2, "`make()`"),
        (RETURN + "dict(\n    a=1,\n    b=os.path.join('a', 'b'))", 4, "`os.path.join('a', 'b')`"),
        (RETURN + "[r for r in 'ab']", 2, "`[r for r in 'ab']`"),
        (RETURN + "{'a': b'x'}", 2, "`b'x'`"),
        (RETURN + "{'a': 'x' * 3}", 2, "`'x' * 3`"),
        (RETURN + "{'a': 1 if x else 2}", 2, "`1 if x else 2`"),
        (RETURN + "{**base}", 2, "** merges dicts"),
        (RETURN + "dict([('a', 1)])", 2, "`dict([('a', 1)])`"),
        (RETURN + "{1: 2}", 2, "key 1 is no string"),
        (RETURN + "f'{1:03d}'", 2, "computed"),
        ("import os\nHOME = os.environ['HOME']\n" + RETURN + "{}", 2, "`os.environ['HOME']`"),
        ("import shapes\n" + RETURN + "{'a': shapes}", 3, "`shapes`"),
        ("from shapes import *\n" + RETURN + "{}", 1, "'*' may be bound twice"),
        ("a = 1\na = 2\n" + RETURN + "{}", 2, "'a' may be bound twice"),
        ("a = 1\nimport a\n" + RETURN + "{}", 2, "'a' may be bound twice"),
        ("def dict(**k): pass\n" + RETURN + "dict(a=1)", 3, "`dict(a=1)`"),
        ("a = {}\na['x'] = 1\n" + RETURN + "a", 2, "`a['x'] = 1`"),
        ("a = {}\na.update(x=1)\n" + RETURN + "a", 2, "`a.update(x=1)`"),
        ("a = 1\nfor i in [1]: a += 1\n" + RETURN + "{'a': a}", 2, "this statement computes"),
        ("if __name__ != '__main__': a = 1\n" + RETURN + "{}", 1, "this statement computes"),
        ("x = 1\ndef get_torchbiggraph_config():\n    x = x\n    return {'a': x}", 3, "`x`"),
        ("@cached\n" + RETURN + "{}", 1, "decorator"),
        ("def get_torchbiggraph_config(rank=0):\n    return {}", 1, "takes parameters"),
    ],
)
def test_computed_value_is_refused_with_conversion_command(code, line, named):
    message = refusal(code)
    assert message.startswith(f"my_config.py:{line}: ")
    assert named in message
    assert (
        'python -c "import json, my_config; print(json.dumps(my_config.get_torchbiggraph_config()))" > my_config.json'
        in message
    )


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("x = 1", "my_config.py: function get_torchbiggraph_config() is missing"),
        (RETURN + "{}\n" + RETURN + "{}", "defined twice"),
        ("def get_torchbiggraph_config():\n    pass", "my_config.py:1: get_torchbiggraph_config() returns nothing"),
        ("def f(:", "my_config.py:1: not valid Python"),
        ("a = '\0'", "my_config.py:1: not valid Python"),
        (RETURN + "{'a': 1, 'a': 2}", "my_config.py:2: key 'a' appears twice"),
        (RETURN + "dict(a=1, a=2)", "my_config.py:2: key 'a' appears twice"),
        (RETURN + "1 / 0", "my_config.py:2: `1 / 0`: division by zero"),
        (RETURN + "10.0 ** 1000", "my_config.py:2: `10.0 ** 1000`"),
        (RETURN + "(-2) ** 0.5", "complex"),
        (RETURN + "9" * 5000, "not valid Python"),
    ],
)
def test_files_without_config_are_refused(code, expected):
    assert expected in refusal(code)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "code",
    [
        RETURN + "9**9**9**9",
        RETURN + "2**1024",
        RETURN + "99999999999 * 99999999999",
        "a = 'x' * 9\n" + RETURN + "a",
        "a0 = 'xxxxxxxx'\n" + "".join(f"a{i + 1} = a{i} + a{i}\n" for i in range(60)) + RETURN + "a60",
    ],
)
def test_small_file_cannot_grow_without_bound(code):
    assert refusal(code).startswith("my_config.py:")


def test_file_is_never_run(tmp_path):
    trap = tmp_path / "trap"
    refusal(f"open({str(trap)!r}, 'w')\n{RETURN}{{}}")
    read_literal_config(f"def f(x=open({str(trap)!r}, 'w')): pass\n{RETURN}{{}}", source="my_config.py")
    assert not trap.exists()


def test_invalid_module_name_stays_out_of_command():
    with pytest.raises(ConfigError) as caught:
        read_literal_config(RETURN + "f()", source="a; rm -r x.py")
    assert "import json, my_config;" in str(caught.value)
