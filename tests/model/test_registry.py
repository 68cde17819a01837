"""Packages that add operators, comparators, losses and regularizers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from pbg_tasks.config import ConfigSchema, ModelConfig
from pbg_tasks.errors import ConfigError
from pbg_tasks.formats.edges import EdgeList
from pbg_tasks.formats.metadata import IterationInfo
from pbg_tasks.formats.model import ModelState, read_model, write_model
from pbg_tasks.model import registry
from pbg_tasks.model.scoring import RelationScorer
from pbg_tasks.training.data.tables import Table
from pbg_tasks.training.engine.on_torch import TorchEngine
from tests.model.plugins import documented, package_folder, write_package

ROOT = Path(__file__).parents[2]
RELATIONS, ENTITIES, DIMENSION = 3, 30, 6

# Built-in classes, written anew with forward functions only.
TWINS = """
import torch
from pbg_tasks.model.comparators import Comparator
from pbg_tasks.model.losses import Loss
from pbg_tasks.model.operators import Operator
from pbg_tasks.model.regularizers import Regularizer

class Diagonal(Operator):
    def initial(self, dimension):
        return {"factor": torch.ones(dimension)}

    def forward(self, x_ND, params):
        return x_ND * params["factor"]

class Affine(Operator):
    matrices = True

    def initial(self, dimension):
        return {"shift": torch.zeros(dimension), "matrix": torch.eye(dimension)}

    def forward(self, x_ND, params):
        return x_ND @ params["matrix"].T + params["shift"]

class Cosine(Comparator):
    def prepare(self, x_ND):
        return torch.nn.functional.normalize(x_ND, dim=-1)

    def all_pairs(self, query_CSD, candidate_CKD):
        return query_CSD @ candidate_CKD.mT

def dot(query_CSD, candidate_CKD):
    return torch.einsum("csd,ckd->csk", query_CSD, candidate_CKD)

def softmax(positive_B, negative_BK, margin):
    return torch.cat((positive_B[:, None], negative_BK), 1).logsumexp(1) - positive_B

class Ranking(Loss):
    def forward(self, positive_B, negative_BK, margin):
        return (margin - positive_B[:, None] + negative_BK).relu().sum(1)

def cube(modulus):
    return modulus ** 3

class Square(Regularizer):
    def forward(self, modulus):
        return modulus ** 2

