"""Tests that a store must pass, also stores of other packages.

A test module of such a package subclasses ``StoreContract``, gives it the fixture ``store``, and imports
``large_file``. It takes pytest; docs/plugins.md has an example.
"""

from __future__ import annotations

import hashlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from pbg_tasks.errors import ConfigError, ConflictError, NotFoundError, StorageError
from pbg_tasks.storage import RangedStore, Store
from pbg_tasks.storage.probe import probe

if TYPE_CHECKING:
    from pathlib import Path

    from pbg_tasks.storage import ObjectInfo

THREADS = 8
LARGE = 40 * (1 << 20) + 12_345
BAD_KEYS = ["", "/a", "a//", "a//b", "..", "a/../b", "./a", "a/.", ".pbg/locks/1", "a\nb", "a\0b", "a\\b", "k" * 300]


@pytest.fixture(scope="session")
def large_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a file that is uploaded in several parts."""
    path = tmp_path_factory.mktemp("large") / "large.bin"
    path.write_bytes(os.urandom(LARGE))
    return path


def sha256(data: bytes) -> str:
    """Hash bytes."""
    return hashlib.sha256(data).hexdigest()


def _head(store: Store, key: str) -> ObjectInfo:
    info = store.head(key)
    assert info is not None
    return info


class StoreContract:
    """Tests of one store.

    A subclass gives the fixture ``store``: a new, empty store for each test.
    """

    def test_is_a_store(self, store: Store) -> None:
        assert isinstance(store, Store)
        assert not store.url.endswith("/")

    def test_an_object_comes_back_with_its_metadata(self, store: Store) -> None:
        metadata = {"epoch": "3", "written-by": "rank 0 = first"}
        info = store.put_new("runs/a/HEAD.json", b"{}", metadata=metadata)
        assert (info.key, info.size, info.metadata) == ("runs/a/HEAD.json", 2, metadata)
        assert store.head("runs/a/HEAD.json") == info
        blob = store.get("runs/a/HEAD.json")
        assert (blob.data, blob.info) == (b"{}", info)

    def test_an_object_is_dated_by_the_stores_clock(self, store: Store) -> None:
        store.put_new("k", b"1")
        written = _head(store, "k").modified
        assert written is not None
        assert abs(written - time.time()) < 60
        dates = [store.get("k").info.modified, *(info.modified for info in store.list())]
        assert [int(date or 0) for date in dates] == [int(written)] * 2  # S3 has whole seconds

    def test_a_range_of_a_version_is_read(self, store: Store) -> None:
        if not isinstance(store, RangedStore):
            pytest.skip("the store reads whole objects alone")
        store.put_new("k", b"0123456789")
        store.put_new("empty", b"")
        empty, info = store.list()
        assert store.get_range(info, 2, 5) == b"234"
        assert store.get_range(info, 8, 99) == b"89"
        assert store.get_range(info, 10, 99) == store.get_range(empty, 0, 99) == b""
        store.put("k", b"9876543210")
        with pytest.raises(StorageError, match=r"/k\b.* changed") as told:
            store.get_range(info, 2, 5)
        assert not isinstance(told.value, NotFoundError)  # what is absent needs another repair
        store.delete("k")
        with pytest.raises(NotFoundError, match=r"/k\b"):
            store.get_range(info, 2, 5)

    def test_an_empty_object(self, store: Store, tmp_path: Path) -> None:
        assert store.put_new("_SUCCESS", b"").size == 0
        assert store.get("_SUCCESS").data == b""
        store.fetch("_SUCCESS", tmp_path / "mark")
        assert (tmp_path / "mark").read_bytes() == b""

    def test_a_missing_object(self, store: Store, tmp_path: Path) -> None:
        before = list(tmp_path.iterdir())
        assert store.head("nowhere/x") is None
        with pytest.raises(NotFoundError, match="nowhere/x"):
            store.get("nowhere/x")
        with pytest.raises(NotFoundError, match="nowhere/x"):
            store.fetch("nowhere/x", tmp_path / "x")
        with pytest.raises(NotFoundError, match="nowhere/x"):
            store.copy("nowhere/x", "y")
        assert list(tmp_path.iterdir()) == before
        store.delete("nowhere/x")

    def test_a_folder_is_no_object(self, store: Store) -> None:
        store.put_new("folder/x", b"1")
        assert store.head("folder") is None
        with pytest.raises(NotFoundError):
            store.get("folder")

    def test_put_new_never_replaces(self, store: Store) -> None:
        first = store.put_new("k", b"first", metadata={"by": "first"})
        with pytest.raises(ConflictError, match="k"):
            store.put_new("k", b"first", metadata={"by": "second"})
        assert store.get("k").data == b"first"
        assert store.head("k") == first

    def test_put_new_race_has_one_winner(self, store: Store) -> None:
        def create(name: str) -> str | None:
            try:
                store.put_new("race", name.encode() * 1000, metadata={"by": name})
            except ConflictError:
                return None
            return name

        with ThreadPoolExecutor(THREADS) as pool:
            winners = list(filter(None, pool.map(create, [f"w{i}" for i in range(THREADS)])))
        assert len(winners) == 1
        blob = store.get("race")
        assert blob.data == winners[0].encode() * 1000
        assert blob.info.metadata == {"by": winners[0]}

    def test_swap_replaces_only_what_was_expected(self, store: Store) -> None:
        first = store.put_new("HEAD", b"1", metadata={"v": "1"})
        second = store.swap("HEAD", b"2", expected=first, metadata={"v": "2"})
        assert second.tag != first.tag
        assert store.head("HEAD") == second
        with pytest.raises(ConflictError, match="HEAD"):
            store.swap("HEAD", b"3", expected=first)
        with pytest.raises(ConflictError, match="HEAD"):
            store.swap("HEAD", b"3", expected=None)
        assert store.get("HEAD").data == b"2"

    def test_swap_without_expectation_creates(self, store: Store) -> None:
        assert store.swap("HEAD", b"1", expected=None).size == 1

    def test_swap_of_a_vanished_object_conflicts(self, store: Store) -> None:
        first = store.put_new("HEAD", b"1")
        store.delete("HEAD")
        with pytest.raises(ConflictError):
            store.swap("HEAD", b"2", expected=first)
        assert store.head("HEAD") is None

    def test_swap_drops_metadata_of_replaced_version(self, store: Store) -> None:
        first = store.put_new("HEAD", b"1", metadata={"v": "1"})
        store.swap("HEAD", b"2", expected=first)
        assert _head(store, "HEAD").metadata == {}

    def test_swap_race_loses_no_update(self, store: Store) -> None:
        store.put_new("counter", b"0")
        rounds = 8

        def count(_: int) -> None:
            for _ in range(rounds):
                while True:
                    blob = store.get("counter")
                    try:
                        store.swap("counter", str(int(blob.data) + 1).encode(), expected=blob.info)
                    except ConflictError:
                        continue
                    break

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(count, range(THREADS)))
        assert store.get("counter").data == str(THREADS * rounds).encode()

    def test_put_replaces(self, store: Store) -> None:
        store.put("mirror", b"1", metadata={"v": "1"})
        info = store.put("mirror", b"22", metadata={"v": "2"})
        assert store.get("mirror").data == b"22"
        assert store.head("mirror") == info

    def test_a_large_file_goes_up_and_down_whole(self, store: Store, large_file: Path, tmp_path: Path) -> None:
        info = store.put_new("large", large_file, metadata={"sha256": "x"})
        assert info.size == LARGE
        assert store.head("large") == info
        target = tmp_path / "down" / "large"
        assert store.fetch("large", target) == info
        assert sha256(target.read_bytes()) == sha256(large_file.read_bytes())
        assert [path.name for path in target.parent.iterdir()] == ["large"]

    def test_a_large_file_never_replaces(self, store: Store, large_file: Path) -> None:
        store.put_new("large", b"first")
        with pytest.raises(ConflictError):
            store.put_new("large", large_file)
        assert store.get("large").data == b"first"

    def test_a_large_swap(self, store: Store, large_file: Path) -> None:
        first = store.put_new("large", b"first")
        info = store.swap("large", large_file, expected=first)
        with pytest.raises(ConflictError):
            store.swap("large", large_file, expected=first)
        assert store.head("large") == info

    def test_large_files_race_to_one_winner(self, store: Store, large_file: Path) -> None:
        def create(name: str) -> str | None:
            try:
                store.put_new("race", large_file, metadata={"by": name})
            except ConflictError:
                return None
            return name

        with ThreadPoolExecutor(3) as pool:
            winners = [name for name in pool.map(create, ["a", "b", "c"]) if name]
        assert len(winners) == 1
        assert _head(store, "race").metadata == {"by": winners[0]}

    def test_a_fetch_replaces_its_target(self, store: Store, tmp_path: Path) -> None:
        store.put_new("k", b"new")
        (tmp_path / "k").write_bytes(b"older and longer")
        store.fetch("k", tmp_path / "k")
        assert (tmp_path / "k").read_bytes() == b"new"

    def test_copy_keeps_bytes_and_metadata(self, store: Store) -> None:
        source = store.put_new("a/model.h5", b"weights", metadata={"sha256": "ab"})
        copied = store.copy("a/model.h5", "b/model.h5")
        assert (copied.key, copied.size, copied.metadata) == ("b/model.h5", 7, {"sha256": "ab"})
        assert store.head("b/model.h5") == copied
        assert store.head("a/model.h5") == source
        assert store.copy("a/model.h5", "b/model.h5") == copied

    def test_copy_never_replaces_other_bytes(self, store: Store) -> None:
        store.put_new("a", b"one")
        store.put_new("b", b"two")
        with pytest.raises(ConflictError, match="b"):
            store.copy("a", "b")
        assert store.get("b").data == b"two"

    def test_copy_accepts_equal_bytes_of_another_write(self, store: Store) -> None:
        store.put_new("a", b"one")
        existing = store.put_new("b", b"one")
        assert store.copy("a", "b").tag == existing.tag

    def test_copies_race_to_the_same_end(self, store: Store) -> None:
        store.put_new("a", b"one" * 1000)
        with ThreadPoolExecutor(THREADS) as pool:
            copies = list(pool.map(lambda _: store.copy("a", "b"), range(THREADS)))
        assert {info.tag for info in copies} == {_head(store, "b").tag}

    def test_list_is_in_key_order_and_by_prefix(self, store: Store) -> None:
        keys = ["a/b", "a-b", "a/c/d", "b", "a.b", "a0", "_hidden/x", ".dot"]
        for number, key in enumerate(keys):
            store.put_new(key, b"x" * number, metadata={"n": "1"})
        assert [info.key for info in store.list()] == sorted(keys)
        assert [info.size for info in store.list()] == [keys.index(key) for key in sorted(keys)]
        assert [info.key for info in store.list("a/")] == ["a/b", "a/c/d"]
        assert [info.key for info in store.list("a")] == ["a-b", "a.b", "a/b", "a/c/d", "a0"]
        assert [info.key for info in store.list("a/c/d")] == ["a/c/d"]
        assert list(store.list("nothing/")) == []

    def test_list_tags_are_those_of_head(self, store: Store) -> None:
        info = store.put_new("k", b"1")
        assert [listed.tag for listed in store.list()] == [info.tag]

    def test_delete(self, store: Store) -> None:
        store.put_new("k", b"1", metadata={"v": "1"})
        store.delete("k")
        assert store.head("k") is None
        assert store.put_new("k", b"2").metadata == {}

    def test_no_upload_that_ended_is_given_up(self, store: Store, large_file: Path) -> None:
        store.put_new("k", b"1")
        store.put_new("large", large_file)
        assert store.abort_uploads("", before=time.time() + 3600) == 0
        assert [info.key for info in store.list()] == ["k", "large"]

    def test_unusual_names(self, store: Store) -> None:
        keys = ["ünïcode/名前", "with blank/and+plus", "100%/x?y&z=1", "a=1/#2", "'quoted'\""]
        for key in keys:
            store.put_new(key, key.encode())
        assert [info.key for info in store.list()] == sorted(keys)
        assert all(store.get(key).data == key.encode() for key in keys)
        assert store.copy("with blank/and+plus", "copy").size == len("with blank/and+plus")
        assert store.copy("ünïcode/名前", "copy2").size == len("ünïcode/名前".encode())

    def test_bad_keys_are_refused(self, store: Store, tmp_path: Path) -> None:
        operations = {
            "head": store.head,
            "get": store.get,
            "fetch": lambda key: store.fetch(key, tmp_path / "x"),
            "put_new": lambda key: store.put_new(key, b""),
            "swap": lambda key: store.swap(key, b"", expected=None),
            "put": lambda key: store.put(key, b""),
            "copy from": lambda key: store.copy(key, "fine"),
            "copy to": lambda key: store.copy("fine", key),
            "list": lambda key: list(store.list(f"{key}/x")),
            "delete": store.delete,
        }
        for key in BAD_KEYS:
            for name, operation in operations.items():
                with pytest.raises(ConfigError):
                    pytest.fail(f"{name} of {key!r} gave {operation(key)}")

    def test_metadata_no_store_could_keep_is_refused(self, store: Store) -> None:
        for metadata in ({"Upper": "x"}, {"a": ""}, {"a": " x"}, {"a": "é"}, {"a": "x" * 2000}):
            with pytest.raises(ConfigError, match="metadata"):
                store.put_new("k", b"", metadata=metadata)
        assert store.head("k") is None

    def test_a_failing_source_leaves_nothing(self, store: Store, tmp_path: Path) -> None:
        with pytest.raises(Exception, match="gone"):
            store.put_new("k", tmp_path / "gone")
        assert list(store.list()) == []

    def test_the_probe_accepts_it_and_leaves_nothing(self, store: Store) -> None:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: probe(store), range(4)))
        assert list(store.list()) == []
