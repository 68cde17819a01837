"""Hostile, damaged and foreign HDF5 files.

Each is refused with its reason; no link of theirs is followed, no false size allocated.
"""

from __future__ import annotations

import os
import re
import tracemalloc

import h5py
import numpy as np
import pytest

from pbg_tasks.errors import FormatError
from pbg_tasks.formats.edges import EdgeList, count_edges, read_edges, write_edges
from pbg_tasks.formats.embeddings import embeddings_shape, iter_blocks, iter_rows, read_embeddings, write_embeddings
from pbg_tasks.formats.guard import open_foreign
from pbg_tasks.formats.model import ModelState, read_model, write_model
from pbg_tasks.storage import open_store
from pbg_tasks.storage.base import FinalFile
from pbg_tasks.storage.vouched import Identity, is_vouched

READERS = {
    "count_edges": count_edges,
    "read_edges": read_edges,
    "read_embeddings": read_embeddings,
    "embeddings_shape": embeddings_shape,
    "iter_rows": lambda path: list(iter_rows(path, np.arange(1), 1)),
    "iter_blocks": lambda path: list(iter_blocks(path, 2)),
    "read_model": read_model,
}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "embeddings_user_0.v1.h5"


@pytest.fixture
def secret(tmp_path):
    """Local file that no reader of another file may look into."""
    target = tmp_path / "secret.h5"
    with h5py.File(target, "w") as file:
        file["embeddings"] = np.full((3, 4), 42.0, np.float32)
    return target


def new(path):
    file = h5py.File(path, "w")
    file.attrs["format_version"] = 1
    return file


def external_link(file, secret):
    file["embeddings"] = h5py.ExternalLink(secret, "embeddings")


def soft_link(file, secret):
    file["real"] = np.zeros((3, 4), np.float32)
    file["embeddings"] = h5py.SoftLink("/real")


def external_storage(file, secret):
    file.create_dataset("embeddings", (3, 4), "f4", external=[(str(secret), 0, h5py.h5f.UNLIMITED)])


def virtual_dataset(file, secret):
    layout = h5py.VirtualLayout((3, 4), "f4")
    layout[:] = h5py.VirtualSource(secret, "embeddings", (3, 4))
    file.create_virtual_dataset("embeddings", layout)


def nested_external_link(file, secret):
    file["embeddings"] = np.zeros((3, 4), np.float32)
    file["some/group/elsewhere"] = h5py.ExternalLink(secret, "embeddings")


def contiguous_bomb(file, secret):
    file.create_dataset("embeddings", (10**9, 200), "f4")


def chunked_bomb(file, secret):
    file.create_dataset("embeddings", (10**9, 200), "f4", chunks=(1000, 200), compression="gzip")


def chunk_bomb(file, secret):
    chunks, growing = (2**14, 2**14), (None, None)
    item = file.create_dataset("embeddings", (3, 4), "f4", chunks=chunks, maxshape=growing, compression="gzip")
    item.id.write_direct_chunk((0, 0), b"small")


def strings(file, secret):
    file["embeddings"] = ["a", "b"]


def references(file, secret):
    file["embeddings"] = np.zeros((3, 4), np.float32)
    file.create_dataset("references", (2,), h5py.ref_dtype)


def compound(file, secret):
    file["embeddings"] = np.zeros(3, [("a", "f4"), ("b", "f4")])


def named_type(file, secret):
    file["embeddings"] = np.zeros((3, 4), np.float32)
    file["type"] = np.dtype("f4")


def lzf(file, secret):
    file.create_dataset("embeddings", data=np.zeros((3, 4), np.float32), compression="lzf")


def empty_space(file, secret):
    file["embeddings"] = h5py.Empty("f4")


@pytest.mark.parametrize(
    ("hostile", "reason"),
    [
        (external_link, "/embeddings is a link"),
        (nested_external_link, "/some/group/elsewhere is a link"),
        (soft_link, "/embeddings is a link"),
        (external_storage, "/embeddings keeps its data in other files"),
        (virtual_dataset, "/embeddings keeps its data in other files"),
        (contiguous_bomb, "/embeddings declares 800000000000 bytes"),
        (chunked_bomb, "/embeddings declares 800000000000 bytes"),
        (chunk_bomb, "/embeddings declares 1073741824 bytes"),
        (strings, "/embeddings is of type object"),
        (references, "/references is of type object"),
        (compound, "/embeddings is of type .*'a'"),
        (named_type, "/type is neither a group nor a dataset"),
        (lzf, r"/embeddings uses the HDF5 filters \[32000\]"),
        (empty_space, "/embeddings is of type float32"),
    ],
)
@pytest.mark.parametrize("reader", READERS)
def test_hostile_files_are_refused_unread(path, secret, hostile, reason, reader):
    with new(path) as file:
        hostile(file, secret)
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match=re.escape(str(path)) + f".*{reason}"):
            READERS[reader](path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_groups_in_a_circle_are_walked_once(path):
    with new(path) as file:
        file["embeddings"] = np.zeros((3, 4), np.float32)
        for name in ("a", "b"):
            file.create_group(name)
        for index in range(20):
            file[f"a/{index}"], file[f"b/{index}"] = file["b"], file["a"]
        file["a/root"] = file["/"]
    assert read_embeddings(path)[0].shape == (3, 4)


def test_deep_groups_are_no_problem(path):
    with new(path) as file:
        group = file
        for _ in range(2000):
            group = group.create_group("g")
        group["x"] = h5py.SoftLink("/")
    with pytest.raises(FormatError, match="is a link"), open_foreign(path):
        pass


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        (None, "no attribute format_version"),
        (2, "format_version is 2; this program reads version 1"),
        (0, "format_version is 0"),
        ([1, 1], r"format_version is \[1 1\]"),
        ("1", "format_version is 1"),
        (1.0, r"format_version is 1\.0"),
    ],
)
def test_other_format_versions_are_refused(path, version, reason):
    with h5py.File(path, "w") as file:
        file["embeddings"] = np.zeros((3, 4), np.float32)
        if version is not None:
            file.attrs["format_version"] = version
    with pytest.raises(FormatError, match=rf"v1\.h5: {reason}"):
        read_embeddings(path)