square = Square()
"""
TWIN_POINTS = {
    "operators": {"my_diagonal": "Diagonal", "my_affine": "Affine"},
    "comparators": {"my_cos": "Cosine", "my_dot": "dot"},
    "losses": {"my_softmax": "softmax", "my_ranking": "Ranking"},
    "regularizers": {"my_cube": "cube", "my_square": "square"},
}
# By the built-in names, the names of the corresponding parameters.
PARAMETERS = {
    "diagonal": "factor",
    "diagonals": "factors",
    "linear_transformation": "matrix",
    "linear_transformations": "matrixs",
    "translation": "shift",
    "translations": "shifts",
}


@pytest.fixture
def install(tmp_path):
    """Install a package; ``points`` maps groups to names and their targets."""
    with package_folder(tmp_path) as write:

        def install(name, source, points):
            groups = {
                f"pbg_tasks.{group}": {point: f"{name}:{target}" for point, target in targets.items()}
                for group, targets in points.items()
            }
            write(name, source, groups)

        yield install


def settings(mode, operator, comparator, loss, regularizer, **others):
    return {
        "entities": {"e": {"num_partitions": 1}},
        "relations": [{"name": "r", "lhs": "e", "rhs": "e", "operator": operator}],
        "dimension": DIMENSION,
        "comparator": comparator,
        "loss_fn": loss,
        "regularizer": regularizer,
        "regularization_coef": 0.01,
        "lr": 0.05,
        "batch_size": 50,
        "num_batch_negs": 10,
        "num_uniform_negs": 10,
        "dynamic_relations": mode == "dynamic",
        "global_emb": False,
        "entity_path": "e",
        "edge_paths": ["t"],
        "checkpoint_path": "c",
    } | others


def train(config, epochs=3):
    """Train a bucket; return engine, table and mean loss by epoch."""
    generator = torch.Generator().manual_seed(1)
    rng = np.random.default_rng(1)
    edges = EdgeList(
        rng.integers(ENTITIES, size=200),
        rng.integers(ENTITIES, size=200),
        rng.integers(RELATIONS if config.dynamic_relations else 1, size=200),
    )
    engine = TorchEngine(config, RELATIONS)
    table = Table.from_arrays(rng.standard_normal((ENTITIES, DIMENSION)).astype(np.float32), None)
    tables = {"e": table}
    stats = [engine.train_bucket(edges, tables, tables, generator=generator)[0] for _ in range(epochs)]
    return engine, table, [each.loss for each in stats]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("mode", ["standard", "dynamic"])
@pytest.mark.parametrize(
    ("operator", "comparator", "loss", "regularizer"),
    [("diagonal", "dot", "softmax", ("N3_edge", "cube")), ("affine", "cos", "ranking", ("L2", "square"))],
)
def test_forward_functions_train_as_built_in_classes(install, mode, operator, comparator, loss, regularizer, bias):
    install("twins", TWINS, TWIN_POINTS)
    built_in, own = regularizer
    expected = train(ConfigSchema.model_validate(settings(mode, operator, comparator, loss, built_in, bias=bias)))
    twins = settings(mode, f"my_{operator}", f"my_{comparator}", f"my_{loss}", f"my_{own}", bias=bias)
    found = train(ConfigSchema.model_validate(twins))
    assert found[2] == pytest.approx(expected[2], rel=1e-5)
    torch.testing.assert_close(found[1].embeddings, expected[1].embeddings, rtol=1e-4, atol=1e-5)
    params, twin_params = expected[0].parameters()[0], found[0].parameters()[0]
    renamed = {
        f"{parent}/{PARAMETERS[name]}": value
        for (parent, _, name), value in ((path.rpartition("/"), value) for path, value in params.items())
    }
    assert renamed.keys() == twin_params.keys()
    for path, value in renamed.items():
        np.testing.assert_allclose(twin_params[path], value, rtol=1e-4, atol=1e-5)


@pytest.fixture
def rotations(tmp_path):
    with package_folder(tmp_path) as write:
        write(*documented())
        yield


@pytest.mark.usefixtures("rotations")
@pytest.mark.parametrize("mode", ["standard", "dynamic"])
def test_documented_example_trains_saves_and_scores(tmp_path, mode):
    config = ConfigSchema.model_validate(settings(mode, "rotation", "manhattan", "squared_hinge", "lasso"))
    engine, table, losses = train(config, epochs=5)
    assert losses[-1] < losses[0]
    params, sums = engine.parameters()
    name, shape = ("phases", (RELATIONS, DIMENSION // 2)) if mode == "dynamic" else ("phase", (DIMENSION // 2,))
    sides = ("lhs", "rhs") if mode == "dynamic" else ("rhs",)
    assert {path: value.shape for path, value in params.items()} == {
        f"relations/0/operator/{side}/{name}": shape for side in sides
    }
    assert all(value.all() for value in params.values())

    path = tmp_path / "model.v1.h5"
    write_model(path, ModelState(params, sums), config=config, iteration=IterationInfo(1, 0, 1, 0, "t", 1, 0))
    stored = read_model(path)
    again = TorchEngine(config, RELATIONS)
    again.load_parameters(stored.params, stored.sums)
    for ours, theirs in zip(again.parameters(), (params, sums), strict=True):
        assert ours.keys() == theirs.keys()
        for key, value in theirs.items():
            np.testing.assert_array_equal(ours[key], value)

    scorer = RelationScorer(config, 0, stored.params)
    query = scorer.queries(table.embeddings[:4], torch.tensor([0, 1, 2, 0]), predict="lhs")
    candidate = scorer.candidates(table.embeddings, predict="lhs")
    scores = scorer.score(query, candidate)
    torch.testing.assert_close(scores, -(query[:, None] - candidate[None]).abs().sum(-1))
    torch.testing.assert_close(scorer.score_pairs(query, candidate[:4]), scores[:, :4].diagonal())


def test_config_is_read_without_importing_packages(tmp_path):
    write_package(
        tmp_path, "mine", "raise RuntimeError('imported')", {"pbg_tasks.operators": {"mine": "mine:Operator"}}
    )
    data = json.dumps(settings("standard", "mine", "dot", "softmax", "N3"))
    code = (
        "import json, sys; from pbg_tasks.config import ConfigSchema;"
        "config = ConfigSchema.model_validate(json.loads(sys.argv[1]));"
        "assert not {'torch', 'mine'} & sys.modules.keys(); print(config.relations[0].operator)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, data],
        env=os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT), str(tmp_path)))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "mine\n"), done.stderr


@pytest.mark.parametrize(
    ("key", "noun", "group", "known"),
    [
        (
            "operator",
            "operator",
            "operators",
            "none, translation, diagonal, complex_diagonal, linear, affine, my_affine",
        ),
        ("comparator", "comparator", "comparators", "dot, cos, l2, squared_l2, my_cos"),
        ("loss", "loss", "losses", "ranking, logistic, softmax, my_ranking"),
        ("regularizer", "regularizer", "regularizers", "N3, N3_edge, L2, my_cube"),
    ],
)
def test_unknown_name_lists_the_known_ones(install, key, noun, group, known):
    install("twins", TWINS, TWIN_POINTS)
    names = {"operator": "none", "comparator": "dot", "loss": "softmax", "regularizer": "N3"} | {key: "nonesuch"}
    expected = f"no {noun} is named 'nonesuch'; known: {known}.*'pbg_tasks.{group}'"
    with pytest.raises(ValueError, match=expected):
        ModelConfig.model_validate(
            {name: value for name, value in settings("standard", **names).items() if "_path" not in name}
        )


def test_json_schema_lists_built_in_names():
    field = ModelConfig.model_json_schema()["properties"]["comparator"]
    assert field["type"] == "string"
    assert field["examples"] == ["dot", "cos", "l2", "squared_l2"]
    assert "pbg_tasks.comparators" in field["description"]


def test_built_in_name_is_not_taken_over(install):
    install("twins", TWINS, {"operators": {"diagonal": "Affine"}})
    assert type(registry.operator("diagonal")).__module__ == "pbg_tasks.model.operators"


def test_name_of_two_packages_is_refused(install):
    for name in ("one", "other"):
        install(name, TWINS, {"losses": {"same": "softmax"}})
    with pytest.raises(ConfigError, match=r"'same' is defined by several packages \(one 1.0, other 1.0\)"):
        registry.loss("same")


def test_name_of_removed_package_is_refused(install):
    install("twins", TWINS, TWIN_POINTS)
    with pytest.raises(ConfigError, match="no loss is named 'gone' here: install the package"):
        registry.loss("gone")


HEADER = (
    "import torch\nfrom pbg_tasks.model.operators import Operator\nfrom pbg_tasks.model.comparators import Comparator\n"
)


@pytest.mark.parametrize(
    ("group", "source", "problem"),
    [
        ("losses", "import nonesuch", "failed: ModuleNotFoundError: No module named 'nonesuch'"),
        ("losses", "", "failed: AttributeError"),
        (
            "losses",
            "mine = 3",
            "is 3, not a subclass or an instance of pbg_tasks.model.losses.Loss or a forward function",
        ),
        ("losses", "def mine(p, n, m): return p.sum()", r"forward gives \(\) where a tensor of shape \(3,\) is needed"),
        ("losses", "def mine(p, n, m): return p - n.exp().log().sum(1)", "gives numbers that are not finite"),
        ("losses", "def mine(p): return p", "failed: TypeError"),
        ("losses", "class mine: pass", "is <class 'broken.mine'>, not a subclass"),
        ("comparators", "def mine(q, c): return q @ q.mT", r"all_pairs gives \(2, 3, 3\)"),
        ("comparators", "def mine(q, c): return q.mul_(2) @ c.mT", "failed: RuntimeError"),
        ("comparators", "class mine(Operator): pass", "not a subclass or an instance"),
        ("regularizers", "def mine(modulus): return modulus.sum()", r"forward gives \(\)"),
        ("regularizers", "def mine(modulus): return modulus.sum().item()", "forward gives float"),
        ("regularizers", "def mine(modulus): return modulus.log()", "not finite for a modulus"),
    ],
)
def test_faulty_entry_point_is_refused_when_loaded(install, group, source, problem):
    install("broken", HEADER + source, {group: {"mine": "mine"}})
    load = {
        "losses": registry.loss,
        "comparators": lambda name: registry.comparator(name, bias=False),
        "regularizers": registry.regularizer,
    }[group]
    with pytest.raises(ConfigError, match=rf"'mine', entry point broken:mine of the package broken 1.0, .*{problem}"):
        load("mine")


@pytest.mark.parametrize(
    ("parameters", "forward", "others", "problem"),
    [
        ("{'w': torch.ones(dimension)}", "x_ND[:1] * params['w']", "", r"forward gives \(1, 6\)"),
        ("{'w': torch.eye(dimension)}", "x_ND @ params['w']", "", "set matrices = True"),
        ("{'w': torch.tensor(1.0)}", "x_ND * params['w']", "", "with at least one axis"),
        ("{'w': torch.ones(dimension).double()}", "x_ND * params['w']", "", "starts w as torch.float64"),
        ("{'a/b': torch.ones(dimension)}", "x_ND * params['a/b']", "", "name 'a/b'"),
        ("{'rotation': torch.ones(dimension)}", "x_ND * params['rotation']", "", "name 'rotation'"),
        ("{'a': torch.ones(1), 'b': torch.ones(1)}", "x_ND", "stacked = {'a': 'bs'}", "same name"),
        ("{}", "x_ND", "components = 4", "multiple of 4, got 6"),
        ("{}", "x_ND.add_(1)", "", "failed: RuntimeError"),
    ],
)
def test_faulty_operator_is_refused_before_training(install, parameters, forward, others, problem):
    source = f"""{HEADER}
class Mine(Operator):
    {others}
    def initial(self, dimension):
        return {parameters}

    def forward(self, x_ND, params):
        return {forward}
"""
    install("broken", source, {"operators": {"mine": "Mine"}})
    config = ConfigSchema.model_validate(settings("dynamic", "mine", "dot", "softmax", "N3"))
    with pytest.raises(ConfigError, match=rf"'mine', entry point broken:Mine of the package broken 1.0, .*{problem}"):
        TorchEngine(config, RELATIONS)


def test_an_operator_must_be_a_class(install):
    install("broken", "def mine(x, params): return x", {"operators": {"mine": "mine"}})
    with pytest.raises(ConfigError, match=r"not a subclass or an instance of pbg_tasks.model.operators.Operator$"):
        registry.operator("mine")
