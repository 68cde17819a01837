from __future__ import annotations

import os
import shutil
import time

import pytest

from pbg_tasks.checkpoint import (
    PartialRecord,
    PlainFiles,
    VerifiedFiles,
    claim,
    open_directory,
    preserve,
    preserved_prefix,
)
from pbg_tasks.checkpoint.reader import HEAD, VERSION_MIRROR
from pbg_tasks.config import ConfigSchema
from pbg_tasks.errors import ConfigError, FormatError, NotFoundError
from pbg_tasks.storage import open_store
from pbg_tasks.training.data.edge_files import FiledEdges
from pbg_tasks.training.iteration_plan import IterationPlan
from tests.checkpoint import pbg
from tests.checkpoint.plain import commit
from tests.checkpoint.samples import SPEC, iteration


class Nothing:
    def local(self, *_):
        return None


def ours(store, content=b"ours", prefix=""):
    with claim(store, prefix, SPEC, adopt=pbg.names) as writer:
        before = writer.manifest
        manifest = commit(writer, content)
        if before is not None:
            writer.drop(before)
    return manifest


def read(store, tmp_path, prefix=""):
    files = open_directory(store, prefix, expect=pbg.names)
    paths = files.fetch_all(pbg.names(files.version), tmp_path / "read")
    contents = {path.read_text().split()[1] for path in paths}
    assert len(contents) == 1
    return files.version, contents.pop()


def listed(directory):
    return {path.name for path in directory.iterdir()}


def data_files(directory):
    return {name for name in listed(directory) if name.endswith(".h5")}


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "checkpoint"


@pytest.fixture
def store(directory):
    return open_store(directory)


def test_pbg_directory_is_read_unchanged(store, directory, tmp_path):
    pbg.train(directory, "a")
    assert pbg.train(directory, "b") == 2
    files = open_directory(store, "", expect=pbg.names)
    assert isinstance(files, PlainFiles)
    assert set(files.names) == set(pbg.names(2))
    assert read(store, tmp_path) == (2, "b")
    with pytest.raises(FormatError, match=r"no file 'model\.v1\.h5'"):
        files.fetch("model.v1.h5", tmp_path)


@pytest.mark.parametrize("prefix", ["", "some/where"])
def test_pbg_and_package_continue_each_others_training(tmp_path, prefix):
    store, directory = open_store(tmp_path / "store"), tmp_path / "store" / prefix
    directory.mkdir(parents=True)
    for version, turn in enumerate("popoopp", 1):
        if turn == "p":
            assert pbg.train(directory, f"pbg{version}") == version
            assert read(store, tmp_path, prefix) == (version, f"pbg{version}")
        else:
            assert ours(store, b"ours", prefix).version == version
            assert read(store, tmp_path, prefix) == (version, "ours")
            assert isinstance(open_directory(store, prefix, expect=pbg.names), VerifiedFiles)
        assert pbg.version_of(directory) == version
        assert data_files(directory) == set(pbg.names(version))
    manifests = {name for name in listed(directory) if name.startswith("manifest")}
    assert manifests == {"manifest.v5.json"}  # PBG went on after it and leaves it


@pytest.mark.parametrize("train", ["ours", "pbg"])
def test_version_replaced_while_opened_is_followed(store, directory, tmp_path, monkeypatch, train):
    """The next iteration ends after a reader has read a number."""
    go_on = {"ours": lambda: ours(store), "pbg": lambda: pbg.train(directory, "pbg")}[train]
    go_on()
    get, later = store.get, [go_on]

    def slow(key):
        found = get(key)
        if key == VERSION_MIRROR and later:
            later.pop()()
        return found

    monkeypatch.setattr(type(store), "get", lambda _, key: slow(key))
    assert read(store, tmp_path) == (2, train)


def test_writer_provides_files_of_adopted_version(store, directory, tmp_path):
    pbg.train(directory, "a")
    with claim(store, "", SPEC, adopt=pbg.names) as writer:
        assert (writer.version, writer.manifest) == (1, None)
        assert writer.files.fetch("model.v1.h5", tmp_path).read_text() == "model.v1.h5 a"
        assert commit(writer).edges == (10,)
        assert isinstance(writer.files, VerifiedFiles)
        assert writer.files.version == 2


def test_half_written_pbg_version_is_overwritten(store, directory, tmp_path):
    pbg.train(directory, "a")
    steps = pbg.iterate(directory, "torn")
    for _ in range(3):
        next(steps)
    assert data_files(directory) > set(pbg.names(1))
    assert read(store, tmp_path) == (1, "a")
    assert ours(store).version == 2
    assert read(store, tmp_path) == (2, "ours")


def test_partial_initial_embeddings_at_version_zero_stay(store, directory):
    directory.mkdir()
    (directory / "embeddings_all_1.v0.h5").write_text("start")
    with pytest.raises(FormatError, match=r"embeddings_all_0\.v0\.h5"):
        open_directory(store, "", expect=pbg.names)
    with claim(store, "", SPEC, adopt=pbg.names) as writer:
        assert set(writer.files.names) == {"embeddings_all_1.v0.h5"}
        commit(writer)
    ours(store)
    assert data_files(directory) == {"embeddings_all_1.v0.h5", *pbg.names(2)}


