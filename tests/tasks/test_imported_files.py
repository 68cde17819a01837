"""Files that ``pbg import`` wrote, changed before commands read them."""

from __future__ import annotations

import io

import h5py
import pytest

from pbg_tasks.errors import ConfigError, FormatError
from pbg_tasks.storage import open_store
from pbg_tasks.tasks.directory.evaluate import evaluate_directory
from pbg_tasks.tasks.directory.importing import import_edges
from pbg_tasks.tasks.exchange.export import export
from pbg_tasks.tasks.exchange.export_tsv import export_directory
from pbg_tasks.tasks.files import IMPORT_MANIFEST
from pbg_tasks.tasks.training.train import train_directory
from tests.defects.imports import TSV, Import, ring

EDGES = ["train/edges_0_0.h5", "train/edges_1_1.h5"]
COUNTS = ["entities/entity_count_n_1.txt", "entities/dynamic_rel_count.txt"]
NAMES = ["entities/entity_names_n_1.json", "entities/dynamic_rel_names.json"]


class Trained:
    """An imported and trained data set."""

    def __init__(self, root, place):
        self.place, self.store = place, open_store(place)
        paths = {"entity_path": f"{place}/entities", "edge_paths": (f"{place}/train",)}
        self.config = Import(root).config(**paths, checkpoint_path=f"{place}/model")
        import_edges(self.config, [Import(root).write(ring(60))], TSV)
        train_directory(self.config)

    def commands(self):
        other = {"checkpoint_path": f"{self.place}/other"}
        outputs = {"entities_output": f"{self.place}/e.tsv", "relation_types_output": f"{self.place}/r.tsv"}
        return {
            "train": lambda: train_directory(self.config.model_copy(update=other)),
            "eval": lambda: evaluate_directory(self.config),
            "export_tsv": lambda: export_directory(self.config, **outputs),
            "export": lambda: export("npy", self.config, f"{self.place}/npy"),
        }

    def change(self, name):
        """Change a file such that it can be read as before."""
        data = self.store.get(name).data
        if name.endswith(".h5"):
            changed = _with_another_end(data)
        elif name.endswith(".json"):
            changed = data.replace(b"e1", b"f1", 1) if b"e1" in data else data.replace(b"r1", b"s1")
        else:
            changed = data + b" "
        assert changed != data
        self.store.put(name, changed)


def _with_another_end(data):
    """Give the first edge of a file another entity of its partition."""
    place = io.BytesIO(data)
    with h5py.File(place, "r+") as file:
        ends = file["rhs"]
        ends[0] = ends[1]
    return place.getvalue()


READERS = {
    "train": EDGES + COUNTS + NAMES,
    "eval": EDGES + COUNTS + NAMES,
    "export_tsv": COUNTS + NAMES,
    "export": NAMES,
}


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.s3)])
def trained(request, tmp_path):
    place = str(tmp_path) if request.param == "local" else request.getfixturevalue("s3_bucket")
    return Trained(tmp_path, place)


def test_changed_files_are_refused_wherever_they_are_read(trained):
    for name in EDGES + COUNTS + NAMES:
        before = trained.store.get(name).data
        trained.change(name)
        for command, read in READERS.items():
            if name in read:
                with pytest.raises(FormatError, match=rf"{name}: not the bytes that `pbg import` recorded; restore it"):
                    trained.commands()[command]()
        trained.store.put(name, before)


def test_change_on_purpose_is_read_without_the_manifest(trained):
    trained.change(NAMES[0])
    trained.change(EDGES[0])
    for folder in ("entities", "train"):
        trained.store.delete(f"{folder}/{IMPORT_MANIFEST}")
    for command in trained.commands().values():
        command()


def test_relations_without_names_are_not_numbered_anew(tmp_path):
    work = Import(tmp_path)
    import_edges(work.config(), [work.write(ring(9))], TSV)
    (tmp_path / NAMES[1]).unlink()
    before = work.digests()
    with pytest.raises(ConfigError, match=r"dynamic_rel_names\.json: missing, so the ids of the relations"):
        import_edges(work.config(), [work.write([("e0", "another", "e1")])], TSV)
    assert work.digests() == before


def test_next_import_records_its_own_files(trained, tmp_path):
    import_edges(trained.config, [Import(tmp_path).write(ring(60)[:50])], TSV)
    for command in trained.commands().values():
        command()
