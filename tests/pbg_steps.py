"""Replay single training steps of PyTorch-BigGraph through our engines and compare everything they changed.

    python -m tests.pbg_steps STEPS.npz

The file's config lies beside it as .json. One line a case with the worst difference of scores, loss, embeddings,
parameters and Adagrad sums: largest absolute difference over largest absolute value. Exit status 1 above the bound.
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch

from pbg_tasks.config import ModelConfig
from pbg_tasks.train.batching import Batch
from pbg_tasks.train.engine_torch import TorchEngine
from pbg_tasks.train.tables import Table

BOUND = 5e-6
NOISE = 1e-12


class Replay:
    """Stands in for the sampler: gives the draws PBG made."""

    def __init__(self, draws):
        self.draws = list(draws)

    def draw(self, chunks, negatives, entities):
        drawn = torch.from_numpy(np.ascontiguousarray(self.draws.pop(0)))
        assert drawn.numel() == chunks * negatives
        assert int(drawn.max()) < entities
        return drawn.view(chunks, negatives)


def our_path(name):
    """Turn PBG's name of a parameter into the path of its file."""
    if operator := re.fullmatch(r"(lhs|rhs)_operators\.(\d+)\.(\w+)", name):
        side, index, param = operator.groups()
        return f"relations/{index}/operator/{side}/{param}"
    return f"entities/{name.removeprefix('global_embs.emb_')}/global_embedding"


def difference(ours, theirs):
    """Return the largest absolute difference over the largest absolute value of PBG's."""
    ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    if ours.size == 0 and theirs.size == 0:
        return 0.0
    if ours.shape != theirs.shape:
        return float("inf")
    # a masked score is the same -1e9 on both sides and says nothing about the others
    known = ~((ours < -1e8) & (theirs < -1e8))
    if not known.any():
        return 0.0
    scale = max(np.abs(theirs[known]).max(), 1e-12)
    return float(np.abs(ours[known] - theirs[known]).max() / scale)


def replay(config, data, make_engine=TorchEngine):
    """Replay one case; return the worst difference of each kind."""
    model = ModelConfig.model_validate({k: v for k, v in config.items() if k in ModelConfig.model_fields})
    tables = {
        name: Table(torch.from_numpy(data[f"in/emb/{name}"].copy()), torch.zeros(len(data[f"in/emb/{name}"])))
        for name in model.entities
    }
    params = {our_path(key[9:]): value.copy() for key, value in data.items() if key.startswith("in/param/")}
    count = next((len(value) for path, value in params.items() if path.startswith("relations/")), 1)
    engine = make_engine(model, count if model.dynamic_relations else len(model.relations))
    engine.load_parameters(params, {})
    worst = defaultdict(float)

    def note(kind, ours, theirs):
        worst[kind] = max(worst[kind], difference(ours, theirs))

    step = 0
    while f"step{step}/lhs" in data:
        _one_step(
            engine,
            model,
            tables,
            {k[len(f"step{step}/") :]: v for k, v in data.items() if k.startswith(f"step{step}/")},
            note,
        )
        step += 1
    return dict(worst)


def _one_step(engine, model, tables, data, note):
    draws = [data[f"draw{index}"] for index in range(len([key for key in data if key.startswith("draw")]))]
    weight = (
        torch.from_numpy(data["weight"].astype(np.float32))
        if data.get("weight") is not None and data["weight"].size
        else None
    )
    lhs, rhs, rel = (torch.from_numpy(data[name].astype(np.int64)) for name in ("lhs", "rhs", "rel"))
    batch = Batch(lhs, rhs, rel if model.dynamic_relations else int(rel.view(-1)[0]), weight)

    def observe(side, scores):
        note("score", scores.positive_B.numpy(), data[f"score/{side}_pos"].reshape(-1)[: len(lhs)])
        theirs = data[f"score/{side}_neg"]
        ours = scores.negative_BK.numpy()
        note("score", ours, theirs.reshape(-1, theirs.shape[-1])[: len(lhs)] if ours.size else ours)

    loss, reg, *_ = engine.step(batch, tables, tables, Replay(draws), observe).tolist()
    note("loss", loss, data["loss"])
    note("reg", reg, data["reg"])
    for name, table in tables.items():
        _adopt_noise(table, data[f"emb/{name}"], data[f"emb_sum/{name}"])
        note("embeddings", table.embeddings.numpy(), data[f"emb/{name}"])
        note("sums", table.row_sums.numpy(), data[f"emb_sum/{name}"])
    params, sums = engine.parameters()
    for key, value in data.items():
        if key.startswith("param/"):
            note("parameters", params[our_path(key[6:])], value)
        if key.startswith("param_sum/"):
            note("sums", sums[our_path(key[10:])], value)


def _adopt_noise(table, embeddings, sums):
    """Take over rows whose gradient is zero but for rounding.

    When all terms of a row's gradient cancel, Adagrad divides rounding noise by its own size and moves the row by lr in
    a direction that no arithmetic but PBG's own can repeat.
    """
    noise = (sums > 0) & (sums < NOISE * sums.max()) & (table.row_sums.numpy() < NOISE * sums.max())
    for row in np.flatnonzero(noise):
        table.embeddings[row] = torch.from_numpy(embeddings[row])
        table.row_sums[row] = float(sums[row])


def load(path):
    """Return config and arrays of every case of a file."""
    configs = json.loads(path.with_suffix(".json").read_text())
    cases = defaultdict(dict)
    with np.load(path, allow_pickle=False) as archive:
        for key in archive.files:
            case, _, rest = key.partition("/")
            cases[case][rest] = archive[key]
    return {case: (configs[case]["config"], data) for case, data in cases.items()}


def main(path):
    """Replay every case of a file; return the exit status."""
    failed = 0
    cases = load(path)
    for case, (config, data) in sorted(cases.items()):
        worst = replay(config, data)
        largest = max(worst.values())
        failed += not largest <= BOUND
        figures = "  ".join(f"{kind} {value:.1e}" for kind, value in sorted(worst.items()))
        print(f"{'ok  ' if largest <= BOUND else 'FAIL'} {case}: {largest:.1e}  ({figures})")  # noqa: T201 - a command
    print(f"{len(cases) - failed} of {len(cases)} cases within {BOUND:g}")  # noqa: T201
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
