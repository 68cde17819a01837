"""Names and numbers of entities and relations that disagree."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pbg_tasks.api import Model
from pbg_tasks.config import ConfigSchema
from pbg_tasks.errors import FormatError
from pbg_tasks.storage import open_store
from pbg_tasks.tasks.directory import importing
from pbg_tasks.tasks.directory.evaluate import evaluate_directory
from pbg_tasks.tasks.directory.importing import import_edges
from pbg_tasks.tasks.exchange.export import export
from pbg_tasks.tasks.exchange.export_tsv import export_directory
from pbg_tasks.tasks.files import UNFINISHED
from pbg_tasks.tasks.training.train import train_directory
from pbg_tasks.tasks.view.verify import verify
from tests.defects.imports import TSV

EDGES = [(f"u{number}", "likes" if number % 2 else "sees", f"i{number * 7 % 30}") for number in range(40)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Train users in two partitions and items in three."""
    return make(tmp_path_factory.mktemp("trained"))


def make(root, *, trained=True):
    config = ConfigSchema.model_validate(
        {
            "entities": {"user": {"num_partitions": 2}, "item": {"num_partitions": 3}},
            "relations": [{"name": "all", "lhs": "user", "rhs": "item", "operator": "diagonal"}],
            "dynamic_relations": True,
            "global_emb": False,
            "dimension": 4,
            "num_epochs": 1,
            "workers": 1,
            "entity_path": str(root / "entities"),
            "edge_paths": (str(root / "edges"),),
            "checkpoint_path": str(root / "model"),
        }
    )
    (root / "edges.tsv").write_text("".join("\t".join(edge) + "\n" for edge in EDGES))
    import_edges(config, [str(root / "edges.tsv")], TSV)
    if trained:
        train_directory(config)
    return config


def fresh_training(config, root):
    train_directory(config.model_copy(update={"checkpoint_path": str(root / "other")}))


def exported(config, root):
    outputs = {"entities_output": str(root / "e.tsv"), "relation_types_output": str(root / "r.tsv")}
    export_directory(config, overwrite=True, **outputs)


def exchanged(config, root):
    export("npy", config, str(root / "npy"), overwrite=True)


def opened(config, _):
    Model.open(config.checkpoint_path, entity_path=config.entity_path).close()


def imported_again(config, root):
    import_edges(config, [str(root / "edges.tsv")], TSV)


READERS = (fresh_training, lambda config, _: evaluate_directory(config), exported, exchanged, opened, imported_again)


def fewer_names(path):
    path.write_text(json.dumps(json.loads(path.read_text())[:-1]))


def one_more(path):
    path.write_text(f"{int(path.read_text()) + 1}\n")


DAMAGE = {
    "entity_names_user_1.json": fewer_names,
    "entity_names_item_2.json": fewer_names,
    "entity_count_user_0.txt": one_more,
    "entity_count_item_2.txt": one_more,
    "dynamic_rel_names.json": fewer_names,
    "dynamic_rel_count.txt": one_more,
}


@pytest.mark.parametrize("file", DAMAGE)
@pytest.mark.parametrize("read", READERS, ids=["train", "eval", "export", "exchange", "open", "import"])
def test_disagreeing_names_are_refused_by_every_reader(trained, file, read):
    path = Path(trained.entity_path) / file
    before = path.read_bytes()
    DAMAGE[file](path)
    try:
        with pytest.raises(FormatError) as caught:
            read(trained, path.parent.parent)
    finally:
        path.write_bytes(before)
    both = [re.sub("names|count", what, path.stem) for what in ("names", "count")]
    assert any(f"{path.parent}/{name}" in str(caught.value) for name in both)
    assert "\n" not in str(caught.value)


def repeat(path, name):
    path.write_text(json.dumps([*json.loads(path.read_text())[:-1], name]))


@pytest.mark.parametrize("other", ["entity_names_item_2.json", "entity_names_item_0.json"])
@pytest.mark.parametrize("read", READERS[:5], ids=["train", "eval", "export", "exchange", "open"])
def test_name_of_two_entities_is_refused(tmp_path, other, read):
    config = make(tmp_path)
    entities = Path(config.entity_path)
    (entities / "import.manifest.json").unlink()
    assert verify(str(entities))["counts_compared"] == 5
    name = json.loads((entities / other).read_text())[0]
    repeat(entities / "entity_names_item_2.json", name)
    with pytest.raises(
        FormatError, match=rf"{entities}/entity_names_item_2\.json: has the name '{name}' a second time"
    ):
        read(config, tmp_path)
    with pytest.raises(FormatError, match=r"entity_names_item_2\.json has a name that another entity of type 'item'"):
        verify(str(entities))


@pytest.mark.s3
@pytest.mark.parametrize("file", ["entity_names_item_2.json", "entity_count_user_0.txt", "dynamic_rel_names.json"])
def test_disagreeing_names_in_a_bucket_are_named(trained, s3_bucket, tmp_path, file):
    store = open_store(s3_bucket)
    for path in Path(trained.entity_path).glob("*_*.*"):
        copied = tmp_path / path.name
        copied.write_bytes(path.read_bytes())
        if path.name == file:
            DAMAGE[file](copied)
        store.put_new(path.name, copied)
    with pytest.raises(FormatError, match=rf"{s3_bucket}/(entity|dynamic_rel)_\w+\.json: holds \d+ names") as caught:
        fresh_training(trained.model_copy(update={"entity_path": s3_bucket}), tmp_path)
    assert str(tmp_path) not in str(caught.value)
    assert not (tmp_path / "other").exists() or not list((tmp_path / "other").glob("*.h5"))


def test_trained_checkpoint_is_resumed_without_the_names(tmp_path):
    config = make(tmp_path)
    fewer_names(tmp_path / "entities" / "entity_names_user_0.json")
    assert train_directory(config.model_copy(update={"num_epochs": 2}))["edges_trained"] == 2 * len(EDGES)


def test_import_after_interrupted_one_forgives_counts(tmp_path):
    config = make(tmp_path, trained=False)
    one_more(tmp_path / "entities" / "entity_count_item_2.txt")
    (tmp_path / "entities" / UNFINISHED).write_text("cut off\n")
    imported_again(config, tmp_path)
    fresh_training(config, tmp_path)


@pytest.mark.parametrize("stored", [3, 6])
def test_import_cut_off_among_names_is_repeated(tmp_path, monkeypatch, stored):
    def cut_off(put, paths, _):
        for path in paths[:stored]:
            put(path)
        raise RuntimeError("cut off")

    with monkeypatch.context() as patch:
        patch.setattr(importing, "in_parallel", cut_off)
        with pytest.raises(RuntimeError, match="cut off"):
            make(tmp_path, trained=False)
    fresh_training(make(tmp_path, trained=False), tmp_path)
