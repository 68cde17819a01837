"""Norms of imported vectors: their distribution, and odd ones among them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pbg_tasks.formats.angel import write_line, write_mapping
from pbg_tasks.publish.exchange import ReadOptions
from pbg_tasks.publish.exchange.contents import Block
from pbg_tasks.publish.exchange.norms import Norms
from pbg_tasks.tasks.exchange.import_vectors import import_embeddings

ROWS = 500


def vectors():
    return np.random.default_rng(0).normal(size=(ROWS, 6)).astype(np.float32)


def watched(rows, pieces=7):
    norms, names = Norms(), [f"e{number}" for number in range(len(rows))]
    parts = np.array_split(np.arange(len(rows)), pieces)
    blocks = [Block([names[index] for index in part], rows[part]) for part in parts]
    assert list(norms.watch(iter(blocks))) == blocks
    return norms


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e30])
def test_distribution_is_right_to_a_percent(scale):
    rows = vectors() * np.float32(scale)
    lengths = np.linalg.norm(rows.astype(np.float64), axis=1)
    found = watched(rows).to_json()
    expected = {"min": lengths.min(), "median": np.median(lengths), "max": lengths.max()}
    expected |= {"p1": np.quantile(lengths, 0.01), "p99": np.quantile(lengths, 0.99)}
    assert found.pop("zeros") == 0
    assert found == {
        name: pytest.approx(value, rel=0.05 if name.startswith("p") else 0.02) for name, value in expected.items()
    }


def test_usual_vectors_are_not_odd():
    assert watched(vectors()).oddities() == []
    assert watched(vectors()[:0], pieces=1).oddities() == []
    assert watched(vectors()[:0], pieces=1).to_json()["max"] == 0


def test_zeros_and_a_large_norm_are_odd():
    rows = vectors()
    rows[[3, 400]] = 0
    rows[17] *= 1000
    zeros, large = watched(rows).oddities()
    assert zeros == "2 of 500 vectors hold zeros alone"
    assert large.startswith("the vector of 'e17' has norm ")
    assert large.endswith(" times the median")


def as_word2vec(path, names, rows):
    lines = [f"{name} {' '.join(map(repr, row))}" for name, row in zip(names, rows.tolist(), strict=True)]
    (path / "v.txt").write_text(f"{len(names)} {rows.shape[1]}\n" + "\n".join(lines) + "\n")
    return "v.txt"


def as_tsv(path, names, rows):
    lines = ["\t".join([name, *map(repr, row)]) for name, row in zip(names, rows.tolist(), strict=True)]
    (path / "v.tsv").write_text("\n".join(lines) + "\n")
    return "v.tsv"


def as_parquet(path, names, rows):
    pq.write_table(pa.table({"id": names, "embedding": rows.tolist()}), path / "v.parquet")
    return "v.parquet"


def as_angel_line(path, names, rows):
    write_line(path / "out" / "CP_1" / "embedding", [(np.arange(len(rows)), rows)])
    write_mapping(path / "out" / "mapping", enumerate(names))
    return "out"


WRITERS = {"word2vec": as_word2vec, "tsv": as_tsv, "parquet": as_parquet, "angel-line": as_angel_line}


@pytest.mark.parametrize("exchange", WRITERS)
def test_import_reports_odd_vectors(tmp_path, capsys, exchange):
    names, rows = [f"e{number}" for number in range(ROWS)], vectors()
    rows[5], rows[9] = 0, rows[9] * 512
    (tmp_path / "in").mkdir()
    source = tmp_path / "in" / WRITERS[exchange](tmp_path / "in", names, rows)
    result = import_embeddings(exchange, str(source), str(tmp_path / "init"), options=ReadOptions("n"))
    assert result["types"] == {"n": {"rows": ROWS, "dimension": 6}}
    assert result["norms"]["n"]["zeros"] == 1
    assert result["norms"]["n"]["max"] > 100 * result["norms"]["n"]["median"]
    assert [oddity.split(" has ")[0] for oddity in result["odd"]] == [
        "n: 1 of 500 vectors hold zeros alone",
        "n: the vector of 'e9'",
    ]
    assert capsys.readouterr().err.count("warning: ") == 2
