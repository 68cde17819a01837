"""``gradient: sampled``: few negatives take part, and expected gradients stay."""

from __future__ import annotations

import itertools

import pytest
import torch

from pbg_tasks.errors import ConfigError
from pbg_tasks.model.negatives import UniformSampler
from pbg_tasks.training.data.tables import Table
from pbg_tasks.training.engine import sampling
from pbg_tasks.training.engine.choice import on_gpu
from pbg_tasks.training.engine.device import Accelerator, Host, find_place
from pbg_tasks.training.engine.native import NativeEngine
from pbg_tasks.training.engine.on_device import DeviceEngine
from pbg_tasks.training.engine.on_torch import TorchEngine
from pbg_tasks.training.engine.sampling import sample_slopes
from tests.rotation import of_today
from tests.training.native_steps import INSTRUCTIONS, instructions, native
from tests.training.steps import COMBINATIONS, FEATURES, KEY, Case, Draws, assert_same_step, make_config

SAMPLED = {"gradient": "sampled"}
DRAWS, STEPS = 1_000, 400


def slopes(spread=3.0):
    generator = torch.Generator().manual_seed(5)
    return torch.softmax(torch.randn(4, 300, generator=generator) * spread, dim=1)


def sampled(slope_BK, variance, key, side=0):
    found_BK = slope_BK.clone()
    sample_slopes(found_BK, variance=variance, key=key, side=side)
    return found_BK


@pytest.mark.parametrize("variance", [0.25, 1.0, 4.0])
@pytest.mark.parametrize("spread", [0.5, 3.0])
def test_samples_have_expected_value_and_bounded_variance(variance, spread):
    slope_BK = slopes(spread=spread)
    drawn = torch.stack([sampled(slope_BK, variance, KEY + each) for each in range(DRAWS)]).double()
    squares_B, total_B = slope_BK.double().square().sum(1), slope_BK.double().sum(1)
    threshold_B1 = (variance * squares_B / total_B).unsqueeze(1)
    exact_BK = slope_BK * (threshold_B1 - slope_BK).clamp(min=0)
    rare_B1 = 4 * threshold_B1 / DRAWS  # of a slope that is drawn once or twice, the deviation means little
    assert ((drawn.mean(0) - slope_BK).abs() <= 6 * (exact_BK / DRAWS).sqrt() + rare_B1).all()
    of_each_BK = (drawn - slope_BK).square().mean(0)
    assert torch.allclose(of_each_BK.sum(1), exact_BK.sum(1), rtol=0.1)
    assert (exact_BK.sum(1) <= variance * squares_B).all()
    assert exact_BK.sum() > 0
    counting_B = slope_BK.double().sum(1).square() / squares_B
    assert ((drawn > 0).double().sum(2).mean(0) <= 2 / variance * counting_B + 1).all()


def test_heavy_negatives_stay_as_they_are():
    slope_BK = slopes()
    threshold_B1 = slope_BK.square().sum(1, keepdim=True) / slope_BK.sum(1, keepdim=True)
    found_BK = sampled(slope_BK, 1.0, KEY)
    heavy = slope_BK >= threshold_B1
    assert torch.equal(found_BK[heavy], slope_BK[heavy])
    assert 0 < heavy.sum() < (found_BK > 0).sum() < slope_BK.numel() // 4


def test_equal_slopes_all_stay():
    slope_BK = torch.tensor([[0.5, 0.0, 0.5, 0.5], [0.0, 0.0, 0.0, 0.0]])
    assert torch.equal(sampled(slope_BK, 1.0, KEY), slope_BK)


def test_rows_are_sampled_alike_in_any_parts(monkeypatch):
    whole_BK, sizes = sampled(slopes(), 1.0, KEY), []
    uniform = sampling._uniform
    monkeypatch.setattr(sampling, "_AT_ONCE", 700)
    monkeypatch.setattr(sampling, "_uniform", lambda *args: sizes.append(len(args[0])) or uniform(*args))
    assert torch.equal(sampled(slopes(), 1.0, KEY), whole_BK)
    assert sizes == [2, 2]


