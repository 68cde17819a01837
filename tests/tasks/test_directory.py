"""Training and evaluation of the data set of a PBG config."""

from __future__ import annotations

import json

import h5py
import numpy as np
import pytest

from pbg_tasks.api import Model
from pbg_tasks.errors import ConfigError, FormatError, NotFoundError, TrainingDivergedError
from pbg_tasks.formats.edges import EdgeList, Features, edge_file_name, write_edges
from pbg_tasks.formats.entities import write_entity_count, write_relation_names
from pbg_tasks.storage import open_store
from pbg_tasks.tasks.directory import evaluate
from pbg_tasks.tasks.directory.evaluate import evaluate_directory
from pbg_tasks.tasks.exchange.export_tsv import export_directory
from pbg_tasks.tasks.runs.base import bring_model
from pbg_tasks.tasks.training.train import train_directory
from tests.directories import PER_PARTITION, DataSet


@pytest.fixture
def data(tmp_path):
    return DataSet(tmp_path)


def test_training_learns_and_evaluation_shows_it(data):
    config = data.config(num_epochs=40)
    result = train_directory(config)
    assert result["version"] == 40
    assert result["edges_trained"] == 40 * 120
    assert result["curve"][-1] < 0.6 * result["curve"][0]
    figures = evaluate_directory(config, filtered=True)
    assert figures["edges"] == 120
    assert figures["candidates"] == {"n": 60}
    assert figures["filtered"]["mrr"] > 0.5  # by chance .08
    assert set(figures["relations"]) == {"next", "skip"}


def test_missing_known_edges_give_no_filtered_figures(data):
    train_directory(data.config())
    figures = evaluate_directory(data.config())
    assert figures["raw"]["count"] == 240
    assert "filtered" not in json.dumps(figures)


def test_config_of_another_model_is_warned_of(data, capsys):
    train_directory(data.config())
    evaluate_directory(data.config())
    assert "warning" not in capsys.readouterr().err
    evaluate_directory(data.config(comparator="squared_l2"))
    assert "was trained with another model than the config's (other comparator)" in capsys.readouterr().err


def test_edges_of_the_training_are_reported(data, capsys):
    data.write_edges(data.root / "held_out", seed=1)
    train_directory(data.config())
    evaluate_directory(data.config(edge_paths=[str(data.root / "held_out")]))
    assert "was trained on" not in capsys.readouterr().err
    evaluate_directory(data.config(edge_paths=[str(data.root / "held_out"), f"{data.edges}/"]))
    assert f"the model was trained on {data.edges}/, so its figures there are too good" in capsys.readouterr().err


def test_relations_that_were_never_trained_are_reported(data, capsys):
    train_directory(data.config())
    write_relation_names(data.entities, ["next", "skip", "new"], dynamic=True)
    evaluate_directory(data.config())
    assert "model: relations that came after the training, and are untrained: 1 of 3" in capsys.readouterr().err


def test_evaluation_outlasts_pbg_beginning_anew(data, monkeypatch):
    train_directory(data.config())
    before = evaluate_directory(data.config())

    def overtaken(*given, **options):
        model = bring_model(*given, **options)
        for path in (data.root / "model").glob("*.h5"):
            with h5py.File(path, "w"):  # as PBG does, in the file that is there
                pass
        return model

    monkeypatch.setenv("PBG_SCRATCH", str(data.root / "scratch"))  # where a second name is possible
    monkeypatch.setattr(evaluate, "bring_model", overtaken)
    assert evaluate_directory(data.config())["raw"] == before["raw"]


def test_more_epochs_continue_the_last_training(data):
    train_directory(data.config(num_epochs=2))
    assert train_directory(data.config(num_epochs=2))["edges_per_second"] is None
    result = train_directory(data.config(num_epochs=3))
    assert result["version"] == 3
    assert result["edges_trained"] == 3 * 120
    train_directory(data.config("other", num_epochs=3))
    assert np.array_equal(data.embeddings(data.config(), 3), data.embeddings(data.config("other"), 3))


