"""The torch engine on another device.

The CPU stands in for one wherever numbers are compared. That the host waits for nothing is shown on ``meta``, a device
whose tensors have no numbers: every operation that needs one fails. Both take the same configs and batches, so they are
in one file although it is long.
"""

from __future__ import annotations

import base64
import itertools
import sys
from dataclasses import replace
from subprocess import CalledProcessError
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pbg_tasks.config import ConfigSchema
from pbg_tasks.errors import ConfigError, ResourceError, TrainingDivergedError
from pbg_tasks.formats.edges import EdgeList, Features
from pbg_tasks.model.comparators import bfloat16_product
from pbg_tasks.model.registry import parameter_names
from pbg_tasks.model.relations import Groups
from pbg_tasks.tasks.training.train import train_directory
from pbg_tasks.training.data.tables import Table
from pbg_tasks.training.engine import device as places
from pbg_tasks.training.engine import fixed_shapes, optimizers
from pbg_tasks.training.engine import on_device as on_device_module
from pbg_tasks.training.engine.choice import engine_name, make_engine
from pbg_tasks.training.engine.cuda_graphs import RECORD_AFTER, CudaRecorder, Graphs
from pbg_tasks.training.engine.device import Accelerator, Host, Reading, find_place
from pbg_tasks.training.engine.fixed_shapes import adagrad_rows, row_adagrad
from pbg_tasks.training.engine.generators import restore, state_of
from pbg_tasks.training.engine.lookup import Single, shrink_rows_unseen
from pbg_tasks.training.engine.on_device import DeviceEngine
from pbg_tasks.training.engine.on_torch import TorchEngine
from pbg_tasks.training.engine.pace import Pace
from pbg_tasks.training.engine.step import Figures
from pbg_tasks.training.engine.step_counters import CHECK_EVERY, StepCounters, Stretch
from pbg_tasks.training.engine.workspace import Workspace
from tests.model.configs import one_type
from tests.training.steps import FEATURES, RELATIONS, Case, Draws, assert_same_step, make_config, regularized

CPU, META = torch.device("cpu"), torch.device("meta")
ENTITIES = 40
KINDS = list(
    itertools.product(
        ("standard", "dynamic"),
        ("none", "translation", "diagonal", "complex_diagonal", "linear", "affine"),
        (("dot", "softmax"), ("cos", "ranking"), ("l2", "logistic"), ("squared_l2", "softmax")),
    )
)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU here")


def on_device(config, relation_count, **how):
    return DeviceEngine(config, relation_count, place=Accelerator(CPU), **how)


@pytest.mark.parametrize(("mode", "operator", "kind"), KINDS[::4])  # the comparators' own are the CPU's
def test_a_step_has_the_gradients_of_autograd(mode, operator, kind):
    assert_same_step(Case(regularized(make_config(mode, operator, *kind), "N3"), make_engine=on_device))


@pytest.mark.parametrize("mode", ["standard", "dynamic"])
@pytest.mark.parametrize("feature", FEATURES)
def test_features_keep_the_gradients_of_autograd(mode, feature):
    config = make_config(mode, "complex_diagonal", "dot", "softmax", feature)
    assert_same_step(Case(config, weighted=feature == "weights", seed=1, make_engine=on_device))


class Watched(TorchDispatchMode):
    """Fails where an operation would make the host wait.

    It also fails where an operation has a tensor that is not on the device.
    """

    # They find no numbers missing here, yet on CUDA they ask the device for the number of elements.
    waits = ("embedding_renorm", "unique", "_unique", "masked_select", "multinomial")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        del types
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        assert not name.startswith(self.waits), name
        for value in tree_leaves((args, kwargs, out)):
            # a single number of the host's may enter a computation of the device
            if isinstance(value, torch.Tensor) and value.dim():
                assert value.device == META, f"{name} has to do with a tensor on {value.device}"
        return out


def there(tensor):
    return None if tensor is None else torch.empty_like(tensor, device=META)