def test_draws_differ_by_key_side_row_and_column():
    slope_BK = torch.cat([torch.full((2, 1), 0.9), torch.full((2, 200), 0.01)], dim=1)
    kept = {(key, side): (sampled(slope_BK, 1.0, key, side)[:, 1:] > 0) for key in (KEY, KEY + 1) for side in (0, 1)}
    rows = [tuple(row.tolist()) for each in kept.values() for row in each]
    assert len(set(rows)) == 8
    assert all(any(row) and not all(row) for row in rows)


def of_both_engines(config, **how):
    """Compare a step of the native engine with that of torch.

    The native engine does it by every instruction set.
    """
    expected = Case(config, make_engine=TorchEngine, **how).step(dtype=torch.float32)
    case = Case(config, make_engine=NativeEngine, **how)
    for name in INSTRUCTIONS:
        with instructions(name):
            assert_same_step(case, expected, bound=2e-5, dtype=torch.float32)


@native
@pytest.mark.parametrize(("mode", "operator", "comparator", "loss"), of_today(COMBINATIONS, days=9))
def test_engines_draw_the_same_samples(mode, operator, comparator, loss):
    of_both_engines(make_config(mode, operator, comparator, loss, **SAMPLED), counts={"a": 400, "b": 900})


@native
@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("mode", ["standard", "dynamic"])
def test_other_keys_keep_the_samples(mode, feature):
    config = make_config(mode, "diagonal", "dot", "softmax", feature, **SAMPLED)
    of_both_engines(config, counts={"a": 400, "b": 900}, weighted=feature == "weights")


SIZES = {"edges": 60, "num_batch_negs": 50, "num_uniform_negs": 1_000}
WIDE = {
    "few": (1.0, 0.1, ("dot", "softmax")),
    "many": (0.05, 0.1, ("dot", "softmax")),
    "few distances": (1.0, 10.0, ("l2", "softmax")),
    "many distances": (1.0, 0.1, ("l2", "softmax")),
    "few cosines": (1.0, 10.0, ("cos", "softmax")),
}
FEW = 0.25  # of the pairs: `kShare` of chunk.inc


@native
@pytest.mark.parametrize("case", WIDE)
def test_few_and_many_samples_give_the_same_gradients(case, monkeypatch):
    """Few are added pair by pair, many by tiles."""
    spread, variance, (comparator, loss) = WIDE[case]
    left = []

    def sample(slope_BK, **how):
        sample_slopes(slope_BK, **how)
        left.append(float((slope_BK > 0).double().mean()))

    monkeypatch.setattr("pbg_tasks.training.engine.step.sample_slopes", sample)
    relation = {"name": "r", "lhs": "a", "rhs": "a", "operator": "complex_diagonal"}
    keys = {key: value for key, value in SIZES.items() if key != "edges"}
    config = make_config(
        "dynamic",
        "complex_diagonal",
        comparator,
        loss,
        relations=[relation],
        dimension=36,
        batch_size=100,
        gradient_variance=variance,
        **keys,
        **SAMPLED,
    )
    of_both_engines(config, edges=SIZES["edges"], spread=spread, counts={"a": 2_000, "b": 9})
    assert [share < FEW for share in left] == [case.startswith("few")] * 2


def linear_case(make_engine, loss, **keys):
    """Return a case whose step is linear in its gradients.

    Adagrad's sums are so large that those of the step add nothing.
    """
    relation = {"name": "r", "lhs": "a", "rhs": "a", "operator": "diagonal"}
    sizes = {"dimension": 16, "num_batch_negs": 10, "num_uniform_negs": 200}
    config = make_config("dynamic", "diagonal", "dot", loss, relations=[relation], lr=1e6, **sizes, **keys)
    case = Case(config, make_engine=make_engine, edges=20, counts={"a": 300, "b": 9})
    for sums in (*case.state.row_sums.values(), *case.state.param_sums.values()):
        sums.fill_(1e12)
    return case


def moved(case, dtype):
    """Return the change of all numbers by a step."""
    _, after = case.step(dtype=dtype)
    parts = ((after.embeddings, case.state.embeddings), (after.params, case.state.params))
    return torch.cat([(new[name].double() - old[name]).flatten() for new, old in parts for name in old])


