"""The data gate among the tasks.

Nights are blocked before training, accepted by hand, or let through with a warning.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime

import pytest

from pbg_tasks.checkpoint.preserve import preserve_files
from pbg_tasks.errors import ConfigError, InputError, OutOfTurnError, QualityGateError, UnusableError
from pbg_tasks.prepare.comparison import volumes
from pbg_tasks.prepare.difference import EDGE_HASHES
from pbg_tasks.publish import Channel
from pbg_tasks.publish.skips import skip
from pbg_tasks.storage import open_store
from pbg_tasks.tasks.nightly.chain import run_chain, run_task
from pbg_tasks.tasks.nightly.plan import plan
from pbg_tasks.tasks.nightly.validate import earlier_edges
from pbg_tasks.tasks.release.replay import replay
from pbg_tasks.tasks.view.show import overview, show
from pbg_tasks.tasks.view.tables import overview_table, table
from tests.clocks import HOUR, clock_wrong_by
from tests.publish.runs import candidate, write_run
from tests.tasks.conftest import ring

QUICK = {"num_epochs": 1}
LIMITS = {
    "max_removed_edges": {"warn": 0.01, "block": 0.3},
    "max_gone_entities": {"block": 0.5},
    "max_gone_relations": {"warn": 0.05},
}
NIGHT = ring(60)
HALF = [row for row in NIGHT if row[1] != "far"] + [("e0", "next", "e1")] * 3


def test_blocked_night_accepted_by_hand_is_compared_next(place, capsys):
    place.write_spec(model=QUICK, gates={"max_mrr_drop": 1.0, "data": LIMITS})
    place.snapshot("d1", NIGHT)
    place.snapshot("d2", HALF)
    first = run_chain(place.spec, "d1")
    assert first["data"]["difference"]["since"] is None
    assert first["data"]["passed"] is True

    blocked = plan(place.spec, "d2")["run"]
    for _ in range(2):  # the second time from the stored result
        with pytest.raises(QualityGateError) as caught:
            run_task("validate", blocked)
        assert str(caught.value) == (
            "snapshot 'd2': 33.3% of the edges of 'd1' are gone, at most 30.0% allowed (gates.data.max_removed_edges); "
            "mend the snapshot, change the limits in gates.data (a limit {} is none, as for days of new events), or "
            f"take it this once: `pbg approve {blocked} --reason TEXT`, or plan it with --accept-data REASON"
        )
    with pytest.raises(QualityGateError, match=r"33\.3% of the edges"):
        run_task("partition", blocked)
    with pytest.raises(ConfigError, match="`pbg bucket` has not finished"):
        run_task("train", blocked)
    shown = show(blocked)
    assert shown["finished"] == ["plan", "validate"]
    assert shown["data"]["passed"] is False
    edges = shown["data"]["difference"]["edges"]
    assert {name: edges[name] for name in ("now", "before", "added", "removed", "exact")} == {
        "now": 120,
        "before": 180,
        "added": 0,
        "removed": 60,
        "exact": True,
    }
    assert edges["relations"]["far"] == {"rows": 0, "now": 0, "before": 60, "added": 0, "removed": 60}
    assert shown["data"]["difference"]["volumes"][0]["ratio"] == pytest.approx(123 / 180, abs=1e-6)
    drawn = table([shown])
    assert "blocked" in drawn
    assert (
        "data gate of d2, not passed: 33.3% of the edges of 'd1' are gone, at most 30.0% allowed (max_removed_edges)"
        in drawn.splitlines()
    )
    found = overview(place.spec)
    why = "33.3% of the edges of 'd1' are gone, at most 30.0% allowed"
    told = f"the data gate refused it: {why} (run {blocked.rpartition('/')[2]})"
    assert found["without_release"] == {"production": {"d2": told}}
    assert f"  d2: {told}" in overview_table(found).splitlines()
    assert place.channel().current().release.snapshot == "d1"

    accepted = run_chain(place.spec, "d2", accept_data="feed 'far' was switched off")
    assert accepted["run"] != blocked
    assert overview(place.spec)["without_release"] == {"production": {}}
    assert accepted["data"]["accepted"] == "feed 'far' was switched off"
    release = place.channel().current().release
    assert release.data["accepted"] == "feed 'far' was switched off"
    assert "accepted (feed 'far' was switched off): 33.3% of the edges" in capsys.readouterr().err
    assert replay(accepted["run"])["equal"]

    place.snapshot("d3", [row for row in HALF if "e7" not in (row[0], row[2])])
    warned = run_chain(place.spec, "d3")
    assert warned["release"]["published"]
    assert warned["data"]["difference"]["edges"]["removed"] == 4
    assert warned["data"]["difference"]["since"] == "d2"
    assert [check["name"] for check in warned["data"]["checks"] if check["warned"]] == ["max_removed_edges"]
    assert "warning: 3.3% of the edges of 'd2' are gone, at most 1.0% allowed" in capsys.readouterr().err
    third = place.channel().current().release
    assert "accepted" not in third.data
    place.channel().store.delete(place.channel().release_key(1))  # the volumes still count d1
    assert third.data["earlier_edges"] == {"d1": 180, "d2": 123}
    assert earlier_edges(place.channel(), "d4") == {"d1": 180, "d2": 123, "d3": len(HALF) - 4}


def test_fourteen_releases_record_rows_of_28_snapshots(tmp_path):
    store = open_store(str(tmp_path))
    releases = Channel(store, "production")
    for day in range(1, 41):
        earlier = earlier_edges(releases, f"d{day}")
        assert list(earlier.items()) == [(f"d{each}", 100 + each) for each in range(max(day - 28, 1), day)]
        told = {"earlier_edges": earlier} if day > 3 else {}  # older releases record none
        write_run(store, f"r{day}")
        document = candidate(store, f"r{day}", f"d{day}") | {"data": {"edges": 100 + day, **told}}
        releases.publish(document, planned_on=None, independent=True)
        if day > 14:
            store.delete(releases.release_key(day - 14))  # what `pbg gc` does
    assert [(each.window, each.snapshots) for each in volumes(200, [*earlier.values()])] == [(7, 7), (28, 28)]
    store.put(releases.release_key(39), json.dumps(_with_rows(store.get(releases.release_key(39)).data, 7)).encode())
    assert earlier_edges(releases, "d41")["d39"] == 7  # a release's own record counts


def _with_rows(document, rows):
    decoded = json.loads(document)
    return decoded | {"data": decoded["data"] | {"edges": rows}}


def test_empty_day_is_refused_and_chain_continues(place):
    place.write_spec(model=QUICK)
    place.snapshot("d1", NIGHT)
    place.snapshot("d2", [])
    place.snapshot("d3", NIGHT)
    run_chain(place.spec, "d1")
    with pytest.raises(QualityGateError, match=r"the snapshot has no edges .*later nights go on without it"):
        run_chain(place.spec, "d2")
    assert run_chain(place.spec, "d3")["release"]["published"]
    assert [release.snapshot for release in place.channel().releases()] == ["d1", "d3"]


def headerless(place, watch, pattern="", partitions=2):
    """Use a folder for each day, with files without a header."""
    place.write_spec(
        model={**QUICK, "entities": {"n": {"num_partitions": partitions}}},
        snapshots={"location": f"{place.root}/edges/{{snapshot}}{pattern}", "format": "tsv", "header": False},
        columns={"lhs": "column0", "rel": "column1", "rhs": "column2"},
        nights={"watch": watch},
    )


def put_day(place, day, **files):
    folder = place.root / "edges" / day
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_text(data if isinstance(data, str) else "".join("\t".join(row) + "\n" for row in data))


MARKED, LISTED = {"complete": "success"}, {"complete": "manifest"}
EMPTY_DAYS = {
    "no bytes": (None, {"part": ""}),
    "no bytes in any part": (MARKED, {"part": "", "other": "", "_SUCCESS": ""}),
    "no files": (MARKED, {"_SUCCESS": ""}),
    "no files listed, and nobody watches": (None, {"_manifest.json": '{"objects": {}}'}),
    "no files listed": (LISTED, {"_manifest.json": '{"objects": {}}'}),
}


@pytest.mark.parametrize(("watch", "files"), EMPTY_DAYS.values(), ids=EMPTY_DAYS)
def test_empty_day_may_get_its_edges_later(place, watch, files):
    headerless(place, watch)
    whole = {"part": NIGHT, "none": "", "_SUCCESS": "", "_manifest.json": '{"objects": {"none": {"size": 0}}}'}
    put_day(place, "d1", **whole)
    put_day(place, "d2", **files)
    put_day(place, "d3", **whole)
    assert run_chain(place.spec, "d1")["release"]["published"]
    for _ in range(2):
        with pytest.raises(UnusableError, match=r"the snapshot has no edges .*later nights go on without it"):
            run_chain(place.spec, "d2")
        assert plan(place.spec, "d3")["previous_release"] == 1
    assert len(list(place.store.glob("runs/d2-*"))) == 1

    put_day(place, "d2", **whole)
    url = plan(place.spec, "d2")["run"]
    with pytest.raises(OutOfTurnError, match="'d3' continues that of 'd2'"):
        plan(place.spec, "d3")
    assert run_chain(place.spec, "d2")["run"] == url
    assert plan(place.spec, "d3")["previous_release"] == 2


def test_partitions_are_chosen_for_an_empty_day(place):
    headerless(place, MARKED, partitions="auto")
    put_day(place, "d1", _SUCCESS="")
    with pytest.raises(UnusableError, match="its folder holds no files"):
        run_chain(place.spec, "d1")


MISSING_DAYS = {
    "nothing": (None, "", {}),
    "no marker": (None, "", {"_other": "", ".hidden": ""}),
    "no marker that counts": (LISTED, "", {"_SUCCESS": ""}),
    "a marker that may have come before the files": (None, "", {"_SUCCESS": ""}),
    "files that are listed and not there": (None, "", {"_manifest.json": '{"objects": {"part": {"size": 9}}}'}),
    "files that are not listed": (LISTED, "/*.tsv", {"part": NIGHT, "_manifest.json": '{"objects": {}}'}),
    "files of other names": (MARKED, "/*.tsv", {"part": NIGHT, "_SUCCESS": ""}),
}


@pytest.mark.parametrize(("watch", "pattern", "files"), MISSING_DAYS.values(), ids=MISSING_DAYS)
def test_missing_day_is_not_an_empty_one(place, watch, pattern, files):
    headerless(place, watch, pattern)
    put_day(place, "d1", **files)
    with pytest.raises(InputError, match="no snapshot there"):
        plan(place.spec, "d1")
    with pytest.raises(InputError, match="no snapshot there"):
        plan(place.spec, "absent")
    assert not list(place.store.glob("runs/*"))


def test_name_with_wildcard_makes_no_empty_day(place):
    headerless(place, MARKED)
    put_day(place, "d1", **{"part[1]": NIGHT})
    with pytest.raises(OutOfTurnError, match="d1/_SUCCESS is not there"):
        plan(place.spec, "d1", due=datetime.now(UTC))
    put_day(place, "d1", _SUCCESS="")
    for due in (None, datetime.now(UTC)):
        with pytest.raises(InputError, match=r"d1/part\[1\]: the name holds"):
            plan(place.spec, "d1", due=due)
    assert not list(place.store.glob("runs/*"))


@pytest.mark.parametrize(("name", "target"), [("part[1]", None), ("part", "later")])
def test_wrong_name_waits_for_quiet_day(place, name, target):
    """Its producer may be at work yet."""
    headerless(place, None)
    put_day(place, "d1", **({name: NIGHT} if target is None else {}))
    if target is not None:
        (place.root / "edges" / "d1" / name).symlink_to(target)
    with pytest.raises(OutOfTurnError, match="'d1' may still grow"):
        plan(place.spec, "d1", due=datetime.now(UTC))
    with clock_wrong_by(HOUR), pytest.raises(InputError, match=r"the name holds|is a link that leads nowhere"):
        plan(place.spec, "d1", due=datetime.now(UTC))


def test_vanished_type_is_reported_despite_few_entities(place, capsys):
    model = {
        "entities": {name: {"num_partitions": 1} for name in ("user", "item", "tag")},
        "relations": [{"name": "buys", "lhs": "user", "rhs": "item"}, {"name": "tagged", "lhs": "item", "rhs": "tag"}],
        "dynamic_relations": False,
    }
    bought = [(f"u{i}", "buys", f"i{(i + step) % 100}") for i in range(100) for step in (0, 1, 5)]
    place.write_spec({**model, **QUICK})
    place.snapshot("d1", bought + [("i1", "tagged", f"t{i}") for i in range(4)])
    run_chain(place.spec, "d1")
    place.snapshot("d2", bought)
    said = "the degrees of tag are distributed otherwise than in 'd1' (distance 1.000)"
    assert run_task("validate", plan(place.spec, "d2")["run"])["data_gate"]["passed"]
    assert f"warning: {said}, at most 0.25 allowed" in capsys.readouterr().err
    place.write_spec({**model, **QUICK}, gates={"data": {"max_degree_distance": {"block": 0.5}}})
    with pytest.raises(QualityGateError, match=re.escape(said)):
        run_task("validate", plan(place.spec, "d2")["run"])


def test_entities_are_judged_once_their_names_are_known(place):
    place.write_spec(model=QUICK, gates={"data": {"max_gone_entities": {"block": 0.2}}})
    place.snapshot("d1", NIGHT)
    run_chain(place.spec, "d1")
    place.snapshot("d2", ring(40) + [(f"new{i}", "next", "e0") for i in range(60)])
    run = plan(place.spec, "d2")["run"]
    run_task("validate", run)
    with pytest.raises(QualityGateError, match=r"33\.3% of the entities of 'd1' are in no edge any more"):
        run_task("partition", run)
    with pytest.raises(QualityGateError, match=r"gates\.data\.max_gone_entities"):
        run_task("bucket", run)
    place.snapshot("d3", NIGHT)
    assert plan(place.spec, "d3")["previous_release"] == 1  # the chain continues without d2


@pytest.mark.parametrize("walk", ["independent", "other partitions"])
def test_entities_without_kept_ids_judged_by_name(place, walk):
    data = {"max_gone_entities": {"block": 0.2}}
    nights = {"walk": "independent"} if walk == "independent" else {}
    place.write_spec(model=QUICK, gates={"max_mrr_drop": 1.0, "data": data}, nights=nights)
    place.snapshot("d1", NIGHT)
    run_chain(place.spec, "d1")
    place.snapshot("d2", ring(40) + [(f"new{i}", "next", "e0") for i in range(60)])
    run = plan(place.spec, "d2", partitions=None if walk == "independent" else 3)["run"]
    run_task("validate", run)
    with pytest.raises(QualityGateError, match=r"33\.3% of the entities of 'd1' are in no edge any more"):
        run_task("partition", run)
    place.snapshot("d3", ring(50))  # a sixth of the entities is gone
    run = plan(place.spec, "d3", partitions=None if walk == "independent" else 3)["run"]
    run_task("validate", run)
    found = run_task("partition", run)
    (check,) = found["data_gate"]["checks"]
    assert (check["name"], check["passed"], check["value"]) == ("max_gone_entities", True, round(1 / 6, 6))
    assert found["entities"]["gone"] == 0  # ids are assigned anew, so the night knows of no entity that is gone


def test_gone_entities_while_night_lacks_only_warn(place):
    data = {"max_gone_entities": {"block": 0.2}}
    gates = {"max_mrr_drop": 1.0, "data": data}
    place.write_spec(model=QUICK, gates=gates, nights={"walk": "independent"})
    for day, count in (("d1", 60), ("d2", 50), ("d3", 40)):
        place.snapshot(day, ring(count))
    run_chain(place.spec, "d1")
    run = plan(place.spec, "d3")["run"]
    run_task("validate", run)
    (check,) = run_task("partition", run)["data_gate"]["checks"]
    assert check["passed"]
    assert check["warned"]
    assert check["sentence"].endswith("this only warns, for 'd2', which comes between, has no release yet")


def test_training_that_destroys_vectors_is_refused(place):
    gates = {"max_mrr_drop": 1.0, "min_over_start": {"block": 1}}
    model = {"num_epochs": 30, "dimension": 16}
    place.write_spec(model=model, gates=gates)
    place.snapshot("d1", ring(200))
    place.snapshot("d2", ring(200, seed=1))
    run_chain(place.spec, "d1")
    place.write_spec(model=model | {"num_epochs": 2, "lr": 1e4}, gates=gates)
    with pytest.raises(QualityGateError, match="before training, with vectors of release 1, and is"):
        run_chain(place.spec, "d2")
    assert place.channel().current().release.snapshot == "d1"


def test_independent_night_is_blocked_by_previous_only(place):
    gates = {"max_mrr_drop": 1.0, "data": LIMITS}
    for number, rows in enumerate((180, 144, 108), 1):  # a fifth goes, then a quarter: two fifths of the first
        place.snapshot(f"d{number}", NIGHT[:rows])

    def checked(day, **options):
        return run_task("validate", plan(place.spec, day, **options)["run"])

    place.write_spec(model=QUICK, gates=gates, nights={"walk": "independent"})
    run_chain(place.spec, "d1")
    third, second = checked("d3"), checked("d2")
    assert (third["difference"]["since"], third["difference"]["awaited"]) == ("d1", "d2")
    assert third["data_gate"]["passed"]
    (removed,) = (check for check in third["data_gate"]["checks"] if check["name"] == "max_removed_edges")
    assert removed["sentence"] == (
        "40.0% of the edges of 'd1' are gone, at most 30.0% allowed; this only warns, for 'd2', which comes between, "
        "has no release yet"
    )
    assert (second["difference"]["since"], second["difference"]["awaited"]) == ("d1", None)

    # Once the night between is finished for good, the next one is compared with this.
    place.write_spec(model=QUICK, gates=gates, nights={"walk": "independent"}, channel="skipped")
    run_chain(place.spec, "d1")
    skip(place.channel("skipped"), "d2", "it is not to come")
    with pytest.raises(QualityGateError, match=r"40\.0% of the edges of 'd1' are gone, at most 30\.0% allowed \("):
        checked("d3")

    # A chain waits, and a night outside of it is judged as strictly.
    place.write_spec(model=QUICK, gates=gates, channel="chained")
    run_chain(place.spec, "d1")
    with pytest.raises(QualityGateError, match=r"40\.0% of the edges of 'd1' are gone"):
        checked("d3", publish=False)


def test_numbers_are_compared_where_edges_are_unknown(place, tmp_path, capsys):
    place.write_spec(gates={"data": {"max_removed_edges": {"block": 0.3}}})
    place.snapshot("d2", NIGHT)
    run = plan(place.spec, "d2")["run"]
    store = open_store(str(place.store))
    (tmp_path / "file").write_text("of a release that this package did not make")
    manifest = preserve_files(store, {"file": tmp_path / "file"}, "runs/old/release", spec="", version=1, epochs=0)
    hashes = dict.fromkeys(("id_layout", "vector_space", "split"), "0" * 64)
    document = {"graph": "toy", "run": "old", "snapshot": "d1", "directory": "runs/old/release", **hashes}
    data = {"edges": 300, "columns": {"lhs": ["VARCHAR"], "rhs": ["VARCHAR"], "rel": ["VARCHAR"]}}
    document |= {"manifest_sha256": manifest.sha256(), "data": data}
    place.channel().publish(document, planned_on=None)
    with pytest.raises(QualityGateError, match=r"at least 40\.0% of the edges of 'd1' are gone"):
        run_task("validate", run)
    assert "release 1 does not hold the edges of its snapshot; only numbers of rows compare" in capsys.readouterr().err
    assert (place.store / "runs" / run.rpartition("/")[2] / "snapshot" / EDGE_HASHES).exists()


def test_empty_reason_is_refused(place):
    place.snapshot("d1", NIGHT)
    with pytest.raises(ConfigError, match="accepted: String should have at least 1 character"):
        plan(place.spec, "d1", accept_data="")