def watched_step(case):
    """Do the step of a case on tensors without numbers."""
    engine = DeviceEngine(case.config, RELATIONS, place=Accelerator(META))
    state, batch = case.state.copy(torch.float32), case.batch
    tables = {name: Table(there(rows), there(state.row_sums[name])) for name, rows in state.embeddings.items()}
    matrices = case.config.relations[0].operator in {"linear", "affine"}
    batch = replace(
        batch,
        lhs=Single(there(batch.lhs.rows_M)),
        rhs=Single(there(batch.rhs.rows_M)),
        rel=there(batch.rel),
        weight=None if batch.weight is None else there(batch.weight.float()),
        groups=None if batch.rel is None or not matrices else Groups.of(batch.rel).moved(there),
    )
    ends = engine._tables(batch, tables, tables)
    drawn = engine._draw(case.config, batch, ends, Draws(case.draws.values()))
    for relation in case.config.relations:
        parameter_names(relation.operator, case.config.dimension)  # makes parameters on the host, once a process
    with Watched():
        return engine._compute(batch, drawn, ends, Workspace())


@pytest.mark.parametrize(("mode", "operator", "kind"), KINDS)
def test_host_waits_for_no_number_of_step(mode, operator, kind):
    figures = watched_step(Case(regularized(make_config(mode, operator, *kind), "N3")))
    assert {figure.device for figure in figures} == {META}


@pytest.mark.parametrize("mode", ["standard", "dynamic"])
@pytest.mark.parametrize("feature", FEATURES)
def test_host_waits_for_no_number_of_features(mode, feature):
    watched_step(Case(make_config(mode, "complex_diagonal", "dot", "softmax", feature), weighted=feature == "weights"))


def test_call_that_waits_unseen_would_be_noticed(monkeypatch):
    monkeypatch.setattr(
        "pbg_tasks.training.engine.lookup.shrink_rows_unseen", lambda *of: torch.embedding_renorm_(*of, 2.0)
    )
    case = Case(make_config("dynamic", "none", "dot", "softmax", "max_norm"))
    with pytest.raises((AssertionError, NotImplementedError), match="embedding_renorm"):
        watched_step(case)


def test_optimizers_of_the_cpu_would_be_noticed(monkeypatch):
    monkeypatch.setattr("pbg_tasks.training.engine.fixed_shapes.row_adagrad", optimizers.row_adagrad)
    case = Case(make_config("dynamic", "none", "dot", "softmax"))
    with pytest.raises(NotImplementedError, match="nonzero"):
        watched_step(case)


def test_request_for_existing_relations_would_be_noticed(monkeypatch):
    monkeypatch.setattr(Groups, "moved", lambda *_: None)
    case = Case(make_config("dynamic", "linear", "dot", "softmax"))
    with pytest.raises(NotImplementedError, match="unique"):
        watched_step(case)


ALL_NEGATIVES = {"name": "all", "lhs": "e", "rhs": "e", "all_negs": True}
RECIPROCAL = {"name": "all", "lhs": "e", "rhs": "e", "operator": "linear", "reciprocal": True}


def graph_config(*, dynamic=True, **changes):
    relation = {"operator": "translation"}
    relations = [relation] if dynamic else [relation, relation | {"name": "other", "weight": 0.5}]
    settings = {
        "dimension": 8,
        "comparator": "dot",
        "loss_fn": "softmax",
        "batch_size": 20,
        "num_batch_negs": 10,
        "num_uniform_negs": 10,
        "lr": 0.1,
        "dynamic_relations": dynamic,
        "max_norm": 1.0,
        "regularization_coef": 1e-3,
    }
    return one_type(*relations, **settings | changes)


def some_edges(*, weighted=False):
    rng, count = np.random.default_rng(5), 430
    columns = rng.integers(ENTITIES, size=(2, count))
    weight = rng.random(count, np.float32) if weighted else None
    return EdgeList(*columns, rng.integers(2, size=count), weight)


def trained(engine, edges, tables, **how):
    """Train a bucket between tables drawn from seeds.

    Returns the tables and the figures.
    """
    made = [Table.random(ENTITIES, 8, 0.3, torch.Generator().manual_seed(seed)) for seed in tables]
    for table in made:
        # Numbers with few digits, below any max_norm: each way to add up their products gives the same score, so that
        # an edge whose true entity is among its negatives has the same rank.
        table.embeddings.mul_(256).round_().div_(1024)
    lhs, rhs = made[0], made[-1]
    before = engine.evaluate(edges, {"e": lhs}, {"e": rhs}, generator=torch.Generator().manual_seed(7))
    pace, generator = Pace(lambda share: 1 - share / 2), torch.Generator().manual_seed(3)
    stats, _ = engine.train_bucket(edges, {"e": lhs}, {"e": rhs}, pace, generator=generator, **how)
    return made, stats, before