@native
@pytest.mark.parametrize("loss", ["softmax", "logistic"])
def test_sampled_steps_have_expected_value_of_dense_step(loss, monkeypatch):
    """Kept slopes of p in place of t are 50 errors away."""
    keys = itertools.count(KEY)
    monkeypatch.setattr(Draws, "key", lambda _: next(keys))
    dense = moved(linear_case(TorchEngine, loss), torch.float64)
    case = linear_case(NativeEngine, loss, **SAMPLED)
    for name in INSTRUCTIONS:
        with instructions(name):
            apart = torch.stack([moved(case, torch.float32) - dense for _ in range(STEPS)])
        error = (apart.var(0).sum() / STEPS).sqrt()  # of the mean, all numbers together
        assert 1e-6 * dense.norm() < error
        assert apart.mean(0).norm() < 2 * error, name


@native
def test_bias_of_negative_at_query_has_gradient():
    """A distance of 0 has no direction, yet a slope."""
    relation = {"name": "r", "lhs": "a", "rhs": "a", "operator": "none"}
    sizes = {"dimension": 3, "batch_size": 4, "num_batch_negs": 0, "num_uniform_negs": 64, "global_emb": False}
    config = make_config("standard", "none", "l2", "softmax", relations=[relation], bias=True, **sizes, **SAMPLED)

    def case(make_engine):
        made = Case(config, make_engine=make_engine, edges=4, counts={"a": 300, "b": 9})
        made.state.embeddings["a"][:, 1:] = torch.arange(600).reshape(300, 2)  # squares of float32 are exact
        for side, end in (("lhs", made.batch.rhs.rows_M), ("rhs", made.batch.lhs.rows_M)):
            made.draws[side][:, 0] = end[:1]
        return made

    expected = case(TorchEngine).step(dtype=torch.float32)
    for name in INSTRUCTIONS:
        with instructions(name):
            assert_same_step(case(NativeEngine), expected, bound=2e-5, dtype=torch.float32)


def rows_after(make_engine, config, counts, seed):
    case = Case(config, make_engine=make_engine, counts=counts)
    tables = {name: Table(case.state.embeddings[name].float(), case.state.row_sums[name].float()) for name in counts}
    sampler = UniformSampler(torch.Generator().manual_seed(seed))
    case.engine.step(case.batch, tables, tables, sampler)
    return torch.cat([table.embeddings for table in tables.values()])


@pytest.mark.parametrize("make_engine", [TorchEngine, pytest.param(NativeEngine, marks=native)])
def test_same_seed_gives_the_same_bits(make_engine):
    config = make_config("standard", "translation", "dot", "softmax", num_uniform_negs=200, **SAMPLED)
    first, again, other = (rows_after(make_engine, config, {"a": 400, "b": 900}, seed) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_accelerators_refuse_samples():
    config = make_config("standard", "translation", "dot", "softmax", **SAMPLED)
    with pytest.raises(ConfigError, match="gradient: sampled is for the CPU"):
        DeviceEngine(config, 3, place=Accelerator(torch.device("cpu")))


def test_auto_leaves_to_cpus_what_no_gpu_trains(monkeypatch):
    """A night or candidate would fail beside a GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    keys = ({}, SAMPLED, {"mask_known_negatives": True})
    dense, few, masked = (make_config("standard", "translation", "dot", "softmax", **each) for each in keys)
    assert [on_gpu("auto", config) for config in (dense, few, masked)] == [True, False, False]
    assert [on_gpu(device, dense, "native") for device in ("auto", "cuda")] == [False, True]
    assert {type(find_place("auto", *given)) for given in ((few,), (dense, "native"))} == {Host}


def test_variance_without_samples_is_refused():
    with pytest.raises(ValueError, match="gradient_variance has no effect while gradient is dense"):
        make_config("standard", "translation", "dot", "softmax", gradient_variance=0.5)


def test_dense_config_is_stored_without_the_keys():
    stored = make_config("standard", "translation", "dot", "softmax").model_dump()
    assert not {"gradient", "gradient_variance"} & set(stored)
