"""Errors of tasks, stored in their run for pages and ``pbg show``."""

from __future__ import annotations

import html
import json
import shutil
import threading

import pytest
from typer.testing import CliRunner

from pbg_tasks.cli import app
from pbg_tasks.config.base import canonical_json
from pbg_tasks.config.results import BucketResult, EvalResult, PartitionResult, TrainResult, ValidateResult
from pbg_tasks.errors import (
    AccessError,
    ConflictError,
    InputError,
    OutOfTurnError,
    QualityGateError,
    StorageError,
    TrainingDivergedError,
    UnusableError,
)
from pbg_tasks.publish import Channel
from pbg_tasks.publish.skips import skip
from pbg_tasks.report.history import history_document
from pbg_tasks.report.run import run_document
from pbg_tasks.storage import LocalStore
from pbg_tasks.tasks import failure
from pbg_tasks.tasks.approval import approve
from pbg_tasks.tasks.context import CHAIN, RunContext, perform
from pbg_tasks.tasks.nightly.chain import run_task
from pbg_tasks.tasks.nightly.plan import plan
from pbg_tasks.tasks.release.releases import skip as skip_by_hand
from pbg_tasks.tasks.view.days_left import broken_nights
from pbg_tasks.tasks.view.report import read_graph, read_run
from pbg_tasks.tasks.view.show import overview, show
from pbg_tasks.tasks.view.tables import overview_table, table
from tests.tasks.conftest import ring, workplace

LACK = "no column 'lhs'"
DECISION = "decisions/validate.json"
BEFORE_BUCKET = ("plan", "validate", "partition")
BEFORE_EVAL = CHAIN[: CHAIN.index("eval")]


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """A place with the plan of one night."""
    with workplace(tmp_path_factory.mktemp("planned")) as place:
        place.write_spec()
        place.snapshot("d1", [*ring(40), ("", "next", "e1")])
        yield place, RunContext.open(plan(place.spec, "d1")["run"])


@pytest.fixture
def run(planned):
    """The planned run, without what an earlier test stored."""
    place, run = planned
    yield run
    shutil.rmtree(f"{place.store}/channels", ignore_errors=True)
    for name in ("failed.json", "refused.json", "results/export-npy.json", "results/validate.json", DECISION):
        run.store.delete(run.key(name))


def fail(run, error, shape=BucketResult, task=None):
    def body(_):
        raise error

    with pytest.raises(type(error)):
        perform(shape, run.url, body, task=task)


def stored(run):
    return json.loads(run.store.get(run.key("failed.json")).data)


@pytest.mark.parametrize(
    ("error", "kind", "reason"),
    [
        (InputError("s3://key:secret@b/x: no column 'lhs'"), "input", "s3://***@b/x: no column 'lhs'"),
        (ValueError("two\nlines of token=abc"), "internal", "ValueError: two lines of token=***"),
        (MemoryError(), "resource", "out of memory; lower resources.memory_gb or raise num_partitions"),
        (KeyboardInterrupt(), "evicted", "interrupted from the keyboard; the same command goes on with what was"),
    ],
)
def test_error_of_task_is_stored_redacted(run, error, kind, reason):
    fail(run, error)
    found = run.failure(BEFORE_BUCKET)
    assert (found["task"], found["kind"]) == ("bucket", kind)
    assert found["reason"].startswith(reason)
    assert stored(run) == {"format": 1, "begun_again": False, **found, "at": found["at"].replace("+00:00", "Z")}


def test_failure_ends_when_task_begins_again(run):
    fail(run, InputError("first"))
    seen = []

    def body(again):
        seen.append(again.failure(BEFORE_BUCKET))
        raise InputError("second")

    with pytest.raises(InputError):
        perform(BucketResult, run.url, body)
    assert (seen, run.failure(BEFORE_BUCKET)["reason"]) == ([None], "second")
    assert run.failure(("plan", "validate", "partition", "bucket")) is None  # it has finished after all


def test_failure_ends_when_run_is_planned_again(planned, run):
    fail(run, InputError("first"))
    assert plan(planned[0].spec, "d1")["run"] == run.url
    assert run.failure(BEFORE_BUCKET) is None


def test_task_run_too_early_stops_nothing(run):
    fail(run, InputError("no result of gate yet"), task="publish")
    assert run.failure(BEFORE_BUCKET) is None
    assert run.failure(CHAIN[:-1])["task"] == "publish"