def assert_same_training(ours, theirs, close):
    (tables, stats, before), (others, other_stats, other_before) = ours, theirs
    for table, other in zip(tables, others, strict=True):
        close(table.embeddings, other.embeddings)
        close(table.row_sums, other.row_sums)
    assert stats.count == other_stats.count
    assert (stats.loss, stats.reg) == pytest.approx((other_stats.loss, other_stats.reg), rel=1e-5)
    assert before.to_json()["metrics"] == pytest.approx(other_before.to_json()["metrics"], rel=1e-5)


@pytest.mark.parametrize("tables", [(1,), (1, 2)], ids=["one table", "two"])
@pytest.mark.parametrize(
    "config",
    [
        graph_config(),
        graph_config(dynamic=False),
        graph_config(relations=[{"name": "all", "lhs": "e", "rhs": "e", "operator": "affine"}]),
        graph_config(relations=[ALL_NEGATIVES]),
        graph_config(dynamic=False, relations=[RECIPROCAL, RECIPROCAL | {"name": "other", "reciprocal": False}]),
    ],
    ids=["dynamic", "standard", "matrices", "all_negs", "mixed"],
)
def test_bucket_has_order_and_negatives_of_cpu(config, tables, monkeypatch):
    monkeypatch.setattr(places, "_STAGED_BYTES", 300)  # tables and edges are copied in several edge chunks
    edges, engines = some_edges(weighted=True), (on_device(config, 2), TorchEngine(config, 2))
    ours, theirs = (trained(engine, edges, tables) for engine in engines)
    assert_same_training(ours, theirs, torch.testing.assert_close)
    for path, value in engines[0].parameters()[0].items():
        np.testing.assert_allclose(value, engines[1].parameters()[0][path], rtol=1e-4, atol=1e-6)


def test_bags_of_features_are_copied_too():
    config = graph_config(entities={"e": {"num_partitions": 1, "featurized": True}}, num_uniform_negs=0)
    rng, none = np.random.default_rng(1), np.full(90, -1)
    bags = [Features(np.arange(0, 181, 2), rng.integers(ENTITIES, size=180)) for _ in range(2)]
    edges = EdgeList(none, none, rng.integers(2, size=90), None, *bags)
    ours, theirs = (trained(engine, edges, (1,)) for engine in (on_device(config, 2), TorchEngine(config, 2)))
    assert_same_training(ours, theirs, torch.testing.assert_close)


def test_failing_bucket_leaves_tables_unchanged():
    engine, table = on_device(graph_config(max_norm=None), 2), Table.random(ENTITIES, 8, 1.0, torch.Generator())
    engine.shared.values["relations/0/operator/rhs/translations"].fill_(float("nan"))
    before = table.embeddings.clone()
    with pytest.raises(TrainingDivergedError, match=r"one of the batches 1 to 16: the loss is nan"):
        engine.train_bucket(some_edges(), {"e": table}, {"e": table}, generator=torch.Generator().manual_seed(0))
    assert torch.equal(table.embeddings, before)


def test_too_small_gpu_is_reported_with_remedy(monkeypatch):
    def step(*_, **__):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(DeviceEngine, "step", step)
    with pytest.raises(ResourceError, match=r"the GPU has not enough memory .* raise num_partitions"):
        trained(on_device(graph_config(), 2), some_edges(), (1,))


class Repeater:
    """Records by keeping the function.

    As a recording, it sees other numbers only in the recorded inputs' memory.
    """

    def __init__(self):
        self.recorded = 0

    def __call__(self, compute):
        self.recorded += 1
        return compute


@pytest.mark.parametrize("dynamic", [True, False])
def test_recorded_steps_equal_the_steps(dynamic, monkeypatch):
    monkeypatch.setattr("pbg_tasks.training.engine.cuda_graphs.RECORD_AFTER", 8)
    config, edges, repeater = graph_config(dynamic=dynamic), some_edges(), Repeater()
    plain = trained(on_device(config, 2), edges, (1, 2))
    recorded = trained(on_device(config, 2, record=lambda _: repeater), edges, (1, 2))
    # 21 full batches of all relations, or ten of each of two
    assert repeater.recorded == (1 if dynamic else 2)
    assert_same_training(recorded, plain, lambda *both: torch.testing.assert_close(*both, rtol=0, atol=0))


