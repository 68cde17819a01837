"""Single training steps of PyTorch-BigGraph, replayed by each engine.

Everything they changed is compared.

    python -m tests.pbg_steps STEPS.npz

The cases' configs are beside the file as .json. One line a case and engine with the worst difference of each kind:
largest absolute difference over largest absolute value of PBG's. Exit status 1 if any is above the bound.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch

from pbg_tasks.config import ModelConfig
from pbg_tasks.native import library
from pbg_tasks.training.data.tables import Table
from pbg_tasks.training.engine.batching import Batch
from pbg_tasks.training.engine.lookup import Single
from pbg_tasks.training.engine.native import NativeEngine
from pbg_tasks.training.engine.on_torch import TorchEngine

BOUND = 5e-6
MASKED = -1e8  # masked scores are -1e9 on both sides and would hide all others
# The sum of squares of such a row is far below the largest: its gradient was 0 except for rounding; see _adopt_noise.
NOISE = 1e-12
# Scores closer than this, relative to the largest, are equal except for rounding, and either may be the higher.
TIE = 1e-5


class RecordedDraws:
    """Stands in for the sampler: returns the draws that PBG made."""

    generator = torch.Generator()

    def __init__(self, draws):
        self.left = list(draws)

    def draw(self, chunks, negatives, entities, *_):
        drawn = torch.from_numpy(self.left.pop(0).astype(np.int64)).reshape(chunks, negatives)
        assert drawn.max() < entities
        return drawn


class Replay:
    """One case, step by step."""

    def __init__(self, config, data, make_engine):
        self.config = ModelConfig.model_validate(
            {key: config[key] for key in config if key in ModelConfig.model_fields}
        )
        self.data = data
        rows = {name: data[f"in/emb/{name}"].copy() for name in self.config.entities}
        self.tables = {name: Table.from_arrays(embeddings, None) for name, embeddings in rows.items()}
        params = {our_path(name): value.copy() for name, value in below("in/param/", data).items()}
        stacked = [len(value) for path, value in params.items() if path.startswith("relations/")]
        self.engine = make_engine(self.config, stacked[0] if stacked else 1)
        self.engine.load_parameters(params, {})
        self.worst = defaultdict(float)
        self.noise = 0

    def run(self):
        step = 0
        while data := below(f"step{step}/", self.data):
            self._step(data)
            step += 1
        return dict(self.worst)

    def _note(self, kind, ours, theirs):
        self.worst[kind] = float(np.maximum(self.worst[kind], difference(ours, theirs)))  # NaN stays NaN

    def _step(self, data):
        lhs, rhs, rel = (torch.from_numpy(data[name].astype(np.int64)).view(-1) for name in ("lhs", "rhs", "rel"))
        weight = torch.from_numpy(data["weight"].astype(np.float32)) if data.get("weight", lhs[:0]).shape[0] else None
        family, rel = (0, rel) if self.config.dynamic_relations else (int(rel[0]), None)
        batch = Batch(Single(lhs), Single(rhs), family, rel, weight)
        draws = RecordedDraws([data[f"draw{index}"] for index in range(len(below("draw", data)))])
        ties = {}

        def observe(side, positive_B, negative_BK):
            positive, negative = data[f"score/{side}_pos"].reshape(-1), data[f"score/{side}_neg"]
            negative = (
                negative.reshape(-1, negative.shape[-1])[: len(lhs)] if negative.size else negative_BK.numpy()[:, :0]
            )
            self._note("score", positive_B.numpy(), positive)
            self._note("score", negative_BK.numpy(), negative)
            ties[f"violators_{side}"] = (np.abs(negative - positive[:, None]) < TIE * np.abs(positive).max()).sum()

        figures = self.engine.step(batch, self.tables, self.tables, draws, observe)
        assert not draws.left
        self._note("loss", figures.loss, data["loss"])
        self._note("loss", figures.reg, data["reg"])
        for name, tied in ties.items():
            apart = abs(int(getattr(figures, name)) - int(data[name]))
            self._note("violators", max(apart - tied, 0), 0.0)
        self._compare_state(data)

    def _compare_state(self, data):
        for name, table in self.tables.items():
            self._adopt_noise(table, data[f"emb/{name}"], data[f"emb_sum/{name}"])
            self._note("embeddings", table.embeddings, data[f"emb/{name}"])
            self._note("sums", table.row_sums, data[f"emb_sum/{name}"])
        params, sums = self.engine.parameters()
        for name, value in below("param/", data).items():
            self._note("parameters", params[our_path(name)], value)
        for name, value in below("param_sum/", data).items():
            self._note("sums", sums[our_path(name)], value)

    def _adopt_noise(self, table, embeddings, sums):
        """Take over rows whose gradient is zero but for rounding.

        Where all terms of a row's first gradient cancel, Adagrad divides rounding noise by its own size and moves the
        row by lr, in a direction that no arithmetic but PBG's own can repeat.
        """
        noise = (sums > 0) & (sums < NOISE * sums.max()) & (table.row_sums.numpy() < NOISE * sums.max())
        self.noise += int(noise.sum())
        table.embeddings[noise] = torch.from_numpy(embeddings[noise])
        table.row_sums[noise] = torch.from_numpy(sums[noise])


def our_path(name):
    """Turn PBG's name of a parameter into the path of its file."""
    if operator := re.fullmatch(r"(lhs|rhs)_operators\.(\d+)\.(\w+)", name):
        side, index, param = operator.groups()
        return f"relations/{index}/operator/{side}/{param}"
    return f"entities/{name.removeprefix('global_embs.emb_')}/global_embedding"


def below(prefix, data):
    return {key.removeprefix(prefix): value for key, value in data.items() if key.startswith(prefix)}


def difference(ours, theirs):
    """Return the largest absolute difference over the largest absolute value of PBG's."""
    ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    if ours.shape != theirs.shape:
        return float("inf")
    masked = (ours < MASKED) & (theirs < MASKED)
    apart = np.abs(ours - theirs)[~masked]
    return float(apart.max() / max(np.abs(theirs[~masked]).max(), 1e-12)) if apart.size else 0.0


def load(path):
    """Yield (name, config, arrays) of every case of a file."""
    configs = json.loads(path.with_suffix(".json").read_text())
    cases = defaultdict(dict)
    with np.load(path, allow_pickle=False) as archive:
        for key in archive.files:
            case, _, rest = key.partition("/")
            cases[case][rest] = archive[key]
    for case in sorted(cases):
        yield case, configs[case]["config"], cases[case]


def main(path, make_engine=TorchEngine):
    """Replay every case of a file; return the exit status."""
    failed = count = 0
    for case, config, data in load(path):
        replay = Replay(config, data, make_engine)
        worst = replay.run()
        good = all(value <= BOUND for value in worst.values())
        figures = "  ".join(f"{kind} {value:.1e}" for kind, value in sorted(worst.items()))
        noise = f"  ({replay.noise} rows moved by rounding alone)" if replay.noise else ""
        engine = f"{make_engine.name:6} {case}"
        print(f"{'ok  ' if good else 'FAIL'} {engine}: {max(worst.values()):.1e}  {figures}{noise}")  # noqa: T201 - a command
        failed, count = failed + (not good), count + 1
    print(f"{make_engine.name}: {count - failed} of {count} cases within {BOUND:g}")  # noqa: T201 - a command
    return 1 if failed or not count else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("steps", type=Path, help="the recorded steps, a .npz with its .json beside it")
    path = parser.parse_args().steps
    engines = [TorchEngine, *([NativeEngine] if library() is not None else [])]
    sys.exit(max(main(path, engine) for engine in engines))
