"""Locations of a model, the loading of its files, and refusals."""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from pbg_tasks.api import Model
from pbg_tasks.errors import ConfigError, FormatError, InputError, NotFoundError
from pbg_tasks.formats.embeddings import embeddings_file_name, map_embeddings
from pbg_tasks.formats.entities import write_entity_count
from pbg_tasks.storage import open_store
from pbg_tasks.tasks.model_source import locate
from pbg_tasks.tasks.nightly.chain import run_chain
from tests.api.conftest import Trained
from tests.tasks.conftest import Workplace, ring


def upload(directory, url):
    store = open_store(url)
    for path in directory.iterdir():
        store.put_new(path.name, path)


def test_local_files_are_mapped_in_place(trained, tmp_path):
    data = trained()
    with Model.open(str(data.checkpoint)) as model:
        assert (model.version, model.url, model.relations) == (3, str(data.checkpoint), ("r",))
        assert model.config == data.config
        assert model.entities() == data.names["n"]
        for part, vectors in enumerate(model._contents.entities["n"].vectors.partitions):
            path = data.checkpoint / embeddings_file_name("n", part, 3)
            assert isinstance(vectors, np.memmap)
            assert Path(vectors.filename) == path
            assert not vectors.flags.writeable
            with h5py.File(path) as file:
                assert vectors.offset == file["embeddings"].id.get_offset() > 0
                np.testing.assert_array_equal(vectors, file["embeddings"])
        (private,) = (tmp_path / "scratch").iterdir()
        assert [path.name for path in private.iterdir()] == [".held"]
    assert list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.parametrize("layout", [{"chunks": (7, 8)}, {"compression": "gzip"}, {"dtype": ">f4"}, {"dtype": "<f8"}])
def test_another_layout_is_read_into_memory(tmp_path, layout):
    rows = np.random.default_rng(0).normal(size=(20, 8)).astype(np.float32)
    path = tmp_path / "embeddings_n_0.v1.h5"
    with h5py.File(path, "w") as file:
        file.attrs["format_version"] = np.int64(1)
        file.create_dataset("embeddings", data=rows, **{"dtype": "<f4"} | layout)
        file["optimizer/plain/sum"] = np.full(20, -1, np.float32)  # damaged, but of use to a training alone
    found = map_embeddings(path, dimension=8)
    assert not isinstance(found, np.memmap)
    assert found.dtype == np.float32
    assert not found.flags.writeable
    np.testing.assert_array_equal(found, rows)


def test_empty_partition_is_no_obstacle(trained):
    data = trained()
    data.rewrite("n", 1, np.empty((0, 8), np.float32))
    data.rename("n", 1, [])
    write_entity_count(data.root / "entities", "n", 1, 0)
    with Model.open(data.checkpoint) as model:
        assert len(model.top_k("n0_0", k=500)) == 102


@pytest.mark.s3
def test_files_in_s3_are_copied_until_model_ends(tmp_path, scratch, s3_bucket):
    data = Trained(tmp_path / "data", entity_path=f"{s3_bucket}/entities", checkpoint_path=f"{s3_bucket}/checkpoint")
    upload(data.checkpoint, f"{s3_bucket}/checkpoint")
    upload(data.root / "entities", f"{s3_bucket}/entities")
    with Model.open(data.checkpoint, entity_path=data.root / "entities") as model:
        expected = model.top_k("n0_0", "r")
    remote = Model.open(f"{s3_bucket}/checkpoint")
    shutil.rmtree(data.root)
    assert remote.top_k("n0_0", "r") == expected
    (vectors, *_) = remote._contents.entities["n"].vectors.partitions
    assert isinstance(vectors, np.memmap)
    assert Path(vectors.filename).is_relative_to(tmp_path / "scratch")
    del remote, vectors
    gc.collect()
    assert list((tmp_path / "scratch").iterdir()) == []


@pytest.fixture(scope="module")
def nightly(tmp_path_factory):
    """A graph's store with two releases and an unreleased run.

    The first release is current again.
    """
    with pytest.MonkeyPatch.context() as patch:
        root = tmp_path_factory.mktemp("nightly")
        patch.setenv("PBG_SCRATCH", str(root / "scratch"))
        place = Workplace(root)
        place.write_spec({"checkpoint_preservation_interval": 1})
        place.snapshot("d1", ring(40))
        place.run = run_chain(place.spec, "d1", epochs=2)["run"]
        yield place