def test_recording_reads_own_inputs_and_begins_late():
    graphs, calls = Graphs(Repeater()), []

    def compute(inputs):
        calls.append(inputs["x"])
        return Figures(*(inputs["x"].sum() * factor for factor in range(4)))

    for number in range(RECORD_AFTER):
        assert graphs.run("key", {"x": torch.full((3,), float(number))}, compute) is None
    assert not calls
    values = [float(graphs.run("key", {"x": torch.full((3,), number)}, compute).violators_lhs) for number in (1.0, 2.0)]
    assert values == [6.0, 12.0]
    assert calls[0] is calls[1]
    assert graphs.run("key", {"x": torch.ones(4)}, compute) is None  # another shape
    assert graphs.run("other", {"x": torch.ones(3)}, compute) is None


class Late(Host):
    """Readings that arrive when they are waited for."""

    class Event:
        arrived = False

        def query(self):
            return self.arrived

        def synchronize(self):
            self.arrived = True

    def read(self, tensor):
        return Reading(tensor.clone(), self.Event())


def test_late_figures_are_reported_with_their_edges():
    told = []
    counters = StepCounters(10 * (3 * CHECK_EVERY + 1), lambda *pair: told.append(pair), Late())
    figures = (Figures(*map(torch.tensor, (10.0 * number, 0.0, 1, 1))) for number in range(3 * CHECK_EVERY + 1))
    sums = [counters.add(10, figure, Stretch(number, number, {0})) for number, figure in enumerate(figures)]
    looks = [value for value in sums if value is not None]
    total = [10.0 * sum(range(CHECK_EVERY * look)) for look in (1, 2)] + [10.0 * sum(range(3 * CHECK_EVERY + 1))]
    assert looks == total
    assert [count for count, _ in told] == [10 * CHECK_EVERY] * 3 + [10]
    assert [loss for _, loss in told][:1] == [pytest.approx(sum(range(CHECK_EVERY)) / CHECK_EVERY)]
    assert told[-1] == (10, pytest.approx(3.0 * CHECK_EVERY))