def test_snapshot_preserved_by_pbg_keeps_its_files(store, directory, tmp_path):
    """Defect 18: the snapshot holds absolute links."""
    pbg.train(directory, "a")
    pbg.preserve(directory, 1)
    ours(store)
    assert read(store, tmp_path, "epoch_1") == (1, "a")
    directory.rename(tmp_path / "moved")
    with pytest.raises(FormatError, match=r"no file is there.*links into the directory above"):
        open_directory(open_store(tmp_path / "moved"), "epoch_1", expect=pbg.names)


def test_preserved_snapshot_can_be_moved_but_not_trained(store, directory, tmp_path):
    manifest = ours(store)
    preserve(store, "", manifest, preserved_prefix("", 1), epochs=1)
    directory.joinpath("epoch_1").rename(tmp_path / "moved")
    moved = open_store(tmp_path / "moved")
    assert isinstance(open_directory(moved, "", expect=pbg.names), VerifiedFiles)
    with pytest.raises(ConfigError, match="init_path"), claim(moved, "", SPEC, adopt=pbg.names):
        pass
    pbg.train(tmp_path / "moved", "pbg")
    assert read(moved, tmp_path) == (2, "pbg")


def test_lagging_version_file_is_repaired(store, directory, tmp_path):
    ours(store)
    ours(store)
    (directory / VERSION_MIRROR).write_text("1\n")
    assert read(store, tmp_path)[0] == 2
    with claim(store, "", SPEC, adopt=pbg.names) as writer:
        assert writer.version == 2
    assert pbg.version_of(directory) == 2


def test_newest_version_replaced_by_pbg_counts(store, directory, tmp_path):
    """Crash between HEAD.json and checkpoint_version.txt.

    PBG then knows the older version only and trains it again.
    """
    pbg.train(directory, "a")
    kept = {path.name: path.read_bytes() for path in directory.iterdir()}
    ours(store)
    for name, data in kept.items():
        (directory / name).write_bytes(data)
    steps = pbg.iterate(directory, "again")
    for _ in range(3):  # two of three files are replaced
        next(steps)
    assert read(store, tmp_path) == (1, "a")
    assert pbg.train(directory, "again") == 2
    assert read(store, tmp_path) == (2, "again")
    assert ours(store).version == 3


def test_a_copied_directory_is_still_verified(store, directory, tmp_path):
    ours(store)
    shutil.copytree(directory, tmp_path / "copy", ignore=shutil.ignore_patterns(".pbg"))
    copy = open_store(tmp_path / "copy")
    assert isinstance(open_directory(copy, "", expect=pbg.names), VerifiedFiles)
    (tmp_path / "copy" / "embeddings_all_1.v1.h5").write_text("embeddings_all_1.v1.h5 0urs")
    with pytest.raises(FormatError, match=r"embeddings_all_1\.v1\.h5 has sha256"):
        read(copy, tmp_path)


def test_single_changed_file_is_damage(store, directory):
    ours(store)
    (directory / "model.v1.h5").write_text("edited")
    with pytest.raises(FormatError, match=r"model\.v1\.h5: missing or changed after version 1 was committed"):
        open_directory(store, "", expect=pbg.names)


def test_leftovers_without_head_do_not_stop_directory(store, directory, tmp_path):
    for _ in range(2):
        ours(store)
    with claim(store, "", SPEC, adopt=pbg.names) as writer:
        writer.put("model.v3.h5", b"torn")
    (directory / HEAD).unlink()
    assert read(store, tmp_path) == (2, "ours")
    assert ours(store).version == 3


def test_nightly_run_does_not_continue_pbg_checkpoint(store, directory):
    pbg.train(directory, "a")
    with claim(store, "", SPEC, adopt=pbg.names):
        pass
    with pytest.raises(ConfigError, match="holds version 1 of PBG's"), claim(store, "", SPEC):
        pass


def test_only_files_of_a_version_are_removed(store, directory):
    pbg.train(directory, "a")
    others = ["config.json", "training_stats.json", "notes.txt", "embeddings_other_0.v1.h5", "model.v7.h5"]
    for name in others:
        (directory / name).write_text("kept")
    ours(store)
    assert {*others, *pbg.names(2)} <= listed(directory)


def test_another_model_is_refused_without_a_trace(store, directory):
    ours(store)
    before = (directory / VERSION_MIRROR).read_bytes()
    with pytest.raises(ConfigError, match="of another spec"), claim(store, "", "b" * 64, adopt=pbg.names):
        pass
    assert (directory / VERSION_MIRROR).read_bytes() == before


def bad(directory, mirror, *versions, without=()):
    directory.mkdir()
    if mirror is not None:
        (directory / VERSION_MIRROR).write_text(mirror)
    for version in versions:
        for name in pbg.names(version):
            if name not in without:
                (directory / name).write_text("x")


