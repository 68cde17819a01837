"""Pages below the run and the graph.

They are written with every night and updated by hand; without them a night succeeds all the same.
"""

from __future__ import annotations

import json
import re
import tracemalloc
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pbg_tasks.cli import app
from pbg_tasks.errors import ConfigError, QualityGateError
from pbg_tasks.publish import Channel
from pbg_tasks.publish.skips import skip
from pbg_tasks.report.history import history_document
from pbg_tasks.report.pages import assets
from pbg_tasks.storage import LocalStore, ObjectInfo
from pbg_tasks.tasks.approval import approve
from pbg_tasks.tasks.context import RunContext
from pbg_tasks.tasks.nightly.chain import run_chain
from pbg_tasks.tasks.nightly.plan import plan
from pbg_tasks.tasks.view import report as reporting
from tests.tasks.conftest import ring


def pages(place):
    return {
        str(path.relative_to(place.store)): path.read_bytes() for path in Path(place.store).rglob("report/**/*.html")
    }


def test_night_writes_its_pages_and_channel_pages(place):
    place.snapshot("d1", ring(40))
    run = Path(run_chain(place.spec, "d1", epochs=1)["run"])
    written = pages(place)
    assert set(written) == {f"runs/{run.name}/report/index.html", "report/production/index.html"}
    assert f"../../runs/{run.name}/report/index.html".encode() in written["report/production/index.html"]
    for name, path in assets().items():
        assert (Path(place.store) / "report" / "_assets" / name).read_bytes() == path.read_bytes()

    assert json.loads(CliRunner().invoke(app, ["report", str(run), "--json"]).stdout)["task"] == "report"
    assert pages(place) == written

    # a run that was only planned has a page once the graph's are written
    place.snapshot("d2", ring(44))
    planned = Path(plan(place.spec, "d2")["run"])
    found = json.loads(CliRunner().invoke(app, ["report", str(place.spec), "--json"]).stdout)
    assert found["pages"][-1] == f"{place.store}/report/production/index.html"
    written = pages(place)
    assert f"../../runs/{planned.name}/report/index.html".encode() in written["report/production/index.html"]
    assert f"runs/{planned.name}/report/comparison.html" in written


def test_repaired_snapshot_does_not_inherit_refusal(place):
    place.snapshot("d1", ring(40))
    first = RunContext.open(plan(place.spec, "d1")["run"])
    first.refuse("the data gate refused it")
    place.snapshot("d1", ring(44))
    again = RunContext.open(plan(place.spec, "d1")["run"])
    assert [reporting.read_run(run).refused for run in (first, again)] == ["the data gate refused it", None]
    listed = reporting.read_graph("toy", Channel(first.store, "production"))
    assert {run.run_id: run.refused for run in listed.runs} == {
        first.run_id: "the data gate refused it",
        again.run_id: None,
    }
    assert listed.refused == {"d1": f"the data gate refused it (run {first.run_id})"}
    again.refuse("so did it the second one")
    assert [reporting.read_run(run).refused for run in (first, again)] == [
        "the data gate refused it",
        "so did it the second one",
    ]
    assert plan(place.spec, "d1")["run"] == again.url  # unchanged, for another try
    assert [reporting.read_run(run).refused for run in (first, again)] == ["the data gate refused it", None]


def test_approved_night_is_listed_as_released(place):
    place.write_spec(gates={"min_mrr": 1.5, "max_mrr_drop": 1.0})
    place.snapshot("d1", ring(40))
    with pytest.raises(QualityGateError):
        run_chain(place.spec, "d1", epochs=1)
    run = RunContext.open(plan(place.spec, "d1", epochs=1)["run"])
    skip(Channel(run.store, "production"), "d2", "half of it is missing")

    def history():
        document = history_document(reporting.read_graph("toy", Channel(run.store, "production")))
        (night,) = document["nights"]
        return night["state"], night["reason"], [each["snapshot"] for each in document["refused"]]

    state, reason, without = history()
    assert (state, without) == ("refused", ["d1", "d2"])
    assert "at least 1.5 asked" in reason
    approve(run.url, by="ada", reason="a first night")
    assert history() == ("running", None, ["d1", "d2"])  # until it is released
    run_chain(place.spec, "d1", epochs=1)
    assert history() == ("released", None, ["d2"])


