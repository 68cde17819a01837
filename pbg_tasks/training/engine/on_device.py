"""The torch engine on another device than the CPU.

In the loop the host never waits for the device, which draws its negatives, too. The same seed gives the same order as
on the CPU. A GPU's negatives are others than the CPU's, and the same each time.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from subprocess import SubprocessError
from typing import TYPE_CHECKING

import numpy as np
import torch

from pbg_tasks.errors import ConfigError
from pbg_tasks.model.registry import operator
from pbg_tasks.model.relations import Groups
from pbg_tasks.progress import say
from pbg_tasks.training.engine import fixed_shapes
from pbg_tasks.training.engine.batching import Batch
from pbg_tasks.training.engine.cuda_graphs import CudaRecorder, Graphs
from pbg_tasks.training.engine.fixed_shapes import adagrad
from pbg_tasks.training.engine.lookup import Bags, Single
from pbg_tasks.training.engine.on_torch import TorchEngine, by_parameter
from pbg_tasks.training.engine.step import Step
from pbg_tasks.training.engine.workspace import Workspace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from torch import Tensor

    from pbg_tasks.config import ModelConfig
    from pbg_tasks.formats.edges import EdgeList, Features
    from pbg_tasks.model.families import Families
    from pbg_tasks.model.parameters import Side
    from pbg_tasks.training.data.tables import Table
    from pbg_tasks.training.engine.batching import EdgeSource
    from pbg_tasks.training.engine.cuda_graphs import Inputs, Recorder
    from pbg_tasks.training.engine.device import Host
    from pbg_tasks.training.engine.lookup import Lookup
    from pbg_tasks.training.engine.pace import Limits, Pace
    from pbg_tasks.training.engine.step import Figures, Observer, StepInput
    from pbg_tasks.training.engine.step_counters import StepCounters


class DeviceEngine(TorchEngine):
    """Engine on torch and an accelerator, with one worker.

    Args:
        config: the model.
        relation_count: number of relations in the data, for a config that does not list them.
        place: the device.
        loops: as in ``Engine``.
        record: makes a recorder of steps that draw from a generator; None: CUDA graphs on a CUDA device, no recording
            on others.

    Raises:
        ConfigError: ``mask_known_negatives`` is on, which needs a search on the host, or gradients are sampled, which
            this device's products of whole matrices cannot use.
    """

    def __init__(
        self,
        config: ModelConfig,
        relation_count: int,
        *,
        place: Host,
        loops: np.ndarray | None = None,
        record: Callable[[torch.Generator], Recorder] | None = None,
    ) -> None:
        if config.mask_known_negatives:
            raise ConfigError("mask_known_negatives: true is for the CPU; set device to cpu (and num_gpus to 0)")
        if config.gradient == "sampled":
            raise ConfigError("gradient: sampled is for the CPU; set gradient to dense, or device to cpu")
        super().__init__(config, relation_count, place=place, loops=loops)
        cuda = place.device.type == "cuda"
        self._record = CudaRecorder if record is None and cuda else record
        self._graphs: Graphs | None = None
        self._optimizers = _kernels() if cuda else fixed_shapes
        self._rates = torch.zeros(2, dtype=torch.float64, device=place.device)

    def _edge_source(self, edges: EdgeList, order: np.ndarray, config: ModelConfig, families: Families) -> EdgeSource:
        return MovedEdges(edges, order, config, families, self.place)

    def _train(
        self,
        edges: EdgeList,
        lhs: Mapping[str, Table],
        rhs: Mapping[str, Table],
        counters: StepCounters,
        generator: torch.Generator,
        pace: Pace,
        limits: Limits,
    ) -> torch.Generator:
        if self.place.device.type == "cuda":  # a setting of the process, in which other engines may train, too
            tf32 = self.config.product_precision == "tf32"
            torch.backends.cuda.matmul.fp32_precision = "tf32" if tf32 else "ieee"
        try:
            return super()._train(edges, lhs, rhs, counters, generator, pace, limits)
        finally:
            self._graphs = None

    def _step(self, given: StepInput) -> Figures:
        """Train one batch."""
        batch, tables = given.batch, given.tables
        observe = given.observe
        workspace = self._workspaces[given.worker]
        for index, lr in enumerate(self._learning_rates(*given.rates)):
            self._rates[index].fill_(lr)

        def compute(batch: Batch, workspace: Workspace) -> Figures:
            drawn = self._draw(self.config, batch, tables, given.sampler)
            return self._compute(batch, drawn, tables, workspace, observe)

        if self._record is None or observe is not None or not _constant(batch):
            return compute(batch, workspace)
        if self._graphs is None:
            self._graphs = Graphs(self._record(given.sampler.generator))
        kind = batch.family, batch.relation
        recorded = self._graphs.run(kind, _inputs(batch), lambda inputs: compute(_rebuilt(batch, inputs), Workspace()))
        return compute(batch, workspace) if recorded is None else recorded

    def _compute(
        self,
        batch: Batch,
        drawn: Mapping[Side, Tensor],
        tables: Mapping[Side, Table],
        workspace: Workspace,
        observe: Observer | None = None,
    ) -> Figures:
        """Compute a step all of whose numbers are on the device."""
        selves = self.selves.of(batch, tables)
        step = Step(self._trained, batch, tables, drawn, workspace, observe, selves=selves)
        lr, relation_lr = self._rates.unbind()
        for grads in step.row_grads:
            self._optimizers.row_adagrad(grads.table, grads.rows_M, grads.grads_MD, lr)
        for path, grad, rows_M in by_parameter(step.param_grads):
            values, sums = self.shared.values[path], self.shared.sums[path]
            if rows_M is None:
                adagrad(values, sums, grad, relation_lr)
            else:
                self._optimizers.adagrad_rows(values, sums, rows_M, grad, relation_lr)
        return step.figures


def _kernels() -> ModuleType:
    """Return the optimizers of CUDA devices.

    They are kernels where Triton is installed, as it is with torch for Linux, and can compile what starts them.
    """
    if find_spec("triton") is None:
        return fixed_shapes
    from pbg_tasks.training.engine import row_kernels

    try:
        row_kernels.compile_driver()
    except (AssertionError, ImportError, OSError, RuntimeError, SubprocessError) as error:
        say(
            "warning: rows are not stepped by Triton's kernels, which are faster: it takes a C compiler (gcc, clang or "
            f"CC), Python.h and a folder that can be written (TRITON_CACHE_DIR, else ~/.triton): {error!r}"
        )
        return fixed_shapes
    return row_kernels


def _constant(batch: Batch) -> bool:
    """Return whether a step's shapes follow from those of its inputs.

    They do not with bags or groups of rows.
    """
    return isinstance(batch.lhs, Single) and isinstance(batch.rhs, Single) and batch.groups is None


def _inputs(batch: Batch) -> dict[str, Tensor]:
    """Return the tensors that differ between batches of one kind."""
    found = {"lhs": batch.lhs.rows_M, "rhs": batch.rhs.rows_M, "rel": batch.rel, "weight": batch.weight}
    return {name: value for name, value in found.items() if value is not None}


def _rebuilt(batch: Batch, inputs: Inputs) -> Batch:
    """Return a batch made of other inputs."""
    return replace(
        batch, lhs=Single(inputs["lhs"]), rhs=Single(inputs["rhs"]), rel=inputs.get("rel"), weight=inputs.get("weight")
    )


class MovedEdges:
    """Batches of edges that are moved to a device at once.

    They are moved in the training order, so that batches are slices.

    The features of entities and the groups of equal relations of a batch are prepared on the host, batch by batch,
    because asking the device for their sizes would make the host wait.

    Args:
        edges: of the bucket.
        order: int64, the training order.
        config: the model.
        families: families of the relations.
        place: the device.
    """

    def __init__(
        self, edges: EdgeList, order: np.ndarray, config: ModelConfig, families: Families, place: Host
    ) -> None:
        self._edges, self._order = edges, order
        self._config, self._families = config, families
        self._place = place
        there = place.put(torch.from_numpy(order))
        self._lhs, self._rhs = (place.put(_tensor(column)).index_select(0, there) for column in (edges.lhs, edges.rhs))
        self._weight = None if edges.weight is None else place.put(_tensor(edges.weight)).index_select(0, there)
        self._rel = None
        if any(map(config.has_two_operators, config.relations)):
            self._rel = place.put(torch.from_numpy(families.row[edges.rel])).index_select(0, there)

    def batch(self, kind: int, edge_chunk: slice) -> Batch:
        """Return the batch of a slice of edges, all of one kind."""
        relation, entities = self._config.relations[kind], self._config.entities
        return Batch(
            self._ends(self._lhs, self._edges.lhs_features, edge_chunk, featurized=entities[relation.lhs].featurized),
            self._ends(self._rhs, self._edges.rhs_features, edge_chunk, featurized=entities[relation.rhs].featurized),
            int(self._families.first[kind]),
            self._rel[edge_chunk] if self._rel is not None and self._config.has_two_operators(relation) else None,
            None if self._weight is None else self._weight[edge_chunk],
            like=kind,
            groups=self._groups(edge_chunk) if operator(relation.operator).matrices else None,
        )

    def _ends(self, ids: torch.Tensor, features: Features | None, edge_chunk: slice, *, featurized: bool) -> Lookup:
        if not featurized or features is None:
            return Single(ids[edge_chunk])
        chosen = features.select(self._order[edge_chunk])
        return Bags(*(self._place.put(torch.from_numpy(part)) for part in (chosen.offsets, chosen.data)))

    def _groups(self, edge_chunk: slice) -> Groups | None:
        if self._rel is None:
            return None
        groups = Groups.of(torch.from_numpy(self._families.row[self._edges.rel[self._order[edge_chunk]]]))
        return groups.moved(self._place.put)


def _tensor(column: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.require(column, requirements=["C", "W"]))
