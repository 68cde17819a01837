"""Pages about runs and nights: documents of results, and HTML.

``run_document``, ``history_document`` and ``comparison_document`` are pure functions of facts that were read from the
store; ``render`` is a pure function of a document. Nothing here imports torch.
"""

from __future__ import annotations

from pbg_tasks.report.comparison import comparison_document
from pbg_tasks.report.facts import GraphFacts, RunFacts
from pbg_tasks.report.history import history_document
from pbg_tasks.report.pages import Links, live_sections, render
from pbg_tasks.report.run import run_document
from pbg_tasks.report.standing import standing_document, with_failure, with_failures

__all__ = [
    "GraphFacts",
    "Links",
    "RunFacts",
    "comparison_document",
    "history_document",
    "live_sections",
    "render",
    "run_document",
    "standing_document",
    "with_failure",
    "with_failures",
]
