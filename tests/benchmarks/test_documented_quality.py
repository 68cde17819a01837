"""Tables of docs/ whose figures are in ``benchmarks/results``."""

from __future__ import annotations

import json
import re
import statistics

import pytest

from benchmarks.quality import embeddings, gradient, precision
from benchmarks.speed.worker import ROOT


def section(page, heading):
    """Return the text below a heading."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize(
    ("measured", "results", "heading"),
    [
        (gradient, gradient.results_of(0.1), "Sampled gradients"),
        (gradient, gradient.results_of(1), "With more variance"),
        (embeddings, embeddings.RESULTS, "Embeddings in bfloat16"),
    ],
)
def test_engines_page_has_measured_quality(measured, results, heading):
    text = section("engines.md", heading)
    for name, rows in json.loads(results.read_text(encoding="utf-8")).items():
        (line,) = re.findall(rf"^\| {name}[ ,].*", text, re.IGNORECASE | re.MULTILINE)
        ways = [[row for row in rows if row[measured.WAYS.key] == value] for value in measured.WAYS.values]
        mrr, seconds = ([[row[figure] for row in way] for way in ways] for figure in ("mrr", "cpu_seconds"))
        expected = [f"{statistics.mean(way):.4f} ± {statistics.stdev(way):.4f}" for way in mrr]
        expected.append(f"{statistics.mean(mrr[1]) - statistics.mean(mrr[0]):+.4f}")
        if measured is gradient:
            expected.append(f"{statistics.median(one / other for one, other in zip(*seconds, strict=True)):.2f}")
        assert [cell.strip() for cell in line.split("|")[2:-1]] == expected


def test_gpu_page_has_measured_quality():
    rows = json.loads(precision.RESULTS.read_text(encoding="utf-8"))
    assert "\n".join(precision.WAYS.table(rows)) in section("gpu.md", "Precision")