@pytest.mark.parametrize(
    ("data", "reason"), [(b"", "not an HDF5 file"), (b"lhs\trhs\n" * 100, "not an HDF5 file"), (None, "cannot be read")]
)
def test_other_file_than_hdf5_is_refused(path, data, reason):
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(FormatError, match=rf"v1\.h5: {reason}"):
        read_embeddings(path)


@pytest.mark.parametrize("shape", [(0, 1 << 62), (1 << 62, 0)])
def test_empty_shapes_beyond_memory_are_refused(path, shape):
    with h5py.File(path, "w") as file:
        file.attrs["format_version"] = 1
        file.create_dataset("embeddings", shape, "f4")
    with pytest.raises(FormatError, match="'embeddings': its description makes no sense"):
        read_embeddings(path)


def test_a_directory_or_pipe_is_no_hdf5(tmp_path):
    with pytest.raises(FormatError, match="cannot be read: Is a directory"):
        read_embeddings(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FormatError, match="pipe: cannot be read: Illegal seek"):
        read_embeddings(tmp_path / "pipe")


@pytest.fixture(scope="module")
def samples(config, iteration, tmp_path_factory):
    """Return one valid file of each format, with its reader."""
    directory = tmp_path_factory.mktemp("samples")
    edges, embeddings, model = (directory / name for name in ("edges_0_0.h5", "embeddings_user_0.v1.h5", "model.v1.h5"))
    ids = np.arange(40)
    write_edges(edges, EdgeList(ids, ids, ids, np.ones(40, np.float32)))
    rows = np.ones((10, 4), np.float32)
    write_embeddings(embeddings, rows, rows[:, 0], lr=0.1, iteration=iteration, config=config)
    params = {"relations/0/operator/rhs/real": np.ones(2, np.float32)}
    write_model(model, ModelState(params, params), config=config, iteration=iteration)
    with h5py.File(directory / "gzip.h5", "w") as file:
        file.attrs["format_version"] = 1
        file.create_dataset("embeddings", data=rows, compression="gzip", chunks=(3, 4))
    with h5py.File(embeddings) as source, h5py.File(directory / "blob.h5", "w") as file:
        file.attrs["format_version"] = 1
        for name in ("embeddings", "optimizer/state_dict"):
            source.copy(name, file, name)
    return [
        (edges.read_bytes(), read_edges),
        (embeddings.read_bytes(), read_embeddings),
        (model.read_bytes(), read_model),
        ((directory / "gzip.h5").read_bytes(), read_embeddings),
        ((directory / "blob.h5").read_bytes(), read_embeddings),
    ]


def test_truncated_files_are_refused(samples, path):
    for data, read in samples:
        path.write_bytes(data)
        read(path)
        for length in {0, 4, 8, 96, 800, *range(1000, len(data), 997), len(data) - 1}:
            path.write_bytes(data[:length])
            with pytest.raises(FormatError, match=r"not an HDF5 file|damaged or truncated"):
                read(path)


def test_mutated_files_never_crash(samples, path):
    """Mutate bytes of each file.

    A mutation of a number reads well: detecting it is what the manifest's checksums are for.
    """
    generator, refused = np.random.default_rng(7), 0
    for data, read in samples:
        for _ in range(150):
            mutated = bytearray(data)
            for position in generator.integers(0, len(data), generator.integers(1, 9)):
                mutated[position] = generator.integers(256)
            path.write_bytes(mutated)
            try:
                read(path)
            except FormatError as error:
                assert str(error).startswith(str(path))  # noqa: PT017 - most mutations are harmless
                refused += 1
    assert refused > 50


IDS = np.arange(40)


def test_file_that_a_store_takes_is_read_on(path, tmp_path):
    """Read a partition again while it is being stored."""
    write_edges(path, EdgeList(IDS, IDS, IDS))
    store = open_store(str(tmp_path / "store"))
    with open_foreign(path):
        store.put("partition.h5", FinalFile(path))
    assert path.stat().st_nlink > 1, "the store keeps the file itself"
    assert is_vouched(Identity.of(path.stat()))
    np.testing.assert_array_equal(read_edges(path).lhs, IDS)


@pytest.mark.parametrize("change", [lambda path: os.truncate(path, 100), lambda path: path.write_bytes(b"")])
def test_file_changed_while_it_is_read_is_refused(path, change):
    write_edges(path, EdgeList(IDS, IDS, IDS))
    with pytest.raises(FormatError, match="was changed while it was read"), open_foreign(path):
        change(path)


def test_foreign_file_changed_in_place_is_refused(path):
    with new(path) as file:
        file["embeddings"] = np.ones((3, 4), np.float32)
    with pytest.raises(FormatError, match="was changed while it was read"), open_foreign(path):
        path.write_bytes(path.read_bytes())
