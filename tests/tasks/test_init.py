"""``pbg init``: a config for edge lists alone."""

from __future__ import annotations

import gzip

import pytest

from pbg_tasks.config.presets import of_size
from pbg_tasks.errors import ConfigError, InputError
from pbg_tasks.tasks.directory.configs import load_config_from
from pbg_tasks.tasks.directory.evaluate import evaluate_directory
from pbg_tasks.tasks.directory.importing import EdgeLists, import_edges
from pbg_tasks.tasks.directory.init import write_config
from pbg_tasks.tasks.training.train import train_directory

TRIPLES = EdgeLists("tsv", "0", "2", "1", delimiter="\t")


@pytest.fixture
def lists(tmp_path, monkeypatch):
    """Two edge lists of a ring, the second one compressed."""
    monkeypatch.chdir(tmp_path)
    lines = [f"e{number}\t{relation}\te{(number + step) % 40}\n" for number in range(40) for relation, step in STEPS]
    (tmp_path / "train.tsv").write_text("".join(lines[:-8]))
    with gzip.open(tmp_path / "test.tsv.gz", "wt") as file:
        file.writelines(lines[-8:])
    return ["train.tsv", "test.tsv.gz"]


STEPS = (("next", 1), ("after_next", 2), ("previous", -1))


def test_config_describes_the_lists(lists):
    told = write_config("ring.yaml", lists, TRIPLES)
    assert {key: told[key] for key in ("entities", "relations", "edges")} == {
        "entities": 40,
        "relations": 3,
        "edges": 112,
    }
    with open("ring.yaml", encoding="utf-8") as file:  # noqa: PTH123
        assert file.readline() == "# For 40 entities, 3 relations, 112 edges: a start, not tuned.\n"


def test_config_trains_and_ranks_unchanged(lists):
    write_config("ring.yaml", lists, TRIPLES)
    config = load_config_from("ring.yaml", ["workers=1"], choose=lambda _, auto: dict.fromkeys(auto, 1))
    assert config.self_negatives
    assert config.edge_paths == ("data/ring/train", "data/ring/test")
    import_edges(config, lists, TRIPLES)
    config = load_config_from("ring.yaml", ["workers=1", "edge_paths=data/ring/train", "dimension=20"])
    train_directory(config, seed=0)
    config = load_config_from("ring.yaml", ["edge_paths=data/ring/test", "dimension=20"])
    found = evaluate_directory(config, known=["data/ring/train"], filtered=True)
    assert found["filtered"]["mrr"] > 0.5  # by chance it is 0.1


def test_one_relation_has_no_operator(lists):
    write_config("plain.yaml", lists, EdgeLists("tsv", "0", "2", delimiter="\t"))
    config = load_config_from("plain.yaml", choose=lambda _, auto: dict.fromkeys(auto, 1))
    assert config.relations[0].operator == "none"
    assert not config.self_negatives
    assert not config.dynamic_relations


def test_existing_config_stays(lists):
    write_config("ring.yaml", lists, TRIPLES)
    with open("ring.yaml", "a", encoding="utf-8") as file:  # noqa: PTH123
        file.write("# mine\n")
    with pytest.raises(ConfigError, match=r"^ring\.yaml: there is a config already; remove it or name another file$"):
        write_config("ring.yaml", lists, TRIPLES)
    with open("ring.yaml", encoding="utf-8") as file:  # noqa: PTH123
        assert file.read().endswith("# mine\n")


def test_missing_list_is_named_and_nothing_written(lists, tmp_path):
    with pytest.raises(InputError, match=r"^valid\.tsv: no snapshot there"):
        write_config("ring.yaml", [*lists, "valid.tsv"], TRIPLES)
    assert not (tmp_path / "ring.yaml").exists()


def test_lists_of_one_name_get_own_paths(lists, tmp_path):
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "train.tsv").write_text("a\tnext\tb\n")
    write_config("ring.yaml", ["train.tsv", "more/train.tsv"], TRIPLES)
    config = load_config_from("ring.yaml", choose=lambda _, auto: dict.fromkeys(auto, 1))
    assert config.edge_paths == ("data/ring/train_0", "data/ring/train_1")


@pytest.mark.parametrize(
    ("edges", "epochs", "batch"), [(0, 60, 100), (5_000, 60, 100), (300_000, 10, 100), (50_000_000, 5, 1000)]
)
def test_small_graphs_get_more_epochs_and_small_batches(edges, epochs, batch):
    assert of_size(edges) == {"num_epochs": epochs, "batch_size": batch}
