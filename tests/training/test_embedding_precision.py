"""``embedding_precision: bf16``: half the memory, expected steps, float32 in files.

The file is longer than others: memory, steps, files and refusals of one setting are compared with float32 by one set of
helpers.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from pbg_tasks.errors import ConfigError, FormatError, TrainingDivergedError
from pbg_tasks.formats import slices
from pbg_tasks.formats.edges import EdgeList
from pbg_tasks.formats.embeddings import embeddings_file_name, read_embeddings, write_embeddings
from pbg_tasks.formats.metadata import IterationInfo
from pbg_tasks.model.negatives import UniformSampler
from pbg_tasks.storage import LocalStore
from pbg_tasks.training.data import tables
from pbg_tasks.training.data.named_arrays import NamedArrays
from pbg_tasks.training.data.partition_files import PartitionFiles, Stamp
from pbg_tasks.training.data.partitions import PartitionKey, partition_keys
from pbg_tasks.training.data.tables import Table
from pbg_tasks.training.engine.anchor import Anchor
from pbg_tasks.training.engine.device import find_place
from pbg_tasks.training.engine.native import NativeEngine
from pbg_tasks.training.engine.on_torch import TorchEngine
from pbg_tasks.training.engine.optimizers import row_adagrad
from pbg_tasks.training.engine.rounding import Rounding, truncated
from pbg_tasks.training.ranks.group.rank_env import RankEnv
from tests.rotation import of_today
from tests.training import buckets as bucketed
from tests.training.checkpoints import rows
from tests.training.native_steps import INSTRUCTIONS, instructions, native
from tests.training.releases import KNOWN, release
from tests.training.steps import COMBINATIONS, FEATURES, KEY, Case, Draws, assert_equal, make_config

NARROW = {"embedding_precision": "bf16"}
DRAWS = 1_000
INFO = IterationInfo(1, 0, 1, 0, "edges", 1, 0)
ENGINES = [TorchEngine, pytest.param(NativeEngine, marks=native)]


def numbers(rows=8, columns=45, spread=1.0, seed=3):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * spread


def neighbours(value_KD):
    """Return the bfloat16 numbers around float32, toward 0 and away from it."""
    inner_KD = truncated(value_KD)
    outer_KD = (inner_KD.view(torch.int16) + (inner_KD.float() != value_KD)).view(torch.bfloat16)
    return inner_KD.double(), outer_KD.double()


@pytest.mark.parametrize("spread", [1.0, 1e-3, 1e-39])
def test_rounded_numbers_have_expected_value(spread):
    """The mean of draws is within six standard deviations."""
    value_KD, row = numbers(spread=spread), torch.arange(8)
    drawn = torch.stack([Rounding(KEY + each, 0).rounded(value_KD, row) for each in range(DRAWS)]).double()
    inner_KD, outer_KD = neighbours(value_KD)
    assert ((drawn == inner_KD) | (drawn == outer_KD)).all()
    gap_KD, share_KD = (
        outer_KD - inner_KD,
        (value_KD.double() - inner_KD) / (outer_KD - inner_KD).where(outer_KD != inner_KD, torch.ones(())),
    )
    deviation_KD = gap_KD.abs() * (share_KD * (1 - share_KD) / DRAWS).sqrt()
    assert ((drawn.mean(0) - value_KD.double()).abs() <= 6 * deviation_KD + 4 * gap_KD.abs() / DRAWS).all()
    assert (gap_KD.abs() > 0).double().mean() > 0.9


def test_numbers_of_bfloat16_and_no_numbers_stay():
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).view(-1, 64)
    for key in range(20):
        found = Rounding(key, 1).rounded(every.float(), torch.arange(len(every)))
        assert torch.equal(found.isnan(), every.isnan())
        kept = ~every.isnan()
        assert torch.equal(found[kept].view(torch.int16), every[kept].view(torch.int16))
    signalling = torch.tensor([[0x7F800001, -1]], dtype=torch.int32).view(torch.float32)
    assert Rounding(KEY, 0).rounded(signalling, torch.zeros(1, dtype=torch.long)).isnan().all()


def test_numbers_beyond_bfloat16_overflow_by_their_share():
    largest = float(torch.finfo(torch.bfloat16).max)
    above_KD = torch.full((1_000, 1), largest) + torch.tensor([[0.0, 0.25, 1.0]]) * 2.0**119
    found_KD = Rounding(KEY, 0).rounded(above_KD[:, :3], torch.arange(1_000)).isinf().double().mean(0)
    assert found_KD[0] == 0
    assert abs(float(found_KD[1]) - 0.125) < 0.05
    assert abs(float(found_KD[2]) - 0.5) < 0.1


def test_random_bits_follow_from_key_and_place():
    value_KD, row = numbers(64, 70), torch.arange(64) * 5
    whole = Rounding(KEY, 0).rounded(value_KD, row)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(1))[:20]
    assert torch.equal(Rounding(KEY, 0).rounded(value_KD[order], row[order]), whole[order])
    equal_KD = torch.full((64, 64), 1 + 2.0**-8)  # half of them become 1
    up = [Rounding(*of).rounded(equal_KD, torch.arange(64)) > 1 for of in ((KEY, 0), (KEY + 1, 0), (KEY, 1))]
    lines = [*torch.cat(up), *torch.cat(up, dim=0).view(3, 64, 64).transpose(1, 2).flatten(0, 1)]
    assert len({tuple(line.tolist()) for line in lines}) == 2 * 3 * 64
    for each in up:
        assert abs(float(each.double().mean()) - 0.5) < 0.03


def test_steps_smaller_than_a_unit_add_up():
    table = Table(torch.ones(50, 40, dtype=torch.bfloat16), torch.full((50,), 1e12))
    gradient, row = torch.full((50, 40), -1e6), torch.arange(50)
    for each in range(100):  # each moves every number by 1e-4, where the next number is 2^-7 away
        row_adagrad(table, row, gradient * 1e-4, 1.0, Rounding(KEY + each, 0))
    assert abs(float(table.embeddings.float().mean()) - 1.01) < 1e-3
    assert 1 < len(table.embeddings.unique()) < 20


def narrow_step(config, make_engine, **how):
    """Do a step; return its figures, tables and parameters."""
    case = Case(config, make_engine=make_engine, **how)
    state = case.state.copy(torch.float32)
    found = {
        name: Table(value.bfloat16() if config.embedding_precision == "bf16" else value.bfloat16().float(), sums)
        for (name, value), sums in zip(state.embeddings.items(), state.row_sums.values(), strict=True)
    }
    case.engine.shared.values.update(state.params)
    case.engine.shared.sums.update(state.param_sums)
    batch = replace(case.batch, weight=None if case.batch.weight is None else case.batch.weight.float())
    figures = case.engine.step(batch, found, found, Draws(case.draws.values()))
    return figures, found, case.engine.shared


def assert_rounded_step(config, make_engine, *, bound, unequal, **how):
    """Compare with a step of float32 that is rounded afterwards.

    Where both round another float32, a number can become the other neighbour.
    """
    wide = config.model_copy(update={"embedding_precision": "f32"})
    reference, exact, parameters = narrow_step(wide, TorchEngine, **how)
    figures, found, ours = narrow_step(config, make_engine, **how)
    for name in ("loss", "reg"):
        assert_equal(getattr(figures, name), getattr(reference, name), bound)
    sides = {config.relations[0].rhs: 1} | {config.relations[0].lhs: 0}
    differing = total = moved = 0
    for name, table in found.items():
        assert_equal(table.row_sums, exact[name].row_sums, bound)
        values = exact[name].embeddings
        expected = Rounding(KEY, sides.get(name, 0)).rounded(values, torch.arange(len(values)))
        inner, outer = neighbours(values)
        slack = (outer - inner).abs() + bound * float(values.abs().max())
        assert ((table.embeddings.double() - values).abs() <= slack).all()
        differing += int((table.embeddings != expected).sum())
        moved += int((table.embeddings != narrow_start(config, name, **how)).sum())
        total += values.numel()
    assert moved > 0
    assert differing <= unequal * total
    for path, value in ours.values.items():
        assert_equal(value, parameters.values[path], bound)


def narrow_start(config, name, **how):
    return Case(config, make_engine=TorchEngine, **how).state.embeddings[name].float().bfloat16()


@pytest.mark.parametrize(("mode", "operator", "comparator", "loss"), of_today(COMBINATIONS, days=18))
def test_step_of_torch_is_one_of_float32_rounded(mode, operator, comparator, loss):
    config = make_config(mode, operator, comparator, loss, **NARROW)
    assert_rounded_step(config, TorchEngine, bound=1e-6, unequal=0)


@native
@pytest.mark.parametrize(("mode", "operator", "comparator", "loss"), of_today(COMBINATIONS, days=9))
def test_step_of_library_is_one_of_float32_rounded(mode, operator, comparator, loss):
    config = make_config(mode, operator, comparator, loss, dimension=38, **NARROW)
    for name in INSTRUCTIONS:
        with instructions(name):
            assert_rounded_step(config, NativeEngine, bound=2e-5, unequal=0.01, spread=0.3)


@native
@pytest.mark.parametrize("feature", [name for name in FEATURES if name not in {"all_negs", "max_norm"}])
@pytest.mark.parametrize("mode", ["standard", "dynamic"])
def test_other_keys_go_with_narrow_rows(mode, feature):
    config = make_config(mode, "diagonal", "dot", "softmax", feature, **NARROW)
    for name in INSTRUCTIONS:
        with instructions(name):
            assert_rounded_step(config, NativeEngine, bound=2e-5, unequal=0.02, weighted=feature == "weights")


@native
def test_sampled_gradients_go_with_narrow_rows():
    relation = {"name": "r", "lhs": "a", "rhs": "a", "operator": "complex_diagonal"}
    sizes = {"dimension": 70, "batch_size": 100, "num_batch_negs": 50, "num_uniform_negs": 400}
    keys = {"relations": [relation], "gradient": "sampled", **sizes}
    config = make_config("dynamic", "complex_diagonal", "dot", "softmax", **keys, **NARROW)
    how = {"edges": 60, "spread": 0.5, "counts": {"a": 900, "b": 9}}
    for name in INSTRUCTIONS:
        with instructions(name):
            assert_rounded_step(config, NativeEngine, bound=5e-5, unequal=0.01, **how)


@pytest.mark.parametrize("make_engine", ENGINES)
def test_narrow_rows_are_no_longer_than_max_norm(make_engine):
    config = make_config("standard", "none", "dot", "softmax", "max_norm", lr=0.0, **NARROW)
    _, found, _ = narrow_step(config, make_engine, spread=3.0)
    start = narrow_start(config, "a", spread=3.0).float()
    length = found["a"].embeddings.float().norm(dim=1)
    looked_up = (found["a"].embeddings.float() != start).any(dim=1)
    assert looked_up.any()
    assert (length[looked_up] <= 0.8).all()
    assert (length[looked_up] > 0.8 * (1 - 2**-6)).all()
    torch.testing.assert_close(
        found["a"].embeddings[looked_up].float() / length[looked_up, None],
        start[looked_up] / start[looked_up].norm(dim=1, keepdim=True),
        rtol=2**-6,
        atol=2**-7,
    )


def trained(make_engine, seed, *, several=1, workers=1, **keys):
    config = make_config("standard", "translation", "dot", "softmax", "one_type", **keys, **NARROW)
    engine = make_engine(config, 1, workers=workers)
    engine._several = several
    random = np.random.default_rng(0)
    edges = EdgeList(random.integers(0, 60, 237), random.integers(0, 60, 237), np.zeros(237, np.int64))
    table = Table.blank(60, config.dimension, narrow=True)
    table.draw(1.0, torch.Generator().manual_seed(0))
    engine.train_bucket(edges, {"a": table}, {"a": table}, generator=torch.Generator().manual_seed(seed))
    return engine, edges, table


@pytest.mark.parametrize("make_engine", ENGINES)
def test_same_seed_gives_the_same_bits(make_engine):
    first, again, other = (trained(make_engine, seed)[2] for seed in (1, 1, 2))
    assert torch.equal(first.embeddings, again.embeddings)
    assert torch.equal(first.row_sums, again.row_sums)
    assert not torch.equal(first.embeddings, other.embeddings)


@native
def test_series_of_batches_gives_bits_of_single_ones():
    single, joined = (trained(NativeEngine, 1, several=several)[2] for several in (1, 16))
    assert torch.equal(single.embeddings, joined.embeddings)
    assert torch.equal(single.row_sums, joined.row_sums)


@native
def test_several_workers_train_narrow_rows():
    engine, edges, table = trained(NativeEngine, 1, workers=2)
    assert table.embeddings.isfinite().all()
    stats = engine.evaluate(edges, {"a": table}, {"a": table}, generator=torch.Generator().manual_seed(1))
    before = Table.blank(60, table.embeddings.shape[1], narrow=True)
    before.draw(1.0, torch.Generator().manual_seed(0))
    untrained = engine.evaluate(edges, {"a": before}, {"a": before}, generator=torch.Generator().manual_seed(1))
    assert stats.loss < untrained.loss


def test_evaluation_reads_narrow_rows_as_float32():
    engine, edges, table = trained(TorchEngine, 1, max_norm=0.9)
    wide = Table(table.embeddings.float(), table.row_sums)
    found = [
        engine.evaluate(edges, {"a": each}, {"a": each}, generator=torch.Generator().manual_seed(1))
        for each in (table, wide)
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("count", [1, 3, 40, 41, 129])
def test_narrow_start_is_that_of_float32_rounded(monkeypatch, count):
    monkeypatch.setattr(tables, "_BLOCK_NUMBERS", 64)
    wide = Table.random(count, 7, 0.3, torch.Generator().manual_seed(4))
    narrow = Table.blank(count, 7, narrow=True)
    narrow.draw(0.3, torch.Generator().manual_seed(4))
    assert torch.equal(narrow.embeddings, wide.embeddings.bfloat16())
    assert narrow.embeddings.element_size() == 2


@pytest.mark.parametrize("checksums", [False, True])
def test_files_of_narrow_rows_have_float32(tmp_path, monkeypatch, checksums):
    """Rows are converted in parts."""
    monkeypatch.setattr(slices, "_SLICE_BYTES", 4 * 7 * 10)
    monkeypatch.setattr(tables, "_BLOCK_NUMBERS", 7 * 6)
    config = bucketed.make_config(dimension=7, checksums=checksums, entities={"n": {"num_partitions": 1}}, **NARROW)
    files, key = PartitionFiles(config, tmp_path), PartitionKey("n", 0)
    table = Table(numbers(45, 7).bfloat16(), torch.rand(45))
    path = files.write(key, table, Stamp(1, INFO))
    stored, sums = read_embeddings(path)
    assert stored.dtype == np.float32
    np.testing.assert_array_equal(stored, table.embeddings.float().numpy())
    np.testing.assert_array_equal(sums, table.row_sums.numpy())
    plain = tmp_path / "plain.h5"
    write_embeddings(plain, table.embeddings.float().numpy(), sums, lr=config.lr, iteration=INFO, config=config)
    assert plain.read_bytes() == path.read_bytes()
    again = files.read(key)
    assert again.narrow
    assert torch.equal(again.embeddings, table.embeddings)
    assert torch.equal(again.row_sums, table.row_sums)


def test_damaged_file_is_refused_for_narrow_rows(tmp_path):
    config = bucketed.make_config(**NARROW)
    path = tmp_path / "embeddings.h5"
    broken = np.ones((9, 4), np.float32)
    broken[7, 2] = np.inf
    write_embeddings(path, broken, None, lr=0.1, iteration=INFO, config=config)
    with pytest.raises(FormatError, match="not finite"):
        Table.read(path, config)


def test_narrow_rows_that_diverged_are_not_written(tmp_path):
    config = bucketed.make_config(**NARROW)
    table = Table(numbers(300, 4).bfloat16(), torch.ones(300))
    files, key = PartitionFiles(config, tmp_path), PartitionKey("n", 0)
    files.write(key, table, Stamp(1, INFO))
    table.embeddings[7, 2] = -torch.inf
    with pytest.raises(TrainingDivergedError, match="embeddings of entity type 'n', partition 0: some are not finite"):
        files.write(key, table, Stamp(2, INFO))


@pytest.mark.parametrize("make_engine", ENGINES)
def test_resumed_training_gives_the_same_bits(tmp_path, buckets, make_engine):
    whole = bucketed.make_config(num_epochs=2, partition_buffer=2, **NARROW)
    first = bucketed.make_config(num_epochs=1, partition_buffer=2, **NARROW)
    stores = {name: LocalStore(tmp_path / name) for name in ("direct", "resumed")}

    def train(config, name):
        engine = make_engine(config, 1)
        bucketed.train(config, buckets, stores[name], tmp_path / "scratch", engine=engine)

    train(whole, "direct")
    train(first, "resumed")
    train(whole, "resumed")
    assert bucketed.objects(stores["resumed"]) == bucketed.objects(stores["direct"])
    for key in partition_keys(whole):
        stored, _ = read_embeddings(tmp_path / "direct" / embeddings_file_name(*key, 2))
        assert not (stored.view(np.uint32) & 0xFFFF).any()


def test_float32_version_is_continued_and_back(tmp_path, buckets):
    store, exact = LocalStore(tmp_path / "store"), []
    for epochs, keys in ((1, {}), (2, NARROW), (3, {})):
        bucketed.train(bucketed.make_config(num_epochs=epochs, **keys), buckets, store, tmp_path / "scratch")
        stored, _ = read_embeddings(tmp_path / "store" / embeddings_file_name("n", 0, epochs))
        exact.append(bool((stored.view(np.uint32) & 0xFFFF).any()))
    assert exact == [True, False, True]


def test_anchor_draws_narrow_rows(tmp_path):
    config = bucketed.make_config(**NARROW)
    anchor, key = Anchor(release(tmp_path / "release", config), 3.0, tmp_path), PartitionKey("n", 2)
    known = torch.from_numpy(rows(*key, KNOWN)[0])
    start = numbers(bucketed.ROWS, 4).bfloat16()
    table = Table(start.clone(), torch.ones(bucketed.ROWS))
    anchor.draw(key, table, INFO)
    exact = (start[:KNOWN].float() + 3 * known) / 4
    inner, outer = neighbours(exact)
    assert ((table.embeddings[:KNOWN].double() - exact).abs() <= (outer - inner).abs() + 1e-6).all()
    assert torch.equal(table.embeddings[KNOWN:], start[KNOWN:])


def test_named_arrays_start_narrow_rows(tmp_path):
    vectors = numbers(3, 4).numpy()
    np.save(tmp_path / "n.npy", vectors)
    (tmp_path / "n.json").write_text('["a", "b", "c"]')
    config = bucketed.make_config(entities={"n": {"num_partitions": 1}}, **NARROW)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    start = NamedArrays(config, LocalStore(tmp_path), scratch, lambda _: ["x", "c", "a"])
    table = Table(torch.zeros(3, 4, dtype=torch.bfloat16), torch.zeros(3))
    start.fill(PartitionKey("n", 0), table)
    expected = torch.from_numpy(vectors).bfloat16()
    assert torch.equal(table.embeddings[1:], expected[[2, 0]])
    assert not table.embeddings[0].any()


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"num_gpus": 1}, "embedding_precision: bf16 is for the CPU"),
        ({"num_machines": 2, "distributed_init_method": "env://"}, "for a process that trains alone"),
        (
            {"relations": [{"name": "r", "lhs": "n", "rhs": "n", "all_negs": True}]},
            r"relations\.0: all_negs cannot be true with embedding_precision: bf16",
        ),
    ],
)
def test_keys_that_narrow_rows_exclude_are_named(keys, reason):
    with pytest.raises(ValueError, match=reason):
        bucketed.make_config(**keys, **NARROW)


def test_accelerators_refuse_narrow_rows():
    with pytest.raises(ConfigError, match="embedding_precision: bf16 is for the CPU; set device: cpu"):
        find_place("cuda", bucketed.make_config(**NARROW))


def test_ranks_refuse_narrow_rows(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("PBG_INIT_METHOD", "file:///tmp/meeting")
    assert RankEnv.from_environment(bucketed.make_config()).world == 2
    with pytest.raises(ConfigError, match="2 processes: embedding_precision: bf16 is for a process that trains alone"):
        RankEnv.from_environment(bucketed.make_config(**NARROW))


def test_default_is_stored_without_the_key():
    config = make_config("standard", "translation", "dot", "softmax")
    assert "embedding_precision" not in config.model_dump()
    assert not config.has_random_steps


@pytest.mark.parametrize("make_engine", ENGINES)
def test_float32_draws_no_key(make_engine):
    """A seed draws the same negatives as before."""
    case = Case(make_config("standard", "translation", "dot", "softmax"), make_engine=make_engine)
    table = {
        name: Table(value.float(), case.state.row_sums[name].float()) for name, value in case.state.embeddings.items()
    }
    sampler, drawn = UniformSampler(torch.Generator().manual_seed(1)), []
    sampler.key = lambda: drawn.append(1) or 0
    case.engine.step(case.batch, table, table, sampler)
    assert not drawn
