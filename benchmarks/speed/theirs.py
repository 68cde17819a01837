"""PBG's side of every race: torchbiggraph 1.0.0 from PyPI.

It is unpatched, in an environment of its own.

Runs in PBG's environment and knows nothing of this project. Work is given to PBG's own functions; where PBG would start
a pool of processes for a single worker, that worker's function runs here, so that no start-up is counted against it.
"""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Adagrad
from torchbiggraph.batching import call, process_in_batches
from torchbiggraph.checkpoint_manager import CheckpointManager
from torchbiggraph.config import ConfigSchema
from torchbiggraph.converters.export_to_tsv import make_tsv
from torchbiggraph.converters.import_from_tsv import convert_input_data
from torchbiggraph.filtered_eval import FilteredRankingEvaluator
from torchbiggraph.graph_storages import EDGE_STORAGES, ENTITY_STORAGES
from torchbiggraph.model import SimpleEmbedding, make_model
from torchbiggraph.row_adagrad import RowAdagrad
from torchbiggraph.train import Trainer, init_embs, train_and_report_stats
from torchbiggraph.types import Side
from torchbiggraph.util import DummyOptimizer, create_pool, get_async_result, split_almost_equally

if TYPE_CHECKING:
    from collections.abc import Iterator

    Document = dict[str, Any]


def _parsed(document: Document) -> ConfigSchema:
    torch.set_num_threads(1)  # as PBG does in each of its workers
    return ConfigSchema.from_dict(document)


def _model(config: ConfigSchema, embeddings: torch.Tensor) -> Any:  # noqa: ANN401 - PBG has no types
    """Return the model with the embeddings of its entity type.

    It is made in the same way on both sides.
    """
    model = make_model(config)
    model.share_memory()
    (entity,) = config.entities
    weights = torch.nn.Parameter(embeddings)
    for side in Side:
        model.set_embeddings(entity, weights, side)
    return model


class Training:
    """Steps of PBG's trainer over a graph's only bucket.

    The graph has one entity type.

    Args:
        config: PBG's.
        workers: with more than one, PBG's pool of processes shares the bucket.
        device: device of the model; numbers of entities and relations are moved to another one batch by batch.
    """

    def __init__(self, config: Document, workers: int, device: str = "cpu") -> None:
        self._config = _parsed(config)
        (entity,) = self._config.entities
        count = ENTITY_STORAGES.make_instance(self._config.entity_path).load_count(entity, 0)
        embeddings, _ = init_embs(entity, count, self._config.dimension, self._config.init_scale)
        self._model = _model(self._config, embeddings.to(device))
        if device != "cpu":
            _move(self._model, device)
        shared = [value for name, value in self._model.named_parameters() if "_embs." not in name]
        everywhere = Adagrad(shared, lr=self._config.lr) if shared else DummyOptimizer()
        rows = RowAdagrad([self._model.get_embeddings(entity, Side.LHS)], lr=self._config.lr)
        for optimizer in (everywhere, rows):
            optimizer.share_memory()
        self._trainer = Trainer(everywhere, self._config.loss_fn, self._config.margin, self._config.relations)
        if device != "cpu":
            _compute_on(self._trainer.loss_fn, device)
        self._trainer.entity_optimizers[entity, 0] = rows
        self._edges = EDGE_STORAGES.make_instance(self._config.edge_paths[0]).load_edges(0, 0)
        self._workers = workers
        self._pool = create_pool(workers) if workers > 1 else None

    def train(self, edges: int) -> int:
        """Train that many edges, drawn without replacement, and return their number."""
        chosen = torch.randperm(len(self._edges))[:edges]
        parts = [
            partial(
                process_in_batches,
                batch_size=self._config.batch_size,
                model=self._model,
                batch_processor=self._trainer,
                edges=self._edges,
                indices=chosen[part],
            )
            for part in split_almost_equally(len(chosen), num_parts=self._workers)
        ]
        if self._pool is None:
            call(*parts)
        else:
            get_async_result(self._pool.map_async(call, parts), self._pool)
        return len(chosen)


