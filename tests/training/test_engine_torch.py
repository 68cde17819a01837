from __future__ import annotations

import itertools
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from pbg_tasks.errors import FormatError, TrainingDivergedError
from pbg_tasks.formats.edges import EdgeList
from pbg_tasks.model.scoring import RelationScorer
from pbg_tasks.training.data.tables import Table
from pbg_tasks.training.engine import base as engines
from pbg_tasks.training.engine.device import Host
from pbg_tasks.training.engine.held_out import evaluation_config
from pbg_tasks.training.engine.on_torch import TorchEngine
from pbg_tasks.training.engine.pace import NOTHING
from pbg_tasks.training.engine.step import Figures, Step
from pbg_tasks.training.engine.step_counters import CHECK_EVERY, StepCounters, Stretch
from tests import pbg_steps
from tests.model.configs import one_type

ENTITIES = 60
STEPS = Path(__file__).parents[2].parent / "shared/data/pbg-steps/steps.npz"


def make_config(**changes):
    settings = {
        "dimension": 8,
        "comparator": "dot",
        "loss_fn": "softmax",
        "batch_size": 20,
        "num_batch_negs": 10,
        "num_uniform_negs": 10,
        "lr": 0.1,
        "dynamic_relations": True,
    }
    return one_type({"name": "next", "operator": "translation"}, **settings | changes)


@pytest.fixture
def ring():
    """Every entity to the next (relation 0) and previous (relation 1) one."""
    ids = np.arange(ENTITIES)
    lhs, rhs = np.concatenate((ids, ids)), np.concatenate(((ids + 1) % ENTITIES, (ids - 1) % ENTITIES))
    return EdgeList(lhs, rhs, np.repeat([0, 1], ENTITIES))


def random_table(seed=0, scale=1e-1):
    return Table.random(ENTITIES, 8, scale, torch.Generator().manual_seed(seed))


def train(config, edges, table, *, epochs=1, seed=0, on_batch=None):
    engine = TorchEngine(config, 2)
    generator = torch.Generator().manual_seed(seed)
    both = {"e": table}
    stats = [engine.train_bucket(edges, both, both, generator=generator, on_batch=on_batch)[0] for _ in range(epochs)]
    return engine, stats


def test_training_learns_a_graph(ring):
    relation = {"name": "both", "lhs": "e", "rhs": "e", "operator": "complex_diagonal"}
    config, table = make_config(relations=[relation]), random_table()
    engine, stats = train(config, ring, table, epochs=60)
    assert stats[-1].loss < 0.5 * stats[0].loss
    assert stats[-1].violators_rhs < 0.3 * stats[0].violators_rhs
    scorer = RelationScorer(config, 0, engine.parameters()[0])
    lhs, rhs, rel = (torch.from_numpy(column) for column in (ring.lhs, ring.rhs, ring.rel))
    queries = scorer.queries(table.embeddings[lhs], rel, predict="rhs")
    scores = scorer.score(queries, scorer.candidates(table.embeddings, predict="rhs"))
    ranks = (scores >= scores.gather(1, rhs[:, None])).sum(1)
    # by chance 4.7 / 60 = .078
    assert (1 / ranks).mean() > 0.5


