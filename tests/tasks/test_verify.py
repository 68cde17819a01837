"""Changed or missing files, found by the manifests that list them.

A file that no manifest lists is reported.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from pbg_tasks.errors import FormatError, NotFoundError
from pbg_tasks.publish.exchange import ReadOptions
from pbg_tasks.storage import LocalStore, open_store
from pbg_tasks.tasks.directory.importing import import_edges
from pbg_tasks.tasks.exchange.import_vectors import import_embeddings
from pbg_tasks.tasks.files import IMPORT_MANIFEST
from pbg_tasks.tasks.nightly.chain import run_chain
from pbg_tasks.tasks.training.train import train_directory
from pbg_tasks.tasks.view.verify import verify
from tests.defects.imports import TSV, Import, ring
from tests.tasks.conftest import Workplace
from tests.tasks.conftest import ring as snapshot_ring


@pytest.fixture
def imported(tmp_path):
    work = Import(tmp_path)
    import_edges(work.config(2), [work.write(ring(30))], TSV)
    return work


def recorded(manifest):
    return json.loads(Path(manifest).read_bytes())["objects"]


def check_each_file(root, names):
    """Change, cut and remove each file; each time it is named."""
    for name in names:
        path = root / name
        data = path.read_bytes()
        for changed in (bytes([data[0] ^ 1]) + data[1:], data[:-1], None):
            path.unlink()
            if changed is not None:
                path.write_bytes(changed)
            with pytest.raises(FormatError, match=path.name.replace(".", r"\.")):
                verify(str(root))
            path.write_bytes(data)


def test_every_imported_file_is_verified(imported):
    for folder, count in (("entities", 6), ("train", 4)):
        root = imported.root / folder
        names = recorded(root / IMPORT_MANIFEST)
        assert sorted(names) == sorted(path.name for path in root.iterdir() if path.suffix in {".txt", ".json", ".h5"}
                                       and path.name != IMPORT_MANIFEST)  # fmt: skip
        found = verify(str(root))
        assert (found["verified"], found["unverified"]) == (count, 0)
        check_each_file(root, names)


def test_second_import_has_manifest_of_own_files(imported):
    import_edges(imported.config(2), [imported.write(ring(50))], TSV)
    for folder in ("entities", "train"):
        assert verify(str(imported.root / folder))["unverified"] == 0


def test_interrupted_import_leaves_no_manifest(imported, monkeypatch):
    put = LocalStore.put

    def fail(store, key, source, **more):
        if key == "edges_1_1.h5":
            raise OSError("cut off")
        return put(store, key, source, **more)

    monkeypatch.setattr(LocalStore, "put", fail)
    with pytest.raises(OSError, match="cut off"):
        import_edges(imported.config(2), [imported.write(ring(50))], TSV)
    assert not list(imported.root.rglob(IMPORT_MANIFEST))


def test_checkpoint_is_verified_through_its_head(imported):
    train_directory(imported.config(2))
    root = imported.root / "model"
    found = verify(str(root))
    names = [path.name for path in root.glob("*.v1.*")]
    assert found["verified"] == len(names) == 4
    assert found["manifests"] == ["HEAD.json"]
    assert {"config.json", "training_stats.json"} <= set(found["unverified_files"])
    check_each_file(root, names)


@pytest.mark.parametrize("moment", ["Scratch", "read_head"])
def test_training_meanwhile_is_no_damage(imported, monkeypatch, capsys, moment):
    train_directory(imported.config(2))
    place, before = f"{verify.__module__}.{moment}", getattr(sys.modules[verify.__module__], moment)

    def meanwhile(*given):
        monkeypatch.setattr(place, before)
        train_directory(imported.config(2, num_epochs=2))
        return before(*given)

    monkeypatch.setattr(place, meanwhile)
    found = verify(str(imported.root / "model"))
    assert found["verified"] == {"Scratch": 0, "read_head": 4}[moment]
    assert ("4 files of version 1 gave way to those of version 2" in capsys.readouterr().err) == (moment == "Scratch")
    assert verify(str(imported.root / "model"))["verified"] == 4


def test_version_that_pbg_replaced_is_not_missing(imported):
    train_directory(imported.config(2))
    root = imported.root / "model"
    (root / "checkpoint_version.txt").write_text("2\n")
    assert verify(str(root))["verified"] == 4
    for path in root.glob("*.v1.h5"):
        path.rename(root / path.name.replace(".v1.", ".v2."))
    with pytest.raises(NotFoundError, match="files can be verified"):
        verify(str(root))


def test_type_named_manifest_is_no_manifest(tmp_path, scratch):
    (tmp_path / "v.tsv").write_text("a\t1\t2\n")
    import_embeddings("tsv", str(tmp_path / "v.tsv"), str(tmp_path / "out"), options=ReadOptions("manifest"))
    found = verify(str(tmp_path / "out"))
    assert (found["verified"], found["unverified"]) == (2, 0)
    check_each_file(tmp_path / "out", ["manifest.json", "manifest.npy"])


def test_directory_without_manifests_cannot_be_verified(imported, tmp_path):
    with pytest.raises(NotFoundError, match="holds no files"):
        verify(str(tmp_path / "nothing"))
    (imported.root / "train" / IMPORT_MANIFEST).unlink()
    with pytest.raises(NotFoundError, match="none of its 4 files can be verified"):
        verify(str(imported.root / "train"))


@pytest.mark.parametrize("change", [list[str].pop, lambda names: names.append("other")])
def test_counts_of_foreign_entities_are_compared_with_names(imported, change):
    root = imported.root / "entities"
    (root / IMPORT_MANIFEST).unlink()
    assert verify(str(root))["counts_compared"] == 2
    path = root / "entity_names_n_1.json"
    names = json.loads(path.read_text())
    count = len(names)
    change(names)
    path.write_text(json.dumps(names))
    with pytest.raises(FormatError, match=rf"holds {len(names)} names, entity_count_n_1\.txt says {count}"):
        verify(str(root))


def test_run_and_release_are_verified(tmp_path):
    place = Workplace(tmp_path)
    place.snapshot("d1", snapshot_ring(60))
    run = Path(run_chain(place.spec, "d1")["run"])
    found = verify(str(run))
    assert {"entities/manifest.json", "edges/manifest.json", "release/manifest.json"} <= set(found["manifests"])
    release = recorded(run / "release" / "manifest.json")
    assert verify(str(run / "release"))["verified"] == len(release)
    name = next(name for name in release if name.startswith("embeddings_"))
    data = bytearray((run / "release" / name).read_bytes())
    data[len(data) // 2] ^= 1
    (run / "release" / name).write_bytes(data)
    with pytest.raises(FormatError, match=rf"release/{name} has other bytes"):
        verify(str(run))


def test_objects_of_a_bucket_are_verified(imported, s3_bucket):
    store = open_store(f"{s3_bucket}/verify")
    for path in (imported.root / "train").glob("[!.]*.*"):
        store.put(path.name, path.read_bytes())
    assert verify(f"{s3_bucket}/verify")["verified"] == 4
    data = store.get("edges_0_1.h5").data
    store.put("edges_0_1.h5", data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(FormatError, match=r"edges_0_1\.h5 has other bytes"):
        verify(f"{s3_bucket}/verify")
    store.delete("edges_0_1.h5")
    with pytest.raises(FormatError, match=r"edges_0_1\.h5 is missing"):
        verify(f"{s3_bucket}/verify")
