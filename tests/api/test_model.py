"""Scores, completions and neighbours by name, compared with the formulas."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from pbg_tasks.api import Answer, Model, UnknownNameError
from pbg_tasks.errors import InputError
from tests.api.conftest import Trained
from tests.api.oracle import compare, score

COMPARATORS = ("dot", "cos", "l2", "squared_l2")
MODES = {
    "standard": {
        "relations": [
            {"name": n, "lhs": "n", "rhs": "n", "operator": o}
            for n, o in (("moved", "translation"), ("turned", "complex_diagonal"), ("same", "none"))
        ]
    },
    "global": {
        "relations": [
            {"name": n, "lhs": "n", "rhs": "n", "operator": o} for n, o in (("scaled", "diagonal"), ("mixed", "affine"))
        ],
        "global_emb": True,
    },
    "dynamic": {
        "relations": [{"name": "all", "lhs": "n", "rhs": "n", "operator": "affine"}],
        "dynamic_relations": True,
        "relation_names": ["a", "b", "c"],
    },
    "dynamic turn": {
        "relations": [{"name": "all", "lhs": "n", "rhs": "n", "operator": "complex_diagonal"}],
        "dynamic_relations": True,
        "relation_names": ["a", "b"],
    },
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("comparator", "bias"), list(itertools.product(COMPARATORS, (False, True))))
def test_scores_and_completions_follow_the_formulas(trained, mode, comparator, bias):
    data = trained(comparator=comparator, bias=bias, **MODES[mode])
    names, count = data.names["n"], len(data.relations)
    rng = np.random.default_rng(1)
    lhs, rhs, rel = rng.integers(len(names), size=30), rng.integers(len(names), size=30), rng.integers(count, size=30)
    with Model.open(data.checkpoint) as model:
        columns = [[names[i] for i in lhs], [data.relations[i] for i in rel], [names[i] for i in rhs]]
        for predict in ("lhs", "rhs"):
            expected = [score(data, *edge, predict) for edge in zip(lhs, rel, rhs, strict=True)]
            found = model.score(*columns, predict=predict)
            assert found.dtype == np.float32
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        for predict, known in (("rhs", lhs), ("lhs", rhs)):
            given = {"lhs" if predict == "rhs" else "rhs": [names[i] for i in known[:6]]}
            answers = model.top_k(rel=columns[1][:6], k=7, **given)
            for end, relation, ranked in zip(known, rel, answers, strict=False):
                edges = [(end, relation, i) if predict == "rhs" else (i, relation, end) for i in range(len(names))]
                expected = np.array([score(data, *edge, predict) for edge in edges])
                order = np.argsort(-expected, kind="stable")[:7]
                assert [answer.name for answer in ranked] == [names[i] for i in order]
                np.testing.assert_allclose([answer.score for answer in ranked], expected[order], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("comparator", "bias"), list(itertools.product(COMPARATORS, (False, True))))
def test_neighbours_in_the_models_own_metric(trained, comparator, bias):
    data = trained(comparator=comparator, bias=bias, **MODES["global"])
    with Model.open(data.checkpoint) as model:
        x = data.vectors["n"].astype(float) + data.params["entities/n/global_embedding"]
        np.testing.assert_allclose(model.embedding(["n1_3", "n0_2"]), x[[53, 2]], rtol=1e-6)
        assert model.embedding("n1_3").shape == (8,)
        x = x[:, 1:] if bias else x
        expected = np.array([compare(comparator, x[53], row) for row in x])
        expected[53] = -np.inf
        order = np.argsort(-expected)[:5]
        found = model.neighbors("n1_3", 5)
        assert [answer.name for answer in found] == [data.names["n"][i] for i in order]
        np.testing.assert_allclose([answer.score for answer in found], expected[order], rtol=1e-4)
        assert model.neighbors(["n0_0", "n1_3"], 5)[1] == found


def test_score_and_top_k_give_the_same_bits(trained):
    data = trained(comparator="l2", dimension=50, sizes={"n": 5000}, entities={"n": {"num_partitions": 2}})
    with Model.open(data.checkpoint) as model:
        answers = model.top_k("n0_7", "r", k=300)
        again = model.score("n0_7", "r", [answer.name for answer in answers])
        assert [answer.score for answer in answers] == again.tolist()
        assert again.tolist() == sorted(again, reverse=True)


def test_many_queries_and_blocks_give_equal_answers(trained, monkeypatch):
    """Answers across tiles and blocks equal those of one large tile."""
    data = trained(comparator="dot", sizes={"n": 700})
    with Model.open(data.checkpoint) as model:
        names = data.names["n"]
        whole = model.top_k(names[:40], "r", k=9)
        monkeypatch.setattr("pbg_tasks.api.search.BLOCK_ROWS", 64)
        monkeypatch.setattr("pbg_tasks.api.search.TILE_QUERIES", 7)
        monkeypatch.setattr("pbg_tasks.api.search.SPARE", 1)
        assert model.top_k(names[:40], "r", k=9) == whole
        scores = model.score(names[:40], "r", names[100:140])
        monkeypatch.setattr("pbg_tasks.api.scoring._BLOCK_NUMBERS", 8 * 8)
        np.testing.assert_array_equal(model.score(names[:40], "r", names[100:140]), scores)


def test_equal_scores_are_ordered_by_number(trained):
    data = trained(comparator="dot", relations=[{"name": "r", "lhs": "n", "rhs": "n"}])
    for part in range(3):
        data.rewrite("n", part, np.ones((50 + part, 8), np.float32))
    with Model.open(data.checkpoint) as model:
        assert [answer.name for answer in model.top_k("n2_1", "r", k=60)] == data.names["n"][:60]
        assert [answer.name for answer in model.neighbors("n0_1", 3)] == ["n0_0", "n0_2", "n0_3"]
        assert len(model.top_k("n2_1", k=1000)) == 153
        assert model.top_k(rhs="n0_0", k=1) == [Answer("n0_0", 8.0)]


def names_of(answers):
    return [[answer.name for answer in listed] for listed in answers]


@pytest.mark.parametrize("given", ["lhs", "rhs"])
@pytest.mark.parametrize(
    ("loops", "wanted", "left_out"),
    [
        (None, None, ()),  # unknown, as in files of PBG and earlier versions
        ([], None, ("a", "b", "c")),
        ([1], None, ("a", "c")),
        ([0, 1, 2], None, ()),
        (None, True, ("a", "b", "c")),
        ([1], True, ("a", "b", "c")),
        ([], False, ()),
    ],
)
def test_known_end_is_excluded_on_request(trained, given, loops, wanted, left_out):
    data = trained(loops=loops, **MODES["dynamic"])
    names = data.names["n"]
    with Model.open(data.checkpoint) as model:
        asked, relations = ["n0_7", "n1_3", "n2_9"], ["a", "b", "c"]
        plain = names_of(model.top_k(rel=relations, k=len(names), exclude_self=False, **{given: asked}))
        found = names_of(model.top_k(rel=relations, k=len(names), exclude_self=wanted, **{given: asked}))
        for own, relation, before, after in zip(asked, relations, plain, found, strict=True):
            assert own in before
            assert after == [name for name in before if name != own or relation not in left_out]


def test_known_end_and_edges_are_excluded_together(trained):
    data = trained(loops=[], **MODES["dynamic"])
    with Model.open(data.checkpoint) as model:
        plain = names_of([model.top_k("n0_7", "b", k=200, exclude_self=False)])[0]
        taken = [("n0_7", "b", plain[2]), ("n0_7", "b", plain[5]), ("n0_8", "b", plain[0])]
        found = names_of([model.top_k("n0_7", "b", k=200, exclude_known=taken)])[0]
        assert found == [name for name in plain if name not in {plain[2], plain[5], "n0_7"}]


def test_known_end_of_other_type_excludes_nothing(trained):
    """Entities of two types may have the same number."""
    data = trained(
        loops=[],
        entities={"n": {"num_partitions": 1}, "m": {"num_partitions": 1}},
        relations=[{"name": "r", "lhs": "n", "rhs": "m"}],
    )
    with Model.open(data.checkpoint) as model:
        for wanted in (None, True):
            assert len(model.top_k("n0_7", "r", k=200, exclude_self=wanted)) == len(data.names["m"])


def test_name_of_other_type_is_refused_with_type(trained):
    relations = [{"name": "r", "lhs": "n", "rhs": "m"}]
    data = trained(entities={"n": {"num_partitions": 1}, "m": {"num_partitions": 1}}, relations=relations)
    with Model.open(data.checkpoint) as model:
        with pytest.raises(UnknownNameError, match=r"no entity of type 'n' is named 'm0_3'; it is of type m$"):
            model.top_k(["n0_7", "m0_3"], "r", k=1)
        with pytest.raises(UnknownNameError, match="no entity of type 'n' is named 'm0_3x'; did you mean"):
            model.top_k("m0_3x", "r", k=1)


def test_known_edges_are_excluded(trained):
    data = trained(**MODES["dynamic"])
    names = data.names["n"]
    with Model.open(data.checkpoint) as model:
        plain = model.top_k(["n0_0", "n1_1"], "b", k=6)
        taken = [("n0_0", "b", plain[0][0].name), ("n0_0", "b", plain[0][2].name), ("n0_0", "a", plain[0][1].name)]
        taken += [("n0_9", "b", "n1_1"), ("n0_0", "b", "stranger"), taken[0]]
        left = model.top_k(["n0_0", "n1_1"], "b", k=4, exclude_known=taken)
        assert [answer.name for answer in left[0]] == [plain[0][i].name for i in (1, 3, 4, 5)]
        assert left[1] == plain[1][:4]
        index = model.known(taken)
        assert len(index) == 4
        assert model.top_k(["n0_0", "n1_1"], "b", k=4, exclude_known=index) == left
        backwards = model.top_k(rel="b", rhs="n1_1", k=200, exclude_known=index)
        assert {answer.name for answer in backwards} == set(names) - {"n0_9"}
        nobody = model.top_k("n0_0", "b", k=5, exclude_known=[("n0_0", "b", name) for name in names])
        assert nobody == []
        for nothing in ([], {"lhs": [], "rel": [], "rhs": []}, np.empty((0, 3))):
            assert model.top_k(["n0_0", "n1_1"], "b", k=6, exclude_known=nothing) == plain


def test_known_edges_of_another_model_are_refused(trained, tmp_path):
    """A release that follows has other numbers."""
    before, after = trained(), Trained(tmp_path / "after", sizes={"n": 51})
    with Model.open(before.checkpoint) as model, Model.open(before.checkpoint) as again:
        index = model.known([("n0_0", "r", "n1_1")])
        assert again.top_k("n0_0", "r", k=3, exclude_known=index) == model.top_k("n0_0", "r", k=3, exclude_known=index)
    refused = pytest.raises(InputError, match=r"an index of another model than <Model version 3, .*after/checkpoint>")
    with Model.open(after.checkpoint) as model, refused:
        model.top_k("n0_0", "r", k=3, exclude_known=index)


def test_known_edges_of_earlier_training_are_refused(trained):
    """A place that was imported and trained anew has other numbers."""
    data = trained()
    with Model.open(data.checkpoint) as model:
        index = model.known([("n0_0", "r", "n1_1")])
    data.rename("n", 0, data.names["n"][49::-1])
    with Model.open(data.checkpoint) as model, pytest.raises(InputError, match="an index of another model"):
        model.top_k("n0_0", "r", k=3, exclude_known=index)


def test_single_name_is_combined_with_all_others(trained):
    data = trained()
    with Model.open(data.checkpoint) as model:
        assert model.score("n0_0", "r", "n1_1").shape == ()
        row = model.score("n0_0", None, np.array(["n1_1", "n2_2"]))
        np.testing.assert_array_equal(row[1], model.score("n0_0", "r", "n2_2"))
        with pytest.raises(InputError, match=r"one length, got \[1, 2\]"):
            model.score(["n0_0"], "r", ["n1_1", "n2_2"])
        assert model.score([], "r", "n1_1").shape == (0,)
        assert model.top_k([], "r") == []


def test_types_with_equal_names_are_distinguished(trained):
    data = trained(
        entities={"u": {"num_partitions": 1}, "v": {"num_partitions": 2}},
        relations=[
            {"name": "likes", "lhs": "u", "rhs": "v", "operator": "diagonal"},
            {"name": "likes", "lhs": "u", "rhs": "u", "operator": "diagonal"},
            {"name": "near", "lhs": "v", "rhs": "v"},
        ],
    )
    data.rename("v", 0, ["u0_3", *data.names["v"][1:50]])
    with Model.open(data.checkpoint) as model:
        assert model.entity_types == ("u", "v")
        np.testing.assert_allclose(model.score("u0_3", "near", "u0_3"), score(data, 0, 2, 0), rtol=1e-5)
        np.testing.assert_allclose(model.score("u0_1", "likes", "u0_3", rhs_type="u"), score(data, 1, 1, 3), rtol=1e-5)
        np.testing.assert_allclose(model.score("u0_1", "likes", "u0_3", rhs_type="v"), score(data, 1, 0, 0), rtol=1e-5)
        with pytest.raises(InputError, match="u -> v, u -> u: say which"):
            model.score("u0_1", "likes", "u0_3")
        with pytest.raises(InputError, match="of the types u, v: give entity_type"):
            model.neighbors("u0_3")
        assert {name for name, _ in model.neighbors("u0_3", 200, entity_type="v")} == set(model.entities("v")) - {
            "u0_3"
        }
        assert model.neighbors("u0_4", 3) == model.neighbors("u0_4", 3, "u")
        bought = {"lhs": ["u0_1"], "rel": ["likes"], "rhs": ["u0_3"], "lhs_type": ["u"], "rhs_type": ["v"]}
        rest = model.top_k("u0_1", "likes", k=200, rhs_type="v", exclude_known=bought)
        assert {name for name, _ in rest} == set(model.entities("v")) - {"u0_3"}
        assert len(model.top_k("u0_1", "likes", k=200, rhs_type="u", exclude_known=bought)) == 50
        with pytest.raises(InputError, match="name an entity type"):
            model.entities()
        for wrong in ("w", ""):
            with pytest.raises(UnknownNameError, match=f"no entity type is named '{wrong}'; the model has 'u', 'v'"):
                model.embedding("u0_3", wrong)
            with pytest.raises(UnknownNameError, match=f"no entity type is named '{wrong}'; the model has 'u', 'v'"):
                model.entities(wrong)


def test_predict_that_is_no_side_is_named(trained):
    refused = pytest.raises(InputError, match="predict is 'tail': give 'lhs' or 'rhs'")
    with Model.open(trained().checkpoint) as model, refused as caught:
        model.score("n0_0", "r", "n1_1", predict="tail")
    assert not isinstance(caught.value, KeyError)  # which unknown names are


def test_unknown_name_suggests_the_nearest(trained):
    data = trained(**MODES["dynamic"])
    with Model.open(data.checkpoint) as model:
        with pytest.raises(KeyError) as caught:
            model.score("n1_33x", "a", "n0_0")
        assert str(caught.value).startswith("no entity of type 'n' is named 'n1_33x'; did you mean 'n1_33'")
        assert isinstance(caught.value, InputError)
        with pytest.raises(UnknownNameError, match="no relation is named 'z'; the relations are a, b, c"):
            model.score("n0_0", "z", "n0_0")
        with pytest.raises(InputError, match="name a relation: the model has 3"):
            model.top_k("n0_0")
        with pytest.raises(InputError, match="give one of lhs and rhs"):
            model.top_k("n0_0", "a", "n0_1")
        with pytest.raises(InputError, match="k is 0"):
            model.neighbors("n0_0", 0)
        with pytest.raises(InputError, match=r"a name is a text or a whole number, not 1\.5"):
            model.score([1.5], "a", "n0_0")


def test_number_that_is_not_whole_is_named(trained):
    with Model.open(trained(**MODES["dynamic"]).checkpoint) as model:
        for k in (1.5, "3", None):
            with pytest.raises(InputError, match=f"k is {k!r}: give a whole number of at least 1"):
                model.top_k("n0_0", "a", k=k)
        with pytest.raises(InputError, match="limit is -1: give a whole number of at least 0"):
            model.entities(limit=-1)
        with pytest.raises(InputError, match="prefix is 7: give a text"):
            model.entities("n", prefix=7)
    with pytest.raises(InputError, match="release is '1': give a whole number"):
        Model.open("anywhere", release="1")


def test_features_are_shrunk_before_their_mean(trained):
    data = trained(
        entities={"doc": {"num_partitions": 1, "featurized": True}, "user": {"num_partitions": 1}},
        relations=[{"name": "by", "lhs": "doc", "rhs": "user", "operator": "diagonal"}],
        comparator="dot",
        max_norm=0.5,
    )
    data.vectors = {  # all are longer in the files
        entity: 0.5 * rows / np.linalg.norm(rows, axis=1, keepdims=True) for entity, rows in data.vectors.items()
    }
    data.vectors["doc"][0] = data.vectors["doc"][[3, 5]].mean(0)
    expected = [score(data, 0, 0, user) for user in range(50)]
    with Model.open(data.checkpoint) as model:
        found = model.score(("doc0_3", "doc0_5"), "by", data.names["user"])
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        (best,) = model.top_k(("doc0_3", "doc0_5"), "by", k=1)
        assert best.score == pytest.approx(max(expected), rel=1e-4)


def test_featurized_entities_are_means_of_their_features(trained):
    data = trained(
        entities={"doc": {"num_partitions": 1, "featurized": True}, "user": {"num_partitions": 2}},
        relations=[{"name": "by", "lhs": "doc", "rhs": "user", "operator": "diagonal"}],
        comparator="cos",
    )
    with Model.open(data.checkpoint) as model:
        mean = data.vectors["doc"][[3, 5]].mean(0)
        np.testing.assert_allclose(model.embedding(("doc0_3", "doc0_5")), mean, rtol=1e-5)
        single = model.score([("doc0_3", "doc0_5"), "doc0_7"], "by", "user1_2")
        data.vectors["doc"][0] = mean
        np.testing.assert_allclose(single, [score(data, 0, 0, 52), score(data, 7, 0, 52)], rtol=1e-4)
        expected = np.array([score(data, 0, 0, i) for i in range(101)])
        best = model.top_k(("doc0_3", "doc0_5"), "by", k=3)
        assert [answer.name for answer in best] == [data.names["user"][i] for i in np.argsort(-expected)[:3]]
        with pytest.raises(InputError, match="bags of features"):
            model.top_k(rel="by", rhs="user1_2")
        with pytest.raises(InputError, match="exclude_known: edges of featurized"):
            model.top_k("doc0_1", "by", exclude_known=[("doc0_1", "by", "user0_1")])
        with pytest.raises(InputError, match="not featurized"):
            model.embedding(("user1_2", "user1_3"))
