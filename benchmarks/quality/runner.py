"""Running one experiment with one seed."""

from __future__ import annotations

import datetime as dt
import shutil
from typing import TYPE_CHECKING

from benchmarks.quality.commands import Clock, Pbg
from benchmarks.quality.dated import predict_dated_links
from benchmarks.quality.labels import predict_labels
from benchmarks.quality.links import Training, init_config, predict_links
from benchmarks.quality.results import Run, recipe
from benchmarks.speed.environment import environment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from benchmarks.quality.commands import Result
    from benchmarks.quality.experiments import Experiment, Kind

_KINDS: Mapping[Kind, Callable[[Training, Path, int], Result]] = {
    "links": predict_links,
    "init": predict_links,
    "dated links": predict_dated_links,
    "labels": predict_labels,
}


def run(
    experiment: Experiment, *, seed: int, root: Path, data: Path, directory: Path, params: Sequence[str] = ()
) -> Run:
    """Run an experiment from nothing to its figures.

    Args:
        experiment: what to run.
        seed: of the training.
        root: directory that the experiment's config path starts from.
        data: directory of its data set.
        directory: made anew for the run and removed after success; the config's relative paths refer to it.
        params: changes of the config, ``key=value``.

    Raises:
        PbgError: a command failed.
    """
    config = root / experiment.config
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    clock = Clock()
    pbg, path, keys = Pbg(directory, clock), config, params
    if experiment.kind == "init":
        path, keys = init_config(pbg, data.absolute(), params)
    training = Training.of(pbg, path, keys, seed)
    found = _KINDS[experiment.kind](training, data.absolute(), experiment.interval)
    shutil.rmtree(directory)
    here = environment()
    return Run(
        experiment=experiment.name,
        seed=seed,
        recipe=recipe(experiment, config.read_bytes(), params),
        date=f"{dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M}",
        environment={name: here[name] for name in ("cpu", "cores", "python", "torch")},
        seconds=clock.seconds,
        **found,
    )
