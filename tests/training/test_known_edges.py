from __future__ import annotations

import numpy as np
import pytest
import torch

from pbg_tasks.formats.edges import EdgeList
from pbg_tasks.model.negatives import MASKED, chunk_plan
from pbg_tasks.training.data.tables import Table
from pbg_tasks.training.engine.known_edges import KnownEdges
from pbg_tasks.training.engine.on_torch import TorchEngine
from tests.model.configs import one_type


def make_config(**changes):
    settings = {
        "dynamic_relations": True,
        "comparator": "dot",
        "loss_fn": "softmax",
        "batch_size": 100,
        "num_batch_negs": 10,
        "num_uniform_negs": 8,
    }
    return one_type(**settings | changes)


# Few entities make few answers a question, many edges between few entities make more answers than candidates.
@pytest.mark.parametrize("unreached", [1, 3], ids=["all reached", "most in no edge"])
@pytest.mark.parametrize(("entities", "edges"), [(200, 300), (40, 2000), (12, 400)])
@pytest.mark.parametrize("changes", [{}, {"num_batch_negs": 0}, {"num_uniform_negs": 0}, {"all_negs": True}])
@pytest.mark.parametrize("side", ["lhs", "rhs"])
def test_exactly_the_known_edges_are_masked(side, changes, entities, edges, unreached):
    rng = np.random.default_rng(0)
    known = EdgeList(*(rng.integers(high, size=edges) for high in (entities, entities, 3)))
    triples = set(zip(known.lhs.tolist(), known.rel.tolist(), known.rhs.tolist(), strict=True))
    config = (
        make_config(**changes)
        if "all_negs" not in changes
        else make_config(relations=[{"name": "r", "lhs": "e", "rhs": "e", "all_negs": True}])
    )
    batch = rng.permutation(edges)[:97]
    lhs, rhs, rel = known.lhs[batch], known.rhs[batch], known.rel[batch]
    plan = chunk_plan(config, config.relations[0], len(batch))
    drawn = rng.integers(unreached * entities, size=plan.chunks * plan.uniform) if plan.uniform else None
    own, other = (lhs, rhs) if side == "lhs" else (rhs, lhs)
    if plan.kind == "all":
        candidates = np.arange(unreached * entities)[np.newaxis]
    else:
        candidates = KnownEdges._candidates(plan, own, drawn)
    scores = torch.zeros(len(batch), candidates.shape[1])
    KnownEdges(known).mask(side, scores, plan, rel_B=rel, known_B=other, own_B=own, drawn=drawn)
    masked = 0
    for row in range(len(batch)):
        for column, candidate in enumerate(candidates[row // plan.size]):
            end = int(other[row])
            triple = (int(candidate), int(rel[row]), end) if side == "lhs" else (end, int(rel[row]), int(candidate))
            assert (scores[row, column] == MASKED) == (triple in triples)
            masked += triple in triples
    assert masked


def test_training_with_mask_spares_known_edges():
    """Train two edges that share relation and left end.

    They are each other's negatives on the right.
    """
    edges = EdgeList(np.array([0, 0]), np.array([1, 2]), np.array([0, 0]))
    losses = {}
    for masked in (False, True):
        config = make_config(num_uniform_negs=0, disable_lhs_negs=True, mask_known_negatives=masked)
        table = Table.random(3, 4, 1.0, torch.Generator().manual_seed(0))
        engine = TorchEngine(config, 1)
        generator = torch.Generator().manual_seed(0)
        losses[masked] = engine.train_bucket(edges, {"e": table}, {"e": table}, generator=generator)[0].loss
    assert losses[True] == pytest.approx(0, abs=1e-6)  # no negative is left to compare with
    assert losses[False] > 0.1


def test_bags_of_features_are_never_known_answers():
    """Their id, -1, must not be taken for another relation's entity."""
    known = EdgeList(*(np.array(column) for column in ([9, 3, -1], [1, 2, 5], [0, 0, 1])))
    found = KnownEdges(known)._answers["rhs"]
    start, stop = found.ranges(np.array([0]), np.array([9]))
    assert found.answers[start[0] : stop[0]].tolist() == [1]
