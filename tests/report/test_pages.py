"""Documents and pages of stored runs.

They show what the tasks found, whatever names are in it.

The file is longer than others: the nights of its pages are made once, for all of them.
"""

from __future__ import annotations

import hashlib
import json
import math
from contextvars import copy_context
from dataclasses import replace

import pytest

from pbg_tasks.advice import name_spec
from pbg_tasks.checkpoint import EdgeChunkRecord, Iteration, LeaseRecord, PartialRecord
from pbg_tasks.config.night_results import NightResults
from pbg_tasks.config.results import EarlyStopped, ValidateResult
from pbg_tasks.publish import Channel
from pbg_tasks.report.comparison import comparison_document
from pbg_tasks.report.facts import RunFacts
from pbg_tasks.report.history import history_document
from pbg_tasks.report.pages import LIVE_SECTIONS, Links, assets, live_sections, render
from pbg_tasks.report.run import run_document
from pbg_tasks.report.training import _merged, _Worked
from pbg_tasks.tasks.context import CHAIN
from pbg_tasks.tasks.view.report import read_graph, read_run
from tests.report.conftest import DAYS, HOSTILE, HOSTILE_RELATION
from tests.report.document import Page, check_page

RELEASE = "vectors of the release before"
LINKS = Links(assets="assets", history="nights", run="{run}", compare="compare", lookup="lookup")


@pytest.fixture(scope="module")
def documents(nights):
    return {day: run_document(read_run(nights.run(day))) for day in DAYS}


@pytest.fixture(scope="module")
def history(nights):
    return history_document(read_graph("toy", Channel(nights.store, "production")))


def test_forecast_of_nights_leaves_out_parts(nights):
    """They are left out of the actual time, too."""
    facts = read_graph("toy", Channel(nights.store, "production"))
    whole = next(run for run in facts.runs if run.results.plan)
    plan = whole.results.plan
    tasks = plan.forecast.tasks | {"eval_part": plan.forecast.tasks["train"]}
    parted = plan.model_copy(update={"forecast": plan.forecast.model_copy(update={"tasks": tasks})})
    split = replace(whole, results=replace(whole.results, plan=parted))
    one, other = (history_document(replace(facts, runs=[run]))["nights"] for run in (whole, split))
    assert one == other


def test_run_page_shows_results_of_its_tasks(nights, documents):
    run, document = nights.run(DAYS[1]), documents[DAYS[1]]
    trained, bucketed = run.result("train"), run.result("bucket")
    assert document["state"] == "released"
    assert [each["loss"] for each in document["training"]["iterations"]] == pytest.approx(trained["curve"], abs=1e-6)
    cells = document["training"]["matrix"]
    assert [[cell["edges"] for cell in row] for row in cells] == bucketed["matrix"]
    assert {cell["state"] for row in cells for cell in row} == {"done"}
    assert document["metrics"]["filtered"] == run.result("eval")["filtered"]
    assert document["drift"]["types"] == run.result("drift")["types"]
    fates = {"new": 5, "kept": 120, "gone": 0, "returned": 0, "absent": 0, "total": 125}
    assert document["entity_types"] == {"n": fates}
    assert document["data"]["difference"] == run.result("validate")["difference"]
    assert [verdict["passed"] for verdict in document["verdicts"]] == [True, True, True]
    assert [row["task"] for row in document["forecast"]["tasks"]] == list(CHAIN[1:])
    assert document["seconds"] == pytest.approx(sum(run.result(task)["seconds"] for task in CHAIN))
    lineage = document["lineage"]
    assert lineage["previous"]["seq"] == 1
    assert lineage["manifest_sha256"] == run.result("preserve")["manifest_sha256"]
    assert {"config.json", "dynamic_rel_names.json"} <= {file["name"] for file in lineage["files"]}
    (hostile,) = (each for each in document["relations"] if each["name"] == HOSTILE_RELATION)
    assert (hostile["edges"], hostile["added"], hostile["removed"]) == (12, 12, 0)


def test_edges_before_are_distinct_or_rows(documents):
    document = documents[DAYS[1]]
    difference = document["data"]["difference"]
    rows = difference | {"edges": difference["edges"] | {"exact": False}}
    for each, note in ((difference, " without repeated ones"), (rows, "")):
        page = render({**document, "data": document["data"] | {"difference": each}}, LINKS)
        text = " ".join(Page(page).text().split())
        assert f"in the snapshot before{note}{difference['edges']['before']}" in text


