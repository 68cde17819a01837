"""Stored and cached name indexes: right names or one clear error."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pbg_tasks.api import Model, name_cache
from pbg_tasks.api.names import NameIndex, UnknownNameError
from pbg_tasks.config.graph import Resources
from pbg_tasks.errors import ConfigError, FormatError, InputError, ResourceError
from pbg_tasks.formats import names as file_names
from pbg_tasks.formats.name_index import MappedNames, NameTable, digests_file_name, index_file_name
from pbg_tasks.prepare.connection import connect
from pbg_tasks.prepare.name_index import index_names
from pbg_tasks.storage import open_store
from pbg_tasks.storage.files import hold
from pbg_tasks.tasks.model_source import Source
from pbg_tasks.tasks.nightly.chain import run_chain
from tests.tasks.conftest import Workplace, ring

LETTERS = ["a", "b", "B", "ä", "ß", "é", "e\u0301", "中", "😀", "\x00", '"', "\\", "\n", " ", "\u2028", "\U0010ffff"]

WITHOUT_PANDAS = """
import sys
from pathlib import Path
from pbg_tasks.config.graph import Resources
from pbg_tasks.prepare.connection import connect
from pbg_tasks.prepare.name_index import index_ids
out = Path(sys.argv[1])
with connect(Resources(threads=1), out) as connection:
    connection.sql("SELECT 0 AS partition, range AS \\"offset\\", 'n' || range AS name FROM range(3)").write_parquet(
        str(out / "ids.parquet")
    )
    index_ids(connection, out / "ids.parquet", "n", [3], out)
