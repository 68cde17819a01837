"""Ranking of dated facts with a static model.

Other true facts of the same date are left out, and no others. This is the filter of Goel et al. 2020 (DE-SimplE,
section 5), by which ICEWS14 is reported.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from benchmarks.quality.links import FIGURES, Splits, predict_links
from examples.data.archives import read_rows
from pbg_tasks.evaluate.report import figures
from pbg_tasks.formats.embeddings import embeddings_file_name, read_embeddings
from pbg_tasks.formats.entities import read_entity_names, read_relation_names
from pbg_tasks.formats.model import model_file_name, read_model
from pbg_tasks.model.scoring import RelationScorer

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.quality.commands import Result
    from benchmarks.quality.links import Training
    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.model.parameters import Side

_BLOCK = 512
SIDES: tuple[Side, Side] = ("lhs", "rhs")


@dataclass(frozen=True, slots=True)
class Facts:
    """Dated facts by number.

    Attributes:
        lhs: int64 (N,).
        rel: int64 (N,).
        rhs: int64 (N,).
        date: int64 (N,).
    """

    lhs: np.ndarray
    rel: np.ndarray
    rhs: np.ndarray
    date: np.ndarray

    def __len__(self) -> int:
        return len(self.lhs)

    @classmethod
    def numbered(cls, rows: list[list[str]], entities: dict[str, int], relations: dict[str, int]) -> Facts:
        """Number rows of head, relation, tail and date; dates (YYYY-MM-DD) by day."""
        lhs, rel, rhs, date = zip(*rows, strict=True)
        return cls(
            np.array([entities[name] for name in lhs]),
            np.array([relations[name] for name in rel]),
            np.array([entities[name] for name in rhs]),
            np.array(date, "datetime64[D]").astype(np.int64),
        )

    @classmethod
    def joined(cls, parts: list[Facts]) -> Facts:
        """Return several lists as one."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__slots__))


def same_question(asked: Facts, known: Facts, predict: Side) -> list[np.ndarray]:
    """Return the entities that complete each asked fact.

    They complete it in ``known`` at the same date, its own entity included.
    """
    side = "rhs" if predict == "lhs" else "lhs"
    answers: dict[tuple[int, int, int], list[int]] = {}
    keys = zip(known.rel.tolist(), getattr(known, side).tolist(), known.date.tolist(), strict=True)
    for key, answer in zip(keys, getattr(known, predict).tolist(), strict=True):
        answers.setdefault(key, []).append(answer)
    wanted = zip(asked.rel.tolist(), getattr(asked, side).tolist(), asked.date.tolist(), strict=True)
    return [np.unique(answers.get(key, [])).astype(np.int64) for key in wanted]


def ranks(
    config: ConfigSchema, params: dict[str, np.ndarray], embeddings_ED: np.ndarray, asked: Facts, known: Facts
) -> tuple[np.ndarray, np.ndarray]:
    """Rank facts on both sides.

    Args:
        config: of a model with one entity type in one partition, and dynamic relations of one kind.
        params: its shared parameters.
        embeddings_ED: its entities.
        asked: N facts.
        known: true facts, those asked among them.

    Returns:
        int64 (2 N,) ranks, from 1, a tie counted as better; and among how many candidates each.
    """
    scorer, table_ED = RelationScorer(config, 0, params), torch.from_numpy(embeddings_ED)
    found, among = [], []
    for predict in SIDES:
        given, true = (asked.rhs, asked.lhs) if predict == "lhs" else (asked.lhs, asked.rhs)
        candidates_ED = scorer.candidates(table_ED, predict=predict)
        others = same_question(asked, known, predict)
        for start in range(0, len(asked), _BLOCK):
            rows = np.arange(start, min(start + _BLOCK, len(asked)))
            rel = torch.from_numpy(asked.rel[rows])
            queries = scorer.queries(table_ED[given[rows]], rel, predict=predict)
            scores = scorer.score(queries, candidates_ED).numpy()
            for row, score_E in zip(rows, scores, strict=True):
                right = score_E[true[row]]
                left_out = np.append(others[row], true[row])
                score_E[left_out] = -np.inf
                found.append(1 + int((score_E >= right).sum()))
                among.append(len(score_E) - len(np.unique(left_out)) + 1)
    return np.array(found), np.array(among)


def predict_dated_links(training: Training, data: Path, interval: int) -> Result:
    """Predict links, and rank test edges with the time-aware filter too.

    The figures of this filter are named ``dated_``.

    Args:
        training: see ``predict_links``.
        data: same; the files have a fourth column, the date.
        interval: same.
    """
    result = predict_links(training, data, interval)
    config, directory = training.config, training.pbg.directory
    ((entity, _),) = config.entities.items()
    checkpoint, names = directory / config.checkpoint_path, directory / config.entity_path
    version = config.num_epochs
    embeddings, _ = read_embeddings(checkpoint / embeddings_file_name(entity, 0, version), dimension=config.dimension)
    params = dict(read_model(checkpoint / model_file_name(version)).params)
    entities = {name: number for number, name in enumerate(read_entity_names(names, entity, 0))}
    relations = {name: number for number, name in enumerate(read_relation_names(names))}
    splits = [
        Facts.numbered(read_rows(data / f"{split}.tsv", columns=4), entities, relations) for split in Splits._fields
    ]
    dated = figures(*ranks(config, params, np.asarray(embeddings), splits[-1], Facts.joined(splits)))
    result["figures"] |= {f"dated_{name}": round(dated[name], 6) for name in FIGURES}
    return result
