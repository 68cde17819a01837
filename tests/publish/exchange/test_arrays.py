"""Arrays with names that grow block by block."""

from __future__ import annotations

import json

import numpy as np
import pytest

from pbg_tasks.errors import FormatError
from pbg_tasks.publish.exchange.arrays import named_array, write_vectors
from pbg_tasks.publish.exchange.contents import Block
from pbg_tasks.publish.exchange.vectors import Vectors


def write(folder, blocks):
    told = []
    vectors = Vectors("n", 3, "s3://b/v", iter(blocks))
    rows = write_vectors(vectors, folder / "n.npy", folder / "n.json", on_rows=told.append)
    return rows, told


def block(names, value=1.0):
    return Block(names, np.full((len(names), 3), value, np.float32))


def test_the_file_is_what_numpy_writes(tmp_path):
    rng = np.random.default_rng(0)
    blocks = [
        Block([f"{part}-{i}" for i in range(rows)], rng.normal(size=(rows, 3)).astype(np.float32))
        for part, rows in enumerate((70, 1, 0, 40))
    ]
    with named_array(tmp_path / "n.npy", tmp_path / "n.json", 3) as array:
        for item in blocks:
            array.append(item)
    whole = np.concatenate([item.vectors for item in blocks])
    np.save(tmp_path / "expected.npy", whole)
    assert (tmp_path / "n.npy").read_bytes() == (tmp_path / "expected.npy").read_bytes()
    assert json.loads((tmp_path / "n.json").read_text()) == [name for item in blocks for name in item.names]


def test_nothing_appears_when_a_block_fails(tmp_path):
    with pytest.raises(FormatError, match="'b' is not finite"):
        write(tmp_path, [block(["a"]), block(["b"], np.nan)])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ([block(["a", "b"]), block(["c", "a"])], r"s3://b/v: the name 'a' comes twice"),
        ([block(["a"]), block(["b"], np.nan)], r"s3://b/v: the vector of 'b' is not finite"),
        ([block(["a", "b"], np.inf)], r"the vector of 'a' is not finite"),
        ([block(["a\ud800"])], r"holds half a character"),
    ],
)
def test_bad_vectors_are_named(tmp_path, blocks, message):
    with pytest.raises(FormatError, match=message):
        write(tmp_path, blocks)


def test_rows_are_counted(tmp_path):
    assert write(tmp_path, [block(["a", "b"]), block(["c"])]) == (3, [2, 1])
