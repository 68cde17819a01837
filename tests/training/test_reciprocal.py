"""Relations with an operator for each question, trained and asked."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pbg_tasks.api import Model
from pbg_tasks.config import ModelConfig
from pbg_tasks.config.base import parse
from pbg_tasks.config.run import vector_space
from pbg_tasks.errors import ConfigError
from pbg_tasks.formats.model import read_model
from pbg_tasks.memory.parameters import parameter_count
from pbg_tasks.model.scoring import RelationScorer
from pbg_tasks.model.stored_parameters import initial_parameters
from pbg_tasks.tasks.directory.evaluate import evaluate_directory
from pbg_tasks.tasks.exchange.export_tsv import export_directory
from pbg_tasks.tasks.training.train import train_directory
from pbg_tasks.training.engine.native import NativeEngine
from pbg_tasks.training.engine.on_torch import TorchEngine
from tests.directories import DataSet
from tests.rotation import of_today
from tests.training.native_steps import assert_same_as, native
from tests.training.steps import COMBINATIONS, FEATURES, Case, assert_equal, assert_same_step, make_config, regularized

OPERATORS = [each for each in COMBINATIONS if each[0] == "dynamic" and each[1] != "none"]


def assert_gradients(engine, config, **how):
    case = Case(config, make_engine={"torch": TorchEngine, "native": NativeEngine}[engine], **how)
    if engine == "torch":
        assert_same_step(case)
    else:
        assert_same_as(case, case.reference())


@pytest.mark.parametrize("engine", ["torch", pytest.param("native", marks=native)])
@pytest.mark.parametrize(("_mode", "operator", "comparator", "loss"), of_today(OPERATORS, days=6))
@pytest.mark.parametrize("regularizer", [None, "N3", "N3_edge"])
def test_gradients_are_those_of_autograd(engine, _mode, operator, comparator, loss, regularizer):
    config = make_config("reciprocal", operator, comparator, loss)
    assert_gradients(engine, regularized(config, regularizer) if regularizer else config)


@pytest.mark.parametrize("engine", ["torch", pytest.param("native", marks=native)])
@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("operator", ["complex_diagonal", "affine"])
def test_features_keep_the_gradients_of_autograd(engine, feature, operator):
    config = make_config("reciprocal", operator, "dot", "softmax", feature)
    assert_gradients(engine, config, weighted=feature == "weights", seed=1)


@pytest.mark.parametrize("operator", ["translation", "complex_diagonal", "linear"])
def test_scorer_gives_scores_of_training(operator):
    case = Case(make_config("reciprocal", operator, "cos", "softmax"))
    trained = {}
    case.step(lambda side, positive_B, _: trained.update({side: positive_B.clone()}))
    scorer = RelationScorer(case.config, 0, {path: value.numpy() for path, value in case.state.params.items()})
    raw = {side: case.state.embeddings[case.types[side]][getattr(case.batch, side).rows_M] for side in ("lhs", "rhs")}
    for side, other in (("lhs", "rhs"), ("rhs", "lhs")):
        queries = scorer.queries(raw[other], case.batch.rel, predict=side)
        assert_equal(scorer.score_pairs(queries, scorer.candidates(raw[side], predict=side)), trained[side])


def model_keys(**relation):
    return {
        "entities": {"e": {"num_partitions": 1}},
        "relations": [{"name": "r", "lhs": "e", "rhs": "e", "operator": "diagonal"} | relation],
        "dimension": 4,
    }


def test_parameters_of_both_questions_are_counted():
    config = parse(ModelConfig, model_keys(reciprocal=True), source="here")
    params = initial_parameters(config, 1)
    assert {path: tuple(value.shape) for path, value in params.items() if "operator" in path} == {
        "relations/0/operator/lhs/diagonals": (1, 4),
        "relations/0/operator/rhs/diagonals": (1, 4),
    }
    assert sum(value.size for value in params.values()) == parameter_count(config, 1)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (model_keys(reciprocal=True) | {"dynamic_relations": True, "global_emb": False}, "all relations are"),
        (model_keys(reciprocal=True, operator="none"), "operator none has no parameters"),
    ],
)
def test_reciprocal_without_effect_is_refused(keys, message):
    with pytest.raises(ConfigError, match=rf"relations\.0\.reciprocal: .*{message}.*; leave it out"):
        parse(ModelConfig, keys, source="here")


def test_unset_key_changes_no_dump_and_no_hash():
    plain, unset, wanted = (
        parse(ModelConfig, model_keys(**keys), source="here")
        for keys in ({}, {"reciprocal": False}, {"reciprocal": True})
    )
    assert "reciprocal" not in unset.model_dump(mode="json")["relations"][0]
    assert wanted.model_dump(mode="json")["relations"][0]["reciprocal"] is True
    assert vector_space(plain) == vector_space(unset) != vector_space(wanted)


@pytest.fixture
def data(tmp_path):
    return DataSet(tmp_path)


def relations(*reciprocal):
    return [
        {"name": name, "lhs": "n", "rhs": "n", "operator": "complex_diagonal", "reciprocal": name in reciprocal}
        for name in ("next", "skip")
    ]


def trained(data, checkpoint, engine, *reciprocal):
    config = data.config(
        checkpoint, dynamic_relations=False, comparator="dot", loss_fn="softmax", relations=relations(*reciprocal)
    )
    train_directory(config, engine=engine)
    return config


@pytest.mark.parametrize("engine", ["torch", pytest.param("native", marks=native)])
def test_one_relation_of_two_is_trained_and_asked(data, engine):
    config = trained(data, "mixed", engine, "next")
    params = read_model(data.root / "mixed" / "model.v2.h5").params
    shapes = {path: value.shape for path, value in params.items() if path.endswith("/real")}
    half = config.dimension // 2
    assert shapes == {
        "relations/0/operator/lhs/real": (1, half),
        "relations/0/operator/rhs/real": (1, half),
        "relations/1/operator/rhs/real": (half,),
    }
    both = [params[f"relations/0/operator/{side}/real"] for side in ("lhs", "rhs")]
    assert not np.array_equal(*both)
    assert evaluate_directory(config, filtered=True)["filtered"]["mrr"] > 0
    with Model.open(config.checkpoint_path) as model:
        name, *_ = model.entities()
        answers = [model.top_k(name, relation, k=3) for relation in ("next", "skip")]
        assert all(np.isfinite([each.score for each in listed]).all() for listed in answers)


@native
def test_engines_train_mixed_relations_alike(data):
    ours, theirs = (data.embeddings(trained(data, engine, engine, "skip"), 2) for engine in ("native", "torch"))
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), rtol=1e-3, atol=1e-5)


def test_export_has_a_line_for_each_question(data):
    config = trained(data, "model", "torch", "next")
    entities, operators = (data.root / name for name in ("entities.tsv", "operators.tsv"))
    export_directory(config, entities_output=str(entities), relation_types_output=str(operators))
    lines = operators.read_text().splitlines()
    heads = [line.split("\t")[:5] for line in lines]
    half = str(config.dimension // 2)
    assert sorted(heads) == sorted(
        [name, side, "complex_diagonal", part, half]
        for name, sides in (("next", ("lhs", "rhs")), ("skip", ("rhs",)))
        for side in sides
        for part in ("real", "imag")
    )