def test_channel_run_and_release_open_one_model(nightly, tmp_path, scratch):
    copied = tmp_path / "elsewhere"
    shutil.copytree(Path(nightly.run) / "release", copied)
    places = [(nightly.store, "production"), (nightly.run, None), (copied, None), (f"{nightly.run}/release/", None)]
    found = []
    for url, channel in places:
        with Model.open(url, channel=channel) as model:
            assert model.version == 2
            assert model.relations == ("far", "next", "skip")
            assert sorted(model.entities()) == sorted(f"e{i}" for i in range(40))
            found.append(model.top_k("e3", "next", k=3))
    assert found[1:] == found[:1] * 3
    with pytest.raises(InputError, match=r"channel 'staging' of .* has no release yet"):
        Model.open(nightly.store, channel="staging")
    with Model.open(nightly.store, channel="production", release=1) as model:
        assert model.url.endswith("/release")
    with pytest.raises(InputError, match="has no release 7"):
        Model.open(nightly.store, channel="production", release=7)
    with pytest.raises(ConfigError, match="release 1 of which channel"):
        Model.open(copied, release=1)


def test_only_channel_of_store_needs_no_name(nightly, tmp_path):
    with Model.open(nightly.store) as model:
        assert model.release == 1
        assert repr(model).startswith("<Model release 1 of channel 'production', version 2, ")
        assert (model.graph, model.snapshot) == ("toy", "d1")
        assert "<td>1 of channel production</td>" in model._repr_html_()
        assert f"<td>{model.mrr:.4f}</td>" in model._repr_html_()
    with Model.open(nightly.run) as model:
        assert model.release is None
        assert repr(model) == f"<Model version 2, {nightly.run}/release>"
    drilled = tmp_path / "drilled"
    shutil.copytree(nightly.store, drilled)
    shutil.copytree(drilled / "channels" / "production", drilled / "channels" / "production-drill")
    with Model.open(drilled) as model:
        assert "release 1 of channel 'production'" in repr(model)
    several = tmp_path / "several"
    for name in ("production", "staging"):
        shutil.copytree(nightly.store / "channels" / "production", several / "channels" / name)
    with pytest.raises(ConfigError, match="has channels production, staging; name one of them"):
        Model.open(several)


def test_checkpoint_and_snapshots_find_names_by_config(nightly, scratch):
    with Model.open(f"{nightly.run}/checkpoint") as newest, Model.open(nightly.run) as released:
        assert newest.top_k("e3", "far") == released.top_k("e3", "far")
    with Model.open(f"{nightly.run}/checkpoint/epoch_1") as first:
        assert first.version == 1
        assert first.config.entity_path == f"{nightly.run}/entities"
        assert len(first.entities()) == 40


@pytest.mark.parametrize("name", ["expired.parquet", "dynamic_rel_names.json"])
def test_lost_file_of_release_is_an_error(nightly, tmp_path, scratch, name):
    release = tmp_path / "release"
    shutil.copytree(Path(nightly.run) / "release", release)
    manifest = json.loads((release / "manifest.json").read_text())
    manifest["objects"].setdefault(name, {"sha256": "0" * 64, "size": 1})
    (release / "manifest.json").write_text(json.dumps(manifest))
    (release / name).unlink(missing_ok=True)
    with pytest.raises(NotFoundError, match=name):
        Model.open(release)


def test_run_in_training_opens_its_newest_commit(nightly, tmp_path, scratch):
    store = tmp_path / "store"
    shutil.copytree(nightly.store, store)
    run = store / "runs" / Path(nightly.run).name
    shutil.rmtree(run / "release")
    (run / "results" / "preserve.json").unlink()
    with Model.open(str(run)) as model:
        assert model.url == f"{run}/checkpoint"
        assert len(model.neighbors("e1", 5)) == 5