def test_operator_counts_relations_of_the_column(nights, documents):
    found = documents[DAYS[1]]
    assert list(found["model"]["operators"].values()) == [len(found["relations"])] == [4]
    assert "translation 4 relations" in Page(render(found, LINKS)).text()
    planned = run_document(facts(nights, ["plan"]))
    assert list(planned["model"]["operators"].values()) == [None]
    assert "4 relations" not in Page(render(planned, LINKS)).text()


def test_page_shows_gradient_and_precision(nights, documents):
    settings = documents[DAYS[1]]["model"]["settings"]
    assert (settings["Gradient"], settings["Precision"]) == ("dense", "products f32, embeddings f32")
    run = read_run(nights.run(DAYS[1]))
    changes = {"gradient": "sampled", "precision": "bf16", "embedding_precision": "bf16"}
    graph = run.spec.graph.model_copy(update={"model": run.spec.graph.model.model_copy(update=changes)})
    page = render(run_document(replace(run, spec=run.spec.model_copy(update={"graph": graph}))), LINKS)
    assert "<dd>sampled, variance 0.1</dd>" in page
    assert "<dd>products bf16, embeddings bf16</dd>" in page


def test_page_names_start_of_training(nights, documents):
    runs = [read_run(nights.run(day)) for day in DAYS[:2]]
    assert [documents[day]["model"]["settings"]["Start"] for day in DAYS[:2]] == ["random", RELEASE]
    for run, start in zip(runs, ("vectors of init_path", RELEASE), strict=True):
        model = run.spec.graph.model.model_copy(update={"init_path": "/vectors"})
        graph = run.spec.graph.model_copy(update={"model": model})
        changed = replace(run, spec=run.spec.model_copy(update={"graph": graph}))
        assert run_document(changed)["model"]["settings"]["Start"] == start


def test_document_is_plain_json(documents, history):
    for document in [*documents.values(), history, comparison_document(documents[DAYS[0]], documents[DAYS[1]])]:
        assert json.loads(json.dumps(document, allow_nan=False)) == document


def test_page_has_hash_of_stored_spec(nights):
    """A key that it lacks may have another default today."""
    stored = replace(nights.run(DAYS[1]), document=b"of an earlier version")
    assert run_document(read_run(stored))["lineage"]["spec_sha256"] == hashlib.sha256(stored.document).hexdigest()


def test_first_night_has_nothing_to_drift_from(documents):
    assert documents[DAYS[0]]["drift"] is None
    assert "no release before" in Page(render(documents[DAYS[0]], LINKS)).text()


def test_night_that_ended_early_claims_no_lack(nights):
    """An independent night continues none, and is compared with one."""
    run = facts(nights, ["plan", "validate"])
    document = run_document(replace(run, spec=run.spec.model_copy(update={"previous": None})))
    assert "no release before" not in Page(render(document, LINKS)).text()


def test_refused_night_shows_the_reason(documents, history):
    assert documents[DAYS[2]]["state"] == "refused"
    page = check_page(render(documents[DAYS[2]], LINKS))
    assert "of the entities of '2026-11-02' are in no edge any more" in page.text()
    advice = (
        "then clear the task in Airflow, or pbg run {0} 2026-11-03 with its options. To go on without this snapshot: "
        "pbg skip {0} "
    )
    assert f"{advice.format('SPEC')}2026-11-03. SPEC stands for the graph's spec, a YAML file." in page.text()
    named = copy_context()
    named.run(name_spec, "shop's.yaml")
    text = Page(named.run(render, documents[DAYS[2]] | {"reason": "first `pbg skip SPEC d1`"}, LINKS)).text()
    assert advice.format("""'shop'"'"'s.yaml'""") in text
    assert """first `pbg skip 'shop'"'"'s.yaml' d1`""" in text
    assert "SPEC" not in text
    (night,) = (each for each in history["nights"] if each["snapshot"] == DAYS[2])
    assert night["state"] == "refused"
    assert "of the entities of '2026-11-02' are in no edge any more" in night["reason"]
    assert [each["snapshot"] for each in history["refused"]] == [DAYS[2]]


