"""PBG's commands in one process that imports it once.

It reads a line of JSON for each command and answers with another.

Runs in PBG's environment and knows nothing of this project. A thread stands in for PBG's pool of processes, whose start
takes seconds each time, and its importer's buffers are smaller, so that a bucket does not take 150 MiB; nothing else of
it is changed.
"""

from __future__ import annotations

import json
import os
import random
import sys
from multiprocessing.pool import ThreadPool
from pathlib import Path

import torch
import torchbiggraph.eval
import torchbiggraph.train
from torchbiggraph.config import ConfigSchema
from torchbiggraph.converters.export_to_tsv import make_tsv
from torchbiggraph.converters.import_from_tsv import convert_input_data
from torchbiggraph.filtered_eval import FilteredRankingEvaluator
from torchbiggraph.graph_storages import BufferedDataset


class OneThread(ThreadPool):
    def __init__(self, *_, **__):
        super().__init__(1)


def train(config):
    for _ in torchbiggraph.train.train_and_report_stats(config):
        pass


def evaluate(config, known=None):
    """Return the metrics over all edges.

    They are filtered by the edges of ``known`` where given.
    """
    evaluator = FilteredRankingEvaluator(config, known) if known else None
    *_, (_, _, stats) = torchbiggraph.eval.do_eval_and_report_stats(config, evaluator=evaluator)
    return {"count": stats.count, **stats.metrics, "printed": str(stats)}


def export(config, entities, relations):
    with Path(entities).open("x") as entities_file, Path(relations).open("x") as relations_file:
        make_tsv(config, entities_file, relations_file)


def importing(config, files):
    convert_input_data(
        entity_configs=config.entities,
        relation_configs=config.relations,
        entity_path=config.entity_path,
        edge_paths_out=config.edge_paths,
        edge_paths_in=[Path(file) for file in files],
        lhs_col=0,
        rhs_col=2,
        rel_col=1,
        entity_min_count=1,
        relation_type_min_count=1,
        dynamic_relations=config.dynamic_relations,
    )


COMMANDS = {command.__name__: command for command in (train, evaluate, export, importing)}


def answer(request):
    torch.manual_seed(request["seed"])
    random.seed(request["seed"])
    try:
        config = ConfigSchema.from_dict(request["config"])
        return {"result": COMMANDS[request["command"]](config, **request["arguments"])}
    except Exception as error:  # noqa: BLE001 - whatever PBG raises is its answer
        return {"error": type(error).__name__, "message": str(error)}


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # PBG prints
    torch.set_num_threads(1)
    torchbiggraph.train.create_pool = torchbiggraph.eval.create_pool = OneThread
    BufferedDataset.BUFFER_SIZE = 1 << 10
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