def test_workers_rank_held_out_edges_with_equal_figures(ring, monkeypatch):
    config, both = make_config(batch_size=7, num_batch_negs=7, eval_num_uniform_negs=30), {"e": random_table()}

    def evaluated(workers):
        engine = TorchEngine(config, 2, workers=workers)
        return engine.evaluate(ring, both, both, generator=torch.Generator().manual_seed(3))

    alone, last = evaluated(1), -(-len(ring) // 7) - 1
    ended, numbers = threading.Event(), itertools.count()

    def step(*given, **how):
        """Rank the batch that comes first last, after the other workers'."""
        number = next(numbers)
        assert number or ended.wait(10)
        made = Step(*given, **how)
        if number == last:
            ended.set()
        return made

    monkeypatch.setattr(engines, "Step", step)
    assert evaluated(4) == alone
    assert next(numbers) == last + 1


def test_zero_negatives_of_evaluation_mean_training_ones(ring):
    """Early stopping ranks edges also where eval has no negatives."""
    both = {"e": random_table()}

    def evaluated(negatives):
        own = {"eval_num_batch_negs": negatives, "eval_num_uniform_negs": negatives}
        engine = TorchEngine(make_config(eval_fraction=0, **own), 2)
        return engine.evaluate(ring, both, both, generator=torch.Generator().manual_seed(3))

    assert evaluated(0) == evaluated(None)


@pytest.mark.parametrize(
    ("batch_size", "batch_negs", "ranked"),
    [(200, 50, 200), (50_000, 50, 1000), (50_000, 0, 1000), (50_000, 600, 1200), (50_000, 3000, 3000)],
)
def test_held_out_edges_are_ranked_in_small_batches(batch_size, batch_negs, ranked):
    """The memory of a large batch of training is for fewer negatives.

    Chunks stay whole: the edges of a cut one would have fewer negatives, and ranks that are too good.
    """
    assert evaluation_config(make_config(batch_size=batch_size, eval_num_batch_negs=batch_negs)).batch_size == ranked


@pytest.mark.parametrize("dynamic", [False, True])
def test_same_seed_gives_the_same_bits(ring, dynamic):
    relation = {"lhs": "e", "rhs": "e", "operator": "complex_diagonal"}
    relations = [relation | {"name": name} for name in (["all"] if dynamic else ["next", "before"])]
    config = make_config(relations=relations, dynamic_relations=dynamic, global_emb=not dynamic)
    runs = []
    for seed in (1, 1, 2):
        table = random_table()
        engine, stats = train(config, ring, table, epochs=3, seed=seed)
        runs.append((table, engine.parameters(), stats))
    (one, params, stats), (same, same_params, same_stats), (other, _, _) = runs
    assert torch.equal(one.embeddings, same.embeddings)
    assert torch.equal(one.row_sums, same.row_sums)
    assert stats == same_stats
    for ours, theirs in zip(params, same_params, strict=True):
        assert all(np.array_equal(value, theirs[path]) for path, value in ours.items())
    assert not torch.equal(one.embeddings, other.embeddings)


def test_tables_of_two_sides_are_trained_apart(ring):
    lhs, rhs, rest = random_table(1), random_table(2), random_table(2)
    generator = torch.Generator().manual_seed(0)
    TorchEngine(make_config(), 2).train_bucket(ring, {"e": lhs}, {"e": rhs}, generator=generator)
    assert not torch.equal(lhs.embeddings, random_table(1).embeddings)
    assert not torch.equal(rhs.embeddings, rest.embeddings)
    # the left table saw only left-hand ends, the right one the others: their sums differ
    assert not torch.equal(lhs.row_sums, rhs.row_sums)


def test_weights_of_one_change_nothing_zero_stops(ring):
    weightless, ones, zeros = random_table(), random_table(), random_table()
    train(make_config(), ring, weightless)
    train(make_config(), EdgeList(ring.lhs, ring.rhs, ring.rel, np.ones(len(ring), np.float32)), ones)
    train(make_config(), EdgeList(ring.lhs, ring.rhs, ring.rel, np.zeros(len(ring), np.float32)), zeros)
    assert torch.equal(weightless.embeddings, ones.embeddings)
    assert torch.equal(zeros.embeddings, random_table().embeddings)


def test_batches_are_reported_until_last_edge(ring):
    told = []
    _, (stats,) = train(make_config(batch_size=10), ring, random_table(), on_batch=lambda *pair: told.append(pair))
    counts, losses = zip(*told, strict=True)
    assert sum(counts) == len(ring) == stats.count
    assert len(told) == 1
    assert losses[0] == pytest.approx(stats.loss)
    assert stats.seconds > 0


def test_empty_bucket_is_no_work():
    none, table = np.empty(0, np.int64), random_table()
    _, (stats,) = train(make_config(), EdgeList(none, none, none), table)
    assert (stats.count, stats.loss) == (0, 0.0)
    assert torch.equal(table.embeddings, random_table().embeddings)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_infinite_number_stops_training(ring, bad):
    table = random_table()
    table.embeddings[3, 2] = bad
    with pytest.raises(TrainingDivergedError, match=r"one of the batches 1 to \d+: the loss is nan.*smaller lr"):
        train(make_config(), ring, table)


def test_diverged_batch_counted_late_is_among_named():
    """A slow worker counts it after another one has counted later batches."""
    counters = StepCounters(10 * 2 * CHECK_EVERY, None, Host())
    order = [*range(2, CHECK_EVERY + 2), 1, *range(CHECK_EVERY + 2, 2 * CHECK_EVERY + 1)]
    for number in order:
        loss = float("nan") if number == 1 else 1.0
        counters.add(10, Figures(*map(torch.tensor, (loss, 0.0, 1, 1))), Stretch(number, number, {number % 2}))
        assert counters.diverged is None or number == 2 * CHECK_EVERY
    assert counters.diverged == Stretch(1, 2 * CHECK_EVERY, {0, 1})


def test_relation_of_diverged_batch_is_named(ring):
    table = random_table()
    table.embeddings[:] = float("nan")
    config = make_config(dynamic_relations=False)
    with pytest.raises(TrainingDivergedError, match="relation 'next', one of the batches 1 to"):
        train(config, EdgeList(ring.lhs, ring.rhs, ring.rel * 0), table)


def test_diverged_row_without_loss_stops_training(ring):
    table = random_table()
    # the only batch has a finite loss, but leaves rows that overflow
    config = make_config(lr=3e38, relation_lr=0.0, batch_size=1000)
    with pytest.raises(TrainingDivergedError, match="entity type 'e'"):
        train(config, ring, table)


def test_edges_beyond_table_are_refused_first(ring):
    table = Table.random(ENTITIES - 1, 8, 0.1, torch.Generator().manual_seed(0))
    before = table.embeddings.clone()
    with pytest.raises(FormatError, match="holds 59, but there are 59 entities"):
        train(make_config(), ring, table)
    assert torch.equal(table.embeddings, before)


def test_random_tables_have_the_requested_scale():
    table = Table.random(1000, 16, 0.25, torch.Generator().manual_seed(0))
    assert table.embeddings.std().item() == pytest.approx(0.25, rel=0.05)
    assert not table.row_sums.any()
    assert len(table) == 1000


def test_steps_are_those_of_pbg(capsys):
    if not STEPS.exists():
        pytest.skip(f"recorded steps of the reference implementation are not here: {STEPS.name}")
    status = pbg_steps.main(STEPS)
    printed = capsys.readouterr().out
    assert status == 0, printed
    assert printed.splitlines()[-1].startswith("torch: 147 of 147")


def test_diverged_parameter_stops_training(ring):
    engine, table = TorchEngine(make_config(relation_lr=0.0), 3), random_table()
    # no edge has this relation, so no loss shows it
    engine.shared.values["relations/0/operator/rhs/translations"][2, 0] = float("nan")
    with pytest.raises(TrainingDivergedError, match="rhs/translations"):
        engine.train_bucket(ring, {"e": table}, {"e": table}, generator=torch.Generator().manual_seed(0))


def test_stopped_bucket_continues_with_its_remaining_edges(ring):
    """Relations differ in training, and the number of workers changes.

    The order of the bucket is the generator's.
    """
    relations = [{"name": str(i), "lhs": "e", "rhs": "e", "operator": "translation", "weight": i + 1} for i in range(2)]
    config, trained = make_config(relations=relations, dynamic_relations=False), []

    class Watched(TorchEngine):
        def step(self, batch, *args, **kwargs):
            trained.extend(zip(batch.ids.tolist(), batch.lhs.rows_M.tolist(), strict=True))
            return super().step(batch, *args, **kwargs)

    def part(workers, begun, stop):
        both, generator = {"e": random_table()}, torch.Generator().manual_seed(0)
        engine = Watched(config, 2, workers=workers)
        return engine.train_bucket(ring, both, both, generator=generator, begun=begun, stop=stop)[1]

    begun = part(1, NOTHING, lambda: len(trained) >= ENTITIES)
    assert begun.edges == ENTITIES
    assert part(3, begun, None).edges == 2 * ENTITIES
    assert len(set(trained)) == len(trained) == 2 * ENTITIES
