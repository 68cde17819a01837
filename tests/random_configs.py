"""One training step of random configs against autograd in float64.

    python -m tests.random_configs --count 1080 --seed N

The torch engine computes in float64 and has to agree to 1e-9, the native one in float32, by every instruction set of
this CPU, to 1e-5. Where differences of nearly equal numbers leave float32 fewer digits, it may miss by ten times what
the torch engine misses in float32; such cases are counted apart. Exit status 1 if a case is wrong.

Never drawn is l2 with operator none between ends of one type: an entity may then be compared with itself, and a
distance of 0 is computed as PBG does, as the root of a difference of products, in which rounding is all.
"""

from __future__ import annotations

import argparse
import random
import sys
from dataclasses import dataclass

import numpy as np
import torch

from pbg_tasks.errors import PbgError
from pbg_tasks.native import library
from pbg_tasks.native.coverage import left_to_torch
from pbg_tasks.training.engine.native import NativeEngine
from pbg_tasks.training.engine.on_torch import TorchEngine
from tests.training.native_steps import BOUND, INSTRUCTIONS, instructions
from tests.training.steps import FEATURES, RELATIONS, Case, make_config, regularized

EXACT = 1e-9
MODES = ("standard", "dynamic", "reciprocal")
OPERATORS = ("none", "translation", "diagonal", "complex_diagonal", "linear", "affine")
ONCE_IN_FOUR = (
    "bias",
    "max_norm",
    "batch_only",
    "uniform_only",
    "no_lhs_negs",
    "no_rhs_negs",
    "relation_lr",
    "self_negatives",
)
SHAPES = ("side_weights", "all_negs", "one_type", None, None, None)


@dataclass
class Drawn:
    """A random config, and how its step is made."""

    text: str
    config: object
    how: dict


def draw(dice):
    """Draw one config that the package accepts."""
    while True:
        mode, operator = dice.choice(MODES), dice.choice(OPERATORS)
        comparator = dice.choice(("dot", "cos", "l2", "squared_l2"))
        loss = dice.choice(("softmax", "ranking", "logistic"))
        shape = dice.choice(SHAPES)
        regularizer = dice.choice((None, None, "N3", "N3_edge", "L2"))
        features = [name for name in ONCE_IN_FOUR if dice.random() < 0.25]
        batch_negatives = dice.randint(1, 12)
        keys = {
            "dimension": 2 * dice.randint(2, 24),
            "num_batch_negs": batch_negatives,
            "num_uniform_negs": dice.randint(1, 20),
            "batch_size": 100 * batch_negatives,
            "margin": dice.choice((0.1, 0.3, 1.0)),
            "global_emb": mode != "dynamic" and dice.random() < 0.5,
        }
        for name in features:
            keys |= FEATURES[name]
        how = {
            "weighted": dice.random() < 0.25,
            "edges": dice.randint(2, 30),
            "seed": dice.randrange(1 << 30),
            "spread": 2 * keys["dimension"] ** -0.5,
            "loops": tuple(number for number in range(RELATIONS if mode == "dynamic" else 1) if dice.random() < 0.2),
        }
        if (operator, comparator, shape) == ("none", "l2", "one_type"):
            continue
        text = f"{mode} {operator} {comparator} {loss} {shape} {regularizer} {keys} {how}"
        try:
            config = make_config(mode, operator, comparator, loss, shape, **keys)
            return Drawn(text, regularized(config, regularizer) if regularizer else config, how)
        except (PbgError, ValueError):
            continue  # the keys exclude each other


def apart(case, expected, dtype):
    """Return the largest difference as a share of its kind."""
    figures, ours = case.step(dtype=dtype)
    reference, theirs = expected
    pairs = [(figures.loss, reference.loss), (figures.reg, reference.reg)]
    for part in ("embeddings", "row_sums", "params", "param_sums"):
        pairs += [(getattr(ours, part)[name], value) for name, value in getattr(theirs, part).items()]
    return largest(float((a.double() - b).abs().max()) / max(float(b.abs().max()), 1e-3) for a, b in pairs)


def largest(values):
    """Return the largest value, or NaN if there is one."""
    return float(np.max(list(values)))


def judge(drawn):
    """Return a verdict and the differences from autograd."""
    case = Case(drawn.config, make_engine=TorchEngine, **drawn.how)
    expected = case.reference()
    found = {"torch": apart(case, expected, torch.float64)}
    wrong = not found["torch"] <= EXACT
    rounding = False
    if library() is not None and not list(left_to_torch(drawn.config)):
        native = Case(drawn.config, make_engine=NativeEngine, **drawn.how)
        for name in INSTRUCTIONS:
            with instructions(name):
                found[name] = apart(native, expected, torch.float32)
        worst = largest(found[name] for name in INSTRUCTIONS)
        if not worst <= BOUND:
            found["torch in float32"] = apart(case, expected, torch.float32)
            rounding = worst <= 10 * found["torch in float32"]
            wrong |= not rounding
    return ("WRONG" if wrong else "rounding" if rounding else "equal"), found


def main(count, seed):
    """Compare ``count`` configs; return the exit status."""
    dice, verdicts, native = random.Random(seed), {"equal": 0, "rounding": 0, "WRONG": 0}, 0
    for index in range(count):
        drawn = draw(dice)
        verdict, found = judge(drawn)
        verdicts[verdict] += 1
        native += len(found) > 1
        if verdict != "equal":
            figures = "  ".join(f"{name} {value:.1e}" for name, value in found.items())
            print(f"{verdict} {index}: {figures}\n    {drawn.text}")  # noqa: T201 - a command
    print(  # noqa: T201 - a command
        f"{count} random configs, {native} also by the native engine ({', '.join(INSTRUCTIONS) or 'not built'}): "
        f"{verdicts['equal']} equal, {verdicts['rounding']} beyond the digits of float32, {verdicts['WRONG']} wrong"
    )
    return 1 if verdicts["WRONG"] or not count else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=1080)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    sys.exit(main(options.count, options.seed))