def test_lowered_num_epochs_still_reports_trained_ones(data):
    train_directory(data.config(num_epochs=3, num_edge_chunks=2))
    result = train_directory(data.config(num_epochs=1, num_edge_chunks=2))
    assert (result["version"], result["epochs"]) == (6, 3)


def test_pbg_training_with_other_paths_is_refused(data):
    """PBG's files contain the number of edge paths.

    A directory without our own files is one that PBG wrote.
    """
    train_directory(data.config(num_epochs=1))
    for name in ("HEAD.json", "manifest.v1.json"):
        (data.root / "model" / name).unlink()
    with pytest.raises(ConfigError, match="version 1 was made with 1 edge_paths"):
        train_directory(data.config(edge_paths=(str(data.edges), str(data.edges)), num_epochs=2))
    assert train_directory(data.config(num_epochs=0))["version"] == 1
    assert train_directory(data.config(num_epochs=2))["version"] == 2


def test_seed_decides_the_result(data):
    for name, seed in (("one", 1), ("same", 1), ("other", 2)):
        train_directory(data.config(name), seed=seed)
    one, same, other = (data.embeddings(data.config(name), 2) for name in ("one", "same", "other"))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


def test_edge_paths_and_chunks_are_iterations(data):
    data.write_edges(data.root / "more", seed=1)
    paths = (str(data.edges), str(data.root / "more"))
    config = data.config(edge_paths=paths, num_edge_chunks=2)
    result = train_directory(config)
    assert result["version"] == 8
    assert result["edges_trained"] == 2 * 2 * 120
    places = [(line["epoch_idx"], line["edge_path_idx"], line["edge_chunk_idx"]) for line in data.stats()]
    assert places == sorted(places)
    assert len(set(places)) == 8
    with pytest.raises(ConfigError, match="num_edge_chunks 2"):
        train_directory(data.config(edge_paths=paths, num_edge_chunks=3))


def test_max_edges_per_chunk_uses_largest_bucket(data):
    """PBG uses bucket (0, 0) of each edge path only."""
    write_edges(data.edges / edge_file_name(0, 0), EdgeList(*(np.zeros(1, np.int64) for _ in range(3))))
    assert train_directory(data.config(num_epochs=1, max_edges_per_chunk=15))["version"] == 2


def test_edges_of_the_evaluation_are_never_trained(data):
    config = data.config(eval_fraction=0.25, num_epochs=3, eval_num_batch_negs=10, eval_num_uniform_negs=20)
    result = train_directory(config)
    # 30 edges a bucket and 4 buckets: 7 of each are held out
    assert result["edges_trained"] == 3 * (120 - 28)
    buckets = [line for line in data.stats() if "lhs_partition" in line]
    assert {line["stats"]["count"] for line in buckets} == {23}
    for line in buckets:
        for when in ("eval_stats_before", "eval_stats_after"):
            assert line[when]["count"] == 7
            assert set(line[when]["metrics"]) == {"loss", "pos_rank", "mrr", "r1", "r10", "r50", "auc"}
    averages = [line for line in data.stats() if "eval_stats_chunk_avg" in line]
    assert [line["eval_stats_chunk_avg"]["count"] for line in averages] == [28, 28, 28]
    assert [line["index"] for line in averages] == [3, 7, 11]
    assert result["held_out"] == averages[-1]["eval_stats_chunk_avg"]


def test_evaluation_settings_do_not_change_training(data):
    """The evaluation draws from a stream of its own."""
    quiet = data.config("quiet", eval_fraction=0.25, eval_num_batch_negs=1, eval_num_uniform_negs=1)
    loud = data.config("loud", eval_fraction=0.25, eval_num_batch_negs=10, eval_num_uniform_negs=30)
    for config in (quiet, loud):
        train_directory(config)
    assert np.array_equal(data.embeddings(quiet, 2), data.embeddings(loud, 2))