def test_failed_part_is_taken_back_by_merge(run):
    fail(run, InputError("no room left"), EvalResult, task="eval-1-of-3")
    assert run.failure(BEFORE_EVAL)["task"] == "eval-1-of-3"
    fail(run, InputError("another"), EvalResult, task="eval-2-of-3")
    failure.begin_again(run.store, run.run_id, "eval-3-of-3")  # does nothing about other parts
    assert run.failure(BEFORE_EVAL)["task"] == "eval-2-of-3"
    failure.begin_again(run.store, run.run_id, "eval")
    assert run.failure(BEFORE_EVAL) is None


def test_failed_export_is_shown_after_the_chain(run):
    fail(run, InputError("no room left"), task="export-npy")
    assert run.failure(BEFORE_EVAL) is None
    assert run.failure(CHAIN)["task"] == "export-npy"
    run.store.put(run.key("results/export-npy.json"), b"{}")
    assert run.failure(CHAIN) is None


def test_training_outdone_by_another_is_no_failure(run):
    fail(run, ConflictError("another training has claimed it"), TrainResult)
    assert run.store.head(run.key("failed.json")) is None
    fail(run, ConflictError("another release came first"), task="publish")
    assert stored(run)["kind"] == "conflict"


@pytest.mark.parametrize("fault", [StorageError("the store is away"), MemoryError()])
def test_failing_store_leaves_the_task_its_error(run, monkeypatch, capsys, fault):
    put = LocalStore.put

    def failing(store, key, source, **named):
        if key.endswith("failed.json"):
            raise fault
        return put(store, key, source, **named)

    monkeypatch.setattr(LocalStore, "put", failing)
    fail(run, InputError("its own error"))
    assert "warning: the failure of bucket was not stored" in capsys.readouterr().err


