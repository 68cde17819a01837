"""The example specs and the scripts that make their snapshots."""

from __future__ import annotations

import datetime as dt

import pyarrow.parquet as pq
import pytest

from benchmarks.quality.experiments import ROOT
from examples.data.icews14 import write_snapshots
from pbg_tasks.config.loading import load_graph_spec
from pbg_tasks.errors import InputError


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "train.tsv").write_text("a\tsees\tb\t2014-01-02\na\tsees\tb\t2014-01-01\n")
    (folder / "valid.tsv").write_text("b\tsees\tc\t2014-01-03\n")
    (folder / "test.tsv").write_text("c\tsees\ta\t2014-01-02\n")
    return folder


def test_snapshot_has_each_triple_once_by_day(source, tmp_path):
    sizes = write_snapshots(source, tmp_path / "out", dt.date(2014, 1, 1), dt.date(2014, 1, 3))
    assert sizes == {"2014-01-01": 1, "2014-01-02": 2, "2014-01-03": 3}
    table = pq.read_table(tmp_path / "out" / "2014-01-02" / "edges.parquet")
    assert table.to_pylist() == [
        {"lhs": "a", "rel": "sees", "rhs": "b"},
        {"lhs": "c", "rel": "sees", "rhs": "a"},
    ]


def test_source_without_a_split_is_refused(source, tmp_path):
    (source / "test.tsv").unlink()
    with pytest.raises(InputError, match=r"has no test\.tsv"):
        write_snapshots(source, tmp_path / "out", dt.date(2014, 1, 1), dt.date(2014, 1, 1))


@pytest.mark.parametrize("graph", ["icews14", "blogcatalog"])
def test_example_specs_are_valid_and_named_rightly(graph):
    assert load_graph_spec(ROOT / "examples" / "graphs" / f"{graph}.yaml").graph == graph