@pytest.mark.parametrize("without", [(), ("config.json",), ("checkpoint_version.txt",)])
def test_checkpoint_in_folder_called_runs_is_opened(trained, tmp_path, without):
    data = trained(version=0 if "checkpoint_version.txt" in without else 3)
    place = tmp_path / "runs" / "exp"
    shutil.copytree(data.checkpoint, place)
    for name in without:
        (place / name).unlink()
    with Model.open(place) as model, Model.open(data.checkpoint) as expected:
        assert model.url == str(place)
        assert model.top_k("n0_1", "r") == expected.top_k("n0_1", "r")
    with pytest.raises(ConfigError, match="no such run; `pbg plan` makes one"):
        Model.open(tmp_path / "runs" / "other")


def test_store_in_folder_called_runs_is_opened(nightly, tmp_path, scratch):
    store = tmp_path / "runs" / "shop"
    shutil.copytree(nightly.store, store)
    with Model.open(store) as model, Model.open(nightly.store) as expected:
        assert model.release == expected.release
    with Model.open(store / "runs" / Path(nightly.run).name) as model:
        assert model.release is None


def test_bytes_changed_after_the_release_are_refused(nightly, tmp_path, scratch):
    copied = tmp_path / "release"
    shutil.copytree(Path(nightly.run) / "release", copied)
    path = copied / "embeddings_n_1.v2.h5"
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    with pytest.raises(FormatError, match=r"embeddings_n_1\.v2\.h5: not the bytes that were recorded"):
        Model.open(copied)
    shutil.copytree(Path(nightly.run) / "release", copied, dirs_exist_ok=True)
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(config | {"comparator": "dot"}))
    with pytest.raises(FormatError, match=r"config\.json: not the bytes that were recorded"):
        Model.open(copied)
    assert list((tmp_path / "scratch").iterdir()) == []


def test_snapshot_preserved_by_pbg_is_opened(trained):
    """It consists of links and has no config.json.

    The files have the config inside.
    """
    data = trained()
    snapshot = data.checkpoint / "epoch_3"
    snapshot.mkdir()
    for path in data.checkpoint.glob("*.v3.h5"):
        (snapshot / path.name).symlink_to(path)
    (snapshot / "checkpoint_version.txt").write_text("3\n")
    with Model.open(snapshot) as model, Model.open(data.checkpoint) as whole:
        assert model.top_k("n0_1") == whole.top_k("n0_1")


def test_version_replaced_while_opened_opens_the_next(trained, monkeypatch):
    """PBG deletes a version when the next one is complete.

    The next one is opened then, never a mixture.
    """
    data = trained()

    def replaced(url, scratch, **options):
        source = locate(url, scratch, **options)
        if source.version == 3:
            for path in data.checkpoint.glob("*.v3.h5"):
                path.unlink()
            shutil.rmtree(data.checkpoint)
            Trained(data.root, version=4, seed=1)
        return source

    monkeypatch.setattr("pbg_tasks.api.model.locate", replaced)
    with Model.open(data.checkpoint) as model:
        assert model.version == 4
        expected = np.random.default_rng(1).normal(size=(50, 8)).astype(np.float32)
        np.testing.assert_array_equal(model.embedding(data.names["n"][:50]), expected)


def test_release_removed_while_opened_opens_the_next(nightly, monkeypatch, tmp_path):
    """Both have the same version."""
    monkeypatch.setenv("PBG_SCRATCH", str(tmp_path))
    removed = tmp_path / "removed"
    shutil.copytree(Path(nightly.run) / "release", removed)
    current = iter([removed])

    def find(url, scratch, **options):
        source = locate(next(current, url), scratch, **options)
        shutil.rmtree(removed, ignore_errors=True)
        return source

    monkeypatch.setattr("pbg_tasks.api.model.locate", find)
    with Model.open(nightly.store) as model:
        assert (model.release, model.version) == (1, 2)


def test_names_may_be_in_another_folder(trained, tmp_path):
    data = trained()
    moved = tmp_path / "names"
    (data.root / "entities").rename(moved)
    with pytest.raises(NotFoundError, match=r"entity_names_n_0\.json"):
        Model.open(data.checkpoint)
    with Model.open(data.checkpoint, entity_path=moved) as model:
        assert len(model.entities()) == 153