def test_lack_of_threads_leaves_the_task_its_error(run, monkeypatch, capsys):
    def start(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    fail(run, InputError("its own error"))
    assert "was not stored for pages and `pbg show`: can't start new thread" in capsys.readouterr().err


def test_silent_store_delays_the_error_briefly(run, monkeypatch):
    answer, asked = threading.Event(), threading.Event()

    def silent(*_):
        asked.set()
        answer.wait()

    monkeypatch.setattr(failure, "PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(failure, "_put", silent)
    fail(run, InputError("its own error"))
    assert asked.is_set()
    answer.set()


@pytest.mark.parametrize("data", [b"{", b'{"format": 2}'])
def test_unreadable_failure_is_as_good_as_none(run, data):
    run.store.put(run.key("failed.json"), data)
    assert run.failure(BEFORE_BUCKET) is None
    fail(run, InputError("its own error"))
    assert stored(run)["reason"] == "its own error"


def test_broken_night_is_failed_in_show_and_pages(planned, run):
    place, _ = planned
    with pytest.raises(InputError):
        run_task("validate", run.url)
    told = "d1.tsv, line 122: empty id in column lhs"
    text = table([show(run.url)])
    assert "failed in validate" in text
    (line,) = (line for line in text.splitlines() if line.startswith("validate of d1 failed, "))
    assert told in line
    said = CliRunner().invoke(app, ["show", run.url]).stdout
    assert said.endswith(f"\nrun of d1: {run.url}\n\nSPEC stands for the graph's spec, a YAML file\n")  # no empty line
    (night,) = overview(place.spec)["failed"]["production"]
    assert (night["snapshot"], night["run"], night["failed"]) == ("d1", run.run_id, run.failure(["plan"]))
    for target in (place.spec, str(place.store)):
        assert told in overview_table(overview(target))

    document = run_document(read_run(run))
    assert (document["state"], document["stopped"]) == ("failed", "validate")
    assert told in document["reason"]
    assert [task["name"] for task in document["tasks"] if task["state"] in {"failed", "now"}] == ["validate"]
    (row,) = history_document(read_graph("toy", Channel(run.store, "production")))["nights"]
    assert (row["state"], row["reason"]) == ("failed", document["reason"])

    failure.begin_again(run.store, run.run_id, "validate")
    assert run_document(read_run(run))["state"] == "running"
    assert overview(place.spec)["failed"] == {}


def test_night_of_another_channel_hides_no_failure(place):
    place.snapshot("d1", [*ring(40), ("", "next", "e1")])
    run = RunContext.open(plan(place.spec, "d1")["run"])
    with pytest.raises(InputError):
        run_task("validate", run.url)
    plan(place.spec, "d1", overrides=["channel=other"])
    (night,) = overview(place.spec)["failed"]["production"]
    assert (night["run"], night["failed"]["task"]) == (run.run_id, "validate")


def test_nights_without_failure_are_not_read(place, monkeypatch):
    place.snapshot("d1", [*ring(40), ("", "next", "e1")])
    run = RunContext.open(plan(place.spec, "d1")["run"])
    within, read = RunContext.within, []
    with pytest.raises(InputError):
        run_task("validate", run.url)
    failure.begin_again(run.store, run.run_id, "validate")
    plan(place.spec, "d1", overrides=["channel=other"])
    monkeypatch.setattr(RunContext, "within", lambda store, name: read.append(name) or within(store, name))
    assert (broken_nights(run.store), read) == ({}, [run.run_id])


def test_night_that_others_go_without_is_listed_once(planned, run):
    fail(run, InputError(LACK), ValidateResult)
    skip(Channel(run.store, "production"), "d1", "half of it is missing")
    found = overview(planned[0].spec)
    assert (found["failed"], list(found["without_release"]["production"])) == ({}, ["d1"])


@pytest.mark.parametrize(
    ("given", "kept"), [(None, f"skipped by hand after validate failed: {LACK}"), ("late", "late")]
)
def test_skip_without_reason_keeps_the_failure(planned, run, given, kept):
    fail(run, InputError(LACK), ValidateResult)
    skip_by_hand(planned[0].spec, "d1", reason=given)
    assert overview(planned[0].spec)["without_release"] == {"production": {"d1": kept}}


def test_skip_reads_runs_of_its_day_alone(planned, run, monkeypatch):
    fail(run, InputError(LACK), ValidateResult)
    listed, listing = [], LocalStore.list
    monkeypatch.setattr(LocalStore, "list", lambda store, prefix="": listed.append(prefix) or listing(store, prefix))
    skip_by_hand(planned[0].spec, "d1")
    assert [prefix for prefix in listed if prefix.startswith("runs/")] == ["runs/d1-"]


UNPLANNED = "channels/production/unplanned/toy/d2.json"


@pytest.fixture
def broken_plan(planned, run):
    """The place with a second snapshot that lacks a column."""
    place, _ = planned
    (place.root / "edges" / "d2.tsv").write_text("lhs\trel\ne1\tnext\n")
    yield place
    (place.root / "edges" / "d2.tsv").unlink()


def test_failed_plan_is_listed_until_one_succeeds(broken_plan, run):
    place, store = broken_plan, run.store
    result = CliRunner().invoke(app, ["run", str(place.spec), "d2"])
    assert (result.exit_code, type(result.exception)) == (1, InputError)
    told = str(result.exception)
    assert "rhs" in told
    for target in (place.spec, str(place.store)):
        (night,) = overview(target)["failed"]["production"]
        assert (night["run"], night["failed"]["task"], night["failed"]["reason"]) == (None, "plan", told)
        assert f"  plan of d2 failed, {night['failed']['at'][:10]}" in overview_table(overview(target))
    last = history_document(read_graph("toy", Channel(store, "production")))["nights"][-1]
    assert [last[key] for key in ("snapshot", "run", "state", "reason")] == ["d2", "", "failed", told]
    assert read_graph("other", Channel(store, "production")).unplanned == {}
    assert told in html.unescape(store.get("report/production/index.html").data.decode())  # pbg run wrote it

    skip_by_hand(place.spec, "d2")
    told_after = {"failed": {}, "without_release": {"production": {"d2": f"skipped by hand after plan failed: {told}"}}}
    assert told_after.items() <= overview(place.spec).items()
    place.snapshot("d2", ring(40))
    plan(place.spec, "d2")
    assert store.head(UNPLANNED) is None


def test_refused_day_that_broke_since_shows_both(broken_plan, run):
    place, channel = broken_plan, Channel(run.store, "production")
    skip(channel, "d2", "the data gate refused it")
    with pytest.raises(InputError) as broken:
        plan(place.spec, "d2")
    told = f"the data gate refused it; planned again since, which failed: {broken.value}"
    assert overview(place.spec)["without_release"] == {"production": {"d2": told}}


def test_plans_that_wait_or_try_store_no_failure(broken_plan, run, monkeypatch):
    with pytest.raises(InputError):
        plan(broken_plan.spec, "d2", publish=False)
    with pytest.raises(InputError, match="no file"):
        plan(broken_plan.spec, "d3")

    def waiting(*_):
        raise OutOfTurnError("d1 comes first")

    monkeypatch.setattr("pbg_tasks.tasks.nightly.plan.release_to_continue", waiting)
    with pytest.raises(OutOfTurnError):
        plan(broken_plan.spec, "d2")
    assert list(run.store.list("channels/")) == []


@pytest.mark.parametrize("method", ["put", "delete"])
def test_store_that_refuses_leaves_plan_its_outcome(broken_plan, run, monkeypatch, capsys, method):
    place, former = broken_plan, getattr(LocalStore, method)
    if method == "delete":
        place.snapshot("d2", ring(40))
        run.store.put(UNPLANNED, b"{}")

    def refusing(store, key, *given, **named):
        if key == UNPLANNED:
            raise AccessError("not permitted")
        return former(store, key, *given, **named)

    monkeypatch.setattr(LocalStore, method, refusing)
    if method == "put":
        with pytest.raises(InputError, match="rhs"):
            plan(place.spec, "d2")
    else:
        assert plan(place.spec, "d2")["snapshot"] == "d2"
    assert "not permitted" in capsys.readouterr().err


def judged(run, *checks):
    """Store that ``validate`` refused the run."""
    usage = dict.fromkeys(("cpu_seconds", "memory_bytes", "store_bytes_read", "store_bytes_written"), 0)
    verdict = {"passed": False, "checks": [each | {"value": 1.0} for each in checks], "snapshot": "d1"}
    header = {"task": "validate", "run": run.url, "seconds": 0, "usage": usage}
    found = {"edges": 24, "columns": {}, "data_gate": verdict}
    run.store.put(run.key("results/validate.json"), canonical_json(header | found))


GONE = {"name": "max_removed_edges", "passed": False, "sentence": "100.0% of the edges are gone"}
COLUMN = {"name": "changed_columns", "passed": True, "warned": True, "sentence": "column 'rhs' is DOUBLE, was VARCHAR"}


def test_refused_night_has_advice_on_its_end(run):
    judged(run, GONE, COLUMN, GONE)
    cause = "the cause may be that column 'rhs' is DOUBLE, was VARCHAR"
    with pytest.raises(QualityGateError, match=rf"gone \(.*; {cause}; mend"):
        run_task("validate", run.url)
    lines = table([show(run.url)]).splitlines()
    assert lines[2].split(maxsplit=1) == ["verdict", "refused by the data gate"]
    assert [line.partition(":")[0] for line in lines[-4:]] == [
        "data gate of d1, not passed",  # once, though two tasks may find it
        "data gate of d1, warned",
        "to let d1 pass",
        "run of d1",
    ]
    assert f"`pbg approve {run.url} --reason TEXT`" in lines[-2]
    judged(run, {"name": "no_edges", "passed": False, "sentence": "the snapshot has no edges"})
    assert show(run.url)["advice"] is None


def test_column_that_is_not_read_is_no_cause(run):
    judged(run, GONE, COLUMN | {"sentence": "column '__index_level_0__' is new"})
    with pytest.raises(QualityGateError, match=r"gone \(gates\.data\.max_removed_edges\); mend"):
        run_task("validate", run.url)


def test_approved_night_that_fails_is_failed(run):
    judged(run, GONE)
    approve(run.url, by="ada", reason="a quiet day")
    fail(run, InputError("no room left"), PartitionResult)
    lines = table([show(run.url)]).splitlines()
    assert lines[2].split(maxsplit=1) == ["verdict", "failed in partition"]
    again = "to try it again: `pbg run SPEC d1` with its options"
    assert lines[-2] == f"{again}; to go on without d1: `pbg skip SPEC d1`"
    fail(run, UnusableError("nothing was held out"), PartitionResult)
    shown = show(run.url)
    assert ("refused in partition" in table([shown]), shown["advice"]) == (True, None)


def test_diverged_training_of_run_is_a_refusal(run):
    fail(run, TrainingDivergedError("loss is not finite"), TrainResult)
    assert run.refusal() == "loss is not finite"
    assert run.failure((*BEFORE_BUCKET, "bucket"))["kind"] == "diverged"
