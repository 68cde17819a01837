"""Nights that a gate refused, and a user approved or rejected."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from typer.testing import CliRunner

from pbg_tasks.cli import app
from pbg_tasks.config.base import canonical_json
from pbg_tasks.errors import ConfigError, ConflictError, QualityGateError, UnusableError
from pbg_tasks.tasks.approval import approve, reject
from pbg_tasks.tasks.context import RunContext
from pbg_tasks.tasks.nightly.chain import TASKS, run_chain, run_task
from pbg_tasks.tasks.nightly.plan import plan
from pbg_tasks.tasks.release.replay import replay
from pbg_tasks.tasks.view.show import overview, show
from pbg_tasks.tasks.view.tables import table
from tests.tasks.conftest import ring

QUICK = {"num_epochs": 1}
STRICT = {"min_mrr": 1.5, "max_mrr_drop": 1.0}


@pytest.fixture
def refused(place):
    """A night that the quality gate refused."""
    place.write_spec(model=QUICK, gates=STRICT)
    place.snapshot("d1", ring(40))
    with pytest.raises(QualityGateError, match=r"at least 1\.5 asked \(gates\.min_mrr\); ") as caught:
        run_chain(place.spec, "d1")
    run = plan(place.spec, "d1")["run"]
    assert str(caught.value).endswith(f"`pbg approve {run} --reason TEXT`")
    return run


def test_release_of_approved_night_records_the_approval(place, refused):
    with pytest.raises(QualityGateError, match=f"`pbg approve {re.escape(refused)} --reason TEXT`"):
        run_task("publish", refused)
    called = CliRunner().invoke(app, ["approve", refused, "--reason", "a first night", "--by", "ada", "--json"])
    assert called.exit_code == 0, called.output
    said = json.loads(called.stdout)
    assert {name: said[name] for name in ("run", "task", "approved", "by", "reason")} == {
        "run": refused,
        "task": "gate",
        "approved": True,
        "by": "ada",
        "reason": "a first night",
    }
    assert (
        "`pbg run SPEC d1`, with the options that it was planned with, such as --epochs or -p, or in" in called.stderr
    )
    assert approve(refused, by="bob", reason="me too")["by"] == "ada"  # the first decision stays
    (why,) = overview(place.spec)["without_release"]["production"].values()
    assert why.endswith("; approved since by ada, so that `pbg run SPEC d1` with its options goes on with it")
    assert run_chain(place.spec, "d1")["release"]["published"]
    (decision,) = place.channel().current().release.data["decisions"]
    assert (decision["task"], decision["approved"], decision["by"], decision["reason"]) == (
        "gate",
        True,
        "ada",
        "a first night",
    )
    assert timedelta(0) <= datetime.now(UTC) - datetime.fromisoformat(decision["at"]) < timedelta(minutes=5)
    assert show(refused)["decisions"] == [decision]
    assert show(refused)["gate"]["passed"] is False  # the verdict stays unchanged
    assert "gate approved by ada" in table([show(refused)])


def test_refusal_after_approval_is_not_called_approved(place):
    """Approve a snapshot of which nothing can be held out."""
    place.write_spec(model=QUICK, gates={"data": {"min_edges": {"block": 1000}}})
    place.snapshot("d1", [(f"e{i}", "likes", "hub") for i in range(200)])
    with pytest.raises(QualityGateError, match=r"gates\.data\.min_edges"):
        run_chain(place.spec, "d1")
    approve(plan(place.spec, "d1")["run"], by="ada", reason="a small day")
    with pytest.raises(QualityGateError, match="no test edges could be held out"):
        run_chain(place.spec, "d1")
    (why,) = overview(place.spec)["without_release"]["production"].values()
    assert "no test edges could be held out" in why
    assert "approved since" not in why


def test_approving_names_the_newer_night_it_costs(place, refused, capsys):
    """Publish one of two nights first, at the other's cost.

    The nights after a refused one do not wait for an answer; the night that is published first costs the other its
    place.
    """
    for day in ("d2", "d3", "d4"):
        place.snapshot(day, ring(44))
    at_work = plan(place.spec, "d2")["run"]
    plan(place.spec, "d2", publish=False)  # an experiment takes no other night's place
    with pytest.raises(QualityGateError):
        run_chain(place.spec, "d3")  # it waits for an answer as well
    place.write_spec(model=QUICK, gates=STRICT, channel="other")
    plan(place.spec, "d4")
    capsys.readouterr()

    approve(refused, by="ada", reason="a first night")
    (warned,) = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert f"run {at_work} of snapshot 'd2' was planned on no release, as this night was" in warned
    assert "that one ends with conflict, its training is lost, and its snapshot has to be planned again" in warned

    # So it happens: the active night has to be planned again.
    assert run_task("publish", refused)["published"]
    for task in [task for task in TASKS if task != "publish"]:
        with suppress(QualityGateError):
            run_task(task, at_work)
    approve(at_work, by="ada", reason="too late")
    with pytest.raises(ConflictError, match="planned on None: plan the snapshot 'd2' again"):
        run_task("publish", at_work)


def test_approving_names_a_refused_night_planned_again(place, refused, capsys):
    place.snapshot("d2", ring(44))
    night = RunContext.open(plan(place.spec, "d2")["run"])
    night.refuse("its training diverged")
    assert plan(place.spec, "d2")["run"] == night.url
    capsys.readouterr()
    approve(refused, by="ada", reason="a first night")
    assert f"warning: run {night.url} of snapshot 'd2'" in capsys.readouterr().err


def test_approving_costs_no_finished_or_separate_night(place, refused, capsys):
    place.snapshot("d2", ring(44))
    place.write_spec(model=QUICK, gates={"max_mrr_drop": 1.0})
    assert run_chain(place.spec, "d2")["release"]["published"]
    capsys.readouterr()
    approve(refused, by="ada", reason="a first night")
    assert "warning" not in capsys.readouterr().err
    # Published after a newer one, a night is recorded, and the channel stays.
    published = run_task("publish", refused)
    assert (published["published"], published["release"]) == (False, 2)


def test_rejected_night_stays_refused(place, refused):
    assert reject(refused, by="ada", reason="too weak")["approved"] is False
    with pytest.raises(ConflictError, match="ada has rejected it already"):
        approve(refused, by="bob", reason="I like it")
    with pytest.raises(QualityGateError):
        run_task("publish", refused)
    assert place.channel().current().release is None


def test_night_without_refusal_needs_no_decision(place):
    place.write_spec(model=QUICK, gates={"max_mrr_drop": 1.0})
    place.snapshot("d1", ring(40))
    url = plan(place.spec, "d1")["run"]
    for decide in (approve, reject):
        with pytest.raises(ConfigError, match="no gate has refused this night"):
            decide(url, by="ada", reason="just in case")


def test_rejected_night_is_shown_without_approval(refused):
    assert "`pbg approve" in show(refused)["advice"]
    reject(refused, by="ada", reason="the feed was down")
    assert show(refused)["advice"] is None


def test_unusable_vectors_cannot_be_approved(place, refused):
    run = RunContext.open(refused)
    key = run.key("results/gate.json")
    verdict = json.loads(run.store.get(key).data)
    verdict["checks"].append({"name": "health of n", "passed": False, "sentence": "n: 3 vectors are not finite"})
    run.store.put(key, canonical_json(verdict))
    with pytest.raises(ConfigError, match="no approval makes its vectors usable: n: 3 vectors are not"):
        approve(refused, by="ada", reason="never mind")
    with pytest.raises(
        UnusableError, match="n: 3 vectors are not finite; train it otherwise, or leave it: later nights go on"
    ):
        run_task("gate", refused)


@pytest.mark.parametrize(
    ("check", "key"),
    [
        ("min_mrr of likes", "relations"),
        ("min_coverage of n", "min_coverage"),
        ("drift.min_cosine of n", "drift.min_cosine"),
        ("max_mrr_drop", "on_few_common_edges"),  # without a value: it could not be decided
    ],
)
def test_refusal_names_keys_of_its_limits(refused, check, key):
    run = RunContext.open(refused)
    verdict = json.loads(run.store.get(run.key("results/gate.json")).data)
    verdict["checks"].append({"name": check, "passed": False, "sentence": "not enough"})
    run.store.put(run.key("results/gate.json"), canonical_json(verdict))
    with pytest.raises(QualityGateError, match=rf"not enough \(gates\.{key}\); train it otherwise, change the limits"):
        run_task("gate", refused)


def test_refusal_without_limit_proposes_no_other_limits(refused):
    run = RunContext.open(refused)
    verdict = json.loads(run.store.get(run.key("results/gate.json")).data)
    verdict["checks"] = [{"name": "replaced", "passed": False, "value": 0.1, "limit": None, "sentence": "worse"}]
    run.store.put(run.key("results/gate.json"), canonical_json(verdict))
    with pytest.raises(QualityGateError, match="worse; train it otherwise, or take it this once: `pbg approve"):
        run_task("gate", refused)


@pytest.mark.parametrize("accepted", [None, "a quiet day"])
def test_empty_snapshot_can_be_rejected_only(place, accepted):
    place.write_spec(model=QUICK)
    place.snapshot("d1", [])
    run = plan(place.spec, "d1", accept_data=accepted)["run"]
    for _ in range(2):  # the second time from the stored result
        with pytest.raises(UnusableError, match=r"'d1': .*the snapshot has no edges .*later nights go on without it"):
            run_task("validate", run)
    with pytest.raises(ConfigError, match=r"no approval makes its vectors usable: .* the snapshot has no edges"):
        approve(run, by="ada", reason="a quiet day")
    assert "blocked" in table([show(run)])
    assert reject(run, by="ada", reason="the feed was down")["task"] == "validate"


@pytest.mark.parametrize("text", ["", "x" * 501])
def test_decision_needs_a_reason_of_some_length(refused, text):
    with pytest.raises(ConfigError, match="reason"):
        approve(refused, by="ada", reason=text)


def test_blocked_snapshot_approved_at_gate_is_replayed(place):
    limits = {"min_edges": {"block": 1000}}
    place.write_spec(model=QUICK, gates={"max_mrr_drop": 1.0, "data": limits})
    place.snapshot("d1", ring(40))
    url = plan(place.spec, "d1")["run"]
    with pytest.raises(QualityGateError, match=r"gates\.data\.min_edges"):
        run_task("validate", url)
    assert approve(url, by="ada", reason="the shop is new")["task"] == "validate"
    assert run_chain(place.spec, "d1")["release"]["published"]
    (decision,) = place.channel().current().release.data["decisions"]
    assert decision["task"] == "validate"
    assert replay(url)["equal"]
