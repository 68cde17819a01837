"""Rows of relations on the pages of one run and of two."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pbg_tasks.config.graph import Columns
from pbg_tasks.report.comparison import comparison_document
from pbg_tasks.report.pages import Links, render
from pbg_tasks.report.run import _labels, run_document
from pbg_tasks.tasks.view.report import read_run
from tests.report.conftest import DAYS

TYPED = {"lhs_type": "from", "rhs_type": "to"}


def test_relation_of_typed_columns_has_one_row(nights):
    found = read_run(nights.run(DAYS[1]))
    validated = found.results.validate
    typed = {f"{name} (n, n)": edges for name, edges in validated.relations.items()}
    results = replace(found.results, validate=validated.model_copy(update={"relations": typed}))
    graph = found.spec.graph.model_copy(update={"columns": Columns(**TYPED)})
    spec = found.spec.model_copy(update={"graph": graph})
    rows = run_document(replace(found, spec=spec, results=results))["relations"]
    assert rows == run_document(found)["relations"]
    assert all(row["edges"] for row in rows)


@pytest.mark.parametrize(("rel", "has"), [("rel", "has"), (None, "likes")])
def test_metrics_have_types_of_repeated_names_alone(nights, rel, has):
    graph = nights.run(DAYS[0]).spec.graph
    (one,) = graph.model.relations
    named = (("likes", "n"), ("likes", "m"), ("has", "k"))
    relations = tuple(one.model_copy(update={"name": name, "rhs": rhs}) for name, rhs in named)
    model = graph.model.model_copy(update={"dynamic_relations": False, "relations": relations})
    label = _labels(graph.model_copy(update={"columns": Columns(rel=rel, **TYPED), "model": model}))
    counted = ["likes (n, n)", "likes (n, m)", f"{has} (n, k)", "of another spec"]
    assert list(map(label, counted)) == ["likes (n, n)", "likes (n, m)", "has", "of another spec"]


@pytest.mark.parametrize(
    "changes", [{"eval": {"max_candidates": 7}}, {"eval": {"exclude_self": True}}, {"split": {"salt": "other"}}]
)
def test_other_ranking_makes_no_run_better(nights, changes):
    left, right = (run_document(read_run(nights.run(day))) for day in DAYS[:2])
    graph = right["spec"]["graph"]
    changed = graph | {key: graph[key] | values for key, values in changes.items()}
    document = comparison_document(left, {**right, "spec": right["spec"] | {"graph": changed}})
    ranks = [row for row in document["figures"] if row["title"].startswith(("MRR", "Hits"))]
    assert any(row["difference"] for row in ranks)
    assert document["relations"]
    assert {row["verdict"] for row in (*ranks, *document["relations"])} == {"same"}
    note = "their MRR and Hits@ do not compare"
    assert note in render(document, Links(assets="assets"))
    assert note not in render(comparison_document(left, right), Links(assets="assets"))