@pytest.mark.parametrize(
    ("mirror", "versions", "without", "message"),
    [
        ("", [2], [], r"checkpoint_version.txt: missing or empty.*version 2 \(whole\)"),
        (None, [2, 3], ["model.v3.h5"], r"version 2 \(whole\), version 3 \(2 of 3 files\)"),
        (None, [1], [], r"version 1 \(whole\)"),
        ("-3\n", [2], [], r"checkpoint_version.txt: expected a whole number.*'-3'; there are version 2 \(whole\)"),
        ("two\n", [2], [], "'two'"),
        ("7\n", [2], [], r"names version 7, of which no file is there; there are version 2 \(whole\)"),
        ("2\n", [], [], "no file is there; there are no versions"),
        ("2\n", [2], ["embeddings_all_1.v2.h5"], r"version 2 lacks embeddings_all_1\.v2\.h5"),
        ("2\n", [2, 3], ["embeddings_all_0.v2.h5", "model.v3.h5"], r"lacks embeddings_all_0\.v2\.h5.*3 \(2 of 3"),
    ],
)
def test_bad_directory_is_refused_and_left_alone(store, directory, mirror, versions, without, message):
    bad(directory, mirror, *versions, without=without)
    before = listed(directory)
    with pytest.raises(FormatError, match=message):
        open_directory(store, "", expect=pbg.names)
    with pytest.raises(FormatError, match=message), claim(store, "", SPEC, adopt=pbg.names):
        pass
    assert listed(directory) == before


@pytest.mark.parametrize(("mirror", "versions"), [(None, []), ("", []), ("0\n", []), ("0\n", [1])])
def test_directory_without_version_can_be_started(store, directory, mirror, versions):
    bad(directory, mirror, *versions)
    with pytest.raises(NotFoundError, match=r"holds no trained version .*; train it, or name another directory"):
        open_directory(store, "", expect=pbg.names)
    with claim(store, "", SPEC, adopt=pbg.names) as writer:
        assert (writer.version, list(writer.files.names)) == (0, [])


def test_interrupted_first_epoch_of_pbg_can_restart(store, directory):
    bad(directory, None, 1, without=["model.v1.h5"])
    assert ours(store).version == 1


def test_version_without_files_of_config_is_refused(store):
    ours(store)
    with pytest.raises(FormatError, match=r"saved without embeddings_new_0\.v1\.h5"):
        open_directory(store, "", expect=lambda version: [*pbg.names(version), f"embeddings_new_{0}.v{version}.h5"])


@pytest.mark.s3
def test_pbg_directory_in_s3_is_continued(s3_bucket, tmp_path):
    store = open_store(f"{s3_bucket}/checkpoint")
    ours(store)
    ours(store, b"more")
    assert read(store, tmp_path) == (2, "more")
    for name in pbg.names(3):  # as when PBG's directory is copied there
        store.put(name, f"{name} pbg".encode())
    store.put(VERSION_MIRROR, b"3\n")
    assert read(store, tmp_path) == (3, "pbg")
    assert ours(store).version == 4
    assert {info.key for info in store.list() if info.key.endswith(".h5")} == set(pbg.names(4))


def test_preserved_epoch_outlasts_pbg_beginning_anew(store, directory, tmp_path):
    keys = {"entity_path": "e", "edge_paths": ["edges"], "checkpoint_path": "c", "checkpoint_preservation_interval": 1}
    parts = {
        "entities": {"all": {"num_partitions": 2}},
        "relations": [{"name": "r", "lhs": "all", "rhs": "all"}],
        "dimension": 4,
    }
    plan = IterationPlan(ConfigSchema.model_validate(keys | parts), FiledEdges(Nothing()), seed=0)
    with claim(store, "", SPEC, adopt=pbg.names) as writer:
        for _ in range(2):  # the second repeats the first
            plan.preserve(writer, iteration(1), writer.manifest or commit(writer))
    assert read(store, tmp_path, "epoch_1") == (1, "ours")
    (directory / "checkpoint_version.txt").unlink()
    assert pbg.train(directory, "anew") == 1
    assert read(store, tmp_path) == (1, "anew")
    assert read(store, tmp_path, "epoch_1") == (1, "ours")


@pytest.mark.parametrize("made_by", ["ours", "pbg"])
def test_record_after_version_pbg_replaced_is_dropped(store, directory, made_by):
    """The next epoch mixed the earlier training and PBG's."""
    if made_by == "pbg":
        pbg.train(directory, "before")
    with claim(store, "", SPEC, adopt=pbg.names) as writer:
        if made_by == "ours":
            commit(writer)
        epoch = writer.partial.writer_epoch
        writer.record(PartialRecord(spec=SPEC, writer_epoch=epoch, number=1, iteration=iteration(2), lease=0))
    with claim(store, "", SPEC, adopt=pbg.names) as writer:
        assert writer.progress is not None
    (directory / VERSION_MIRROR).unlink()
    assert pbg.train(directory, "anew") == 1
    for name in pbg.names(1):
        os.utime(directory / name, (later := time.time() + 10, later))
    with claim(store, "", SPEC, adopt=pbg.names) as writer:
        assert (writer.version, writer.progress) == (1, None)
