"""Training on edge paths in a store.

A bucket's edges are fetched when its turn comes.
"""

from __future__ import annotations

from types import SimpleNamespace

import h5py
import numpy as np
import pytest

from pbg_tasks.errors import FormatError, NotFoundError, StorageError
from pbg_tasks.formats.edges import EdgeFacts, EdgeList, edge_file_name, write_edges
from pbg_tasks.formats.embeddings import read_embeddings
from pbg_tasks.formats.hdf5_header import PART
from pbg_tasks.storage import copies, open_store
from pbg_tasks.storage.s3 import S3Store
from pbg_tasks.tasks.runs.dataset import EdgePaths
from pbg_tasks.tasks.training.train import train_directory
from pbg_tasks.training.data import edge_files
from pbg_tasks.training.edge_chunks import EdgeChunkTrainer
from pbg_tasks.training.schedule import Bucket, grid
from tests.directories import PER_PARTITION, DataSet

pytestmark = pytest.mark.s3

EDGES = 20_000  # edges of a bucket; its file has some 7 parts


@pytest.fixture
def data(tmp_path):
    data = DataSet(tmp_path)
    random = np.random.default_rng(0)
    for bucket in grid(2, 2):
        lhs, rhs = random.integers(PER_PARTITION, size=(2, EDGES))
        write_edges(data.edges / edge_file_name(*bucket), EdgeList(lhs, rhs, random.integers(2, size=EDGES)))
    return data


@pytest.fixture
def store(data, s3_bucket):
    """The data set's edges in a store."""
    store = open_store(f"{s3_bucket}/edges")
    for path in data.edges.iterdir():
        store.put_new(path.name, path)
    return store


@pytest.fixture
def log(monkeypatch):
    """Record fetched parts, fetched files and trained buckets in order.

    Fetched ones come with their bytes.
    """
    log = []
    get_range, fetch, train = S3Store.get_range, S3Store.fetch, EdgeChunkTrainer.train

    def logged_range(self, info, start, stop):
        data = get_range(self, info, start, stop)
        log.append(("part", info.key, len(data)))
        return data

    def logged_fetch(self, key, target):
        info = fetch(self, key, target)
        log.append(("file", key, info.size))
        return info

    def logged_train(self, iteration, piece, *args, **kwargs):
        log.append(("train", edge_file_name(*piece.bucket), piece.edges))
        return train(self, iteration, piece, *args, **kwargs)

    monkeypatch.setattr(S3Store, "get_range", logged_range)
    monkeypatch.setattr(S3Store, "fetch", logged_fetch)
    monkeypatch.setattr(EdgeChunkTrainer, "train", logged_train)
    return log


def settings(data, store, checkpoint="far", **changes):
    return data.config(checkpoint, edge_paths=(store.url,), batch_size=1000, **changes)


def trained(data, config):
    """Return vectors and sums of both partitions."""
    directory = data.root / config.checkpoint_path
    return [array for part in range(2) for array in read_embeddings(directory / f"embeddings_n_{part}.v2.h5")]


