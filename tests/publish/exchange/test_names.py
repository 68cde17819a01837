"""Names that return unchanged, or are refused."""

from __future__ import annotations

import gzip
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbg_tasks.errors import FormatError
from pbg_tasks.publish.exchange import names
from pbg_tasks.publish.exchange.names import (
    TABS_AND_BREAKS,
    WHITESPACE,
    check_unicode,
    decoded,
    listed_names,
    names_file,
    writable,
)

TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), max_size=20)
ODD = [
    "New York",
    "a%20b",
    "%",
    "tab\there",
    "line\nbreak",
    "\u00a0",
    "\u2028",
    "\x1c",
    "\x85",
    "日本 語",
    '"quoted"',
    "\\",
]


@settings(deadline=None, max_examples=50)
@given(TEXTS, st.sampled_from([WHITESPACE, TABS_AND_BREAKS]))
def test_escaped_names_decode_to_themselves(names, unsafe):
    written = writable(names, unsafe, escape=True, form="f")
    assert not [name for name in written if unsafe.search(name)]
    assert decoded(written, source="s") == names


def test_odd_names_contain_no_blank_after_escaping():
    written = writable(ODD, WHITESPACE, escape=True, form="f")
    assert all(name.split() == [name] for name in written)
    assert decoded(written, source="s") == ODD


def test_without_escaping_names_stay_or_are_refused():
    fine = ["a", "ü", "%41", '"', "#"]
    assert writable(fine, WHITESPACE, escape=False, form="f") == fine
    for name in ODD[3:9]:
        with pytest.raises(FormatError, match=re.escape(repr(name))):
            writable([*fine, name], WHITESPACE, escape=False, form="f")
    with pytest.raises(FormatError, match=r"give --escape, or in a spec `escape: true` of the export"):
        writable(["a b"], WHITESPACE, escape=False, form="f")


@pytest.mark.parametrize("escape", [True, False])
def test_empty_name_is_refused_by_each_format(escape):
    with pytest.raises(FormatError, match="empty name"):
        writable(["a", ""], WHITESPACE, escape=escape, form="f")


def test_percent_signs_that_are_no_utf8_are_reported():
    assert decoded(["100%", "a%2"], source="s") == ["100%", "a%2"]
    with pytest.raises(FormatError, match=r"s: name 'a%FF'"):
        decoded(["a%FF"], source="s")


def test_half_characters_are_refused():
    check_unicode(["a", "\U0001f600"], source="s")
    with pytest.raises(FormatError, match=r"s: name 'b\\ud83d'"):
        check_unicode(["a", "b\ud83d"], source="s")


@settings(deadline=None, max_examples=50)
@given(st.lists(TEXTS, max_size=3))
def test_names_file_returns_its_names(tmp_path_factory, blocks):
    path = tmp_path_factory.mktemp("names") / "n.json"
    with names_file(path) as file:
        for names in blocks:
            file.append(names)
    assert list(listed_names(path)) == [name for names in blocks for name in names]


@pytest.mark.parametrize(
    "text", ["[]", " [ ] ", '["a"]', '[\n"a" ,\t"b\\"]\\u00fc",""\n]\n', '["\u65e5\u672c", "\\ud83d\\ude00"]']
)
@pytest.mark.parametrize("chunk", [1, 5, 1 << 20])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_list_is_read_name_by_name(tmp_path, monkeypatch, text, chunk, ending):
    monkeypatch.setattr(names, "_CHUNK", chunk)
    path = tmp_path / f"names.json{ending}"
    path.write_bytes(gzip.compress(text.encode()) if ending else text.encode())
    assert list(names.json_names(path)) == json.loads(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        '["a"',
        '["a",]',
        '["a" "b"]',
        '[,"a"]',
        '["a"],',
        '["a", 1]',
        '{"a": 1}',
        '["a',
        "[1]",
        "null",
        '["a"][]',
    ],
)
def test_file_without_list_of_names_is_refused(tmp_path, text):
    (tmp_path / "names.json").write_text(text)
    with pytest.raises(FormatError, match=r"names\.json: not a JSON list of strings, or truncated"):
        list(names.json_names(tmp_path / "names.json"))


def test_name_without_end_is_read_in_part_only(tmp_path, monkeypatch):
    monkeypatch.setattr(names, "_CHUNK", 10)
    (tmp_path / "names.json").write_text(f'["{"a" * 1000}"]')
    assert list(names.json_names(tmp_path / "names.json")) == ["a" * 1000]
    monkeypatch.setattr(names, "_LONGEST", 50)
    with pytest.raises(FormatError, match="not a JSON list of strings"):
        list(names.json_names(tmp_path / "names.json"))


def test_unknown_json_escape_is_refused(tmp_path):
    (tmp_path / "names.json").write_text(r'["\q"]')
    with pytest.raises(FormatError, match="not readable JSON"):
        list(names.json_names(tmp_path / "names.json"))