@pytest.mark.parametrize("empty_group", [False, True])
def test_checkpoint_of_vectors_alone_serves_every_command(data, empty_group, tmp_path):
    """Train, evaluate, export and query without a parameter file.

    PBG takes a model file without parameters for an untrained model; so does this package.
    """
    config = data.config(num_epochs=1)
    train_directory(config)
    for name in ("HEAD.json", "manifest.v1.json"):
        (data.root / "model" / name).unlink()
    with h5py.File(data.root / "model" / "model.v1.h5", "w") as file:
        file.attrs["format_version"] = 1
        if empty_group:
            file.create_group("model")
    assert evaluate_directory(config)["edges"] == 120
    entities, relations = tmp_path / "entities.tsv", tmp_path / "relations.tsv"
    export_directory(config, entities_output=str(entities), relation_types_output=str(relations))
    written = {" ".join(line.split("\t")[5:]) for line in relations.read_text().splitlines()}
    assert written == {" ".join(["1.000000000"] * 4), " ".join(["0.000000000"] * 4)}
    with Model.open(data.root / "model") as model:
        vectors = model.embedding(["e0_0", "e1_0"])
        assert model.score("e0_0", "next", "e1_0") == pytest.approx(float(vectors[0] @ vectors[1]), rel=1e-5)
    assert train_directory(data.config(num_epochs=2))["version"] == 2


def test_missing_bucket_is_an_empty_one(data):
    """PBG's importer writes no file for a bucket without edges.

    Its trainer fails on that.
    """
    (data.edges / edge_file_name(0, 0)).unlink()
    assert train_directory(data.config(num_epochs=1))["edges_trained"] == 90
    assert evaluate_directory(data.config())["edges"] == 90


def test_missing_or_contradictory_files_are_named(data):
    with pytest.raises(NotFoundError, match=r"model: .*no trained version"):
        evaluate_directory(data.config())
    with pytest.raises(NotFoundError, match=r"elsewhere: holds no edges_\*\.h5"):
        train_directory(data.config(edge_paths=(str(data.root / "elsewhere"),)))
    with pytest.raises(NotFoundError, match=r"entity_count_n_2\.txt: missing"):
        train_directory(data.config(entities={"n": {"num_partitions": 3}}))
    with pytest.raises(ConfigError, match=r"edges_0_1\.h5: the config has 1 x 1 buckets"):
        train_directory(data.config(entities={"n": {"num_partitions": 1}}))
    (data.entities / "entity_count_n_1.txt").write_text("29\n")
    with pytest.raises(FormatError, match="29 entities of type 'n'"):
        train_directory(data.config())


def test_checkpoint_of_other_model_is_refused(data):
    train_directory(data.config())
    with pytest.raises(ConfigError, match="another spec"):
        train_directory(data.config(comparator="cos", num_epochs=3))
    (data.entities / "entity_count_n_1.txt").write_text("31\n")
    with pytest.raises(FormatError, match="holds 30 rows, but entity_count_n_1"):
        train_directory(data.config(num_epochs=3))


def test_featurized_entities_are_trained_and_ranked(data):
    rng = np.random.default_rng(0)
    write_entity_count(data.entities, "bag", 0, 12)
    config = data.config(
        entities={"n": {"num_partitions": 2}, "bag": {"num_partitions": 1, "featurized": True}},
        relations=[{"name": "all", "lhs": "bag", "rhs": "n", "operator": "diagonal"}],
        edge_paths=(str(data.root / "bags"),),
        num_epochs=10,
    )
    (data.root / "bags").mkdir()
    for partition in range(2):
        offsets = rng.integers(PER_PARTITION, size=40)
        features = Features.of([[int(offset) % 12, int(offset) % 5] for offset in offsets])
        edges = EdgeList(np.full(40, -1), offsets, np.zeros(40, np.int64), lhs_features=features)
        write_edges(data.root / "bags" / edge_file_name(0, partition), edges)
    result = train_directory(config)
    assert result["curve"][-1] < result["curve"][0]
    with pytest.raises(ConfigError, match=r"entities\.bag is featurized"):
        evaluate_directory(config)
    figures = evaluate_directory(config, negatives="config")
    assert figures["edges"] == 80
    assert figures["sampled"]["mrr"] > 0.3


