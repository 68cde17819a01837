"""Embedding files: PBG's layout, round trips, equal bytes, other writers' files."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pbg_tasks.errors import FormatError, ResourceError
from pbg_tasks.formats import embeddings, files, slices
from pbg_tasks.formats.embeddings import (
    embeddings_file_name,
    embeddings_shape,
    iter_blocks,
    iter_rows,
    map_embeddings,
    read_embeddings,
    write_embeddings,
)
from pbg_tasks.storage.vouched import vouch

FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)


@pytest.fixture
def path(tmp_path):
    return tmp_path / embeddings_file_name("user", 1, 7)


def numbers(rows, columns=4):
    return np.random.default_rng(0).normal(size=(rows, columns)).astype(np.float32)


def write_foreign(path, embeddings, **options):
    with h5py.File(path, "w") as file:
        file.attrs["format_version"] = 1
        file.create_dataset("embeddings", data=embeddings, **options)


def test_file_name_is_pbgs(path):
    assert path.name == "embeddings_user_1.v7.h5"


def test_the_layout_is_pbgs(path, config, iteration):
    sums = np.arange(3, dtype=np.float32)
    write_embeddings(path, numbers(3), sums, lr=0.1, iteration=iteration, config=config)
    with h5py.File(path) as file:
        attributes = dict(file.attrs)
        names = []
        file.visit(names.append)
        embeddings, blob = file["embeddings"], file["optimizer/state_dict"]
        assert (embeddings.dtype.str, embeddings.shape, embeddings.chunks) == ("<f4", (3, 4), None)
        assert (blob.dtype.str, blob.ndim, blob.chunks) == ("|V1", 1, None)
        (path.parent / "blob").write_bytes(blob[...].tobytes())
    assert names == ["embeddings", "optimizer", "optimizer/plain", "optimizer/plain/sum", "optimizer/state_dict"]
    assert json.loads(attributes.pop("config/json")) == config.to_pbg()
    assert attributes == {
        "format_version": 1,
        "iteration/num_epochs": 5,
        "iteration/epoch_idx": 2,
        "iteration/num_edge_paths": 1,
        "iteration/edge_path_idx": 0,
        "iteration/edge_path": "edges",
        "iteration/num_edge_chunks": 3,
        "iteration/edge_chunk_idx": 1,
    }
    assert {type(value) for value in attributes.values()} == {np.int64, str}
    state = torch.load(path.parent / "blob", weights_only=True)
    torch.testing.assert_close(state["state"][0].pop("sum"), torch.arange(3.0), rtol=0, atol=0)
    assert state == {
        "state": {0: {"step": 0}},
        "param_groups": [{"lr": 0.1, "lr_decay": 0, "weight_decay": 0, "params": [0]}],
    }


@settings(deadline=None, max_examples=30)
@given(embeddings=arrays(np.float32, st.tuples(st.integers(0, 9), st.integers(1, 5)), elements=FINITE), data=st.data())
def test_round_trip(config, iteration, embeddings, data):
    sums = data.draw(st.none() | arrays(np.float32, len(embeddings), elements=st.floats(0, 2.0**100, width=32)))
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "embeddings_user_0.v1.h5"
        write_embeddings(path, embeddings, sums, lr=0.1, iteration=iteration, config=config)
        read, read_sums = read_embeddings(path, count=len(embeddings), dimension=embeddings.shape[1])
        np.testing.assert_array_equal(read, embeddings)
        assert (read_sums is None) == (sums is None)
        if sums is not None:
            np.testing.assert_array_equal(read_sums, sums)
        assert embeddings_shape(path) == embeddings.shape
        start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(embeddings))] * 2)))
        some = list(iter_rows(path, np.arange(start, stop), 10))
        np.testing.assert_array_equal(np.concatenate([embeddings[:0], *some]), embeddings[start:stop])
        blocks = list(iter_blocks(path, data.draw(st.integers(1, 10))))
        assert [start for start, _ in blocks] == list(np.cumsum([0, *(len(block) for _, block in blocks)])[:-1])
        np.testing.assert_array_equal(
            np.concatenate([np.empty((0, embeddings.shape[1])), *(b for _, b in blocks)]), read
        )


def test_equal_content_gives_equal_bytes_in_another_process(tmp_path, config, iteration):
    program = (
        "import sys, numpy as np\n"
        "from pathlib import Path\n"
        "from pbg_tasks.config import ConfigSchema\n"
        "from pbg_tasks.formats.embeddings import IterationInfo, write_embeddings\n"
        "config = ConfigSchema.model_validate_json(sys.argv[2])\n"
        "rows = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)\n"
        "info = IterationInfo(5, 2, 1, 0, 'edges', 3, 1)\n"
        "write_embeddings(Path(sys.argv[1]), rows, rows[:, 0] ** 2, lr=0.1, iteration=info, config=config)\n"
    )
    other = tmp_path / "embeddings_user_0.v1.h5"
    subprocess.run([sys.executable, "-c", program, str(other), config.model_dump_json()], check=True, timeout=60)
    path, rows = tmp_path / "embeddings_item_0.v9.h5", numbers(50)
    write_embeddings(path, rows, rows[:, 0] ** 2, lr=0.1, iteration=iteration, config=config)
    assert path.read_bytes() == other.read_bytes()


@pytest.mark.parametrize("rows", [0, 1, 100])
def test_embeddings_with_checksums_notice_changed_bytes(path, config, iteration, monkeypatch, rows):
    monkeypatch.setattr(slices, "_CHUNK_BYTES", 256)
    checked, vectors = config.model_copy(update={"checksums": True}), numbers(rows)
    sums = np.arange(rows, dtype=np.float32)
    write_embeddings(path, vectors, sums, lr=0.1, iteration=iteration, config=checked)
    found, found_sums = read_embeddings(path)
    np.testing.assert_array_equal(found, vectors)
    np.testing.assert_array_equal(found_sums, sums)
    np.testing.assert_array_equal(map_embeddings(path, dimension=4), vectors)
    whole = path.read_bytes()
    for row in range(0, rows, 30):
        changed = bytearray(whole)
        changed[whole.index(vectors[row].tobytes())] ^= 1
        path.write_bytes(changed)
        with pytest.raises(FormatError, match=r"\.h5: .*(checksum|fletcher32)"):
            read_embeddings(path)


def test_grown_partition_is_read_into_first_rows(path, config, iteration):
    rows = numbers(3)
    write_embeddings(path, rows, None, lr=0.1, iteration=iteration, config=config)
    grown = np.full((5, 4), 9, np.float32)
    read, _ = read_embeddings(path, out=grown)
    assert np.shares_memory(read, grown)
    np.testing.assert_array_equal(grown, [*rows, [9] * 4, [9] * 4])
    with pytest.raises(FormatError, match="holds 3 rows, more than the 2 entities"):
        read_embeddings(path, out=np.empty((2, 4), np.float32))
    with pytest.raises(FormatError, match=r"has shape \(3, 4\), expected \(any, 6\)"):
        read_embeddings(path, out=np.empty((5, 6), np.float32))


@pytest.mark.parametrize("dtype", ["f2", "f4", ">f4", "f8"])
@pytest.mark.parametrize("options", [{}, {"chunks": (2, 3)}, {"compression": "gzip", "shuffle": True}])
def test_any_float_type_and_layout_is_read(path, dtype, options):
    rows = numbers(7).astype(dtype)
    write_foreign(path, rows, **options)
    read, sums = read_embeddings(path)
    assert (read.dtype, sums) == (np.float32, None)
    np.testing.assert_array_equal(read, rows.astype(np.float32))


@pytest.mark.parametrize("kind", [np.nan, np.inf, -np.inf, 1e300])
def test_infinite_values_are_refused(path, kind):
    rows = numbers(5).astype(np.float64)
    rows[3, 1], rows[0, 0] = kind, -np.inf if kind == np.inf else 0
    write_foreign(path, rows)
    with pytest.raises(FormatError, match=r"embeddings_user_1\.v7\.h5: holds embeddings that are not finite"):
        read_embeddings(path)
    with pytest.raises(FormatError, match="not finite"):
        list(iter_blocks(path, 2))


@pytest.fixture
def examined(monkeypatch):
    """Count the blocks that are examined for numbers that are not finite."""
    found, require = [], embeddings._require_finite
    monkeypatch.setattr(embeddings, "_require_finite", lambda *given: found.append(1) or require(*given))
    return found


def test_vouched_file_is_examined_in_one_whole_pass(path, examined):
    rows = numbers(5)
    write_foreign(path, rows)
    vouch(path)
    next(iter_blocks(path, 2))  # of a pass that ends early nothing is known
    for _ in range(3):
        np.testing.assert_array_equal(np.concatenate([block for _, block in iter_blocks(path, 2)]), rows)
    assert len(examined) == 1 + 3
    rows[4, 0] = np.nan
    other = path.with_name("other")  # beside it, as the next file at its place may get its inode, and its time in ticks
    write_foreign(other, rows)
    vouch(other)
    with pytest.raises(FormatError, match="not finite"):
        list(iter_blocks(other, 2))


def test_unvouched_file_is_examined_in_each_pass(path, examined):
    write_foreign(path, numbers(5))
    for _ in range(2):
        list(iter_blocks(path, 2))
    assert len(examined) == 2 * 3


def test_shapes_are_checked(path, config, iteration):
    write_embeddings(path, numbers(3), None, lr=0.1, iteration=iteration, config=config)
    with pytest.raises(FormatError, match=r"'embeddings' has shape \(3, 4\), expected \(4, any\)"):
        read_embeddings(path, count=4)
    with pytest.raises(FormatError, match=r"'embeddings' has shape \(3, 4\), expected \(any, 8\)"):
        read_embeddings(path, dimension=8)
    with pytest.raises(FormatError, match="holds 3 rows; rows 2 to 4 were asked for"):
        list(iter_rows(path, np.array([2, 4]), 2))
    with pytest.raises(ValueError, match="row sums of shape"):
        write_embeddings(path, numbers(3), np.zeros(2), lr=0.1, iteration=iteration, config=config)


def test_embeddings_of_integers_are_refused(path):
    write_foreign(path, np.zeros((2, 4), np.int64))
    with pytest.raises(FormatError, match="'embeddings' is of type int64"):
        read_embeddings(path)


@pytest.mark.parametrize("bad", [[0, -1, 0], [0, np.nan, 0], [0, np.inf, 0], [0, 0]])
def test_sums_that_no_optimizer_has_are_refused(path, bad):
    write_foreign(path, numbers(3))
    with h5py.File(path, "a") as file:
        file["optimizer/plain/sum"] = np.array(bad, np.float32)
    with pytest.raises(FormatError, match="optimizer/plain/sum"):
        read_embeddings(path)


def _limit_file_size():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))


def test_a_full_disk_leaves_the_old_file(path, config, iteration):
    write_embeddings(path, numbers(3), None, lr=0.1, iteration=iteration, config=config)
    before = path.read_bytes()
    program = (
        "import sys, numpy as np\n"
        "from pathlib import Path\n"
        "from pbg_tasks.config import ConfigSchema\n"
        "from pbg_tasks.errors import ResourceError\n"
        "from pbg_tasks.formats.embeddings import IterationInfo, write_embeddings\n"
        "config = ConfigSchema.model_validate_json(sys.argv[2])\n"
        "rows, info = np.zeros((50_000, 4), np.float32), IterationInfo(5, 2, 1, 0, 'edges', 3, 1)\n"
        "try:\n"
        "    write_embeddings(Path(sys.argv[1]), rows, None, lr=0.1, iteration=info, config=config)\n"
        "except ResourceError as error:\n"
        "    print(error)\n"
    )
    command = [sys.executable, "-c", program, str(path), config.model_dump_json()]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60, preexec_fn=_limit_file_size)
    assert done.stdout.startswith(f"{path}: the disk or its quota is full (File too large)")
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_a_disk_without_room_is_noticed_before_writing(path):
    with pytest.raises(ResourceError, match=r"embeddings_user_1\.v7\.h5: needs \d+ bytes of which the disk has \d+"):
        files.require_space(path, 1 << 60)