def test_rows_are_shrunk_as_by_torch():
    generator = torch.Generator().manual_seed(0)
    table, rows = torch.randn(9, 5, generator=generator), torch.tensor([3, 1, 3, 8, 0, 1])
    table[8] = 0
    expected = torch.embedding_renorm_(table.clone(), rows, 1.5, 2.0)
    shrink_rows_unseen(table, rows, 1.5)
    torch.testing.assert_close(table, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("rows", [[4], [2, 2, 2], [5, 0, 3, 0, 5, 5, 1]])
def test_optimizers_step_as_those_of_cpu(rows):
    generator, rows = torch.Generator().manual_seed(2), torch.tensor(rows)
    grads, lr = torch.randn(len(rows), 4, generator=generator), torch.tensor(0.1)
    ours, theirs = (Table(torch.ones(6, 4), torch.zeros(6)) for _ in range(2))
    row_adagrad(ours, rows, grads, lr)
    optimizers.row_adagrad(theirs, rows, grads, 0.1)
    torch.testing.assert_close(ours.embeddings, theirs.embeddings)
    torch.testing.assert_close(ours.row_sums, theirs.row_sums)
    params = [(torch.ones(6, 2, 2), torch.zeros(6, 2, 2)) for _ in range(2)]
    adagrad_rows(*params[0], rows, grads.view(-1, 2, 2), lr)
    optimizers.adagrad_rows(*params[1], rows, grads.view(-1, 2, 2), 0.1)
    for one, other in zip(*params, strict=True):
        torch.testing.assert_close(one, other)


def test_bfloat16_rounds_factors_but_not_sums():
    generator = torch.Generator().manual_seed(1)
    a, b = torch.randn(2, 3, 64, generator=generator), torch.randn(2, 64, 5, generator=generator)
    expected = a.bfloat16().double() @ b.bfloat16().double()
    torch.testing.assert_close(bfloat16_product(a, b).double(), expected, rtol=1e-5, atol=1e-5)
    out = torch.empty(2, 3, 5)
    assert bfloat16_product(a, b, out=out) is out
    assert not torch.equal(out, torch.bmm(a, b))


@pytest.mark.parametrize("comparator", ["dot", "cos"])
def test_bucket_in_bfloat16_is_nearly_the_same(comparator):
    precise, coarse = (graph_config(comparator=comparator, precision=precision) for precision in ("f32", "bf16"))
    (table,), exact, _ = trained(TorchEngine(precise, 2), some_edges(), (1,))
    (other,), rounded, held_out = trained(TorchEngine(coarse, 2), some_edges(), (1,))
    assert 1e-7 < abs(rounded.loss / exact.loss - 1) < 1e-2
    assert not torch.equal(table.embeddings, other.embeddings)
    assert held_out == trained(TorchEngine(precise, 2), some_edges(), (1,))[2]  # ranked in full precision


def test_gpu_is_chosen_by_device_or_num_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    config, asking = graph_config(), graph_config(num_gpus=1)
    assert type(make_engine("torch", config, 2, device="auto")) is TorchEngine
    with pytest.raises(ResourceError, match=r"device: cuda: torch .* set device: cpu"):
        make_engine("auto", config, 2, device="cuda")
    with pytest.raises(ResourceError, match=r"num_gpus: 1: torch .* num_gpus: 0"):
        make_engine("auto", asking, 2)
    with pytest.raises(ConfigError, match=r"left to engine torch: device cuda .* set engine: auto or torch"):
        make_engine("native", asking, 2)
    assert engine_name("auto", config, "cuda")[0] == engine_name("auto", asking)[0] == "torch"


@pytest.fixture
def gpus(monkeypatch):
    """Let torch find so many GPUs; return those made current."""
    made_current = []

    def find(count):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: made_current[-1] if made_current else 0)
        monkeypatch.setattr(torch.cuda, "set_device", made_current.append)
        return made_current

    return find


@pytest.mark.parametrize(
    ("count", "rank", "index"),
    [(2, "0", 0), (2, "1", 1), (4, "3", 3), (1, "3", 0), (2, None, 0)],  # a pod has a GPU of its own
)
def test_each_rank_of_machine_has_a_gpu(gpus, monkeypatch, count, rank, index):
    made_current = gpus(count)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("LOCAL_RANK", rank)
    assert find_place("cuda", graph_config()).device == torch.device("cuda", index)
    assert made_current == [index]


def test_more_ranks_than_gpus_are_refused(gpus, monkeypatch):
    made_current = gpus(2)
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(ConfigError, match="LOCAL_RANK is 2, and this machine has 2 GPUs, from 0 to 1"):
        find_place("cuda", graph_config())
    assert find_place("cpu", graph_config()).device == CPU
    assert not made_current


