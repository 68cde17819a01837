"""LINE and word2vec text with its mapping, local and in a store."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbg_tasks.errors import ConfigError, ConflictError, FormatError
from pbg_tasks.formats.angel import (
    LocalFolder,
    MatrixLayout,
    folder_of,
    latest_line,
    open_matrix,
    read_line,
    read_mapping,
    upload,
    write_line,
    write_mapping,
    write_matrix,
)
from pbg_tasks.storage import open_store
from tests.formats.angel.samples import vectors

VECTORS = np.array([[0.1, -0.0, 3.0], [1.1, -1e-5, 3.0], [2.1, -2e-5, 3.0]], np.float32)
BLOCKS = [(np.arange(4, 7), VECTORS)]


def read(folder, **options):
    found = list(read_line(LocalFolder(folder), **options))
    return np.concatenate([ids for ids, _ in found]).tolist(), np.concatenate([block for _, block in found])


@pytest.mark.parametrize(
    ("options", "first"),
    [
        ({}, b"4:0.1 -0.0 3.0\n5:1.1 -1.0E-5 3.0\n"),
        ({"key_separator": "tab", "feature_separator": "comma"}, b"4\t0.1,-0.0,3.0\n"),
        ({"key_separator": "space"}, b"4 0.1 -0.0 3.0\n"),
        ({"key_separator": "::", "feature_separator": " | "}, b"4::0.1 | -0.0 | 3.0\n"),
    ],
)
def test_lines_and_back(tmp_path, options, first):
    assert write_line(tmp_path / "embedding", BLOCKS, **options) == 3
    assert (tmp_path / "embedding" / "0").read_bytes().startswith(first)
    ids, values = read(tmp_path / "embedding", **options)
    assert ids == [4, 5, 6]
    assert values.tobytes() == VECTORS.tobytes()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 30), st.integers(1, 4), st.integers(1, 9), st.data())
def test_vectors_in_any_number_of_files_return(tmp_path_factory, count, dimension, most, data):
    size = count * dimension
    bits = data.draw(st.lists(st.integers(0, (1 << 32) - 1), min_size=size, max_size=size))
    values = np.array(bits, np.uint32).view(np.float32).reshape(count, dimension)
    cut = data.draw(st.integers(0, count))
    folder = tmp_path_factory.mktemp("line") / "embedding"
    write_line(folder, [(np.arange(cut), values[:cut]), (np.arange(cut, count), values[cut:])], nodes_per_file=most)
    assert len(list(folder.iterdir())) == -(-count // most)
    if count:
        ids, found = read(folder)
        assert ids == list(range(count))
        np.testing.assert_array_equal(found, values)


def test_bar_separator_is_read_but_never_written(tmp_path):
    (tmp_path / "0").write_bytes(b"4\\|0.5\\|1.5\n")
    (tmp_path / "part-00001").write_bytes(b"5\\|2.5\\|3.5\n")
    (tmp_path / "_SUCCESS").touch()
    ids, values = read(tmp_path, key_separator="bar", feature_separator="bar")
    assert (ids, values.tolist()) == ([4, 5], [[0.5, 1.5], [2.5, 3.5]])
    (tmp_path / "0").write_bytes(b"4:0.5|1.5\n")
    (tmp_path / "part-00001").unlink()
    assert read(tmp_path, feature_separator="bar")[1].tolist() == [[0.5, 1.5]]
    with pytest.raises(ConfigError, match=r"separator bar: Angel writes it as .* and cannot read that again"):
        write_line(tmp_path / "x", BLOCKS, feature_separator="bar")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("4:0.5 1.5\n5:2.5\n", "line 2: 2 fields, expected 3"),
        ("4:0.5 1.5\n5 2.5 3.5\n", "line 2: 1 fields"),
        ("4:0.5 1.5\nx:2.5 3.5\n", "line 2: 'x' is no whole number of 64 bits"),
        ("4:0.5 1.5\n5:nan 3.5\n", "line 2: 'nan' is no number as Java writes it"),
        ("4,0.5,1.5\n", "line 1: expected a node, ':' and numbers"),
        ("99999999999999999999:1\n", "line 1: '99999999999999999999' is no whole number of 64 bits"),
        ("4:5:0.5\n", "line 1: '5:0.5' is no number"),
    ],
)
def test_damaged_lines_are_named(tmp_path, text, message):
    (tmp_path / "0").write_text(text)
    with pytest.raises(FormatError, match=rf"/0.*{message}"):
        read(tmp_path)


def test_a_folder_without_embeddings(tmp_path):
    (tmp_path / "_SUCCESS").touch()
    with pytest.raises(FormatError, match="no files named by a number or part-"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ([(np.array([0, 2]), VECTORS[:2])], "nodes 0 to 2: Angel's are consecutive"),
        ([(np.arange(1), VECTORS[:1]), (np.arange(1), VECTORS[:1])], "nodes 0 to 0: Angel's are consecutive"),
        ([(np.array([1 << 31]), VECTORS[:1])], "at most 2147483647"),
        ([(np.arange(3), VECTORS.astype(np.float64))], "expected float32 of one dimension"),
        ([(np.arange(1), VECTORS[:1]), (np.arange(1, 2), VECTORS[:1, :2])], "expected float32 of one dimension"),
    ],
)
def test_vectors_that_angel_cannot_read_leave_nothing(tmp_path, blocks, message):
    with pytest.raises(FormatError, match=message):
        write_line(tmp_path / "embedding", blocks)
    assert not list(tmp_path.iterdir())


NAMES = ["plain", "with space", "tab\there", 'quote"s', "colon:s", "ünï", ""]


def test_names_beside_embeddings(tmp_path):
    assert write_mapping(tmp_path / "mapping", enumerate(NAMES)) == len(NAMES)
    assert list(read_mapping(LocalFolder(tmp_path / "mapping"))) == list(enumerate(NAMES))
    with pytest.raises(ConflictError):
        write_mapping(tmp_path / "mapping", [])
    (tmp_path / "mapping" / "part-00001").write_bytes(b"7:seven\r\n8:eight")
    assert list(read_mapping(LocalFolder(tmp_path / "mapping")))[-2:] == [(7, "seven"), (8, "eight")]


@pytest.mark.parametrize("reader", [read_line, read_mapping])
def test_compressed_text_is_refused_by_name(tmp_path, reader):
    (tmp_path / "part-00000.gz").write_bytes(gzip.compress(b"0:1.0\n"))
    with pytest.raises(FormatError, match=r"/part-00000\.gz: is compressed.*unpack"):
        list(reader(LocalFolder(tmp_path)))


@pytest.mark.parametrize("name", ["two\nlines", "two\rlines", "half \ud800"])
def test_names_that_no_line_can_hold(tmp_path, name):
    with pytest.raises(FormatError, match=r"holds (a line break|half a character)"):
        write_mapping(tmp_path / "mapping", [(0, name)])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"0:a\nb\n", "line 2: expected a number, a colon and a name"),
        (b"0:a\nx:b\n", "line 2: expected a number"),
        (b"0:a\n1:\xff\n", r"line 2: the name is no UTF-8 text \(byte 0\)"),
        (b"0:a\n\n", "line 2: expected a number"),
        (b"1" * 40 + b":a\n", "line 1: expected a number"),
        (b"-9223372036854775808:a\n9223372036854775808:a\n", "line 2: expected a number"),
    ],
)
def test_damaged_mappings(tmp_path, data, message):
    (tmp_path / "part-00000").write_bytes(data)
    with pytest.raises(FormatError, match=f"part-00000, {message}"):
        list(read_mapping(LocalFolder(tmp_path)))


@pytest.mark.parametrize("place", ["local", pytest.param("s3", marks=pytest.mark.s3)])
def test_last_epoch_and_matrix_in_store_are_found(tmp_path, request, place):
    url = str(tmp_path / "store") if place == "local" else request.getfixturevalue("s3_bucket")
    store = open_store(url)
    with pytest.raises(FormatError, match="no CP_<epoch>/embedding"):
        latest_line(store, "out")
    for epoch in (2, 10):
        write_line(tmp_path / "out" / f"CP_{epoch}" / "inputEmbedding" / "embedding", BLOCKS)
        write_line(tmp_path / "out" / f"CP_{epoch}" / "contextEmbedding" / "embedding", BLOCKS)
    write_mapping(tmp_path / "out" / "mapping", [(4, "four")])
    layout = MatrixLayout(name="m", rows=3, end_col=4, block_col=1, partitions_per_file=2)
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    write_matrix(tmp_path / "out", layout, [(np.arange(4), table)])
    upload(tmp_path / "out", store, "out")
    assert latest_line(store, "out") == "out/CP_10/inputEmbedding/embedding"
    with folder_of(store, latest_line(store, "out")) as folder:
        assert [ids.tolist() for ids, _ in read_line(folder)] == [[4, 5, 6]]
    with folder_of(store, "out/mapping") as folder:
        assert list(read_mapping(folder)) == [(4, "four")]
    with folder_of(store, "out/m") as folder:
        assert vectors(open_matrix(folder)) == dict(enumerate(table.tolist()))
    write_matrix(tmp_path / "other", MatrixLayout(name="m", rows=3, end_col=1), [(np.arange(1), table[:1])])
    upload(tmp_path / "other" / "m", store, "out/m")
    assert [info.key for info in store.list("out/m/")] == ["out/m/0", "out/m/_meta"]
    with folder_of(store, "out/m") as folder:
        assert vectors(open_matrix(folder)) == {0: [0, 1, 2]}
    store.delete("out/m/0")
    with folder_of(store, "out/m") as folder, pytest.raises(FormatError, match="/out/m/0 is missing"):
        open_matrix(folder)
