"""Tables, maps and progress in a notebook."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType, SimpleNamespace
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from pbg_tasks import progress
from pbg_tasks.api import Model, train
from pbg_tasks.errors import InputError
from pbg_tasks.report.embedding_map import map_document
from tests.api.conftest import Trained

RELATIONS = [
    {"name": "<b>likes</b>", "lhs": "user", "rhs": "item", "operator": "translation"},
    {"name": "near", "lhs": "item", "rhs": "item", "operator": "none"},
]
TWO = {"entities": {"user": {"num_partitions": 2}, "item": {"num_partitions": 1}}, "relations": RELATIONS}


@pytest.fixture
def trained(tmp_path, scratch):
    return Trained(tmp_path, **TWO, comparator="cos", sizes={"user": 40, "item": 30})


def test_table_of_model_is_escaped_html(trained):
    with Model.open(trained.checkpoint) as model:
        table = ET.fromstring(model._repr_html_())  # noqa: S314 - of our own
        cells = {row[0].text: row[1].text for row in table.iter("tr")}
        assert cells["entities, item"] == str(len(model.entities("item")))
        assert cells["relations"] == "2: <b>likes</b>, near"
        assert cells["dimension"] == "8"
        assert cells["operator"] == "none, translation"
        assert cells["comparator, loss"].startswith("cos, ")
        assert not {"graph", "release", "MRR, filtered"} & set(cells)
        assert (model.graph, model.snapshot, model.mrr) == (None, None, None)


@pytest.fixture
def pd():
    return importlib.import_module("pandas")


def test_map_is_that_of_the_page(pd, trained):
    with Model.open(trained.checkpoint) as model:
        found = model.map(points=40)
        frame = found.to_pandas()
        assert set(frame["type"]) == {"user", "item"}
        samples = {
            kind: {
                "names": list(of["name"]),
                "rows": model.embedding(list(of["name"]), kind),
                "before": None,
                "entities": 0,
            }
            for kind, of in frame.groupby("type", sort=False)
        }
        document = map_document(samples, normalized=True, release=None)
        places = [point["at"] for points in document["types"].values() for point in points]
        np.testing.assert_array_equal(frame[["x", "y"]].to_numpy(), places)
        picture = ET.fromstring(found._repr_html_())  # noqa: S314 - of our own
        titles = [title.text for title in picture.iter("{http://www.w3.org/2000/svg}title")]
        assert titles == list(frame["name"])
        assert len(model.map(pd.Series(frame["name"][frame["type"] == "user"].head(3)), entity_type="user")) == 3
        assert set(model.map(entity_type="item").table["type"].to_pylist()) == {"item"}
        with pytest.raises(InputError, match="map: there is no entity to show"):
            model.map([], entity_type="item")


def test_names_on_map_are_escaped(pd, scratch):
    edges = pd.DataFrame({"lhs": ["<script>", "a"], "rhs": ["a", '"b"']})
    with train(edges, dimension=4, num_epochs=1, batch_size=100, workers=1, eval_fraction=0) as model:
        html = model.map()._repr_html_()
        assert "<script>" not in html
        assert "<title>&lt;script&gt;</title>" in html
        frame = model.table().to_pandas()
        assert list(frame["name"]) == model.entities()
        np.testing.assert_array_equal(np.stack(frame["vector"]), model.embedding(frame["name"]))
        assert list(pd.DataFrame(model.top_k("a", k=2)).columns) == ["name", "score"]


class Handle:
    """Double of IPython's handle of an output that can be written anew."""

    def __init__(self, shown, line):
        self.shown, self.place = shown, len(shown)
        shown.append(line)

    def update(self, data, *, raw):
        assert raw
        self.shown[self.place] = data["text/plain"]


@pytest.fixture
def notebook(monkeypatch):
    """A double of IPython, which the tests do not install."""
    shell, shown = SimpleNamespace(kernel=object(), execution_count=1), []
    package, display = ModuleType("IPython"), ModuleType("IPython.display")
    package.get_ipython = lambda: shell
    display.display = lambda data, *, raw, display_id: Handle(shown, data["text/plain"]) if raw and display_id else None
    monkeypatch.setattr(progress, "_CELLS", progress.Cells())
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return SimpleNamespace(shell=shell, shown=shown)


def test_cell_shows_progress_of_all_epochs(notebook):
    with progress.Progress("train", 400, begun=100, interval=0, ends=False) as whole:
        for epoch in (2, 3):
            progress.Progress(f"epoch {epoch}/4", 100, whole=whole, interval=0).advance(100, recent_loss=0.25)
            assert notebook.shown[0][9:].startswith(f"train: {epoch}00 of 400 edges ({epoch / 4:.0%}), ")
            assert notebook.shown[0].endswith(f"recent loss 0.25  epoch {epoch}/4")
    assert len(notebook.shown) == 1


def test_progress_is_one_line_of_a_cell(notebook, capsys):
    for epoch in (1, 2):
        with progress.Progress(f"train epoch {epoch}/2", 100, interval=0) as work:
            work.advance(50)
    progress.say("done with s3://key:word@bucket/x")
    assert len(notebook.shown) == 1
    assert "done with" in notebook.shown[0]
    assert "word" not in notebook.shown[0]
    notebook.shell.execution_count = 2
    progress.say("warning: something is odd")
    progress.say("next cell")
    assert [line[9:] for line in notebook.shown[1:]] == ["next cell"]
    out, err = capsys.readouterr()
    assert out.endswith("warning: something is odd\n")
    assert err == ""


def test_ipython_on_a_terminal_gets_lines(notebook, capsys):
    del notebook.shell.kernel
    progress.say("a line")
    assert notebook.shown == []
    assert capsys.readouterr().err.endswith("a line\n")