def test_partition_server_needs_no_gpu(tmp_path, monkeypatch):
    """Its number follows the trainers' and exceeds the existing GPUs."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    paths = {"entity_path": "entities", "edge_paths": [], "checkpoint_path": str(tmp_path / "model")}
    how = {"num_machines": 2, "num_partition_servers": 1, "distributed_init_method": f"file://{tmp_path}/meeting"}
    config = ConfigSchema(**graph_config(entities={"e": {"num_partitions": 2}}, **how).model_dump(), **paths)
    with pytest.raises(ResourceError, match="device: cuda"):
        train_directory(config, device="cuda", rank=1)
    with pytest.raises(ConfigError, match="edge_paths: is empty"):  # the store is checked after the GPU
        train_directory(config, device="cuda", rank=2)


def test_missing_gpu_is_noticed_before_any_write(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    paths = {"entity_path": "entities", "edge_paths": ["edges"], "checkpoint_path": str(tmp_path / "model")}
    with pytest.raises(ResourceError, match="device: cuda"):
        train_directory(ConfigSchema(**graph_config().model_dump(), **paths), device="cuda")
    assert not list(tmp_path.iterdir())


def test_known_negatives_are_left_to_the_cpu():
    with pytest.raises(ConfigError, match="mask_known_negatives: true is for the CPU"):
        on_device(graph_config(mask_known_negatives=True), 2)


@pytest.mark.parametrize("error", [None, RuntimeError("none"), OSError(2, "CC"), CalledProcessError(1, "gcc")])
def test_kernels_need_a_compiler(monkeypatch, capsys, error):
    monkeypatch.setattr(on_device_module, "find_spec", lambda _: object())
    kernels = Mock(compile_driver=Mock(side_effect=error))
    monkeypatch.setitem(sys.modules, "pbg_tasks.training.engine.row_kernels", kernels)
    assert {on_device_module._kernels() is fixed_shapes, "a C compiler" in capsys.readouterr().err} == {bool(error)}


@pytest.mark.parametrize(
    ("keys", "how", "reason"),
    [
        ({"gradient": "sampled"}, {"device": "cuda"}, "gradient: sampled: for the CPU"),
        ({"mask_known_negatives": True, "num_gpus": 2}, {}, "mask_known_negatives: true: for the CPU"),
        ({}, {"device": "cuda", "engine": "native"}, "engine: native: for the CPU"),
        ({"mask_known_negatives": True}, {"engine": "native"}, "leaves to engine torch: mask_known_negatives: true"),
    ],
)
def test_keys_of_other_engines_are_refused_first(tmp_path, monkeypatch, keys, how, reason):
    """The engine comes after the claim of the checkpoint."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    paths = {"entity_path": "entities", "edge_paths": ["edges"], "checkpoint_path": str(tmp_path / "model")}
    with pytest.raises(ConfigError, match=reason):
        train_directory(ConfigSchema(**graph_config(**keys).model_dump(), **paths), **how)


def test_streams_of_gpu_are_made_once(monkeypatch):
    """Of 32 given out in turn, one would soon have two purposes."""
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: object())
    found = set()
    for _ in range(3):
        place = Accelerator(CPU)
        place._pinned = True  # as on a GPU
        found |= {place._up, place._down, CudaRecorder(torch.Generator())._stream}
    assert len(found) == 3


@needs_gpu
@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("record_after", [RECORD_AFTER, 4])
def test_gpu_trains_as_cpu_with_recorded_steps(dynamic, record_after, monkeypatch):
    monkeypatch.setattr("pbg_tasks.training.engine.cuda_graphs.RECORD_AFTER", record_after)
    config, edges = graph_config(dynamic=dynamic, num_uniform_negs=0), some_edges()  # a GPU draws others
    engines = make_engine("torch", config, 2, device="cuda"), TorchEngine(config, 2)
    ours, theirs = (trained(engine, edges, (1, 2)) for engine in engines)
    assert_same_training(ours, theirs, lambda *both: torch.testing.assert_close(*both, rtol=1e-3, atol=1e-5))


@needs_gpu
@pytest.mark.parametrize("changes", [{}, {"negatives_by_degree": 0.5}, {"relations": [ALL_NEGATIVES]}])
def test_recorded_steps_of_gpu_draw_as_others(changes, monkeypatch):
    config, edges, found = graph_config(**changes), some_edges(weighted=True), []
    for record_after in (4, 10**9):
        monkeypatch.setattr("pbg_tasks.training.engine.cuda_graphs.RECORD_AFTER", record_after)
        found.append(trained(make_engine("torch", config, 2, device="cuda"), edges, (1, 2)))
    assert_same_training(*found, lambda *both: torch.testing.assert_close(*both, rtol=0, atol=0))


@needs_gpu
@pytest.mark.parametrize("dynamic", [True, False])
def test_host_never_waits_for_gpu_in_step(dynamic, monkeypatch):
    step = DeviceEngine.step

    def watched(*of, **how):
        torch.cuda.set_sync_debug_mode("error")
        try:
            return step(*of, **how)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(DeviceEngine, "step", watched)
    monkeypatch.setattr("pbg_tasks.training.engine.cuda_graphs.RECORD_AFTER", 10**9)  # recording waits for the device
    trained(make_engine("torch", graph_config(dynamic=dynamic), 2, device="cuda"), some_edges(), (1, 2))


def test_draws_of_other_device_are_not_restored():
    generator, other = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    restore(other, state_of(generator))
    assert torch.equal(other.get_state(), generator.get_state())
    restore(other, base64.b64encode(bytes(16)).decode())  # of a GPU's generator
    assert torch.equal(other.get_state(), generator.get_state())