def test_relations_without_names_have_numbers(trained):
    data = trained(
        relations=[{"name": "all", "lhs": "n", "rhs": "n", "operator": "diagonal"}],
        dynamic_relations=True,
        relation_names=["a", "b"],
    )
    with Model.open(data.checkpoint) as named:
        expected = named.score("n0_0", "b", "n0_1")
    (data.root / "entities" / "dynamic_rel_names.json").unlink()
    with Model.open(data.checkpoint) as model:
        assert model.relations == ("0", "1")
        assert model.score("n0_0", 1, "n0_1") == expected


def test_wrong_arguments_are_refused(trained, tmp_path):
    data = trained()
    with pytest.raises(NotFoundError, match=r"no checkpoint here .*; nothing is here: is the path right"):
        Model.open(tmp_path / "nowhere")
    (tmp_path / "graph.yaml").write_text("graph: shop")
    with pytest.raises(NotFoundError, match=r"graph\.yaml: no checkpoint here .*; of a graph spec, name the store"):
        Model.open(tmp_path / "graph.yaml")
    (tmp_path / "store" / "runs" / "d1-0").mkdir(parents=True)
    (tmp_path / "store" / "runs" / "d1-0" / "spec.json").write_text("{}")
    with pytest.raises(
        NotFoundError, match=r"no checkpoint here .*; this store has no release yet: `pbg show .*store`"
    ):
        Model.open(tmp_path / "store")
    data.rename("n", 2, ["one"])
    with pytest.raises(FormatError, match=r"entity_names_n_2\.json: holds 1 names, the partition has 52 entities"):
        Model.open(data.checkpoint)
    data.rename("n", 2, data.names["n"][101:])
    config = json.loads((data.checkpoint / "config.json").read_text())
    path = data.checkpoint / "config.json"
    path.write_text(json.dumps(config | {"dimension": 10}))
    with pytest.raises(FormatError, match=r"embeddings.*shape \(50, 8\), expected \(any, 10\)"):
        Model.open(data.checkpoint)
    path.write_text(json.dumps(config | {"global_emb": True}))
    with pytest.raises(FormatError, match="model/entities/n/global_embedding: not in the model file"):
        Model.open(data.checkpoint)
    path.write_text(json.dumps(config | {"entity_path": ""}))
    with pytest.raises(ConfigError, match="give entity_path"):
        Model.open(data.checkpoint)
    path.write_text(json.dumps(config))
    (data.checkpoint / "embeddings_n_1.v3.h5").unlink()
    with pytest.raises(FormatError, match=r"embeddings_n_1\.v3\.h5"):
        Model.open(data.checkpoint)


def test_half_a_character_in_a_name_is_refused(trained):
    data = trained(entities={"n": {"num_partitions": 1}}, sizes={"n": 2})
    data.rename("n", 0, ["a", "b\ud800"])
    with pytest.raises(FormatError, match=r"an entity of type 'n' has a name that is no Unicode text .*: 'b\\ud800'"):
        Model.open(data.checkpoint)


def test_infinite_embeddings_are_refused_by_name(trained):
    data = trained()
    data.rewrite("n", 0, np.full((50, 8), np.nan, np.float32))
    with Model.open(data.checkpoint) as model, pytest.raises(FormatError, match="not finite"):
        model.top_k("n1_1", "r")


def test_package_lists_names_before_their_import():
    code = "import pbg_tasks; print({'Contract', 'Model', 'train'} <= set(dir(pbg_tasks)), 'Model' in vars(pbg_tasks))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True False"


FORKED = """
import os, signal, sys
from pbg_tasks import Model

with Model.open(sys.argv[1]) as model:
    ask = lambda: model.top_k(model.entities()[:300], "r", k=5)[299]
    before = ask()
    child = os.fork()
    if not child:
        signal.alarm(30)
        os._exit(ask() != before)
    print(os.waitpid(child, 0)[1])
"""


def test_forked_process_of_open_model_answers(trained):
    data = trained(sizes={"n": 1000})
    environment = os.environ | {"OMP_NUM_THREADS": "2"}
    command = [sys.executable, "-c", FORKED, str(data.checkpoint)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "0\n"