assert "pandas" not in sys.modules
"""


def random_names(count, seed):
    rng = random.Random(seed)
    found = {"": None, "x" * 200_000: None}  # a name over several blocks
    while len(found) < count:
        found["".join(rng.choices(LETTERS, k=rng.randrange(1, 9)))] = None
    names = list(found)
    rng.shuffle(names)
    return names


def build(names, counts, out):
    some = [pa.array(names[start : start + 700], pa.large_string()) for start in range(0, len(names), 700)]
    with connect(Resources(threads=1), out) as connection:
        return index_names(connection, some, "n", counts, out)


def mapped(paths, counts):
    return MappedNames(
        paths[0], paths[1].read_bytes(), counts=counts, source="the index", advice="remove it, and it is built anew"
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    names, counts = random_names(6000, 3), [2500, 0, 3500]
    return names, counts, build(names, counts, tmp_path_factory.mktemp("index"))


@pytest.mark.parametrize("where", ["file", "memory"])
def test_index_finds_what_a_dictionary_finds(built, where):
    names, counts, paths = built
    table = mapped(paths, counts) if where == "file" else NameTable.of(pa.array(names, pa.large_string()))
    index, number = NameIndex("entity", table), {name: place for place, name in enumerate(names)}
    asked = [*names, *(f"{name}b" for name in names), "\ud800"]
    np.testing.assert_array_equal(index.find(asked), [number.get(name, -1) for name in asked])
    assert index.names() == names
    assert index.names(np.array([5999, 0, 7])) == [names[5999], names[0], names[7]]
    for prefix in ["", "ä", "e", "中😀", '"', "x", "\U0010ffff", "nothing"]:
        expected = sorted((name for name in names if name.startswith(prefix)), key=str.encode)
        assert index.prefixed(prefix) == expected
        assert index.prefixed(prefix, 3) == expected[:3]
    with pytest.raises(InputError, match="have the numbers 0 to 5999, got 6000"):
        index.names(np.array([6000]))


@pytest.mark.parametrize("count", [60_000, 100_000])
def test_full_disk_under_index_is_named(small_disk, count):
    """The text has no room, or a column that is mapped."""
    with pytest.raises(ResourceError, match=f"{small_disk}.*: the disk or its quota is full"):
        build([f"{number:x}" for number in range(count)], [count], small_disk)


def test_name_given_twice_has_lower_number(tmp_path):
    paths = build(["a", "b", "a", "c", "b"], [2, 3], tmp_path)
    np.testing.assert_array_equal(mapped(paths, [2, 3]).find(["b", "a", "c"]), [1, 0, 3])


def test_index_of_equal_names_has_equal_bytes(built, tmp_path):
    names, counts, paths = built
    assert [path.read_bytes() for path in build(names, counts, tmp_path)] == [path.read_bytes() for path in paths]


@pytest.mark.skipif(find_spec("pandas") is None, reason="pandas is not installed")
def test_index_is_written_without_pandas(tmp_path):
    subprocess.run([sys.executable, "-c", WITHOUT_PANDAS, str(tmp_path)], check=True)
    assert mapped([tmp_path / index_file_name("n"), tmp_path / digests_file_name("n")], [3]).find(["n2"]) == [2]


def test_flipped_byte_never_gives_wrong_name(built, tmp_path):
    names, counts, paths = built
    data, number = paths[0].read_bytes(), {name: place for place, name in enumerate(names)}
    rng, messages = random.Random(1), []
    for place in [0, 9, len(data) - 1, len(data) - 12, *(rng.randrange(len(data)) for _ in range(40))]:
        (tmp_path / "i").write_bytes(data[:place] + bytes([data[place] ^ (1 << rng.randrange(8))]) + data[place + 1 :])
        asked = rng.sample(names, 200)
        try:
            found = mapped([tmp_path / "i", paths[1]], counts).find(asked).tolist()
        except FormatError as error:
            messages.append(str(error))
        else:
            assert found == [number[name] for name in asked]
    assert len(messages) > 20
    assert all(re.fullmatch("the index: .*; remove it, and it is built anew", each) for each in messages)


@pytest.mark.parametrize("cut", [1, 1000, None])
def test_cut_index_is_refused(built, tmp_path, cut):
    _, counts, paths = built
    (tmp_path / "i").write_bytes(paths[0].read_bytes()[: -cut if cut else 0])
    with pytest.raises(FormatError, match="remove it, and it is built anew"):
        mapped([tmp_path / "i", paths[1]], counts).find(["a"])


def test_index_of_other_partitions_is_refused(built):
    _, _, paths = built
    with pytest.raises(FormatError, match="is of partitions of 2500, 0, 3500 entities, the vectors of 2500, 3500;"):
        mapped(paths, [2500, 3500])


@pytest.fixture(scope="module")
def night(tmp_path_factory):
    """A released night whose types all have an index."""
    with pytest.MonkeyPatch.context() as patch:
        root = tmp_path_factory.mktemp("night")
        patch.setenv("PBG_SCRATCH", str(root / "scratch"))
        patch.setattr(file_names, "INDEXED_FROM", 1)
        place = Workplace(root)
        place.snapshot("d1", [*ring(40), ("Größe 😀", "next", "e1"), ("e2", "next", "Größe 😀")])
        place.run = run_chain(place.spec, "d1", epochs=1)["run"]
        yield place


@pytest.fixture
def indexed(monkeypatch, tmp_path, scratch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(file_names, "INDEXED_FROM", 1)
    return tmp_path / "cache" / "pbg" / "names"


def test_release_is_opened_without_reading_its_names(night, indexed, monkeypatch, tmp_path):
    release = tmp_path / "release"
    shutil.copytree(Path(night.run) / "release", release)
    assert {index_file_name("n"), digests_file_name("n")} <= json.loads((release / "manifest.json").read_text())[
        "objects"
    ].keys()
    with monkeypatch.context() as patch:
        patch.setattr(file_names, "INDEXED_FROM", 1 << 17)
        with Model.open(release) as model:
            expected, names = model.top_k("Größe 😀", "next"), model.entities()
    for path in release.glob("entity_names_n_*.json"):
        path.unlink()
    with Model.open(release) as model:
        assert model.top_k("Größe 😀", "next") == expected
        assert model.entities() == names
        assert model.entities("n", prefix="e1", limit=2) == ["e1", "e10"]
        assert model.names([2, 0]) == [names[2], names[0]]
        assert model.names([]) == []
        monkeypatch.setattr("pbg_tasks.api.names._NEAR_POOL", 10)
        with pytest.raises(UnknownNameError, match="did you mean 'e33'"):
            model.top_k("e333", "next")
    assert not indexed.exists()


def test_damaged_index_of_release_names_way_out(night, indexed, tmp_path):
    release = tmp_path / "release"
    shutil.copytree(Path(night.run) / "release", release)
    path = release / index_file_name("n")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(FormatError, match=r"entity_index_n\.arrow: block 0 .*; restore it, or remove it: each reader"):
        Model.open(release)
    path.unlink()
    with Model.open(release) as model, Model.open(night.run) as whole:
        assert model.entities() == whole.entities()
        assert model.top_k("e3", "next") == whole.top_k("e3", "next")
    (kept,) = indexed.iterdir()
    assert (kept / index_file_name("names")).read_bytes() == (Path(night.run) / "release" / path.name).read_bytes()


def test_directory_of_pbg_gets_index_in_cache_once(trained, indexed, monkeypatch):
    data = trained()
    with Model.open(data.checkpoint) as first:
        expected = first.top_k("n0_1")
        assert first.entities() == data.names["n"]
    (kept,) = indexed.iterdir()
    with monkeypatch.context() as patch:
        patch.setattr("pbg_tasks.api.name_cache.index_names", None)  # it would fail
        with Model.open(data.checkpoint) as second:
            assert second.top_k("n0_1") == expected
    path = kept / index_file_name("names")
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(FormatError, match=f"remove {kept}: the next opening builds it anew"):
        Model.open(data.checkpoint)
    shutil.rmtree(kept)
    data.rename("n", 1, [f"other{i}" for i in range(51)])
    with Model.open(data.checkpoint) as renamed:
        assert "other3" in renamed.entities()
    data.rename("n", 1, ["one"])
    with pytest.raises(FormatError, match="holds 1 names, the partition has 51 entities"):
        Model.open(data.checkpoint)
    assert len(list(indexed.iterdir())) == 1


def test_cache_that_cannot_be_written_is_no_obstacle(trained, indexed):
    data = trained()
    indexed.parent.parent.write_text("a file")
    with Model.open(data.checkpoint) as model:
        assert model.entities() == data.names["n"]


def test_home_of_another_user_is_no_obstacle(trained, indexed, monkeypatch):
    """Such as ``HOME=/root`` of a process that runs as another user."""
    data, status = trained(), Path.stat

    def refused(path, **given):
        if path.is_relative_to(indexed):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return status(path, **given)

    monkeypatch.setattr(Path, "stat", refused)
    with Model.open(data.checkpoint) as model:
        assert model.entities() == data.names["n"]


def test_user_without_home_opens_large_models(night, trained, indexed, monkeypatch):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    with Model.open(f"{night.run}/release") as model, Model.open(trained().checkpoint) as other:
        assert "e3" in model.entities()
        assert "n0_3" in other.entities()
    with pytest.raises(ConfigError, match="no home for a cache: set XDG_CACHE_HOME, or HOME"):
        name_cache.cache_directory()


def test_builder_that_is_stopped_is_not_awaited_forever(trained, indexed, monkeypatch):
    monkeypatch.setattr(name_cache, "_PATIENCE_SECONDS", 0.2)
    data, alone = trained(), name_cache._alone

    @contextmanager
    def second(place):
        place.parent.mkdir(parents=True)
        place.with_suffix(".lock").touch()
        stopped = hold(place.with_suffix(".lock"))
        with alone(place):
            yield
        os.close(stopped)

    monkeypatch.setattr(name_cache, "_alone", second)
    with Model.open(data.checkpoint) as model:
        assert model.entities() == data.names["n"]
    assert [path.suffix for path in sorted(indexed.iterdir())] == ["", ".lock"]


def test_index_without_room_in_cache_is_used(trained, indexed, monkeypatch):
    data, rename = trained(), Path.rename

    def full(path, target):
        if Path(target).parent == indexed:
            raise OSError(errno.EDQUOT, "Disk quota exceeded")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", full)
    with Model.open(data.checkpoint) as model:
        assert model.entities() == data.names["n"]
    assert not list(indexed.iterdir())


def test_names_changed_before_indexing_are_not_kept(trained, indexed, monkeypatch):
    data, digests = trained(), Source.names_digests

    def changed_after(source, entity, scratch):
        found = digests(source, entity, scratch)
        data.rename("n", 1, [f"other{i}" for i in range(51)])
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Source, "names_digests", changed_after)
        with pytest.raises(FormatError, match="names of n changed while they were read; open the model again"):
            Model.open(data.checkpoint)
    assert not list(indexed.iterdir())
    with Model.open(data.checkpoint) as model:
        assert "other3" in model.entities()


def test_name_given_twice_is_refused_before_indexing(trained, indexed):
    data = trained()
    data.rename("n", 1, ["n0_3", *(f"other{i}" for i in range(50))])
    with pytest.raises(FormatError, match=r"entity_names_n_1\.json: has the name 'n0_3' a second time"):
        Model.open(data.checkpoint)
    assert not list(indexed.iterdir())


def test_model_opened_in_threads_is_indexed_once(trained, indexed, monkeypatch):
    data, built, index = trained(), [], name_cache.index_names
    monkeypatch.setattr(name_cache, "index_names", lambda *arguments: built.append(1) or index(*arguments))

    def names(_):
        with Model.open(data.checkpoint) as model:
            return model.entities()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(names, range(4))) == [data.names["n"]] * 4
    assert built == [1]


@pytest.mark.parametrize("numbers", [[1.7], "1", ["1"], [True], [None], [[1], [2, 3]], [[1]]])
def test_number_that_is_not_whole_is_refused(trained, indexed, numbers):
    with (
        Model.open(trained().checkpoint) as model,
        pytest.raises(InputError, match="are whole numbers or a list of them, not"),
    ):
        model.names(numbers)


@pytest.mark.s3
def test_release_in_s3_brings_index_and_no_names(night, indexed, s3_bucket):
    store = open_store(f"{s3_bucket}/release")
    for path in (Path(night.run) / "release").iterdir():
        store.put_new(path.name, path)
    with Model.open(f"{s3_bucket}/release") as model, Model.open(night.run) as local:
        assert model.top_k("e3", "next") == local.top_k("e3", "next")
        names = sorted(path.name for path in indexed.parents[2].glob("scratch/*/*"))
    assert index_file_name("n") in names
    assert not any(name.startswith("entity_names") for name in names)
