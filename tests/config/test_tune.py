from __future__ import annotations

import pytest

from pbg_tasks.config import GraphSpec
from pbg_tasks.config.base import parse
from pbg_tasks.config.tune_space import beginning, candidates, changed, require_tunable, rung_epochs
from pbg_tasks.errors import ConfigError
from tests.config.specs import MODEL, SPEC

GRID = {"model.lr": [0.01, 0.1], "model.dimension": [16, 32, 64]}
DRAWN = {
    "model.lr": {"low": 1e-3, "high": 1.0, "log": True},
    "model.dimension": {"low": 16, "high": 64, "int": True, "step": 16},
    "model.loss_fn": ["softmax", "ranking"],
}


def spec(tune, **keys):
    model = MODEL | {"num_epochs": 9} | keys.pop("model", {})
    return parse(GraphSpec, SPEC | {"model": model, "tune": tune} | keys, source="g.yaml")


def searched(tune, **keys):
    graph = spec(tune, **keys)
    return graph, require_tunable(graph, source="g.yaml")


def test_grid_has_every_combination_once():
    _, tune = searched({"space": GRID})
    found = [tuple(each.changes.values()) for each in candidates(tune)]
    assert found == [(lr, dimension) for lr in (0.01, 0.1) for dimension in (16, 32, 64)]
    assert len({each.id for each in candidates(tune)}) == 6


def test_samples_follow_from_seed_alone():
    tune = {"space": DRAWN, "samples": 12, "seed": 7}
    first, second = (candidates(searched(tune)[1]) for _ in range(2))
    other = candidates(searched(tune | {"seed": 8})[1])
    assert first == second != other
    assert len({each.id for each in first}) == 12
    for each in first:
        assert 1e-3 <= each.changes["model.lr"] <= 1.0
        assert each.changes["model.dimension"] in {16, 32, 48, 64}
        assert type(each.changes["model.dimension"]) is int
        changed(spec(None), each.changes, source="candidate")


def test_logarithmic_samples_are_even_over_decades():
    found = candidates(searched({"space": {"model.lr": DRAWN["model.lr"]}, "samples": 60, "seed": 1})[1])
    small = sum(each.changes["model.lr"] < 10**-1.5 for each in found)
    assert 20 <= small <= 40


def test_samples_of_step_are_exact():
    wide = {"low": 1_000_000.25, "high": 1_000_003.0, "step": 0.25}
    found = {each.changes["model.lr"] for each in candidates(searched({"space": {"model.lr": wide}, "samples": 12})[1])}
    assert found == {1_000_000.25 + 0.25 * number for number in range(12)}
    tenths = {"low": 0.1, "high": 0.7, "step": 0.1}
    found = {
        each.changes["model.lr"] for each in candidates(searched({"space": {"model.lr": tenths}, "samples": 7})[1])
    }
    assert found == {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7}


def test_rungs_end_with_epochs_of_spec():
    graph, tune = searched({"space": GRID, "halving": {"eta": 3}})
    assert rung_epochs(graph, tune) == [1, 3, 9]
    graph, tune = searched({"space": GRID, "halving": {"eta": 2, "min_epochs": 4}})
    assert rung_epochs(graph, tune) == [4, 9]
    graph, tune = searched({"space": GRID})
    assert rung_epochs(graph, tune) == [None]


def test_search_changes_no_run():
    assert spec({"space": GRID}).model_dump(mode="json") == spec(None).model_dump(mode="json")