def test_night_succeeds_without_its_pages(place, capsys):
    place.snapshot("d1", ring(40))
    in_the_way = Path(place.store) / "report"
    in_the_way.parent.mkdir(parents=True)
    in_the_way.write_text("a file where the pages' folder would be")
    assert run_chain(place.spec, "d1", epochs=1)["release"]["published"]
    assert "warning: the pages of this run were not written: " in capsys.readouterr().err


def test_damaged_run_hides_no_other(place, capsys):
    place.snapshot("d1", ring(40))
    whole = Path(run_chain(place.spec, "d1", epochs=1)["run"])
    place.snapshot("d2", ring(44))
    damaged = RunContext.open(plan(place.spec, "d2")["run"])
    (Path(damaged.url) / "results" / "plan.json").write_text("{")

    (Path(place.store) / "report" / "production" / "index.html").unlink()
    written = reporting.report_graph(place.spec)["pages"]
    assert [Path(page).parts[-3] for page in written] == [whole.name, "report"]
    assert "plan.json: not JSON; it was edited by hand" in capsys.readouterr().err
    states = {
        night["run"]: (night["state"], night["reason"])
        for night in history_document(reporting.read_graph("toy", Channel(damaged.store, "production")))["nights"]
    }
    assert states[whole.name] == ("released", None)
    assert states[damaged.run_id] == ("damaged", f"{damaged.url}/results/plan.json: not JSON; it was edited by hand")


def test_pages_keep_few_of_listed_objects(place, monkeypatch):
    place.snapshot("d1", ring(40))
    run = RunContext.open(plan(place.spec, "d1")["run"])
    listing = LocalStore.list

    def listed(store, prefix=""):
        yield from listing(store, prefix)
        if prefix == "runs/":
            yield from (ObjectInfo(run.key(f"edges/train/edges_0_{number}.h5"), 1, "1") for number in range(100_000))

    monkeypatch.setattr(LocalStore, "list", listed)
    tracemalloc.start()
    try:
        reporting.read_graph("toy", Channel(run.store, "production"))
        assert tracemalloc.get_traced_memory()[1] < 15_000_000
    finally:
        tracemalloc.stop()


def test_report_of_graph_prints_line_per_run(place):
    runs = []
    for day in ("d1", "d2"):
        place.snapshot(day, ring(40))
        runs.append(run_chain(place.spec, day, epochs=1)["run"])
    asked = ["report", str(place.spec)]
    printed = CliRunner().invoke(app, asked).stdout
    pages = [f"{run}/report/index.html" for run in runs[::-1]] + [f"{place.store}/report/production/index.html"]
    assert re.findall(r"\S+\.html", printed) == pages
    assert len(json.loads(CliRunner().invoke(app, [*asked, "--json"]).stdout)["pages"]) > len(pages)


def test_page_of_nights_names_channel_of_readers(place):
    place.write_spec(channel="shadow", promote={"to": "production", "after_nights": 1})
    place.snapshot("d1", ring(40))
    run = RunContext.open(run_chain(place.spec, "d1", epochs=1)["run"])
    found = history_document(reporting.read_graph("toy", Channel(run.store, "shadow")))
    assert found["read_channel"] == "production"
    origins = {each["reader"]: each["promoted_from"] for each in found["readers"]}
    assert origins == {"shadow": None, "production": "shadow 1"}


def test_runs_of_other_graphs_are_read_once(place, monkeypatch):
    place.snapshot("d1", ring(40))
    run = RunContext.open(plan(place.spec, "d1")["run"])
    monkeypatch.setattr(reporting, "_OF_OTHERS", {})
    opened, within = [], RunContext.within
    monkeypatch.setattr(RunContext, "within", lambda store, name: opened.append(name) or within(store, name))
    channel = Channel(run.store, "production")
    for _ in range(2):
        assert reporting.read_graph("other", channel).runs == []
        assert [each.run_id for each in reporting.read_graph("toy", channel).runs] == [run.run_id]
    assert opened == [run.run_id] * 3


def test_missing_run_has_no_page(place):
    with pytest.raises(ConfigError, match="no such run"):
        reporting.report(f"{place.store}/runs/none")