def test_pages_state_where_lists_are_cut(documents):
    document = documents[DAYS[1]]
    snapshot, files = document["lineage"]["snapshot"][:1] * 101, document["lineage"]["files"][:1] * 1001
    many = document | {"lineage": document["lineage"] | {"snapshot": snapshot, "files": files}}
    text = Page(render(many, LINKS)).text()
    assert "Files of the snapshot, the first 100 of 101" in text
    assert "; the first 1,000 are shown)" in text
    compared = comparison_document(documents[DAYS[0]], document)
    rows = {"relations": compared["relations"][:1] * 101, "settings": [{"key": "k", "left": 1, "right": 2}] * 101}
    text = Page(render(compared | rows, LINKS)).text()
    assert "those that changed most come first, 100 of 101 are shown" in text
    assert "101 keys, the first 100 are shown" in text
    for whole in (document, compared):
        assert " shown" not in Page(render(whole, LINKS)).text()


def test_page_names_epoch_that_is_released(nights):
    found = read_run(nights.run(DAYS[1]))
    early = EarlyStopped(stopped=True, best_epoch=1, reason="stopped after epoch 4 of 9: epoch 1 is the best")
    trained = found.results.train.model_copy(update={"early_stopping": early})
    document = run_document(replace(found, results=replace(found.results, train=trained)))
    assert f"Early stopping: {early.reason}." in check_page(render(document, LINKS)).text()


def test_page_links_results_that_are_there(nights):
    document = run_document(facts(nights, ["plan", "validate"], refused="skipped by hand"))
    assert {task["name"]: task["state"] for task in document["tasks"]}["partition"] == "refused"
    text = render(document, replace(LINKS, files=".."))
    assert [task for task in CHAIN if f"../results/{task}.json" in text] == ["plan", "validate"]


@pytest.mark.parametrize(
    ("finished", "reason", "stopped"),
    [
        (["plan"], "its forecast is beyond the spec's limits: 9 hours", "plan"),
        (["plan", "validate"], "skipped by hand", "partition"),
    ],
)
def test_night_without_verdict_needs_no_approval(nights, finished, reason, stopped):
    """No gate has judged it, so that `pbg approve` would refuse it."""
    document = run_document(facts(nights, finished, refused=reason))
    assert (document["state"], document["stopped"]) == ("refused", stopped)
    assert [task["name"] for task in document["tasks"] if task["state"] == "refused"] == [stopped]
    text = check_page(render(document, LINKS)).text()
    assert reason in text
    assert "pbg approve" not in text
    assert ("2026-11-02 with its options, and with higher limits or --accept-data" in text) is (stopped == "plan")


def test_trial_moves_no_band_of_the_gate(nights, history):
    found = read_graph("toy", Channel(nights.store, "production"))
    graph = found.runs[0].spec.graph
    gates = graph.gates.model_copy(update={"min_mrr": 0.9})
    spec = found.runs[0].spec.model_copy(update={"graph": graph.model_copy(update={"gates": gates}), "publish": False})
    trial = replace(found.runs[0], spec=spec, url="/s/runs/d9-0123456789ab", planned=9e9)
    assert history_document(replace(found, runs=[trial, *found.runs]))["limits"] == history["limits"]


def test_run_without_release_names_how_to_publish(documents):
    finished = documents[DAYS[1]] | {"state": "finished", "release": None, "published": False}
    text = check_page(render(finished, LINKS)).text()
    assert "finished not published" in text
    assert "This run became no release, because it is a trial" in text
    assert "Publish of Airflow's form, or pbg run SPEC 2026-11-02 --publish with the same choices." in text
    assert "became no release" not in Page(render(documents[DAYS[1]], LINKS)).text()


def test_older_day_names_how_newer_follow(documents):
    reason = "channel 'production' already serves a newer snapshot"
    older = documents[DAYS[1]] | {"published": False, "unpublished": reason, "warm_start": True}
    text = check_page(render(older, LINKS)).text()
    assert "not current" in text
    assert "to redo them from here, pbg redo SPEC 2026-11-02." in text
    independent = Page(render(older | {"warm_start": False}, LINKS)).text()
    assert f"This release did not become current: {reason}." in independent
    assert "pbg redo" not in independent
    assert "SPEC stands for" not in independent
    assert "did not become current" not in Page(render(documents[DAYS[1]], LINKS)).text()


