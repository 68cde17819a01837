"""A piece of a bucket is trained, and its held-out edges ranked before and after."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pbg_tasks.errors import FormatError, TrainingDivergedError
from pbg_tasks.formats.directory import BucketStats
from pbg_tasks.formats.edges import edge_file_name
from pbg_tasks.train.engine import NOTHING, Pace, Position
from pbg_tasks.train.held_out import split_off
from pbg_tasks.train.rates import rate_factor
from pbg_tasks.train.source import seeded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pbg_tasks.checkpoint import Iteration
    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.formats.directory import EvalStats
    from pbg_tasks.formats.edges import EdgeList
    from pbg_tasks.train.edge_files import Piece
    from pbg_tasks.train.engine import Engine
    from pbg_tasks.train.tables import Table


class _StoppedError(Exception):
    """An evaluation was stopped before its end."""


class PieceResult(NamedTuple):
    """What training a piece showed.

    Attributes:
        stats: of the edges trained now.
        before: figures of the held-out edges before; None without any, or where the piece was begun earlier.
        after: figures of the held-out edges after; None without any, or where the piece was not finished.
        held_out: edges held out.
        stopped: how far it came, where it was stopped before its end.
    """

    stats: BucketStats
    before: EvalStats | None
    after: EvalStats | None
    held_out: int
    stopped: Position | None = None

    @property
    def accounted(self) -> int:
        """Edges that were trained or held out."""
        return self.stats.count + (0 if self.stopped else self.held_out)


@dataclass(frozen=True, slots=True)
class PieceTrainer:
    """Trains pieces.

    Attributes:
        config: PBG's config.
        engine: that computes.
        seed: of the run.
    """

    config: ConfigSchema
    engine: Engine
    seed: int

    def train(
        self,
        iteration: Iteration,
        piece: Piece,
        edges: EdgeList,
        lhs: Mapping[str, Table],
        rhs: Mapping[str, Table],
        *,
        reach: tuple[float, float],
        on_batch: Callable[[int, float], None],
        begun: Position = NOTHING,
        stop: Callable[[], bool] | None = None,
    ) -> PieceResult:
        """Train a piece, or what is left of it.

        Args:
            iteration: it belongs to.
            piece: that is trained.
            edges: all of it.
            lhs: tables of the left-hand side by entity type.
            rhs: of the right-hand side.
            reach: from where to where in the whole training, 0 to 1, the piece takes it.
            on_batch: told, now and then, the number of edges since the last time and their mean loss.
            begun: how far it was trained before.
            stop: asked before each batch, of the evaluations as well, whether to stop here. A piece that was stopped
                in the evaluation after its training is stopped after all of its batches.

        Raises:
            FormatError: an edge names a relation or an entity there is not.
            TrainingDivergedError: the loss or a row is not finite.
        """
        place = (iteration.edge_path_idx, iteration.edge_chunk_idx, *piece.bucket)
        edges, held_out = split_off(edges, self.config.eval_fraction, seeded(self.seed, "held out", *place))

        def check() -> None:
            if stop is not None and stop():
                raise _StoppedError

        def evaluated() -> EvalStats | None:
            generator = seeded(self.seed, "evaluation", *place)
            return self.engine.evaluate(held_out, lhs, rhs, generator=generator, check=check) if len(held_out) else None

        begin, end = reach
        stats, before, reached = BucketStats(0, 0.0, 0.0, 0.0, 0.0), None, begun
        try:
            before = evaluated() if begun == NOTHING else None
            stats, reached = self.engine.train_part(
                edges,
                lhs,
                rhs,
                Pace(
                    rate=lambda share: rate_factor(self.config, begin + (end - begin) * share),
                    delay=self.config.hogwild_delay if iteration.epoch_idx == 0 else 0.0,
                ),
                generator=seeded(self.seed, "bucket", iteration.number, *piece.bucket),
                on_batch=on_batch,
                begun=begun,
                stop=stop,
            )
            if reached.edges < len(edges):
                return PieceResult(stats, before, None, len(held_out), reached)
            return PieceResult(stats, before, evaluated(), len(held_out))
        except _StoppedError:
            return PieceResult(stats, before, None, len(held_out), reached)
        except FormatError as error:
            path = f"{self.config.edge_paths[piece.edge_path_idx]}/{edge_file_name(*piece.bucket)}"
            raise FormatError(f"{path}: {error}") from None
        except TrainingDivergedError as error:
            raise TrainingDivergedError(
                f"epoch {iteration.epoch_idx + 1}, bucket ({piece.bucket.lhs}, {piece.bucket.rhs}): {error}"
            ) from None