def _move(model: torch.nn.Module, device: str) -> None:
    """Move a model to a GPU.

    PBG 1.0.0 has no trainer for it.
    As in PBG's later one, negatives are drawn there, and numbers that come from the host are moved when they are used.
    """
    model.to(device)
    get = SimpleEmbedding.get
    SimpleEmbedding.get = lambda self, rows: get(self, rows.to(device))
    SimpleEmbedding.sample_entities = lambda self, *shape: self.get(
        torch.randint(self.weight.size(0), shape, device=device)
    )

    def moved(_: torch.nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(each.to(device) if isinstance(each, torch.Tensor) else each for each in given)

    for module in model.modules():
        module.register_forward_pre_hook(moved)


def _compute_on(loss: torch.nn.Module, device: str) -> None:
    """Let a loss make its constants on a device."""
    forward = loss.forward

    def on_device(*given: torch.Tensor) -> Any:  # noqa: ANN401 - PBG has no types
        with torch.device(device):
            return forward(*given)

    loss.forward = on_device


class Epochs:
    """PBG's whole training, an epoch at a time.

    Buckets go in and out, and a checkpoint is written.

    Args:
        config: PBG's, with more epochs than will be asked for.
    """

    def __init__(self, config: Document) -> None:
        parsed = _parsed(config)
        self._buckets = max(entity.num_partitions for entity in parsed.entities.values()) ** 2
        self._trained: Iterator[Any] = train_and_report_stats(parsed)

    def epoch(self) -> int:
        """Train one pass over all buckets; return its edges.

        The checkpoint of the pass before is written in it.
        """
        # It yields with each bucket; the checkpoint is written when the next bucket is requested.
        return sum(next(self._trained)[2].count for _ in range(self._buckets))


class WholeTraining:
    """PBG's whole training as by its command.

    It has its pool of processes even with one worker.

    Args:
        config: PBG's.
    """

    def __init__(self, config: Document) -> None:
        self._config = ConfigSchema.from_dict(config)

    def train(self) -> int:
        """Train from the first bucket to the last checkpoint.

        Returns the edges of all epochs.
        """
        return sum(stats.count for _, _, stats, _ in train_and_report_stats(self._config))


class Evaluation:
    """PBG's filtered ranking of a checkpoint.

    It has one entity type in one partition.

    Args:
        config: PBG's, its edges those to rank.
    """

    def __init__(self, config: Document) -> None:
        self._config = _parsed(config)
        (entity,) = self._config.entities
        checkpoint = CheckpointManager(self._config.checkpoint_path)
        self._model = _model(self._config, checkpoint.read(entity, 0)[0])
        self._model.load_state_dict(checkpoint.read_model()[0], strict=False)
        self._model.eval()

    def rank(self, known: list[str]) -> float:
        """Rank every edge on both sides; return the MRR.

        Candidates are all entities without those known.
        """
        evaluator = FilteredRankingEvaluator(self._config, known)
        edges = EDGE_STORAGES.make_instance(self._config.edge_paths[0]).load_edges(0, 0)
        stats = process_in_batches(self._config.batch_size, self._model, evaluator, edges)
        return float(stats.average().metrics["mrr"])


class Conversion:
    """PBG's importer and exporter.

    Args:
        config: PBG's.
    """

    def __init__(self, config: Document) -> None:
        self._config = _parsed(config)

    def import_tsv(self, files: list[str]) -> int:
        """Convert files of ``lhs rel rhs`` again; return their lines."""
        for directory in (self._config.entity_path, *self._config.edge_paths):
            shutil.rmtree(directory, ignore_errors=True)
        convert_input_data(
            entity_configs=self._config.entities,
            relation_configs=self._config.relations,
            entity_path=self._config.entity_path,
            edge_paths_out=self._config.edge_paths,
            edge_paths_in=[Path(file) for file in files],
            lhs_col=0,
            rhs_col=2,
            rel_col=1,
            dynamic_relations=self._config.dynamic_relations,
        )
        storages = [EDGE_STORAGES.make_instance(path) for path in self._config.edge_paths]
        parts = range(max(entity.num_partitions for entity in self._config.entities.values()))
        return sum(edges.get_number_of_edges(i, j) for edges in storages for i in parts for j in parts)

    def export_tsv(self, entities: str, relations: str) -> int:
        """Write embeddings and parameters as text; return the rows of entities."""
        with Path(entities).open("w") as entities_file, Path(relations).open("w") as relations_file:
            make_tsv(self._config, entities_file, relations_file)
        counts = ENTITY_STORAGES.make_instance(self._config.entity_path)
        return sum(
            counts.load_count(entity, part)
            for entity, schema in self._config.entities.items()
            for part in range(schema.num_partitions)
        )
