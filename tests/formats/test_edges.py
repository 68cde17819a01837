"""Edge buckets: round trips, bytes, layout, and files of other writers."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbg_tasks.errors import FormatError
from pbg_tasks.formats import slices
from pbg_tasks.formats.edges import EdgeFileWriter, EdgeList, count_edges, edge_file_name, read_edges, write_edges
from pbg_tasks.formats.stored import fletcher32


def make_edges(count, *, weighted=False):
    generator = np.random.default_rng(0)
    ids = [generator.integers(0, 1 << 40, count) for _ in range(3)]
    return EdgeList(*ids, weight=generator.random(count, np.float32) if weighted else None)


def part(edges, start, stop):
    weight = None if edges.weight is None else edges.weight[start:stop]
    return EdgeList(edges.lhs[start:stop], edges.rhs[start:stop], edges.rel[start:stop], weight)


def assert_equal(left, right):
    for name in ("lhs", "rhs", "rel"):
        assert getattr(left, name).dtype == np.int64
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name))
    assert (left.weight is None) == (right.weight is None)
    if left.weight is not None:
        assert left.weight.dtype == np.float32
        np.testing.assert_array_equal(left.weight, right.weight)


def write_foreign(path, **datasets):
    """Write a file as another program might.

    A dataset is an array, or an array with h5py's options.
    """
    with h5py.File(path, "w") as file:
        file.attrs["format_version"] = 1
        for name, value in datasets.items():
            data, options = value if isinstance(value, tuple) else (value, {})
            file.create_dataset(name, data=data, **options)
    return path


def test_file_name_is_pbgs():
    assert edge_file_name(2, 10) == "edges_2_10.h5"


@settings(deadline=None, max_examples=40)
@given(data=st.data(), count=st.integers(0, 60), weighted=st.booleans(), checksums=st.booleans())
def test_file_written_in_any_pieces_has_equal_bytes(data, count, weighted, checksums):
    edges = make_edges(count, weighted=weighted)
    cuts = sorted(data.draw(st.lists(st.integers(0, count), max_size=4)))
    with tempfile.TemporaryDirectory() as name:
        paths = [Path(name) / "edges_0_0.h5", Path(name) / "edges_0_1.h5"]
        for path, stops in zip(paths, ([count], [*cuts, count]), strict=True):
            with EdgeFileWriter(path, count, weighted=weighted, checksums=checksums) as writer:
                for start, stop in zip([0, *stops], stops, strict=False):
                    writer.append(part(edges, start, stop))
        assert paths[0].read_bytes() == paths[1].read_bytes()
        assert count_edges(paths[0]) == count
        assert_equal(read_edges(paths[0]), edges)
        start, stop = sorted(data.draw(st.tuples(st.integers(0, count), st.integers(0, count))))
        assert_equal(read_edges(paths[0], start, stop), part(edges, start, stop))


@pytest.mark.parametrize("weighted", [False, True])
def test_the_layout_is_pbgs(tmp_path, weighted):
    write_edges(tmp_path / "edges_0_0.h5", make_edges(5, weighted=weighted))
    with h5py.File(tmp_path / "edges_0_0.h5") as file:
        assert {name: (type(value), value) for name, value in file.attrs.items()} == {"format_version": (np.int64, 1)}
        found = {name: (item.dtype.str, item.shape, item.chunks) for name, item in file.items()}
    ids = dict.fromkeys(("lhs", "rhs", "rel"), ("<i8", (5,), None))
    assert found == ids | ({"weight": ("<f4", (5,), None)} if weighted else {})


@pytest.mark.parametrize("count", [0, 1000, 1 << 17])
def test_bucket_written_in_pieces_is_contiguous_and_small(tmp_path, count):
    path, edges = tmp_path / "edges_0_0.h5", make_edges(count, weighted=True)
    with EdgeFileWriter(path, count, weighted=True) as writer:
        for start in range(0, count, 300):
            writer.append(part(edges, start, start + 300))
    assert path.stat().st_size < count * 28 + 16_384
    with h5py.File(path) as file:
        assert all(item.chunks is None for item in file.values())
    assert_equal(read_edges(path), edges)


@pytest.mark.parametrize("pieces", [1, 3])
def test_edges_with_checksums_notice_each_changed_byte(tmp_path, monkeypatch, pieces):
    monkeypatch.setattr(slices, "_CHUNK_BYTES", 256)
    path, edges = tmp_path / "edges_0_0.h5", make_edges(100, weighted=True)
    if pieces == 1:
        write_edges(path, edges, checksums=True)
    else:
        with EdgeFileWriter(path, 100, weighted=True, checksums=True) as writer:
            for start in range(0, 100, 40):
                writer.append(part(edges, start, start + 40))
    assert_equal(read_edges(path), edges)
    assert_equal(read_edges(path, 30, 70), part(edges, 30, 70))
    whole = path.read_bytes()
    for column in (edges.lhs, edges.rhs, edges.rel, edges.weight):
        place = whole.index(column[50:52].tobytes())
        changed = bytearray(whole)
        changed[place] ^= 1
        path.write_bytes(changed)
        with pytest.raises(FormatError, match=r"edges_0_0\.h5: .*(checksum|fletcher32)"):
            read_edges(path)


def test_an_empty_bucket_may_have_weights(tmp_path):
    with EdgeFileWriter(tmp_path / "edges_0_0.h5", 0, weighted=True):
        pass
    assert_equal(read_edges(tmp_path / "edges_0_0.h5"), make_edges(0, weighted=True))


@pytest.mark.parametrize("wrong", [-1.0, -1e-30, np.nan, np.inf, -np.inf, 1e300])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_weight_below_zero_or_infinite_is_refused(tmp_path, wrong, dtype):
    weight = np.ones(20, dtype)
    with np.errstate(over="ignore", under="ignore"):
        weight[13] = wrong
    ids = np.zeros(20, np.int64)
    path = write_foreign(tmp_path / "edges_0_0.h5", lhs=ids, rhs=ids, rel=ids, weight=weight)
    if weight[13] == 0:  # -1e-30 in float16
        return
    with pytest.raises(FormatError, match=r"edges_0_0\.h5: row 13 of dataset 'weight', .*not a finite number"):
        read_edges(path)
    with pytest.raises(FormatError, match="row 13 of dataset"):
        read_edges(path, 10, 20)
    assert len(read_edges(path, 0, 13)) == 13


def test_negative_integer_weight_is_refused(tmp_path):
    ids = np.zeros(3, np.int64)
    path = write_foreign(tmp_path / "edges_0_0.h5", lhs=ids, rhs=ids, rel=ids, weight=np.array([0, 3, -2]))
    with pytest.raises(FormatError, match=r"row 2 of dataset .* is -2"):
        read_edges(path)


def test_the_name_appears_only_at_the_end(tmp_path):
    with EdgeFileWriter(tmp_path / "edges_1_2.h5", 3, weighted=False) as writer:
        writer.append(make_edges(3))
        assert [path.name for path in tmp_path.iterdir()] == ["edges_1_2.tmp.h5"]
    assert [path.name for path in tmp_path.iterdir()] == ["edges_1_2.h5"]


def test_a_failure_leaves_nothing(tmp_path):
    with contextlib.suppress(KeyboardInterrupt), EdgeFileWriter(tmp_path / "edges_0_0.h5", 3, weighted=False) as writer:
        writer.append(make_edges(3))
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_too_few_edges_leave_nothing(tmp_path):
    with (
        pytest.raises(ValueError, match="4 edges were announced, and 3 came"),
        EdgeFileWriter(tmp_path / "edges_0_0.h5", 4, weighted=False) as writer,
    ):
        writer.append(make_edges(3))
    assert list(tmp_path.iterdir()) == []


def test_edges_beyond_the_announcement_are_refused(tmp_path):
    edges = make_edges(3)
    with EdgeFileWriter(tmp_path / "edges_0_0.h5", 3, weighted=False) as writer:
        writer.append(part(edges, 0, 2))
        with pytest.raises(ValueError, match="either all pieces"):
            writer.append(make_edges(1, weighted=True))
        with pytest.raises(ValueError, match="3 edges were announced, and more came"):
            writer.append(part(edges, 1, 3))
        writer.append(part(edges, 2, 3))
    assert_equal(read_edges(tmp_path / "edges_0_0.h5"), edges)


def test_columns_of_different_length_are_no_edges():
    with pytest.raises(ValueError, match="vectors of one length"):
        EdgeList(np.zeros(3, int), np.zeros(2, int), np.zeros(3, int))


@pytest.mark.parametrize("dtype", ["i1", "u1", "<i2", ">i4", "u4", "i8", "u8"])
@pytest.mark.parametrize(
    "options", [{}, {"chunks": (7,)}, {"chunks": (7,), "compression": "gzip", "shuffle": True, "fletcher32": True}]
)
def test_ids_of_any_integer_layout_are_read(tmp_path, dtype, options):
    columns = {name: np.arange(start, start + 20).astype(dtype) for start, name in enumerate(("lhs", "rhs", "rel"))}
    path = write_foreign(tmp_path / "edges_0_0.h5", **{name: (value, options) for name, value in columns.items()})
    assert_equal(read_edges(path, 3, 15), EdgeList(*(np.arange(3, 15) + start for start in range(3))))


@pytest.mark.parametrize("dtype", ["i2", "i8", "f2", "f4", "f8"])
def test_weights_are_never_truncated(tmp_path, dtype):
    weights = np.array([0, 0.5, 2.75]).astype(dtype)
    ids = np.zeros(3, np.int64)
    path = write_foreign(tmp_path / "edges_0_0.h5", lhs=ids, rhs=ids, rel=ids, weight=weights)
    np.testing.assert_array_equal(read_edges(path).weight, weights.astype(np.float32))


IDS = np.arange(3)


@pytest.mark.parametrize(
    ("datasets", "message"),
    [
        ({"lhs": IDS, "rel": IDS}, "'rhs' is missing"),
        ({"lhs": IDS, "rhs": IDS[:2], "rel": IDS}, r"'rhs' has shape \(2,\), expected \(3\)"),
        ({"lhs": IDS, "rhs": IDS, "rel": IDS, "weight": np.zeros(2)}, r"'weight' has shape \(2,\), expected \(3\)"),
        ({"lhs": IDS, "rhs": IDS.reshape(3, 1), "rel": IDS}, r"'rhs' has shape \(3, 1\), expected \(3\)"),
        ({"lhs": IDS.astype(float), "rhs": IDS, "rel": IDS}, "'lhs' is of type float64"),
        ({"lhs": IDS - 1, "rhs": IDS, "rel": IDS}, "'lhs' holds a negative id"),
        ({"lhs": IDS, "rhs": IDS, "rel": np.full(3, 2**64 - 1, np.uint64)}, "'rel' holds a negative id"),
    ],
)
def test_refused_file_is_named(tmp_path, datasets, message):
    path = write_foreign(tmp_path / "edges_0_0.h5", **datasets)
    with pytest.raises(FormatError, match=rf"edges_0_0\.h5: dataset {message}"):
        read_edges(path)


def test_empty_pbg_file_with_huge_chunks_is_read(tmp_path):
    options = {"chunks": (6_553_600,), "maxshape": (None,)}
    empty = (np.zeros(0, np.int64), options)
    path = write_foreign(tmp_path / "edges_0_0.h5", lhs=empty, rhs=empty, rel=empty)
    assert len(read_edges(path)) == count_edges(path) == 0


@settings(deadline=None)
@given(st.binary(max_size=50), st.sampled_from([0, 1, 8191, 8192, 8193, 50_000]), st.sampled_from([0, 1, 255]))
def test_checksum_is_fletchers_of_big_endian_words(head, size, filling):
    data = head + bytes([filling]) * size
    first = second = 0
    for word in np.frombuffer(data + b"\0" * (len(data) % 2), ">u2").tolist():
        first = (first + word) % 65535
        second = (second + first) % 65535
    assert fletcher32(data) == second << 16 | first
