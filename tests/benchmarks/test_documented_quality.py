"""Tables of docs/ whose figures are in ``benchmarks/results``."""

from __future__ import annotations

import json
import re
import statistics

from benchmarks.quality.variants import MEASURED, RESULTS
from benchmarks.speed.worker import ROOT


def section(page, heading):
    """Return the text below a heading."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def stored(file):
    return json.loads((RESULTS / file).read_text(encoding="utf-8"))


def compare_rows(text, measured, *files):
    """Compare rows of a table with files of figures.

    Each file has the figures of the first way, too.
    """
    ways_of, found = MEASURED[measured], [stored(file) for file in files]
    for name in found[0]:
        (line,) = re.findall(rf"^\| {name}[ ,].*", text, re.IGNORECASE | re.MULTILINE)
        expected = []
        for each in found:
            ways = [[row for row in each[name] if row[ways_of.key] == value] for value in ways_of.values]
            mrr, seconds = ([[row[figure] for row in way] for way in ways] for figure in ("mrr", "cpu_seconds"))
            shown = [f"{statistics.mean(way):.4f} ± {statistics.stdev(way):.4f}" for way in mrr]
            assert shown[0] == (expected or shown)[0]
            expected += [*shown[bool(expected) :], f"{statistics.mean(mrr[1]) - statistics.mean(mrr[0]):+.4f}"]
            if measured == "gradient":
                expected.append(f"{statistics.median(one / other for one, other in zip(*seconds, strict=True)):.2f}")
        assert [cell.strip() for cell in line.split("|")[2:-1]] == expected


def test_engines_page_has_measured_quality():
    compare_rows(section("engines.md", "Sampled gradients"), "gradient", "gradient-0.1.json", "gradient-1.json")
    compare_rows(
        section("engines.md", "Sampled gradients of the logistic loss"), "gradient", "gradient-logistic-0.1.json"
    )
    compare_rows(section("engines.md", "Embeddings in bfloat16"), "embeddings", "embeddings.json")


def test_gpu_page_has_measured_quality():
    table = MEASURED["precision"].table(stored("precision.json")["fb15k-237"])
    assert "\n".join(table) in section("gpu.md", "Precision")