def test_unserved_release_names_way_back(nights):
    found = read_run(nights.run(DAYS[1]))
    reason = "channel 'production' was rolled back to release 1 meanwhile; `pbg rollback SPEC 2` brings it back"
    unserved = found.results.publish.model_copy(update={"published": False, "reason": reason})
    document = run_document(replace(found, results=replace(found.results, publish=unserved)))
    text = check_page(render(document, LINKS)).text()
    assert f"This release did not become current: {reason}." in text
    assert "newer day" not in text
    assert "SPEC stands for" in text


@pytest.mark.parametrize(("stopped", "cleared"), [("train", "the task"), ("publish", "all tasks of the run")])
def test_failed_night_names_what_to_clear(documents, stopped, cleared):
    """A channel that moved meanwhile asks for another plan."""
    failed = documents[DAYS[2]] | {"state": "failed", "stopped": stopped, "failed_at": 0.0}
    text = Page(render(failed, LINKS)).text()
    assert f"To try it again: clear {cleared} in Airflow, or pbg run SPEC 2026-11-03 with its options." in text


def test_history_lists_nights_in_order(history):
    nights = history["nights"]
    assert [night["snapshot"] for night in nights] == list(DAYS)
    assert [night["release"] for night in nights] == [1, 2, None, 3]
    assert [night["current"] for night in nights] == [False, False, False, True]
    assert all(night["published"] for night in nights if night["release"])
    assert nights[1]["cosine"] is not None
    page = check_page(render(history | {"limits": {"floor": 0.1, "fall": 0.2, "current": 0.25}}, LINKS)).text()
    assert "below the floor 0.1000; red: below 0.2000, refused if it falls as far on edges that both know" in page


def test_older_releases_are_listed_with_their_pages(nights, monkeypatch):
    monkeypatch.setattr("pbg_tasks.tasks.view.report.SHOWN_RUNS", 1)
    history = history_document(read_graph("toy", Channel(nights.store, "production")))
    listed = [(night["snapshot"], night["reported"]) for night in history["nights"]]
    assert listed == [(DAYS[0], True), (DAYS[1], True), (DAYS[3], True)]
    assert history["left_out"] == 1  # the refused night, which has no row


def test_channel_went_without_known_days_alone(nights):
    facts = read_graph("toy", Channel(nights.store, "production"))
    every, last = facts.releases, facts.releases[-1:]  # the refused day may have had a release before the last one
    for runs, of, known in (([], every, 1), (facts.runs, last, 1), ([], [], 1), ([], last, 0), ([], every[::2], 0)):
        found = history_document(replace(facts, runs=runs, releases=of))["refused"]
        assert [each["snapshot"] for each in found] == [DAYS[2]] * known


def test_snapshots_are_sorted_by_number(history):
    nights = [{**history["nights"][0], "snapshot": key, "reported": False} for key in ("9", "10")]
    page = check_page(render({**history, "nights": nights}, LINKS))
    assert sorting(page.all("th")) == {"9": "1", "10": "2"}


def test_values_of_candidates_are_sorted_by_number():
    row = dict.fromkeys(("rank", "mrr", "low", "high", "metric", "epochs", "trained", "seconds", "reason"))
    rows = [
        {**row, "trial": text, "state": "running", "changes": {"k": text}, "values": {"k": value}}
        for text, value in (("1e-05", 1e-05), ("0.5", 0.5), ("dot", "dot"), ("true", True))
    ]
    document = dict.fromkeys(("best", "patch"), None) | {"graph": "toy", "snapshot": "d1", "run": "r", "search": "s"}
    document |= {"kind": "tune", "metric": "mrr", "keys": ["k"], "epochs": [4], "decided": 0, "alike": 0}
    page = check_page(render({**document, "rows": rows}, LINKS))
    assert sorting(page.all("td"), among=("1e-05", "0.5", "dot", "true")) == {"1e-05": "1e-05", "0.5": "0.5"}


def sorting(cells, among=None):
    """Return the figures that sort a table, by their cells' text."""
    found = {cell["text"]: cell["attrs"].get("data-value") for cell in cells}
    return {text: value for text, value in found.items() if value and (among is None or text in among)}


def test_infinite_figure_is_a_gap(history):
    broken = [{**night, "mrr": math.nan} for night in history["nights"]]
    page = render({**history, "nights": broken}, LINKS)
    check_page(page)
    assert "NaN" not in page