def test_training_begins_after_few_kilobytes_and_one_bucket(data, store, log, monkeypatch):
    monkeypatch.setattr(edge_files, "_EDGES_AHEAD", 1)
    far, near = settings(data, store), data.config("near", batch_size=1000)
    result = train_directory(far)
    begin = next(index for index, (what, *_) in enumerate(log) if what == "train")
    before = log[:begin]
    parts = [size for what, _, size in before if what == "part"]
    files = [name for what, name, _ in before if what == "file"]
    assert sum(parts) <= len(parts) * PART <= 4 * 2 * PART
    assert len(files) <= 2  # the first bucket's, and perhaps the next one's
    assert log[begin][1] in files
    every = [name for what, name, _ in log if what == "file"]
    assert len(every) == len(set(every)) == 4  # the second epoch finds them on the disk
    assert train_directory(near)["curve"] == result["curve"]
    for ours, theirs in zip(trained(data, far), trained(data, near), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_disk_for_one_bucket_is_enough(data, store, log, scratch, monkeypatch):
    fetch, beside = S3Store.fetch, []

    def fetch_alone(self, key, target):
        if key.startswith("edges_"):
            beside.append(list(scratch.rglob("edges_*.h5")))
        return fetch(self, key, target)

    monkeypatch.setattr(S3Store, "fetch", fetch_alone)
    monkeypatch.setattr(copies.shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    far, near = settings(data, store), data.config("near", batch_size=1000)
    train_directory(far)
    assert beside == [[]] * len(beside)
    # The two buckets that can contain loops, then two epochs of four; the last of each may be the first of the next.
    assert 8 <= len(beside) <= 10
    train_directory(near)
    for ours, theirs in zip(trained(data, far), trained(data, near), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_damaged_file_is_named_before_training(data, store, log):
    name = edge_file_name(1, 0)
    whole = (data.edges / name).read_bytes()
    for damaged in (whole[:-8000], whole[:300] + b"\0" * (len(whole) - 300), b"", b"no HDF5 at all"):
        store.put(name, damaged)
        with pytest.raises(FormatError, match=rf"^{store.url}/{name}: "):
            train_directory(settings(data, store))
    assert {what for what, *_ in log} == {"part"}


def test_damage_inside_file_is_named_when_read(data, store):
    name = edge_file_name(1, 0)
    path = data.edges / name
    columns = {"lhs": np.zeros(EDGES, np.int64), "rhs": np.zeros(EDGES, np.int64), "rel": np.zeros(EDGES, np.int64)}
    with h5py.File(path, "w") as file:
        file.attrs["format_version"] = 1
        for column, values in columns.items():
            file.create_dataset(column, data=values, chunks=(EDGES,), fletcher32=True)
        place = file["rhs"].id.get_chunk_info(0).byte_offset
    damaged = bytearray(path.read_bytes())
    damaged[place + 100] ^= 1
    store.put(name, bytes(damaged))
    with pytest.raises(FormatError, match=rf"^{store.url}/{name}: damaged"):
        train_directory(settings(data, store))


def test_files_are_examined_in_any_location(data, store, log, tmp_path):
    write_edges(data.edges / edge_file_name(0, 1), EdgeList(*np.zeros((3, 5), np.int64), np.ones(5, np.float32)))
    store.put(edge_file_name(0, 1), data.edges / edge_file_name(0, 1))
    store.delete(edge_file_name(1, 1))
    with h5py.File(tmp_path / "scattered.h5", "w") as file:
        file.attrs["format_version"] = 1
        for name in ("lhs", "rhs", "rel"):
            file.create_dataset(name, data=np.zeros(400_000, np.int64), chunks=(64,))
    store.put(edge_file_name(1, 0), tmp_path / "scattered.h5")
    buckets = grid(2, 2)
    paths = EdgePaths((str(data.edges), store.url), tmp_path)
    facts = paths.facts(buckets)
    assert [facts[0, bucket] for bucket in buckets] == [
        EdgeFacts(5 if bucket == (0, 1) else EDGES, weighted=bucket == (0, 1)) for bucket in buckets
    ]
    assert [facts.get((1, bucket)) for bucket in buckets] == [
        EdgeFacts(EDGES, weighted=False),
        EdgeFacts(5, weighted=True),
        EdgeFacts(400_000, weighted=False),
        None,
    ]
    assert [name for what, name, _ in log if what == "file"] == [edge_file_name(1, 0)]


def test_server_without_ranges_gives_whole_files(store, log, tmp_path, monkeypatch):
    def refused(_store, info, _start, _stop):
        raise StorageError(f"the S3 server ignored a range of {info.key}")

    monkeypatch.setattr(S3Store, "get_range", refused)
    facts = EdgePaths((store.url,), tmp_path).facts(grid(2, 2))
    assert set(facts.values()) == {EdgeFacts(EDGES, weighted=False)}
    assert len([name for what, name, _ in log if what == "file"]) == 4


def test_file_changed_since_count_is_not_trained(store, tmp_path):
    paths, name = EdgePaths((store.url,), tmp_path), edge_file_name(0, 1)
    paths.facts(grid(2, 2))
    write_edges(tmp_path / name, EdgeList(*np.zeros((3, EDGES), np.int64)))
    store.put(name, tmp_path / name)
    with pytest.raises(StorageError, match=rf"^{store.url}/{name}: was changed since its edges were counted"):
        paths.local(0, Bucket(0, 1))
    assert not list(tmp_path.glob(f"edges-*/*/{name}"))


def test_file_removed_since_listing_is_named(store, tmp_path):
    paths = EdgePaths((store.url,), tmp_path)
    store.delete(edge_file_name(0, 1))
    with pytest.raises(NotFoundError, match=rf"{store.url}/{edge_file_name(0, 1)} does not exist"):
        paths.facts(grid(2, 2))
