"""Shared parameters: PBG's layout and order, round trips, equal bytes, legacy names."""

from __future__ import annotations

from dataclasses import replace

import h5py
import numpy as np
import pytest
import torch

from pbg_tasks.errors import FormatError
from pbg_tasks.formats.model import (
    ModelState,
    model_file_name,
    parameter_order,
    read_model,
    state_dict_key,
    write_model,
)

# As PBG orders and names them, for the config of conftest with global embeddings.
LAYOUT = {
    "relations/0/operator/rhs/real": ("rhs_operators.0.real", (2,)),
    "relations/0/operator/rhs/imag": ("rhs_operators.0.imag", (2,)),
    "relations/1/operator/rhs/linear_transformation": ("rhs_operators.1.linear_transformation", (4, 4)),
    "relations/1/operator/rhs/translation": ("rhs_operators.1.translation", (4,)),
    "entities/user/global_embedding": ("global_embs.emb_user", (4,)),
    "entities/item/global_embedding": ("global_embs.emb_item", (4,)),
}


@pytest.fixture
def path(tmp_path):
    return tmp_path / model_file_name(3)


@pytest.fixture
def state():
    generator = np.random.default_rng(0)
    shapes = {name: shape for name, (_, shape) in reversed(LAYOUT.items())}
    params = {name: generator.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    return ModelState(params, {name: value**2 for name, value in params.items()})


def blob(path):
    with h5py.File(path) as file:
        data = file["optimizer/state_dict"][...].tobytes()
    target = path.parent / "blob"
    target.write_bytes(data)
    return torch.load(target, weights_only=True)


def assert_equal(left, right):
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert value.dtype == np.float32
        np.testing.assert_array_equal(value, right[name])


def test_the_layout_is_pbgs(path, state, config, iteration):
    write_model(path, state, config=config, iteration=iteration)
    assert path.name == "model.v3.h5"
    with h5py.File(path) as file:
        found = {}
        file["model"].visititems(
            lambda name, item: found.update({name: item}) if isinstance(item, h5py.Dataset) else None
        )
        layout = {name: (item.attrs["state_dict_key"], item.shape) for name, item in found.items()}
        assert {(item.dtype.str, item.chunks) for item in found.values()} == {("<f4", None)}
        assert list(file["model"]) == ["relations", "entities"]
        assert file["model"].id.get_create_plist().get_link_creation_order() != 0
        assert file.attrs["iteration/epoch_idx"] == 2
    assert layout == LAYOUT


def test_the_blob_is_adagrads_in_pbgs_order(path, state, config, iteration):
    write_model(path, state, config=config, iteration=iteration)
    saved = blob(path)
    for index, name in enumerate(LAYOUT):
        entry = saved["state"][index]
        assert entry.keys() == {"step", "sum"}
        assert (entry["step"].shape, entry["step"].dtype) == ((), torch.float32)
        np.testing.assert_array_equal(entry["sum"].numpy(), state.sums[name])
    (group,) = saved["param_groups"]
    assert group["params"] == list(range(len(LAYOUT)))
    assert group["lr"] == config.relation_lr


def test_torchs_own_adagrad_takes_the_blob(path, state, config, iteration):
    write_model(path, state, config=config, iteration=iteration)
    params = [torch.nn.Parameter(torch.zeros(shape)) for _, shape in LAYOUT.values()]
    optimizer = torch.optim.Adagrad(params, lr=1)
    assert blob(path)["param_groups"][0].keys() <= optimizer.param_groups[0].keys()
    optimizer.load_state_dict(blob(path))
    for param in params:
        param.grad = torch.ones_like(param)
    optimizer.step()
    name = next(iter(LAYOUT))
    expected = -config.relation_lr / np.sqrt(state.sums[name] + 1)
    np.testing.assert_allclose(params[0].detach().numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("plain", [True, False], ids=["plain sums", "blob only"])
def test_round_trip(path, state, config, iteration, plain):
    write_model(path, state, config=config, iteration=iteration)
    if not plain:
        with h5py.File(path, "a") as file:
            del file["optimizer/plain"]
    read = read_model(path)
    assert_equal(read.params, state.params)
    assert_equal(read.sums, state.sums)


def test_without_sums_there_is_no_optimizer(path, state, config, iteration):
    write_model(path, ModelState(state.params), config=config, iteration=iteration)
    with h5py.File(path) as file:
        assert "optimizer" not in file
    assert read_model(path).sums == {}


def test_a_model_without_parameters_has_pbgs_empty_state(path, config, iteration):
    write_model(path, ModelState({}), config=config, iteration=iteration)
    assert blob(path) == {}
    read = read_model(path)
    assert (read.params, read.sums) == ({}, {})


def test_dynamic_relations_have_both_sides_left_first(path, config, iteration):
    params = {
        f"relations/0/operator/{side}/{name}": np.full((5, 2), value, np.float32)
        for value, (side, name) in enumerate([("rhs", "real"), ("rhs", "imag"), ("lhs", "imag"), ("lhs", "real")])
    }
    write_model(path, ModelState(params, params), config=config, iteration=iteration)
    firsts = [float(entry["sum"][0, 0]) for entry in blob(path)["state"].values()]
    assert firsts == [3, 2, 0, 1]


def test_equal_states_give_equal_bytes_whatever_their_order(tmp_path, state, config, iteration):
    write_model(tmp_path / "model.v1.h5", state, config=config, iteration=iteration)
    names = sorted(state.params)
    reordered = ModelState({name: state.params[name] for name in names}, {name: state.sums[name] for name in names})
    write_model(tmp_path / "model.v2.h5", reordered, config=config, iteration=iteration)
    assert (tmp_path / "model.v1.h5").read_bytes() == (tmp_path / "model.v2.h5").read_bytes()


def test_relations_are_ordered_by_number():
    paths = [f"relations/{index}/operator/rhs/translation" for index in (10, 9, 2)]
    assert parameter_order(paths, []) == paths[::-1]


@pytest.mark.parametrize(
    ("old", "new"), [("rotation", "linear_transformation"), ("rotations", "linear_transformations")]
)
def test_legacy_matrices_are_renamed_and_transposed(path, old, new):
    matrices = np.arange(18, dtype=np.float32).reshape(2, 3, 3)
    with h5py.File(path, "w") as file:
        file.attrs["format_version"] = 1
        file[f"model/relations/0/operator/rhs/{old}"] = matrices
    np.testing.assert_array_equal(
        read_model(path).params[f"relations/0/operator/rhs/{new}"], matrices.transpose(0, 2, 1)
    )


@pytest.mark.parametrize("name", ["relations/x/operator/rhs/real", "relations/0/operator/up/real", "entities/a/b", "w"])
def test_foreign_parameter_is_named(path, name):
    with h5py.File(path, "w") as file:
        file.attrs["format_version"] = 1
        file[f"model/{name}"] = np.zeros(2, np.float32)
    with pytest.raises(FormatError, match=f"model/{name}: not a parameter"):
        read_model(path)
    with pytest.raises(FormatError):
        state_dict_key(name)


def test_damaged_contents_are_named(path, state, config, iteration):
    write_model(path, state, config=config, iteration=iteration)
    with h5py.File(path, "a") as file:
        file["optimizer/plain/sum/relations/0/operator/rhs/imag"][0] = -1
    with pytest.raises(FormatError, match="operator/rhs/imag: sums of squares"):
        read_model(path)
    with h5py.File(path, "a") as file:
        file["model/relations/0/operator/rhs/real"][1] = np.nan
    with pytest.raises(FormatError, match="model/relations/0/operator/rhs/real holds numbers that are not finite"):
        read_model(path)
    with h5py.File(path, "a") as file:
        del file["model"]
    with pytest.raises(FormatError, match="group 'model' is missing"):
        read_model(path)


@pytest.mark.parametrize("empty_group", [False, True])
def test_file_without_parameters_holds_none(path, empty_group):
    with h5py.File(path, "w") as file:
        file.attrs["format_version"] = 1
        if empty_group:
            file.create_group("model")
    state = read_model(path)
    assert (state.params, state.sums) == ({}, {})


def test_model_that_is_no_group_is_named(path):
    with h5py.File(path, "w") as file:
        file.attrs["format_version"] = 1
        file["model"] = np.zeros(2, np.float32)
    with pytest.raises(FormatError, match="group 'model' is missing"):
        read_model(path)


def test_global_embeddings_of_unknown_order_are_not_guessed(path, state, config, iteration):
    write_model(path, state, config=config, iteration=iteration)
    with h5py.File(path, "a") as file:
        del file["optimizer/plain"], file.attrs["config/json"]
    with pytest.raises(FormatError, match="attribute 'config/json' must list the entity types"):
        read_model(path)


def test_sums_must_fit_the_parameters():
    with pytest.raises(ValueError, match="names and shapes"):
        ModelState({"a": np.zeros(2)}, {"a": np.zeros(3)})


@pytest.mark.parametrize("loops", [None, [], [0, 3, 70_000]])
def test_relations_with_loops_come_back(path, state, config, iteration, loops):
    known = None if loops is None else np.array(loops, np.int64)
    write_model(path, replace(state, loops=known), config=config, iteration=iteration)
    found = read_model(path)
    assert (None if found.loops is None else found.loops.tolist()) == loops
    assert_equal(found.params, state.params)
    assert_equal(found.sums, state.sums)