@pytest.mark.parametrize(
    ("tune", "message"),
    [
        ({"space": {"model.lr": []}}, "tune.space.model.lr: "),
        ({"space": {"model.lr": [0.1, 0.1]}}, "space.model.lr: names a value twice"),
        ({"space": {"model.lr": [0.1]}}, "tune.space: makes one candidate"),
        ({"space": {"model.lrr": [1]}}, "tune.space.model.lrr: 1: unknown key 'model.lrr'; did you mean 'lr'?"),
        ({"space": {"model.lr": {"low": 1.0, "high": 0.1}}, "samples": 2}, "low must be the smaller one"),
        ({"space": {"model.lr": {"low": 0.0, "high": 1.0, "step": 1e-320}}, "samples": 2}, "more numbers than can be"),
        ({"space": {"model.lr": {"low": -1e308, "high": 1e308, "int": True}}, "samples": 2}, "more numbers than can"),
        ({"space": {"model.lr": {"low": 0.0, "high": 1.0, "log": True}}, "samples": 2}, "log needs a low above 0"),
        ({"space": {"model.lr": {"low": 0.1, "high": 1.0, "log": True, "step": 0.1}}, "samples": 2}, "log and step"),
        ({"space": {"model.dimension": {"low": 1.5, "high": 4, "int": True}}, "samples": 2}, "whole numbers"),
        ({"space": {"model.lr": {"low": 0.1, "high": 1.0}}}, "give samples, or a list here"),
        ({"space": GRID, "samples": 7}, "samples is 7, yet space has 6 combinations"),
        ({"space": GRID, "max_candidates": 5}, "makes 6 candidates, and max_candidates is 5"),
        ({"space": GRID, "halving": {"eta": 10}}, "tune.halving: 2 rungs with eta 10"),
        ({"space": GRID, "halving": {"rungs": 4}}, "need model.num_epochs of at least 27, which is 9"),
        ({"space": {"model.num_epochs": [1, 2]}, "halving": {}}, "tune.space.model.num_epochs: halving decides"),
        ({"space": {"model.numEpochs": [1, 2]}, "halving": {}}, "is an old spelling of model.num_epochs; write that"),
        ({"space": {"model.num_epochs": [4, 0]}}, "tune.space.model.num_epochs: 0: such a candidate would not be"),
        ({"space": {"model.num_epochs": {"low": 0, "high": 4, "int": True}}, "samples": 2}, "give 1 epoch or more"),
        ({"space": {"model.lrr": [1, 2]}}, "tune.space.model.lrr: 1: unknown key 'model.lrr'; did you mean 'lr'?"),
        ({"space": {"model.lr": [0.1, -1.0]}}, "tune.space.model.lr: -1.0: model.lr: Input should be greater"),
        ({"space": {"model.loss_fn": ["softmax", "hinge"]}}, 'tune.space.model.loss_fn: "hinge": model.loss_fn'),
        ({"space": {"split.valid": [0.1, 0.2]}}, "tune.space.split.valid: candidates share one prepared snapshot"),
        ({"space": {"model.entities.user.num_partitions": [1, 2]}}, "the prepared snapshot depends on it"),
        ({"space": {"model.relations.0.lhs": ["user", "item"]}}, "the prepared snapshot depends on it"),
        ({"space": {"train.anchor": [0.0, 1.0]}}, "tune.space.train.anchor: candidates begin at random"),
        (
            {"space": {"model.relations.0": [{}, None], "model.relations.0.operator": ["none", "diagonal"]}},
            "tune.space.model.relations.0.operator: is a part of model.relations.0",
        ),
        ({"space": GRID, "metric": "mr"}, "tune.metric"),
    ],
)
def test_contradiction_of_space_is_refused_by_key(tune, message):
    with pytest.raises(ConfigError) as refused:
        searched(tune)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("space", "trainable", "changes"),
    [
        (GRID, True, ["model.init_path=null"]),
        (GRID, False, []),
        ({"model.entities.item.trainable": [True, False]}, True, []),
    ],
)
def test_only_trained_vectors_begin_at_random(space, trainable, changes):
    entities = MODEL["entities"] | {"item": {"num_partitions": 1, "trainable": trainable}}
    assert beginning(spec({"space": space}, model={"entities": entities})) == changes


@pytest.mark.parametrize("given", [None, "s3://bucket/vectors"])
def test_frozen_vectors_have_one_dimension(given):
    """Candidates of others would end the search with an error."""
    model = {"entities": MODEL["entities"] | {"item": {"num_partitions": 1, "trainable": False}}, "init_path": given}
    if given is None:
        searched({"space": GRID}, model=model)
        return
    with pytest.raises(ConfigError, match=r"tune.space.model.dimension: 32: .* frozen type 'item' in model.init_path"):
        searched({"space": GRID}, model=model)


def test_search_without_valid_split_is_refused():
    with pytest.raises(ConfigError, match=r"tune: candidates are ranked on the valid split, yet split.valid is 0"):
        searched({"space": GRID}, split={"valid": 0.0, "test": 0.1})


def test_values_that_contradict_together_make_candidate_fail():
    """Each value is right in itself, so the search begins."""
    space = {"model.comparator": ["cos", "l2"], "model.relations.0.operator": ["translation", "affine"]}
    graph, tune = searched({"space": space})
    assert len(candidates(tune)) == 4
    with pytest.raises(ConfigError, match="candidate: "):
        changed(graph, {"model.disable_lhs_negs": True, "model.disable_rhs_negs": True}, source="candidate")
