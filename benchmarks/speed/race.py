"""Race from FB15k's text files to a filtered MRR of 0.79.

It is a user's race, every command and its start-up included.

Ours is ``pbg import``, ``pbg train`` and ``pbg eval`` on the config that ships, in PBG's dimension. PBG 1.0.0 runs the
config of its own example, by its own commands; its evaluation starts in a process that has loaded it. Each side can be
run alone, at another time: its finish is kept in the cache. PBG needs an hour or more, so its progress is kept after
every few epochs, and a race that was cut off goes on from there.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from benchmarks.quality.commands import Clock, Pbg
from benchmarks.quality.links import Splits, Training
from benchmarks.speed.harness import PBG_EPOCHS, RACERS
from benchmarks.speed.measurement import Measurement
from benchmarks.speed.worker import ROOT
from benchmarks.speed.workloads import FB15K, SPLITS, placed
from pbg_tasks.config import ConfigSchema
from pbg_tasks.config.results import Metrics
from pbg_tasks.errors import PbgError
from pbg_tasks.memory.machine import usable_cpus
from pbg_tasks.progress import human_seconds, say
from pbg_tasks.tasks.directory.evaluate import evaluate_directory

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.speed.harness import Tools

GOAL = 0.79
OUR_CONFIG = ROOT / "examples" / "configs" / "fb15k.yaml"
OUR_EPOCHS = 11
OUR_PARAMS = ("dimension=400", "gradient=sampled", f"num_epochs={OUR_EPOCHS}")
_SEGMENT = 5
_COLUMNS = ("--lhs-col", "0", "--rel-col", "1", "--rhs-col", "2")


@dataclass(frozen=True, slots=True)
class Finish:
    """Finish of one side.

    Attributes:
        seconds: wall time by what it was spent on.
        mrr: filtered, of the test split.
        epochs: trained.
        note: for the reader.
    """

    seconds: dict[str, float]
    mrr: float
    epochs: int
    note: str = ""

    @property
    def total(self) -> float:
        """All seconds."""
        return sum(self.seconds.values())


def measure(tools: Tools, *, quick: bool) -> list[Measurement]:  # noqa: ARG001 - never quick
    """Race, and compare when both sides have finished.

    The sides are those that ``tools`` names; a finish may be an earlier one.
    """
    ends = {side: _KeptFinish(tools.cache / "race" / f"{side}.json") for side in RACERS}
    for side, race in (("ours", _our_race), ("theirs", _their_race)):
        if side in tools.racers:
            ends[side].write(race(tools))
    ours, theirs = (ends[side].read() for side in RACERS)
    if ours is None:
        say("race: PBG's end is kept; there is nothing to tell before ours")
        return []
    alone = _alone(ours)
    if theirs is None:
        return [alone]
    both = _compared(alone, ours, theirs)
    kept = [whose for side, whose in (("ours", "our"), ("theirs", "PBG's")) if side not in tools.racers]
    return [replace(both, note=f"{both.note}; {kept[0]} time is of an earlier run") if kept else both]


def _alone(ours: Finish) -> Measurement:
    return Measurement(
        f"FB15k from TSV to filtered MRR {GOAL}",
        "s",
        ours.total,
        note=(
            f"wall time, {usable_cpus()} workers; MRR {ours.mrr:.4f} after {ours.epochs} epochs of {OUR_CONFIG.name} "
            f"with {', '.join(OUR_PARAMS[:-1])}"
        ),
        details={f"{what}, our s": value for what, value in ours.seconds.items()},
    )


def _compared(alone: Measurement, ours: Finish, theirs: Finish) -> Measurement:
    told = f"PBG: MRR {theirs.mrr:.4f} after {theirs.epochs} epochs of its own example"
    told += f", {_SEGMENT} in each command{theirs.note}"
    return replace(
        alone,
        theirs=theirs.total,
        ratios=(theirs.total / ours.total,),
        note=f"{alone.note}; {told}",
        details={**alone.details, **{f"{what}, PBG's s": value for what, value in theirs.seconds.items()}},
    )


class _KeptFinish:
    """Finish of a side, kept in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> Finish | None:
        """Return it; None when the side has not finished yet."""
        return Finish(**json.loads(self._path.read_text(encoding="utf-8"))) if self._path.exists() else None

    def write(self, finish: Finish) -> None:
        """Keep it."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        _replace(self._path, json.dumps(asdict(finish)))


def _replace(path: Path, text: str) -> None:
    partial = path.with_suffix(".part")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def _our_race(tools: Tools) -> Finish:
    """Run our commands.

    Raises:
        PbgError: they do not reach the goal.
    """
    data, clock = tools.fb15k(), Clock()
    with tools.scratch() as directory:
        params = (*OUR_PARAMS, f"workers={usable_cpus()}")  # as PBG's; the config has one, for equal bits
        training = Training.of(Pbg(directory, clock), OUR_CONFIG, params, seed=0)
        splits = Splits(*training.config.edge_paths)
        training.fill([data.absolute() / f"{split}.tsv" for split in SPLITS], _COLUMNS)
        training.train(splits.train, OUR_EPOCHS)
        found = training.evaluate(splits.test, (splits.train, splits.valid), what="eval")
    mrr = found["filtered"]["mrr"]
    if mrr < GOAL:
        raise PbgError(f"{OUR_CONFIG.name} reaches a filtered MRR of {mrr:.4f} after {OUR_EPOCHS} epochs, not {GOAL}")
    finish = Finish({what: spent["wall"] for what, spent in clock.seconds.items()}, mrr, OUR_EPOCHS)
    say(f"race: we reached {mrr:.4f} in {human_seconds(finish.total)}")
    return finish


def _their_race(tools: Tools) -> Finish:
    """Run PBG's commands from where they were left.

    Once they have finished, the next race begins anew.
    """
    race = _TheirRace.of(tools)
    finish = race.run(tools.race_epochs)
    if race.ended:
        shutil.rmtree(race.root)
    return finish


class _Record:
    """PBG's progress so far, kept in a file.

    Attributes:
        seconds: wall time by what it was spent on.
        curve: (epochs, filtered MRR) each.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"seconds": {}, "curve": []}
        self.seconds: dict[str, float] = kept["seconds"]
        self.curve: list[list[float]] = kept["curve"]

    def add(self, what: str, seconds: float, *points: list[float]) -> None:
        """Add seconds, and points of the curve."""
        self.seconds[what] = self.seconds.get(what, 0.0) + seconds
        self.curve += points
        _replace(self._path, json.dumps({"seconds": self.seconds, "curve": self.curve}))