def test_ranks_without_negatives_are_reported(data, capsys):
    config = data.config(num_epochs=1, num_batch_negs=1, num_uniform_negs=0)
    train_directory(data.config(num_epochs=1))
    figures = evaluate_directory(config, negatives="config")
    assert (figures["sampled"]["mrr"], figures["without_negatives"]) == (1.0, 2 * figures["edges"])
    assert f"warning: {figures['without_negatives']:,} ranks had no negative" in capsys.readouterr().err
    assert evaluate_directory(data.config(), negatives="config")["without_negatives"] == 0


@pytest.mark.s3
def test_store_gets_the_same_directory(data, s3_bucket):
    local = data.config("here")
    train_directory(local)
    for name in ("entities", "edges"):
        store = open_store(f"{s3_bucket}/{name}")
        for path in sorted((data.root / name).glob("*.*")):
            store.put_new(path.name, path)
    remote = local.model_copy(
        update={
            "entity_path": f"{s3_bucket}/entities",
            "edge_paths": (f"{s3_bucket}/edges",),
            "checkpoint_path": f"{s3_bucket}/model",
        }
    )
    train_directory(remote)
    assert evaluate_directory(remote)["raw"] == evaluate_directory(local)["raw"]


def test_edges_outside_their_partition_are_refused(data):
    """Offsets beyond a partition must not reach into the next one.

    Offset 40 of partition 0 would be read as offset 10 of partition 1.
    """
    train_directory(data.config(num_epochs=1))
    wrong = EdgeList(np.array([40]), np.array([0]), np.array([0]))
    write_edges(data.edges / edge_file_name(0, 1), wrong)
    for task in (train_directory, evaluate_directory):
        with pytest.raises(FormatError, match=r"edges/edges_0_1\.h5: edges: column lhs holds 40, but there are 30"):
            task(data.config(num_epochs=2))
    write_edges(data.edges / edge_file_name(0, 1), EdgeList(np.array([0]), np.array([0]), np.array([7])))
    with pytest.raises(FormatError, match=r"edges_0_1\.h5: edges: column rel holds 7, but there are 2 relations"):
        evaluate_directory(data.config())


@pytest.mark.parametrize("changes", [{"operator": "translation"}, {"operator": "none"}, {"operator": "affine"}])
def test_checkpoint_of_other_operators_is_refused(data, changes):
    train_directory(data.config(num_epochs=1))
    other = data.config(relations=[{"name": "all", "lhs": "n", "rhs": "n"} | changes])
    outputs = {
        "entities_output": str(data.root / "entities.tsv"),
        "relation_types_output": str(data.root / "relations.tsv"),
    }
    for task in (evaluate_directory, lambda config: export_directory(config, **outputs)):
        with pytest.raises(FormatError, match=r"model/model\.v1\.h5: model/relations/0/operator"):
            task(other)
    assert not (data.root / "entities.tsv").exists()


def test_refused_training_leaves_the_config(data):
    train_directory(data.config(num_epochs=1))
    before = (data.root / "model" / "config.json").read_bytes()
    with pytest.raises(ConfigError, match="edge_paths"):
        train_directory(data.config(num_epochs=2, lr=5.0, edge_paths=(str(data.edges), str(data.edges))))
    assert (data.root / "model" / "config.json").read_bytes() == before


def test_divergence_in_held_out_edges_is_reported(data):
    config = data.config(lr=1e19, num_epochs=1, eval_fraction=0.2, eval_num_batch_negs=5)
    with pytest.raises(TrainingDivergedError, match="try a smaller lr"):
        train_directory(config)


def test_errors_name_checkpoint_instead_of_scratch_copy(data):
    train_directory(data.config(num_epochs=1))
    path = data.root / "model" / "embeddings_n_1.v1.h5"
    with h5py.File(path, "r+") as file:
        file.attrs["format_version"] = 2
    for name in ("HEAD.json", "manifest.v1.json"):
        (data.root / "model" / name).unlink()
    for task in (train_directory, evaluate_directory):
        with pytest.raises(FormatError, match=rf"{data.root}/model/embeddings_n_1\.v1\.h5: format_version is 2"):
            task(data.config(num_epochs=2))
