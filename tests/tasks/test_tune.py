"""Searches of hyper-parameters on a small graph."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from pbg_tasks.checkpoint import open_committed
from pbg_tasks.config.loading import load_graph_spec
from pbg_tasks.config.results import BucketResult
from pbg_tasks.config.tune_results import Outcome, Rung, Search, TriedCandidate
from pbg_tasks.config.tune_space import read_patch
from pbg_tasks.errors import ConfigError, QualityGateError, ResourceError
from pbg_tasks.publish import Channel
from pbg_tasks.report.history import history_document
from pbg_tasks.report.tune import table, tune_document
from pbg_tasks.tasks.nightly.chain import run_together
from pbg_tasks.tasks.search import SearchContext, searches
from pbg_tasks.tasks.tuning import trial as trial_module
from pbg_tasks.tasks.tuning import tune as tune_module
from pbg_tasks.tasks.tuning.steps import finish, select, start
from pbg_tasks.tasks.tuning.tune import trial, tune, way_to_use
from pbg_tasks.tasks.view.report import read_graph, report
from tests.model.plugins import documented, package_folder
from tests.tasks.conftest import ring, workplace

MODEL = {"num_epochs": 4, "entities": {"n": {"num_partitions": 1}}}
SPACE = {"model.lr": [0.1, 1e-5, 1e30], "model.comparator": ["l2", "dot"]}
TUNE = {"space": SPACE, "halving": {"eta": 2, "min_epochs": 1}}
LEARNING = {"space": {"model.lr": [0.1, 0.05]}}
SPLIT = {"valid": 0.2, "test": 0.2}


def written(place, tune=None, model=()):
    place.write_spec(model=MODEL | dict(model), split=SPLIT, tune=tune or TUNE)
    return place.spec


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    with workplace(tmp_path_factory.mktemp("tune")) as place:
        place.snapshot("d1", ring(60))
        yield place


@pytest.fixture(scope="module")
def searched(graph):
    """A finished search, and its patch."""
    patch = graph.root / "best.yaml"
    return tune(written(graph), "d1", out=patch), patch


def context_of(document):
    return SearchContext.open(f"{document['store']}/runs/{document['run']}", document["search"])


def test_best_candidate_is_one_that_learns(searched):
    document, _ = searched
    best = document["rows"][0]
    assert document["epochs"] == [1, 2, 4]
    assert (best["trial"], best["state"], best["epochs"]) == (document["best"], "best", 4)
    assert best["changes"]["model.lr"] == "0.1"
    assert best["low"] <= best["mrr"] <= best["high"]


def test_halving_keeps_best_half_of_rung(searched):
    context = context_of(searched[0])
    rungs = [context.decision(number) for number in range(3)]
    assert [len(rung.ranking) for rung in rungs] == [6, 3, 2]
    for rung, after in pairwise(rungs):
        ranks = [each.figures.get("mrr", -1.0) for each in rung.ranking]
        assert ranks == sorted(ranks, reverse=True)
        assert {each.trial for each in after.ranking} == set(rung.kept)
        assert rung.kept == tuple(each.trial for each in rung.ranking[: len(rung.kept)])


def test_diverged_candidates_lose_with_reason(searched):
    lost = [row for row in searched[0]["rows"] if row["state"] == "failed"]
    assert [row["changes"]["model.lr"] for row in lost] == ["1e+30", "1e+30"]
    assert all("the loss is nan; try a smaller lr" in row["reason"] for row in lost)
    assert lost == searched[0]["rows"][-2:]


def test_later_rungs_train_what_is_left(searched, graph):
    """A candidate trained in three pieces equals one trained at once."""
    context = context_of(searched[0])
    best = context.outcome(searched[0]["best"], 2)
    assert best.continued == 2
    whole = tune(written(graph, {"space": {"model.lr": [0.1, 0.2], "model.comparator": [_comparator(searched)]}}), "d1")
    straight = next(row for row in whole["rows"] if row["changes"]["model.lr"] == "0.1")
    assert (straight["continued"], straight["mrr"]) == (0, best.figures["mrr"])


def _comparator(searched):
    return searched[0]["rows"][0]["changes"]["model.comparator"]


def test_falling_rate_trains_anew_in_rung(graph):
    model = {"lr_schedule": "linear"}
    document = tune(written(graph, LEARNING | {"halving": {"eta": 2, "rungs": 2}}, model), "d1")
    best = document["rows"][0]
    assert (best["epochs"], best["continued"]) == (4, 0)
    whole = tune(written(graph, LEARNING, model), "d1")
    assert best["mrr"] == next(row["mrr"] for row in whole["rows"] if row["trial"] == best["trial"])
    heads = list(Path(graph.root).rglob("trials/**/HEAD.json"))
    assert {head.parent.name for head in heads} == {"checkpoint"}, "policies let trainings delete there"


@pytest.mark.parametrize(("schedule", "left"), [("constant", "20:00"), ("linear", "26:00"), (None, "22:00")])
def test_time_left_counts_what_trains_anew(schedule, left, monkeypatch, capsys):
    names = [f"{number:012x}" for number in range(8 if schedule is None else 9)]
    own = [{} if schedule else {"model.lr_schedule": ("constant", "linear")[place % 2]} for place in range(len(names))]
    tried = [TriedCandidate(trial=name, changes=changes) for name, changes in zip(names, own, strict=True)]
    search = Search(graph="g", snapshot="d", metric="mrr", eta=3, epochs=(1, 3, 9), candidates=tried)
    spec = SimpleNamespace(graph=SimpleNamespace(model=SimpleNamespace(lr_schedule=schedule)))
    clock = iter((0.0, 60.0))
    monkeypatch.setattr(tune_module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    pace = tune_module._Pace(SimpleNamespace(search=search, run=SimpleNamespace(spec=spec)))
    pace.enter(0, len(names))
    pace.passed(names[0], None)
    assert f"1/{len(names)} candidates, 1 epochs/min, {left} left" in capsys.readouterr().err


def test_second_call_trains_nothing(searched, graph, monkeypatch):
    monkeypatch.setattr(trial_module, "train_here", None)
    again = tune(written(graph), "d1")
    assert again == searched[0]


def test_patch_sets_best_values(searched, graph):
    _, patch = searched
    assert patch.read_text().startswith("# Best of 6 candidates on snapshot d1: valid MRR 0.")
    model = load_graph_spec(written(graph), read_patch(patch)).model
    assert (model.lr, model.comparator) == (0.1, _comparator(searched))
    patch.with_suffix(".2.yaml").write_text("model: {lr: 0.1}\n")
    with pytest.raises(ConfigError, match=r"model is a whole section; write paths of single keys"):
        read_patch(patch.with_suffix(".2.yaml"))


@pytest.mark.parametrize(
    ("changes", "again"),
    [
        ([], []),
        (["model.num_epochs=4", 'model.comparator="dot"'], []),
        (["model.lr=0.3", "model.lr_schedule=linear"], ["model.lr=0.1"]),
        (["model.relations=[]"], ['model.relations.0.operator="linear"']),
    ],
)
def test_changes_of_search_are_advised_beside_patch(tmp_path, changes, again):
    """They would hide values of the patch, which is read first."""
    patch = tmp_path / "best.yaml"
    patch.write_text('model.lr: 0.1\nmodel.relations.0.operator: "linear"\n')
    command = way_to_use(Path("my graph.yaml"), patch, changes)
    given = [part for each in changes + again for part in ("-p", each)]
    assert shlex.split(command.strip("`")) == ["pbg", "run", "my graph.yaml", "--patch", str(patch), *given]


def test_table_has_changed_keys_and_figures(searched):
    head, first, *_ = table(searched[0]).splitlines()
    assert head.split()[3:] == ["MRR", "95", "%", "epochs", "trained", "seconds", "state"]
    assert head.split()[:3] == ["rank", "model.comparator", "model.lr"]
    assert first.split()[:3] == ["1", _comparator(searched), "0.1"]
    assert first.split()[-1] == "best"


def test_candidates_never_read_test_split(graph, monkeypatch):
    read = []

    class Watched(trial_module.NightRun):
        def edges(self, *parts, size=None):
            read.extend(parts)
            return super().edges(*parts, size=size)

    monkeypatch.setattr(trial_module, "NightRun", Watched)
    tune(written(graph, LEARNING, {"margin": 0.2}), "d1")
    assert set(read) == {"train", "valid"}


def test_wrong_space_stores_nothing(tmp_path, graph):
    spec = tmp_path / "bad.yaml"
    text = written(graph, {"space": {"model.lrr": [0.1, 0.2]}}).read_text()
    spec.write_text(text.replace(str(graph.store), str(tmp_path / "store")))
    with pytest.raises(ConfigError, match=r"tune\.space\.model\.lrr: 0\.1: unknown key"):
        tune(spec, "d1")
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("out", "way"),
    [
        ("", "name a file of an existing folder"),
        ("nowhere/best.yaml", "name a file of an existing folder"),
        ("best", r"best: the values are written as YAML, .*; name it \*\.yaml"),
        ("best.json", r"name it \*\.yaml"),
    ],
)
def test_place_of_no_file_is_refused_before_search(graph, tmp_path, monkeypatch, out, way):
    monkeypatch.setattr("pbg_tasks.tasks.tuning.tune.start", lambda *_, **__: pytest.fail("the search was begun"))
    with pytest.raises(ConfigError, match=way):
        tune(written(graph, {"space": {"model.lr": [0.1, 0.2]}}), "d1", out=tmp_path / out)


def test_values_never_replace_the_spec(graph, monkeypatch):
    monkeypatch.setattr("pbg_tasks.tasks.tuning.tune.start", lambda *_, **__: pytest.fail("the search was begun"))
    spec = written(graph, LEARNING)
    monkeypatch.chdir(spec.parent)
    with pytest.raises(ConfigError, match=r"is the graph spec itself, .*; name another file"):
        tune(spec, "d1", out=Path(spec.name))


def test_search_without_any_result_is_refused(graph):
    with pytest.raises(QualityGateError, match=r"no candidate of rung 0 could be trained and ranked; the first: epoch"):
        tune(written(graph, {"space": {"model.lr": [1e30, 1e31]}}), "d1")


def test_wrong_environment_is_no_failure_of_candidates(graph, monkeypatch):
    spec = written(graph, {"space": {"model.lr": [0.1, 0.07]}})
    monkeypatch.setenv("PBG_GRACE_SECONDS", "60s")
    with pytest.raises(ConfigError, match="PBG_GRACE_SECONDS is '60s' instead of a number"):
        tune(spec, "d1")
    monkeypatch.delenv("PBG_GRACE_SECONDS")
    assert all(row["mrr"] is not None for row in tune(spec, "d1")["rows"])


def test_missing_package_is_no_failure_of_candidates(graph, tmp_path):
    """It may be missing on one machine alone."""
    with package_folder(tmp_path / "one") as write:
        write(*documented())
        begun = start(written(graph, {"space": {"model.comparator": ["dot", "manhattan"]}}), "d1")
    run, search = begun["run"], begun["search"]
    run_together("prepare", run)
    tried = SearchContext.open(run, search).search.candidates
    name = next(each.trial for each in tried if each.changes["model.comparator"] == "manhattan")
    with pytest.raises(ResourceError, match="no comparator is named 'manhattan' here: install the package"):
        trial(run, search, name, 0)
    with package_folder(tmp_path / "other") as write:
        write(*documented())
        assert trial(run, search, name, 0)["status"] == "finished"


@pytest.mark.parametrize("trainable", [True, False])
def test_frozen_vectors_of_candidates_are_those_given(graph, trainable):
    entities = {"n": {"num_partitions": 1, "trainable": trainable}}
    spec = written(graph, LEARNING, {"entities": entities, "init_path": str(graph.root)})
    begun = start(spec, "d1")
    wanted = None if trainable else str(graph.root)
    assert SearchContext.open(begun["run"], begun["search"]).run.spec.graph.model.init_path == wanted


def test_steps_of_search_are_those_of_command(searched, graph):
    """A scheduler calls the steps; one of its tasks has no result."""
    begun = start(written(graph, {"space": {"model.lr": [0.1, 0.05, 0.01]}, "halving": {"eta": 3, "rungs": 2}}), "d1")
    run, search = begun["run"], begun["search"]
    run_together("prepare", run)
    first, second, absent = select(run, search, 0)["trials"]
    for name in (first, second):
        assert trial(run, search, name, 0)["status"] == "finished"
    with pytest.raises(ConfigError, match=r"rung 0 is not decided"):
        trial(run, search, first, 1)
    (kept,) = select(run, search, 1)["trials"]
    assert kept != absent
    trial(run, search, kept, 1)
    document = finish(run, search)
    assert document["best"] == kept
    assert next(row for row in document["rows"] if row["trial"] == absent)["state"] == "failed"
    assert next(iter(searches(SearchContext.open(run, search).run))).id == search


def command(spec):
    call = [sys.executable, "-P", "-m", "pbg_tasks", "tune", str(spec), "--snapshot=d1", "--json"]
    return subprocess.Popen(call, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_killed_search_goes_on(graph):
    spec = written(graph, model={"init_scale": 0.01})
    with command(spec) as process:
        for line in process.stderr:
            if "rung 1/3, 2/6 candidates" in line:
                process.kill()
    began = SearchContext.within(*_only_search(graph, spec))
    before = {each.trial: began.outcome(each.trial, 0) for each in began.search.candidates}
    prepared = began.run.need(BucketResult)
    document = tune(spec, "d1")
    stored = {name: outcome for name, outcome in before.items() if outcome is not None}
    assert len(stored) >= 2
    assert document["best"] is not None
    assert {name: context_of(document).outcome(name, 0) for name in stored} == stored
    assert context_of(document).run.need(BucketResult) == prepared


def _only_search(graph, spec):
    run = start(spec, "d1")["run"]
    (found,) = searches(SearchContext.open(run, start(spec, "d1")["search"]).run)
    return found.run, found.id


def test_two_searches_at_once_agree(graph):
    """Each candidate is trained by one of them, and both decide alike."""
    spec = written(graph, model={"init_scale": 0.02})
    with command(spec) as process:
        next(line for line in process.stderr if "tune: candidate" in line)
        ours = tune(spec, "d1")
        theirs = json.loads(process.communicate()[0])
    assert theirs == ours
    context = context_of(ours)
    manifest, _ = open_committed(context.run.store, context.key(f"trials/{ours['best']}/checkpoint"))
    assert manifest.retrained == ()
    assert manifest.version == 4


def test_overtrained_candidate_counts_by_its_best():
    """Its patch has the epochs of its best rung."""
    search = Search(
        graph="g",
        snapshot="d1",
        metric="mrr",
        eta=2,
        epochs=(2, 4),
        candidates=tuple(TriedCandidate(trial=f"{n:012x}", changes={"model.lr": n / 10}) for n in (1, 2)),
    )
    one, two = (each.trial for each in search.candidates)

    def outcome(trial, epochs, mrr):
        figures = {"mrr": mrr, "count": 9.0}
        return Outcome(trial=trial, epochs=epochs, status="finished", figures=figures, low=mrr - 0.01, high=mrr + 0.01)

    first = Rung(rung=0, ranking=(outcome(one, 2, 0.5), outcome(two, 2, 0.3)), kept=(one,))
    last = Rung(rung=1, ranking=(outcome(one, 4, 0.2),), kept=(one,))
    facts = {"run": "r", "store": "s", "search_id": "i", "search": search, "rungs": [first], "latest": {}}
    under_way = tune_document(facts)
    assert [row["state"] for row in under_way["rows"]] == ["running", "lost"]
    assert under_way["patch"] is None
    document = tune_document(facts | {"rungs": [first, last]})
    best = document["rows"][0]
    assert (best["mrr"], best["epochs"], best["trained"], document["alike"]) == (0.5, 2, 4, 0)
    assert yaml.safe_load(document["patch"]) == {"model.lr": 0.1, "model.num_epochs": 2}


def test_time_of_a_failure_counts_once():
    """It stands for its candidate in the rungs that follow."""
    trial = f"{1:012x}"
    candidates = (TriedCandidate(trial=trial, changes={"model.lr": 0.1}),)
    search = Search(graph="g", snapshot="d1", metric="mrr", eta=2, epochs=(1, 2, 4), candidates=candidates)
    good = Outcome(trial=trial, epochs=1, status="finished", figures={"mrr": 0.5}, seconds=3.0)
    bad = Outcome(trial=trial, epochs=2, status="failed", reason="the loss is nan", seconds=5.0)
    rungs = [Rung(rung=number, ranking=(each,), kept=(trial,)) for number, each in enumerate((good, bad, bad))]
    facts = {"run": "r", "store": "s", "search_id": "i", "search": search, "rungs": rungs, "latest": {}}
    assert tune_document(facts)["rows"][0]["seconds"] == 8.0


def test_candidates_that_fail_later_count_by_earlier_rungs(graph):
    begun = start(written(graph, {"space": {"model.lr": [0.1, 0.03]}, "halving": {"eta": 2}}), "d1")
    context = SearchContext.open(begun["run"], begun["search"])
    good, bad = (each.trial for each in context.search.candidates)
    for name, mrr in ((good, 0.5), (bad, 0.3)):
        context.keep_outcome(Outcome(trial=name, epochs=1, status="finished", figures={"mrr": mrr}), 0)
    assert select(context.run.url, context.id, 1)["trials"] == [good]
    with pytest.raises(QualityGateError, match="no candidate of rung 1 could be trained and ranked"):
        select(context.run.url, context.id, 2)  # its training was killed
    context.keep_outcome(Outcome(trial=good, epochs=2, status="failed", reason="the loss is nan"), 1)
    assert select(context.run.url, context.id, 2)["trials"] == [good]
    document = finish(context.run.url, context.id)
    assert (document["best"], document["rows"][0]["epochs"]) == (good, 1)
    assert yaml.safe_load(document["patch"]) == {"model.lr": 0.1, "model.num_epochs": 1}


def test_pages_list_search_and_leave_its_run_out(searched, graph):
    document, _ = searched
    report(f"{document['store']}/runs/{document['run']}")
    page = (graph.store / f"runs/{document['run']}/report/search-{document['search']}.html").read_text()
    assert "valid MRR" in page
    assert "the loss is nan" in page
    context = context_of(document)
    history = history_document(read_graph("toy", Channel(context.run.store, "production")))
    assert document["run"] not in {night["run"] for night in history["nights"]}
    assert (document["run"], document["search"], True) in {
        (each["run"], each["search"], each["finished"]) for each in history["searches"]
    }
    nights = (graph.store / "report/production/index.html").read_text()
    assert f"../../runs/{document['run']}/report/search-{document['search']}.html" in nights