def test_two_runs_are_shown_side_by_side(documents):
    left, right = documents[DAYS[0]], documents[DAYS[1]]
    document = comparison_document(left, right)
    figures = {row["title"]: row for row in document["figures"]}
    mrr = figures["MRR, filtered"]
    assert mrr["difference"] == pytest.approx(right["metrics"]["filtered"]["mrr"] - left["metrics"]["filtered"]["mrr"])
    assert mrr["verdict"] == ("better" if mrr["difference"] > 0 else "worse")
    assert figures["Loss"]["verdict"] == "same"  # losses compare between epochs of a run alone
    assert document["settings"] == []
    changed = {**right, "spec": {**right["spec"], "publish": False}}
    assert comparison_document(left, changed)["settings"] == [{"key": "publish", "left": True, "right": False}]
    check_page(render(document, LINKS))


def test_hostile_names_stay_text(documents, history):
    pages = [render(document, LINKS) for document in [*documents.values(), history]]
    lookup = {
        "kind": "lookup",
        "graph": "toy",
        "entity": HOSTILE,
        "types": ["n", HOSTILE],
        "type": HOSTILE,
        "releases": [1],
        "release": 1,
        "k": 3,
        "comparator": "l2",
        "suggestions": [],
        "answers": [{"name": HOSTILE_RELATION, "score": 0.5}],
        "problem": HOSTILE,
    }
    message = {"kind": "message", "graph": "", "title": HOSTILE, "text": HOSTILE_RELATION}
    for html in [*pages, render(lookup, LINKS), render(message, LINKS)]:
        check_page(html)
        assert "<script>alert" not in html
        assert "<img" not in html
    assert HOSTILE_RELATION in Page(pages[1]).text()
    assert HOSTILE in Page(render(lookup, LINKS)).text()


def test_news_are_the_sections_of_page(documents):
    document = documents[DAYS[1]]
    page, sections = render(document, LINKS), live_sections(document, LINKS)
    assert set(sections) == set(LIVE_SECTIONS)
    assert all(html in page for html in sections.values())
    ids = [section["attrs"].get("id") for section in Page(page).all("section")]
    assert ids == list(LIVE_SECTIONS)


def facts(nights, results, **more):
    run = nights.run(DAYS[1])
    kept = NightResults.parse({task: run.result(task) for task in results})
    return RunFacts(run.spec, run.url, run.spec_hash, CHAIN, kept, **more)


@pytest.mark.parametrize("finished", range(len(CHAIN) + 1))
def test_every_state_of_a_run_has_a_page(nights, finished):
    document = run_document(facts(nights, CHAIN[:finished]))
    check_page(render(document, LINKS))
    states = [task["state"] for task in document["tasks"]]
    assert states == ["done"] * finished + ["now"] * (finished < len(CHAIN)) + ["waiting"] * (len(CHAIN) - finished - 1)


def test_matrix_fills_while_buckets_are_trained(nights):
    iteration = Iteration(
        number=1, epoch_idx=0, num_epochs=1, edge_path_idx=0, num_edge_paths=1, edge_chunk_idx=0, num_edge_chunks=1
    )
    progress = PartialRecord(
        spec="x",
        writer_epoch=1,
        number=3,
        iteration=iteration,
        lease=2,
        done=(EdgeChunkRecord(lhs=0, rhs=1, rank=0, lease=1, edges=5, figures=(0.5, 0, 0, 0), seconds=1.5),),
        active=(LeaseRecord(lhs=1, rhs=1, rank=1, lease=2),),
    )
    document = run_document(facts(nights, CHAIN[: CHAIN.index("train")], progress=progress, heard=1.0))
    training = document["training"]
    assert (training["state"], training["epoch"], training["done"], training["buckets"]) == ("running", 1, 1, 4)
    assert [[cell["state"] for cell in row] for row in training["matrix"]] == [
        ["waiting", "done"],
        ["waiting", "active"],
    ]
    assert (training["matrix"][0][1]["loss"], training["matrix"][1][1]["rank"]) == (0.5, 1)
    page = check_page(render(document, LINKS))
    assert "training, epoch 1 of 1, 1 of 4 buckets" in page.text()


