"""A training as one value: its config, sizes, edges and start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pbg_tasks.config.results import EarlyStopped, MemoryDocument, TrainFindings
from pbg_tasks.formats.directory import config_bytes
from pbg_tasks.memory.machine import check_fits, forget_peak, peak_bytes, resident_bytes, usable_cpus
from pbg_tasks.memory.training import TrainingSize, serving_forecast, training_forecast
from pbg_tasks.model.families import Families
from pbg_tasks.progress import say
from pbg_tasks.storage import is_remote
from pbg_tasks.storage.names import join
from pbg_tasks.training.data.initial import open_given, open_initial
from pbg_tasks.training.data.partitions import Layout, counts_by_type
from pbg_tasks.training.edge_chunks import EdgeChunkTrainer
from pbg_tasks.training.engine.choice import engine_name, make_engine, on_gpu
from pbg_tasks.training.engine.self_negatives import relations_with_loops
from pbg_tasks.training.environment import number_of
from pbg_tasks.training.iteration_plan import IterationPlan
from pbg_tasks.training.iterations import chunk_count
from pbg_tasks.training.local_work import LocalWork
from pbg_tasks.training.loop import train_iterations
from pbg_tasks.training.schedule import grid
from pbg_tasks.training.starting_point import StartingPoint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pbg_tasks.checkpoint import CheckpointFiles, CheckpointWriter, VerifiedFiles
    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.config.graph import DeviceName, EngineName, Shrink
    from pbg_tasks.memory.forecast import Forecast
    from pbg_tasks.memory.gang import GangPart
    from pbg_tasks.storage import Store
    from pbg_tasks.tasks.training.eviction import Notice
    from pbg_tasks.training.commits import Commits
    from pbg_tasks.training.data.edge_files import EdgeFiles
    from pbg_tasks.training.data.partitions import PartitionKey
    from pbg_tasks.training.early_stopping import EarlyStopping
    from pbg_tasks.training.engine.anchor import Anchor
    from pbg_tasks.training.engine.base import Engine
    from pbg_tasks.training.engine.device import Host


_LOCAL_PROCESSES = "LOCAL_WORLD_SIZE"  # of a gang on this machine: our launcher and torchrun set it


@dataclass(frozen=True, slots=True)
class Job:
    """A training, wherever its files are stored.

    Attributes:
        config: PBG's config, paths included.
        counts: entities (or features) of each partition.
        relation_count: relations in the data.
        edges: of every edge path.
        names: gives a partition's names by offset; called only when vectors come by name.
        warm_start: release to start from, when nothing is committed yet.
        newcomers: start rows of entities that the release lacks; rows that these files lack start at random.
        anchor: draws known entities to their vectors of the night before, on every try.
        shrink: factors for the rows of the release and the newcomers.
        early_stopping: ends the training before its last epoch; None: all epochs are trained.
        all_edges: of the train split, where ``edges`` are some of them; None: they are all.
        seed: of every random choice.
        engine: that computes.
        device: where it does.
        weighted: whether edges have weights.
        ignore_memory: train even if the forecast exceeds the memory.
    """

    config: ConfigSchema
    counts: Mapping[PartitionKey, int]
    relation_count: int
    edges: EdgeFiles
    names: Callable[[PartitionKey], list[str]]
    warm_start: VerifiedFiles | None
    seed: int
    engine: EngineName = "auto"
    device: DeviceName = "cpu"
    weighted: bool = False
    ignore_memory: bool = False
    newcomers: VerifiedFiles | None = None
    anchor: Anchor | None = None
    shrink: Shrink | None = None
    all_edges: EdgeFiles | None = None
    early_stopping: EarlyStopping | None = None

    def run(self, writer: CheckpointWriter, scratch: Path, notice: Notice) -> TrainFindings:
        """Train to the end in this process and return the figures.

        Args:
            writer: of the checkpoint.
            scratch: local directory.
            notice: reaction to SIGTERM.

        Raises:
            ResourceError: it would need more memory than there is.
            EvictedError: SIGTERM came.
        """
        forecast, engine = self.prepare(writer.store)
        iteration_plan = self.iteration_plan()
        work = LocalWork(
            self.config,
            engine=engine,
            edges=self.edges,
            start=self.start(writer.files, scratch),
            writer=writer,
            iteration_plan=iteration_plan,
            scratch=scratch,
            anchor=self.anchor,
            stopping=notice.member.stopping,
        )
        self.write_config(writer)
        with notice.gently():
            train_iterations(iteration_plan.plan[writer.version :], work, self.trainer(engine))
        return self.findings(writer, engine, forecast, work.commits)

    def trainer(self, engine: Engine) -> EdgeChunkTrainer:
        """Return the trainer of an edge chunk."""
        return EdgeChunkTrainer(self.config, engine, self.seed, self.early_stopping)

    def iteration_plan(self) -> IterationPlan:
        """Return the iterations of the training."""
        return IterationPlan(self.config, self.edges, seed=self.seed, early_stopping=self.early_stopping)

    def prepare(self, store: Store, gang: GangPart | None = None, *, rank: int = 0) -> tuple[Forecast, Engine]:
        """Return what memory the training will take, and the engine.

        Args:
            store: of the checkpoint.
            gang: partitions of this process as one of several ranks; None: it trains alone.
            rank: of this process; rank 0 stores which relations have loops, so it reads the edges for them in any case.

        Raises:
            ResourceError: it would need more memory than there is.
        """
        return self.check_memory(store, gang), self.make_engine(rank)

    def check_memory(self, store: Store, gang: GangPart | None, *, devices: int = 1) -> Forecast:
        """Return what memory the training will take.

        Args:
            store: of the checkpoint.
            gang: as of ``prepare``.
            devices: number of devices of this process that train side by side.

        Raises:
            ResourceError: it would need more memory than there is.
        """
        forecast = self.forecast(remote=is_remote(store.url), gang=gang, devices=devices)
        self._check_fits(forecast, gang)
        return forecast

    def make_engine(self, rank: int, place: Host | None = None) -> Engine:
        """Return the engine of a rank.

        Args:
            rank: as of ``prepare``.
            place: the device; None: found by its name.
        """
        loops = None
        if rank == 0 or self.config.self_negatives:
            families = Families(self.config, self.relation_count)
            loops = relations_with_loops(self.config, families, self.all_edges or self.edges)
        return make_engine(
            self.engine,
            self.config,
            self.relation_count,
            workers=self._workers,
            device=self.device,
            loops=loops,
            place=place,
        )

    def prepare_server(self, store: Store, gang: GangPart) -> None:
        """Check that there is memory for a process that serves partitions.

        Such a process does not train.

        Raises:
            ResourceError: it would need more than there is.
        """
        base, remote = resident_bytes(), is_remote(store.url)
        self._check_fits(serving_forecast(self.config, self._counts, gang, base=base, remote=remote), gang)

    def _check_fits(self, forecast: Forecast, gang: GangPart | None) -> None:
        # Equal shares would be wrong where some processes keep partitions for all others.
        equal = gang is not None and self.config.num_partition_servers <= 0
        together = number_of(_LOCAL_PROCESSES) or 1 if equal else 1
        check_fits(forecast, ignore=self.ignore_memory, processes=together)
        forget_peak()

    def is_cold(self, writer: CheckpointWriter) -> bool:
        """Whether every vector starts at random."""
        return not writer.files.names and self.warm_start is None and self.config.init_path is None

    def write_config(self, writer: CheckpointWriter) -> None:
        """Write PBG's ``config.json`` into the checkpoint directory."""
        writer.store.put(join(writer.prefix, "config.json"), config_bytes(self.config))

    def findings(self, writer: CheckpointWriter, engine: Engine, forecast: Forecast, commits: Commits) -> TrainFindings:
        """Return the figures of a training that has come to its end.

        Args:
            writer: of its checkpoint.
            engine: that computed.
            forecast: of its memory.
            commits: of the training.
        """
        figures, curve = commits.figures, commits.stats.losses()
        edges, seconds = sum(figure.edges for figure in figures), sum(figure.seconds for figure in figures)
        found = TrainFindings(
            version=writer.version,
            resumed_from=writer.resumed_from,
            epochs=self._finished_epochs(writer),
            warm_start=self.warm_start is not None,
            engine=engine.name,
            device=engine.place.device.type,
            workers=engine.workers,
            loss=curve[-1] if curve else None,
            edges_trained=sum(writer.manifest.edges) if writer.manifest else 0,
            edges_retrained=sum(writer.manifest.retrained) if writer.manifest else 0,
            edges_per_second=round(edges / seconds) if edges else None,
            curve=curve,
            memory=MemoryDocument.model_validate({"measured_peak": peak_bytes(), **forecast.to_json()}),
        )
        if self.early_stopping is not None:
            report = EarlyStopped.model_validate(self.early_stopping.report(writer.manifest, self.config.num_epochs))
            say(f"early stopping: {report.reason}")
            found = found.model_copy(update={"early_stopping": report})
        held_out = figures[-1].held_out if figures else None
        return found if held_out is None else found.model_copy(update={"held_out": held_out.to_json()})

    def _finished_epochs(self, writer: CheckpointWriter) -> int:
        """Return the trained epochs, which a lowered num_epochs does not undo."""
        manifest = writer.manifest
        if manifest is None:
            return self.config.num_epochs
        if self.early_stopping is not None and self.early_stopping.stops(manifest):
            return len(manifest.valid)
        last = manifest.iteration
        before = last.number // (last.num_edge_paths * last.num_edge_chunks) if last is not None else 0
        return max(before, self.config.num_epochs)

    def forecast(self, *, remote: bool = False, gang: GangPart | None = None, devices: int = 1) -> Forecast:
        """Forecast the memory of the training, beside what this process has now.

        Args:
            remote: whether the checkpoint is on S3.
            gang: partitions of this process as one of several ranks; None: it trains alone.
            devices: number of devices of this process that train side by side.
        """
        config = self.config
        buckets = grid(config.partitions("lhs"), config.partitions("rhs"))
        sizes = [self.edges.count(path, bucket) for path in range(len(config.edge_paths)) for bucket in buckets]
        chunks = chunk_count(config, max(sizes))
        edges = -(-max(sizes) // chunks) * devices
        looks_ahead = gang is None or config.partitions_ahead  # otherwise a rank learns of one bucket at a time
        size = TrainingSize(
            config=config,
            counts=self._counts,
            relation_count=self.relation_count,
            held=Layout(config).capacity() if gang is None else gang.trained,
            edges=edges,
            ahead=edges if len(sizes) * chunks > 1 and looks_ahead else 0,
            workers=self._workers,
            engine=engine_name(self.engine, self.config, self.device)[0],
            weighted=self.weighted,
            remote=remote,
            gang=gang,
            ranked=0 if self.early_stopping is None else self.early_stopping.of_bucket,
        )
        return training_forecast(size, base=resident_bytes())

    @property
    def _counts(self) -> dict[str, list[int]]:
        """Entities (or features) of each partition, by type."""
        return counts_by_type(self.counts, self.config)

    @property
    def _workers(self) -> int:
        return 1 if on_gpu(self.device, self.config, self.engine) else self.config.workers or usable_cpus()

    def start(self, files: CheckpointFiles | None, scratch: Path) -> StartingPoint:
        """Return where a training goes on, or begins.

        Args:
            files: of the checkpoint's newest version, if it has one.
            scratch: local directory for downloads.
        """
        committed = files if files is not None and files.names else None
        initial, given = None, None
        if (files is None or not files.version) and self.warm_start is None:
            initial = open_initial(self.config, scratch, self.names)
        elif committed is None:
            given = open_given(self.config, scratch, self.names)
        return StartingPoint(
            self.config,
            self.counts,
            committed or self.warm_start,
            grows=committed is None,
            seed=self.seed,
            scratch=scratch,
            initial=initial,
            newcomers=self.newcomers if committed is None else None,
            given=given,
            shrink=self.shrink if committed is None else None,
        )