@dataclass(frozen=True, slots=True)
class _TheirRace:
    """PBG's commands on its own example.

    Attributes:
        tools: of the benchmark.
        root: for its files.
        document: PBG's config; its edges are the three splits.
        record: of earlier work.
    """

    tools: Tools
    root: Path
    document: dict[str, Any]
    record: _Record

    @classmethod
    def of(cls, tools: Tools) -> Self:
        workers = {"workers": usable_cpus(), "num_epochs": PBG_EPOCHS}
        root = tools.cache / "race" / "theirs"
        root.mkdir(parents=True, exist_ok=True)
        return cls(tools, root, placed(FB15K, root, *SPLITS) | workers, _Record(root / "record.json"))

    @property
    def ended(self) -> bool:
        """Whether the goal is reached, or the last epoch of its config."""
        done, mrr = self.record.curve[-1]
        return mrr >= GOAL or done >= PBG_EPOCHS

    def run(self, epochs: int) -> Finish:
        """Train until the goal is reached, or for so many epochs."""
        record, (train, _, test) = self.record, self.document["edge_paths"]
        if "import" not in record.seconds:
            files = [str(self.tools.fb15k().absolute() / f"{split}.tsv") for split in SPLITS]
            record.add("import", self._command("converters.import_from_tsv", *files, *_COLUMNS))
        while not record.curve or (record.curve[-1][1] < GOAL and record.curve[-1][0] < epochs):
            upto = int(record.curve[-1][0] if record.curve else 0) + _SEGMENT
            seconds = self._command("train", "-p", f"edge_paths={train}", "-p", f"num_epochs={upto}")
            record.add("train", seconds, [upto, self._mrr()])
            spent = human_seconds(sum(record.seconds.values()))
            say(f"race: PBG has {record.curve[-1][1]:.4f} after {upto} epochs in {spent}")
        if "eval" not in record.seconds:
            everything = {"relations": [self.document["relations"][0] | {"all_negs": True}], "num_uniform_negs": 0}
            with self.tools.theirs("Evaluation", config=self.document | everything | {"edge_paths": [test]}) as pbg:
                record.add("eval", pbg("rank", known=self.document["edge_paths"]).wall)
        return self._finish()

    def _finish(self) -> Finish:
        done, mrr = self.record.curve[-1]
        if self.ended:
            return Finish(self.record.seconds, mrr, int(done), "" if mrr >= GOAL else ", where its config ends")
        whole = {**self.record.seconds, "train": self.record.seconds["train"] * PBG_EPOCHS / done}
        return Finish(
            whole, mrr, int(done), f"; its training is EXTRAPOLATED from these to the {PBG_EPOCHS} of its config"
        )

    def _mrr(self) -> float:
        """Rank by our evaluation, which gives the same figure sooner.

        No seconds are counted for it.
        """
        config = ConfigSchema(**self.document | {"edge_paths": self.document["edge_paths"][-1:]})
        found = evaluate_directory(config, filtered=True, known=self.document["edge_paths"])
        return Metrics.model_validate(found).filtered.figures()["mrr"]

    def _command(self, module: str, *arguments: str) -> float:
        """Run one of PBG's commands and return the seconds it took.

        Raises:
            PbgError: it failed.
        """
        config = self.root / "config.py"
        config.write_text(f"def get_torchbiggraph_config():\n    return {self.document!r}\n", encoding="utf-8")
        log = config.with_name(f"{module}.log")
        started = time.perf_counter()
        with log.open("w", encoding="utf-8") as output:
            done = subprocess.run(
                [self.tools.pbg_python(), "-m", f"torchbiggraph.{module}", config, *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
                env=os.environ | {"PYTHONWARNINGS": "ignore", "PYTHONHASHSEED": "0"},
            )
        if done.returncode:
            raise PbgError(f"torchbiggraph.{module} ended with status {done.returncode}; see {log}")
        return time.perf_counter() - started
