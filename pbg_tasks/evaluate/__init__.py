"""Ranking held-out edges, and judging by it."""

from __future__ import annotations

from pbg_tasks.evaluate.candidates import Candidates
from pbg_tasks.evaluate.evaluation import evaluate_edges
from pbg_tasks.evaluate.gate import Check, Verdict, judge
from pbg_tasks.evaluate.health import Health
from pbg_tasks.evaluate.report import EvaluationReport

__all__ = ["Candidates", "Check", "EvaluationReport", "Health", "Verdict", "evaluate_edges", "judge"]
