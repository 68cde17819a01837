"""Vectors as text: exact numbers, and errors that name every bad line."""

from __future__ import annotations

import gzip
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_strategies

from pbg_tasks.errors import FormatError
from pbg_tasks.publish.exchange.delimited import first_lines, number_lines, read_lines

MATRICES = numpy_strategies.arrays(
    np.float32,
    st.tuples(st.integers(1, 5), st.integers(1, 5)),
    elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
)


def read(path, *, delimiter="\t", dimension=2, skip=0):
    blocks = list(read_lines(path, delimiter=delimiter, dimension=dimension, skip=skip))
    return [name for block in blocks for name in block.names], np.concatenate([block.vectors for block in blocks])


@settings(deadline=None, max_examples=50)
@given(MATRICES)
def test_numbers_read_back_exactly(matrix):
    lines = number_lines(matrix, " ")
    back = np.array([[np.float32(text) for text in line.split(" ")] for line in lines])
    assert back.tobytes() == matrix.tobytes()


@settings(deadline=None, max_examples=50)
@given(MATRICES)
def test_our_reader_reads_them_exactly(tmp_path_factory, matrix):
    path = tmp_path_factory.mktemp("text") / "v.txt"
    path.write_text("".join(f"n\t{line}\n" for line in number_lines(matrix, "\t")))
    assert read(path, dimension=matrix.shape[1])[1].tobytes() == matrix.tobytes()


def test_numbers_are_short():
    assert number_lines(np.array([[0.1, -1.5, 1e-10, 3e38, 1e-45]], np.float32), " ") == ["0.1 -1.5 1e-10 3e+38 1e-45"]


@pytest.mark.parametrize(
    "text",
    [
        "a b\t1\t2\n'c\"\t3\t4\n",
        "a b\t1\t2\r\n'c\"\t3\t4\r\n",
        "a b\t1\t2\t\n'c\"\t3\t4\t\n",
        "a b\t1\t2\n\n'c\"\t3\t4",
    ],
    ids=["plain", "CRLF", "blank after the last number", "empty line, no last break"],
)
@pytest.mark.parametrize("suffix", ["txt", "txt.gz"])
def test_texts_of_many_tools(tmp_path, text, suffix):
    path = tmp_path / f"v.{suffix}"
    path.write_bytes(gzip.compress(text.encode()) if suffix.endswith("gz") else text.encode())
    names, vectors = read(path)
    assert names == ["a b", "'c\""]
    np.testing.assert_array_equal(vectors, np.array([[1, 2], [3, 4]], np.float32))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"b\t1", "has 2 fields, a name and 2 numbers are expected"),
        (b"b\t1\t2\t3", "has 4 fields"),
        (b"b\tc\t1\t2", "has 4 fields"),
        (b"b\t1\tx", "field 3 is 'x', not a number"),
        (b"b\t1\t", "field 3 is '', not a number"),
        (b"b\xff\t1\t2", "not UTF-8 (byte 2)"),
        (b"b\r\t1\t2", "carriage return"),
    ],
)
@pytest.mark.parametrize("suffix", ["txt", "txt.gz"])
def test_a_bad_line_is_named(tmp_path, line, problem, suffix):
    path = tmp_path / f"v.{suffix}"
    text = b"a\t1\t2\n" * 2 + line + b"\nc\t5\t6\n"
    path.write_bytes(gzip.compress(text) if suffix.endswith("gz") else text)
    with pytest.raises(FormatError, match=re.escape(problem)) as caught:
        read(path)
    assert f"{path}" in str(caught.value)
    assert "line 3" in str(caught.value)


def test_a_bad_first_line_is_named(tmp_path):
    path = tmp_path / "v.txt"
    path.write_text("header\na\t1\n")
    with pytest.raises(FormatError, match=r"line 2: has 2 fields, a name and 2 numbers"):
        read(path, skip=1)


def test_truncated_compressed_text_is_reported(tmp_path):
    path = tmp_path / "v.txt.gz"
    rng = np.random.default_rng(0)
    lines = [
        f"n{i}\t{line}" for i, line in enumerate(number_lines(rng.normal(size=(20_000, 2)).astype(np.float32), "\t"))
    ]
    data = gzip.compress("\n".join(lines).encode())
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(FormatError, match="truncated"):
        read(path)


def test_missing_last_line_break_is_reported(tmp_path, capsys):
    path = tmp_path / "v.txt"
    path.write_text("a\t1\t2\nb\t3\t4")
    assert read(path)[0] == ["a", "b"]
    assert "may have been cut off" in capsys.readouterr().err


def test_file_without_lines_is_no_text_of_vectors(tmp_path):
    path = tmp_path / "v.bin"
    path.write_bytes(b"x" * (5 << 20))
    with pytest.raises(FormatError, match="longer than"):
        first_lines(path, 1)


def test_numbers_beyond_float32_become_infinite_or_are_refused(tmp_path):
    path = tmp_path / "v.txt"
    path.write_text("a\t1e39\t2\n")
    assert not np.isfinite(read(path)[1]).all()
