"""Ranking held-out edges, and judging by it."""

from __future__ import annotations

from pbg_tasks.evaluate.candidates import Candidates
from pbg_tasks.evaluate.evaluation import PIECE_EDGES, evaluate_edges
from pbg_tasks.evaluate.gate import judge
from pbg_tasks.evaluate.health import Health
from pbg_tasks.evaluate.report import EvaluationReport

__all__ = ["PIECE_EDGES", "Candidates", "EvaluationReport", "Health", "evaluate_edges", "judge"]