def test_matrix_of_many_partitions_has_blocks(nights, monkeypatch):
    monkeypatch.setattr("pbg_tasks.report.training.MOST_ROWS", 1)
    run = nights.run(DAYS[1])
    document, buckets = run_document(read_run(run)), run.result("bucket")["matrix"]
    ((cell,),) = document["training"]["matrix"]
    assert (document["training"]["block"], document["training"]["buckets"]) == (2, 4)
    assert (cell["edges"], cell["state"]) == (sum(map(sum, buckets)), "done")
    assert cell["loss"] == pytest.approx(document["training"]["iterations"][-1]["loss"])
    assert "Each cell is a block of 2 \N{MULTIPLICATION SIGN} 2 buckets" in check_page(render(document, LINKS)).text()


def test_block_of_begun_buckets_is_active():
    cells = {(0, 0): _Worked(0.5, 1.0), (0, 1): _Worked(1.0, 2.0), (2, 2): _Worked(rank=1, state="active")}
    sizes = [[3, 1, 2], [0, 0, 2], [1, 1, 1]]
    rows, found = _merged(sizes, cells, 2)
    assert rows == [[4, 4], [2, 1]]
    assert found == {(0, 0): _Worked(0.625, 3.0, state="active"), (1, 1): _Worked(state="active")}


def test_approving_user_is_named(nights):
    run = nights.run(DAYS[2])
    results = NightResults.parse({task: run.result(task) for task in CHAIN})
    decision = {"task": "partition", "approved": True, "by": HOSTILE, "at": "2026-11-03T02:00:00Z", "reason": "known"}
    approved = RunFacts(
        run.spec, run.url, run.spec_hash, CHAIN, results, refused="x", decisions={"partition": decision}
    )
    page = check_page(render(run_document(approved), LINKS))
    assert f"Approved by {HOSTILE}" in page.text()


def test_approved_night_is_shown_as_running(nights):
    validated = nights.run(DAYS[1]).result("validate")
    refused = validated | {"data_gate": validated["data_gate"] | {"passed": False}}
    for approved, state in ((False, "refused"), (True, "running")):
        decisions = {"validate": {"task": "validate", "approved": approved}}
        run = facts(nights, ["plan"], refused="the data gate refused it", decisions=decisions)
        run = replace(run, results=replace(run.results, validate=ValidateResult.model_validate(refused)))
        assert run_document(run)["state"] == state


def test_refusal_after_approval_is_shown_as_one(nights):
    decisions = {"validate": {"task": "validate", "approved": True}}
    run = facts(nights, ["plan"], refused="few edges", decisions=decisions)
    for kind, state in (("quality_gate", "refused"), ("storage", "failed")):
        failed = {"task": "partition", "kind": kind, "reason": "nothing to hold out", "at": "2026-11-03T02:00:00Z"}
        document = run_document(replace(run, failed=failed))
        assert (document["state"], document["reason"]) == (state, "nothing to hold out")


def test_approval_is_named_where_airflow_has_failure(documents):
    decision = {"task": "validate", "approved": True, "by": HOSTILE, "at": "2026-11-03T02:00:00Z", "reason": "known"}
    failed = documents[DAYS[2]] | {"state": "failed", "stopped": "validate", "failed_at": 0.0}
    told = f"{HOSTILE} has approved it since, so it passes when it is tried again. Nothing was published"
    verdicts = [each | {"decision": decision} for each in failed["verdicts"] if each["task"] == "validate"]
    assert told in check_page(render(failed | {"verdicts": verdicts}, LINKS)).text()
    assert "has approved it" not in Page(render(failed, LINKS)).text()


def test_assets_of_pages_exist():
    found = assets()
    assert {path.suffix for path in found.values()} == {".css", ".js"}
    (plotly,) = (name for name in found if name.startswith("plotly-"))
    assert b"plotly.js v" in found[plotly].read_bytes()[:500]


def test_sampled_evaluation_shows_its_interval(documents):
    whole = documents[DAYS[1]]
    assert "95 % interval" not in Page(render(whole, LINKS)).text().split("Held-out edges, ranked")[1].split("Data")[0]
    interval = {"mrr": 0.25, "low": 0.2371, "high": 0.2629}
    sampled = whole | {"held_out": 2500, "sampled_from": 30000, "interval": interval}
    text = Page(render(sampled, LINKS)).text()
    assert "2,500 of 30,000 held-out edges were ranked" in text
    assert "between 0.2371 and 0.2629 (95 % interval)" in text
