"""``eval`` for a data set named by a PBG config.

Ranks edges with the checkpoint as it is, written by this package or by PBG.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal

from pbg_tasks.config import Evaluation
from pbg_tasks.errors import ConfigError, InputError
from pbg_tasks.evaluate.evaluation import EdgeRanking
from pbg_tasks.formats.directory import EvalStats
from pbg_tasks.formats.edges import EdgeList, joined_columns
from pbg_tasks.formats.metadata import IterationInfo
from pbg_tasks.formats.model import ModelState
from pbg_tasks.memory.machine import usable_cpus
from pbg_tasks.progress import Progress, counted, human_seconds, say
from pbg_tasks.storage import open_store
from pbg_tasks.storage.staging import Scratch, named
from pbg_tasks.tasks.model_source import trained_config
from pbg_tasks.tasks.runs.base import bring_model
from pbg_tasks.tasks.runs.directory import DirectoryRun
from pbg_tasks.training.data.buffer import PartitionBuffer
from pbg_tasks.training.data.partition_files import PartitionFiles, Stamp
from pbg_tasks.training.engine.on_torch import TorchEngine
from pbg_tasks.training.schedule import Bucket, bucket_order
from pbg_tasks.training.starting_point import StartingPoint, seeded

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.config.graph import DeviceName
    from pbg_tasks.config.results import Result

Negatives = Literal["all", "config"]
_NOTHING_DONE = IterationInfo(0, 0, 0, 0, "", 0, 0)


def evaluate_directory(
    config: ConfigSchema,
    *,
    filtered: bool = False,
    known: Sequence[str] = (),
    exclude_self: bool = False,
    negatives: Negatives = "all",
    max_candidates: int = 1_000_000,
    device: DeviceName = "cpu",
    memory_gb: float = 4.0,
    threads: int | None = None,
    seed: int = 0,
) -> Result:
    """Rank the edges of ``edge_paths`` on both sides.

    Args:
        config: its paths may be local or ``s3://``.
        filtered: leave other edges known to be true out of the candidates, and give those figures too.
        known: edge paths of such edges, beside those of ``edge_paths`` themselves.
        exclude_self: leave the known end out of them as well (``Evaluation.exclude_self``).
        negatives: ``all`` ranks against every entity of the type, over all partitions; ``config`` against the negatives
            the config asks for, of the bucket's own partitions, as PBG does.
        max_candidates: with more entities than this of one type, that many are drawn.
        device: on which ``all`` compares; ``auto`` is a GPU where torch finds one.
        memory_gb: budget of ``all``, in GB.
        threads: CPU threads; None means all this process may use.
        seed: of draws.

    Raises:
        ConfigError: keys contradict the data or each other.
        InputError: there are no edges.
        NotFoundError: entities, edges or the checkpoint are missing.
        FormatError: a file is damaged.
        ResourceError: there is no GPU.
    """
    if not config.edge_paths:
        raise ConfigError("edge_paths: is empty, so there is nothing to evaluate; -p edge_paths=PATH names some")
    if negatives == "config" and (filtered or known):
        raise ConfigError("filtered figures need every entity as a candidate: leave --negatives config out")
    if exclude_self and not (filtered or known):
        raise ConfigError("exclude_self changes the filtered figures alone: give --filtered (and --known) with it")
    started = time.monotonic()
    with Scratch() as scratch:
        run = DirectoryRun(config, scratch.path)
        say(f"eval: version {run.files.version} of {run.files.url} on {', '.join(config.edge_paths)}")
        _report_trained(run)
        if filtered and not known:
            say("eval: --filtered without --known leaves out edges of edge_paths only; published figures know training")
        if negatives == "config":
            figures = _against_config(run, scratch.path, threads or usable_cpus(), seed)
        else:
            figures = _against_all(
                run,
                scratch.path,
                (*config.edge_paths, *known) if filtered or known else (),
                Evaluation(max_candidates=max_candidates, max_edges=None, exclude_self=exclude_self, device=device),
                threads=threads or usable_cpus(),
                memory_bytes=int(memory_gb * 1e9),
                seed=seed,
            )
    seconds = time.monotonic() - started
    say(f"eval: finished in {human_seconds(seconds)}")
    return {
        "task": "eval",
        "checkpoint": run.files.url,
        "version": run.files.version,
        "edge_paths": list(config.edge_paths),
        "negatives": negatives,
        "seconds": round(seconds, 3),
        **figures,
    }


def _report_trained(run: DirectoryRun) -> None:
    """Report edge paths that the model was trained on."""
    trained = trained_config(run.files)
    urls = {open_store(path).url for path in trained.edge_paths} if trained is not None else set()
    if seen := [path for path in run.config.edge_paths if open_store(path).url in urls]:
        say(
            f"eval: the model was trained on {', '.join(seen)}, so its figures there are too good; measure with edges "
            "that training leaves out (-p edge_paths=PATH, in both)"
        )


def _against_all(
    run: DirectoryRun,
    scratch: Path,
    known: Sequence[str],
    evaluation: Evaluation,
    *,
    threads: int,
    memory_bytes: int,
    seed: int,
) -> Result:
    config = run.config
    for entity, schema in config.entities.items():
        if schema.featurized:
            raise ConfigError(
                f"entities.{entity} is featurized, so its entities cannot be listed as candidates; "
                "--negatives config ranks against the other edges of a batch"
            )
    held_out: dict[tuple[int, int], EdgeList] = {}
    for bucket, edges in run.edges(*config.edge_paths):
        held_out[bucket] = _joined(held_out[bucket], edges) if bucket in held_out else edges
    if not any(map(len, held_out.values())):
        raise InputError(f"{', '.join(config.edge_paths)}: hold no edges, so there is nothing to evaluate")
    model = bring_model(run, scratch, apart=True)
    with named(scratch, run.files.url):
        ranking = EdgeRanking(model, held_out, lambda: run.edges(*known), evaluation=evaluation, seed=seed)
        ranking.rank(threads, memory_bytes)
    figures = ranking.report().to_json()
    del figures["split"]
    return figures if known else _raw_only(figures)


def _raw_only(figures: Result) -> Result:
    """Leave out filtered figures.

    Without known edges they would be equal to the raw ones, and were not asked for.
    """
    return {
        name: _raw_only(value) if isinstance(value, dict) else value
        for name, value in figures.items()
        if name != "filtered"
    }


def _joined(first: EdgeList, second: EdgeList) -> EdgeList:
    lhs, rhs, rel = joined_columns((first, second), ("lhs", "rhs", "rel"))
    return EdgeList(lhs, rhs, rel)


def _against_config(run: DirectoryRun, scratch: Path, threads: int, seed: int) -> Result:
    """Rank as PBG's own evaluation does, against the config's negatives.

    It goes batch by batch; ``sampled`` has PBG's metrics by name. An edge without any negative on a side has rank 1
    there; ``without_negatives`` has the number of such ranks.
    """
    own = {
        "eval_num_batch_negs": run.config.num_batch_negs,
        "eval_num_uniform_negs": run.config.num_uniform_negs,
    }
    config = run.config.model_copy(update=own)
    start = StartingPoint(config, run.entities.counts, run.files, grows=False, seed=seed, scratch=scratch, trains=False)
    engine = TorchEngine(config, run.entities.relation_count, workers=threads)
    state = start.model(ModelState(*engine.parameters()))
    if state is not None:
        engine.load_parameters(state.params, state.sums)
    buffer = PartitionBuffer(config, start, PartitionFiles(config, scratch), keep=False)
    pieces: dict[Bucket, list[EdgeList]] = {}
    for bucket, piece in run.edges(*config.edge_paths):
        pieces.setdefault(Bucket(*bucket), []).append(piece)
    total = sum(len(piece) for listed in pieces.values() for piece in listed)
    if not total:
        raise InputError(f"{', '.join(config.edge_paths)}: hold no edges, so there is nothing to evaluate")
    order = bucket_order("inside_out", config.partitions("lhs"), config.partitions("rhs"), seed=str(seed))
    parts = []
    buffer.begin(order, [], Stamp(0, _NOTHING_DONE))
    with buffer.io, Progress("evaluate", total=total) as progress:
        for bucket in order:
            lhs, rhs = buffer.swap_to(bucket)
            for number, piece in enumerate(pieces[bucket]):
                generator = seeded(seed, "evaluation", number, *bucket)
                parts.append(engine.evaluate(piece, lhs, rhs, generator=generator))
                progress.advance(len(piece))
            del lhs, rhs  # given back: the buffer may let go of them
    if alone := engine.ranked_alone:
        say(
            f"warning: {counted(alone, 'rank')} had no negative, for no other edge is in the chunk and none is drawn: "
            "such a rank is 1, as in PBG, which raises MRR and Hits; set num_uniform_negs, or leave out --negatives "
            "config"
        )
    sampled = EvalStats.mean(parts).to_json()["metrics"]
    return {"edges": total, "without_negatives": alone, "sampled": {**sampled}}
