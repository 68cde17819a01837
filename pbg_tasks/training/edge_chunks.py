"""Training of an edge chunk, and its held-out edges before and after."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pbg_tasks.errors import FormatError, TrainingDivergedError
from pbg_tasks.formats.directory import BucketStats
from pbg_tasks.formats.edges import edge_file_name
from pbg_tasks.training.engine.held_out import split_off
from pbg_tasks.training.engine.pace import NOTHING, Pace, Position, rate_factor
from pbg_tasks.training.starting_point import seeded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pbg_tasks.checkpoint import Iteration
    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.formats.directory import EvalStats
    from pbg_tasks.formats.edges import EdgeList
    from pbg_tasks.training.data.edge_files import EdgeChunk
    from pbg_tasks.training.data.tables import Table
    from pbg_tasks.training.early_stopping import EarlyStopping
    from pbg_tasks.training.engine.base import Engine


class _StoppedError(Exception):
    """Stop of an evaluation before its end."""


class EdgeChunkResult(NamedTuple):
    """Result of training an edge chunk.

    Attributes:
        stats: figures of the edges trained now.
        before: figures of the held-out edges before; None without any, or where the edge chunk was begun earlier.
        after: figures of the held-out edges, or of the sample of valid edges, afterwards; None without any, or where
            the edge chunk was not finished.
        held_out: number of held-out edges.
        stopped: the trained part, where training was stopped before its end.
        seconds: that training and ranking took.
    """

    stats: BucketStats
    before: EvalStats | None
    after: EvalStats | None
    held_out: int
    stopped: Position | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class EdgeChunkTrainer:
    """Trainer of edge chunks.

    Attributes:
        config: PBG's config.
        engine: engine of the training.
        seed: seed of the run.
        early_stopping: source of valid edges to rank after the training of an edge chunk; None: there are none.
    """

    config: ConfigSchema
    engine: Engine
    seed: int
    early_stopping: EarlyStopping | None = None

    def train(
        self,
        iteration: Iteration,
        edge_chunk: EdgeChunk,
        edges: EdgeList,
        lhs: Mapping[str, Table],
        rhs: Mapping[str, Table],
        *,
        reach: tuple[float, float],
        on_batch: Callable[[int, float], None],
        begun: Position = NOTHING,
        stop: Callable[[], bool] | None = None,
    ) -> EdgeChunkResult:
        """Train an edge chunk, or the rest of it.

        Args:
            iteration: iteration of the edge chunk.
            edge_chunk: the edge chunk.
            edges: all its edges.
            lhs: tables of the left-hand side by entity type.
            rhs: tables of the right-hand side.
            reach: shares of the whole training, 0 to 1, before and after the edge chunk.
            on_batch: called now and then with the number of edges since the last call and their mean loss.
            begun: the part that was trained before.
            stop: called before each batch, also of the evaluations; True stops here. An edge chunk that is stopped in
                the evaluation after its training is stopped after all of its batches.

        Raises:
            FormatError: an edge names a missing relation or entity.
            TrainingDivergedError: the loss or a row is not finite.
        """
        started = time.monotonic()
        place = (iteration.edge_path_idx, iteration.edge_chunk_idx, *edge_chunk.bucket)
        edges, held_out = split_off(edges, self.config.eval_fraction, seeded(self.seed, "held out", *place))

        def check() -> None:
            if stop is not None and stop():
                raise _StoppedError

        def evaluated(asked: EdgeList = held_out) -> EvalStats | None:
            generator = seeded(self.seed, "evaluation", *place)
            return self.engine.evaluate(asked, lhs, rhs, generator=generator, check=check) if len(asked) else None

        stats = BucketStats(0, 0.0, 0.0, 0.0, 0.0)
        before: EvalStats | None = None

        def result(after: EvalStats | None = None, stopped: Position | None = None) -> EdgeChunkResult:
            return EdgeChunkResult(stats, before, after, len(held_out), stopped, time.monotonic() - started)

        begin, end = reach
        reached = begun
        try:
            before = evaluated() if begun == NOTHING else None
            stats, reached = self.engine.train_bucket(
                edges,
                lhs,
                rhs,
                Pace(
                    rate=lambda share: rate_factor(self.config, begin + (end - begin) * share),
                    delay=self.config.hogwild_delay if iteration.epoch_idx == 0 else 0.0,
                ),
                generator=seeded(self.seed, "bucket", iteration.number, *edge_chunk.bucket),
                on_batch=on_batch,
                begun=begun,
                stop=stop,
            )
            if reached.edges < len(edges):
                return result(stopped=reached)
            valid = None if self.early_stopping is None else self.early_stopping.sample(iteration, edge_chunk.bucket)
            return result(evaluated(held_out if valid is None else valid))
        except _StoppedError:
            return result(stopped=reached)
        except FormatError as error:
            path = f"{self.config.edge_paths[edge_chunk.edge_path_idx]}/{edge_file_name(*edge_chunk.bucket)}"
            raise FormatError(f"{path}: {error}") from None
        except TrainingDivergedError as error:
            raise TrainingDivergedError(
                f"epoch {iteration.epoch_idx + 1}, bucket ({edge_chunk.bucket.lhs}, {edge_chunk.bucket.rhs}): {error}"
            ) from None
