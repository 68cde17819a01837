"""``engine=native``: the same step in C++ (``pbg_tasks/native``).

The step is fused and vectorised, and reads and writes tables in place.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import TYPE_CHECKING

import torch

from pbg_tasks.errors import ConfigError, ResourceError
from pbg_tasks.memory.parameters import operator_size
from pbg_tasks.model.negatives import chunk_plan, draw_negatives
from pbg_tasks.model.parameters import SIDES, global_path, operator_path
from pbg_tasks.model.registry import operator, parameter_names, regularizer
from pbg_tasks.native import abi, library
from pbg_tasks.native.coverage import left_to_torch
from pbg_tasks.training.engine.base import Engine
from pbg_tasks.training.engine.step import Figures
from pbg_tasks.training.engine.step_counters import CHECK_EVERY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy as np
    from torch import Tensor

    from pbg_tasks.config import ModelConfig, RelationSchema
    from pbg_tasks.model.parameters import Side
    from pbg_tasks.training.data.tables import Table
    from pbg_tasks.training.engine.step import StepInput


_OPERATIONS = 4_000_000_000
"""Operations of the products of batches that are trained as one."""
_DRAWN = 1 << 17
"""Negatives that are drawn on a side for the batches of one call: 4 MiB of both sides, while they are joined."""


class NativeEngine(Engine):
    """Engine on the native library, in float32 on the CPU.

    Raises:
        ConfigError: the config needs what this engine does not compute.
        ResourceError: the library is not installed, or this CPU lacks an instruction that the config needs.
    """

    name = "native"

    def __init__(
        self, config: ModelConfig, relation_count: int, *, workers: int = 1, loops: np.ndarray | None = None
    ) -> None:
        loaded, left = library(), list(left_to_torch(config))
        if loaded is None:
            raise ResourceError(
                "engine native: this installation has no native library, because no C++ compiler that could build it "
                "(GCC 12 or newer, or clang) was found; install one and the package again, or use engine torch"
            )
        if left:
            fault = ConfigError if any(left_to_torch(config, here=False)) else ResourceError  # another CPU may have it
            raise fault(f"engine native: left to engine torch: {'; '.join(left)}; set engine: auto or torch")
        super().__init__(config, relation_count, workers=workers, loops=loops)
        self._library, self._several = loaded, _several(config)
        self._memories = [_new_workspace(loaded) for _ in range(workers)]
        for memory in self._memories:
            weakref.finalize(self, loaded.pbg_workspace_free, memory)

    def _step(self, given: StepInput) -> Figures:
        """Train a batch, or several that were made as one.

        Raises:
            ResourceError: there is no memory for the gradients.
        """
        call, observe = _Call(self, given), given.observe  # no known edges: mask_known_negatives is left to torch
        shown = call.show_scores() if observe is not None else None
        if self._library.pbg_train_steps(ctypes.byref(call.step), self._memories[given.worker]):
            raise ResourceError("engine native: no memory for the gradients of a batch; try a smaller batch_size")
        if observe is not None and shown is not None:
            for side in SIDES:
                observe(side, *shown[side])
        return Figures(*(call.figures_K4 if len(given.rates) > 1 else call.figures_K4[0]).unbind(-1))


class _Call:
    """Arguments of K steps, with references to their memory.

    Attributes:
        step: the argument of the library.
        figures_K4: float64, the results.
    """

    def __init__(self, engine: NativeEngine, given: StepInput) -> None:
        config, batch = engine.config, given.batch
        tables, steps = given.tables, len(given.rates)
        self._batch, self._relation = batch, config.relations[batch.relation]
        self._plan = plan = chunk_plan(config, self._relation, len(batch) // steps)
        self._config, self._shared = config, engine.shared
        self._two_operators = config.has_two_operators(self._relation)
        entities = {side: len(table) for side, table in tables.items()}
        drawn: dict[Side, list[Tensor]] = {}
        keys: list[int] = []
        for _ in range(steps):
            for side, offsets in draw_negatives(config, self._relation, plan, entities, given.sampler).items():
                drawn.setdefault(side, []).append(offsets)
            if config.has_random_steps:
                keys.append(given.sampler.key())
        self._drawn = {side: parts[0] if steps == 1 else torch.cat(parts) for side, parts in drawn.items()}
        self._kept: list[Tensor] = []
        self.figures_K4 = torch.empty(steps, 4, dtype=torch.float64)
        self.step = abi.Step(
            relation_operator=abi.OPERATORS.index(self._relation.operator),
            comparator=abi.COMPARATORS.index(config.comparator),
            loss_fn=abi.LOSSES.index(config.loss_fn),
            regularizer=abi.REGULARIZERS[config.regularizer] if config.regularization_coef else abi.NO_PENALTY,
            dynamic=self._two_operators,
            bias=config.bias,
            half=config.product_precision == "bf16",
            sampled=config.gradient == "sampled",
            sampled_variance=config.gradient_variance,
            margin=config.margin,
            max_norm=config.max_norm or 0.0,
            coefficient=config.regularization_coef,
            lr=config.lr,
            relation_lr=config.lr if config.relation_lr is None else config.relation_lr,
            weights_of_sides=self._relation.side_weights,
            times=regularizer(config.regularizer).times(
                operator(self._relation.operator), edges=plan.edges, chunks=plan.chunks
            ),
            dimension=config.entity_dimension(self._relation.lhs),
            edges=plan.edges,
            chunk=self._chunk(),
            own=plan.kind == "batch_uniform",
            relations=None if batch.rel is None else self._pointer(batch.rel, torch.int64),
            weights=None if batch.weight is None else self._pointer(batch.weight, torch.float32),
            steps=steps,
            rates=self._pointer(torch.tensor(given.rates, dtype=torch.float64), torch.float64),
            keys=self._pointer(torch.tensor(keys), torch.int64) if keys else None,
            figures=self._pointer(self.figures_K4, torch.float64),
        )
        selves = engine.selves.of(batch, tables)
        self._alone = int(selves is not None)
        if selves is not None:
            self.step.selves = self._pointer(selves, torch.bool)
        self._add_sides(tables)

    def _chunk(self) -> int:
        if self._plan.kind != "all":
            return self._plan.size
        return abi.compared_with_all(self._relation.operator, self._plan.edges, dynamic=self._two_operators)

    def _pointer(self, tensor: Tensor, dtype: torch.dtype) -> int:
        """Return the address of a tensor, which this object keeps alive."""
        if tensor.dtype != dtype or tensor.device.type != "cpu":
            raise TypeError(f"a tensor of {tensor.dtype} on {tensor.device} where the library needs {dtype} on the CPU")
        tensor = tensor.contiguous()
        self._kept.append(tensor)
        return tensor.data_ptr()

    def _in_place(self, tensor: Tensor, dtype: torch.dtype = torch.float32) -> int:
        """Return the address of numbers that the library changes."""
        if not tensor.is_contiguous():
            raise TypeError("a tensor that is trained in place has to be contiguous")
        return self._pointer(tensor, dtype)

    def _add_sides(self, tables: Mapping[Side, Table]) -> None:
        same = tables["lhs"] is tables["rhs"]
        types: dict[Side, str] = {"lhs": self._relation.lhs, "rhs": self._relation.rhs}
        ends = {"lhs": self._batch.lhs, "rhs": self._batch.rhs}
        disabled = {"lhs": self._config.disable_lhs_negs, "rhs": self._config.disable_rhs_negs}
        for index, side in enumerate(SIDES):
            if index and same:
                self.step.tables[index] = self.step.tables[0]
            else:
                self.step.tables[index] = ctypes.pointer(self._table(types[side], tables[side]))
            self.step.ends[index] = self._pointer(ends[side].rows_M, torch.int64)
            self.step.corrupted[index] = not disabled[side]
            if side in self._drawn:
                self.step.drawn[index] = self._pointer(self._drawn[side], torch.int64)
                self.step.drawn_per_chunk[index] = len(self._drawn[side]) // (self._plan.chunks * self.step.steps)
                self.step.all[index] = self._plan.kind == "all"
            if side == "rhs" or self._two_operators:
                for number, parameter in enumerate(self._parameters(side)):
                    self.step.parameters[index][number] = parameter

    def _table(self, entity: str, table: Table) -> abi.Table:
        found = abi.Table(
            rows=None if table.narrow else self._in_place(table.embeddings),
            halves=self._in_place(table.embeddings, torch.bfloat16) if table.narrow else None,
            sums=self._in_place(table.row_sums),
            count=len(table),
            trainable=self._config.entities[entity].trainable,
        )
        if self._config.global_emb:
            path = global_path(entity)
            found.shared = self._in_place(self._shared.values[path])
            found.shared_sums = self._in_place(self._shared.sums[path])
        return found

    def _parameters(self, side: Side) -> Iterator[abi.Parameter]:
        name, dynamic = self._relation.operator, self._two_operators
        for own_name in parameter_names(name, self._config.entity_dimension(self._relation.lhs)):
            stored = operator(name).stacked_name(own_name) if dynamic else own_name
            path = operator_path(self._batch.family, side, stored)
            values, count = self._shared.values[path], len(self._shared.values[path]) if dynamic else 1
            yield abi.Parameter(
                values=self._in_place(values),
                sums=self._in_place(self._shared.sums[path]),
                relations=count,
                size=values.numel() // max(count, 1),
            )

    def show_scores(self) -> dict[Side, tuple[Tensor, Tensor]]:
        """Have the library write the scores, and return their tensors.

        Returns:
            Scores (B,) of edges and (B, K) of negatives, by side.
        """
        shown: dict[Side, tuple[Tensor, Tensor]] = {}
        for index, side in enumerate(SIDES):
            own = self._plan.size if self._plan.kind == "batch_uniform" and self.step.corrupted[index] else 0
            alone = self._alone if self.step.corrupted[index] else 0
            positive_B = torch.empty(len(self._batch))
            negative_BK = torch.empty(len(self._batch), own + self.step.drawn_per_chunk[index] + alone)
            self.step.positive[index] = self._in_place(positive_B)
            self.step.negative[index] = self._in_place(negative_BK)
            shown[side] = positive_B, negative_BK
        return shown


def _several(config: ModelConfig) -> int:
    """Return the number of batches to train as one.

    By their products they take a tenth of a second at most, for which a training that is asked to stop goes on. The
    negatives of all are drawn before the first, so their memory is limited, too.
    """
    if any(relation.all_negs for relation in config.relations):
        return 1
    longest = max(_operations(config, relation) for relation in config.relations)
    plan = chunk_plan(config, config.relations[0], config.batch_size)  # the same for all
    return max(1, min(CHECK_EVERY, _OPERATIONS // longest, _DRAWN // max(1, plan.chunks * plan.uniform)))


def _operations(config: ModelConfig, relation: RelationSchema) -> int:
    """Return the operations of a batch's products, gradients included."""
    plan, dimension = chunk_plan(config, relation, config.batch_size), config.entity_dimension(relation.lhs)
    pairs = 2 * plan.edges * (config.num_batch_negs + config.num_uniform_negs)
    applied = 2 * plan.edges if config.has_two_operators(relation) else plan.edges + plan.chunks * plan.uniform
    return 6 * (pairs * dimension + applied * operator_size(relation.operator, dimension))


def _new_workspace(loaded: ctypes.CDLL) -> int:
    memory: int | None = loaded.pbg_workspace_new()
    if memory is None:
        raise ResourceError("engine native: no memory")
    return memory
