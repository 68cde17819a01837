"""Promotion by command and by rules, and the list of readers.

The file is longer than others: commands, rules and readers move the same two channels.
"""

from __future__ import annotations

import getpass
import json
import os
import re
from datetime import date

import pytest
from typer.testing import CliRunner

from pbg_tasks.cli import app
from pbg_tasks.config import load_graph_spec
from pbg_tasks.errors import ConfigError, ConflictError, FormatError, IncompatibleError, InputError, StorageError
from pbg_tasks.publish import Channel, promotion, service_pins
from pbg_tasks.publish.skips import skip
from pbg_tasks.storage import LocalStore
from pbg_tasks.tasks.exchange import serving
from pbg_tasks.tasks.nightly.promote import nights_passed, promote, promote_due, share_of, stop
from pbg_tasks.tasks.release.releases import drill, gc, pin, rollback, unpin
from pbg_tasks.tasks.release.releases import skip as skip_day
from pbg_tasks.tasks.view import readers, show
from pbg_tasks.tasks.view.readers import release_readers
from tests.publish.runs import candidate, write_run


@pytest.fixture
def shadow(place):
    return spec(place)


def spec(place, **rules):
    place.write_spec(channel="shadow", promote={"to": "production", **rules})
    return place.channel("shadow")


def night(channel, number, *, space="s", **data):
    there = channel.current().release
    write_run(channel.store, f"r{number}", channel=channel.name, space=space)
    fields = candidate(channel.store, f"r{number}", f"d{number}") | {"data": data, "graph": "toy"}
    fields["metrics"] = {"filtered": {"mrr": 0.5}}
    return channel.publish(fields, planned_on=there.seq if there else None)[0]


def served(channel, name="production"):
    release = Channel(channel.store, name).current().release
    return None if release is None else release.run


def pbg(*arguments, status=0):
    done = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    assert getattr(done.exception, "exit_code", done.exit_code) == status, done.stderr
    return json.loads(done.stdout) if status == 0 else f"{done.exception} {done.stderr}"


def test_commands_promote_share_and_take_back(place, shadow):
    for number in (1, 2):
        night(shadow, number)
    assert served(shadow) is None
    done = pbg("promote", place.spec, 1, "--by", "mia")
    assert (done["channel"], done["source"], done["source_release"], done["release"], done["was"]) == (
        "production", "shadow", 1, 1, None,
    )  # fmt: skip
    assert pbg("promote", place.spec, 1, "--by", "noah") == done | {"was": 1}
    shared = pbg("promote", place.spec, "--share", "25%", "--by", "mia")
    assert (shared["share"], shared["source_release"], shared["release"]) == (0.25, 2, None)
    assert "0.25 of the keys read release 2 no more" in pbg("promote", place.spec, "--stop")["reason"]
    assert pbg("promote", place.spec, "--stop")["reason"] == "nothing was shared"
    pbg("promote", place.spec)
    assert served(shadow) == "r2"
    assert pbg("rollback", place.spec, "--by", "mia")["channel"] == "production"
    assert (served(shadow), served(shadow, "shadow")) == ("r1", "r2")
    assert "was rolled back from this release" in pbg("promote", place.spec, status=5)
    assert pbg("rollback", place.spec, "--channel", "shadow")["channel"] == "shadow"
    assert drill(place.spec)["channel"] == "production"


def test_first_promotion_names_no_release_before(place, shadow, capsys):
    stop(place.spec, by="mia")
    night(shadow, 1)
    promote(place.spec, by="mia")
    told = capsys.readouterr().err
    assert "channel production: nothing was shared; it serves no release yet" in told
    assert "channel production begins with release 1, which is 1 of shadow" in told
    assert "None" not in told


FORGED = "eve\nchannel production  production 9"


def test_forged_or_blank_name_is_refused(place, shadow):
    night(shadow, 1)
    promote(place.spec, by="mia")
    night(shadow, 2)
    for name in (FORGED, " ", "a\tb", "a\u202eb"):
        for command, option in (
            (["promote", place.spec, "--by", name], "--by"),
            (["promote", place.spec, "--share", "10%", "--by", name], "--by"),
            (["promote", place.spec, "--stop", "--by", name], "--by"),
            (["rollback", place.spec, "--by", name], "--by"),
            (["pin", place.spec, 1, "--for", "ads", "--owner", name], "--owner"),
        ):
            assert f"{option} {name!r}: a name is one line of printable text" in pbg(*command, status=2)
    assert (served(shadow), readers_of(Channel(shadow.store, "production"))) == ("r1", [("production", "mia")])


def test_forged_name_of_earlier_version_is_shown_escaped(place, shadow, monkeypatch):
    night(shadow, 1)
    with monkeypatch.context() as earlier:
        for module in (promotion, service_pins):
            earlier.setattr(module, "check_person", lambda *_: None)
        promote(place.spec, by=FORGED)
        pin(place.spec, 1, service="ads", owner=FORGED)
    assert readers_of(Channel(shadow.store, "production")) == [("production", FORGED), ("ads", FORGED)]
    shown = CliRunner().invoke(app, ["releases", str(place.spec)]).stdout
    assert shown.count("eve\\nchannel production  production 9") == 2
    assert not any(line.startswith("channel production  production 9") for line in shown.splitlines())


def readers_of(channel):
    found = readers.readers_of(channel, channel.current())
    return [(row["reader"], row["owner"]) for rows in found.values() for row in rows]


def test_options_that_contradict_are_refused(place, shadow):
    night(shadow, 1)
    for arguments in ("--stop 1", "--due --share 10%", "--due --stop", "--due --to x", "--due --by x"):
        assert "has no meaning with" in pbg("promote", place.spec, *arguments.split(), status=2)
    assert "channel '../x': a name has up to 64 letters" in pbg("promote", place.spec, "--to", "../x", status=2)
    assert [share_of(text) for text in ("10%", "0.1", " 0.5% ", ".25")] == [0.1, 0.1, 0.005, 0.25]
    for wrong in ("0", "100%", "1", "ten", "-5%", "1e-3", ""):
        with pytest.raises(ConfigError, match="a share is more than 0 and less than all"):
            share_of(wrong)
    place.write_spec()
    with pytest.raises(ConfigError, match="names no channel of readers; give it with --to"):
        promote(place.spec, by="mia")
    with pytest.raises(ConfigError, match="has no section promote, so nothing is ever due"):
        promote_due(place.spec)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"promote": {"to": "production"}}, "promote.to is 'production', to which nights publish"),
        (
            {"channel": "shadow", "promote": {"to": "p", "share": 0.1}, "nights": {"walk": "independent"}},
            "no night could be promoted; set promote.other_space: true",
        ),
        ({"channel": "shadow", "promote": {"to": "p", "share": 1}}, "promote.share: Input should be less than 1"),
        ({"channel": "shadow", "promote": {"to": "p", "after_nights": 0}}, "promote.after_nights"),
        (
            {
                "channel": "shadow",
                "promote": {"to": "p"},
                "exports": [{"format": "lancedb", "name": "shop", "options": {"collection": "c"}}],
            },
            "exports shop: options.collection is one for shadow and for p of promote.to",
        ),
    ],
)
def test_rules_without_effect_are_refused(place, sections, message):
    place.write_spec(**sections)
    with pytest.raises(ConfigError, match=message):
        load_graph_spec(place.spec)


def test_new_channel_begins_with_release_of_readers(place):
    production = place.channel()
    night(production, 1)
    shadow = spec(place)
    promote(place.spec, source="production", to="shadow", by="mia")
    assert shadow.before("d2").run == "r1"
    night(shadow, 2)
    assert promote(place.spec, by="mia")["release"] == 2
    assert served(shadow) == "r2"


def test_gate_promotes_after_nights_in_a_row(place):
    shadow = spec(place, after_nights=2)
    assert promote_due(place.spec)["reason"] == "channel shadow has no release yet"
    night(shadow, 1)
    assert promote_due(place.spec)["reason"] == "1 of 2 nights in a row have passed the gates (there are no more)"
    night(shadow, 2)
    done = promote_due(place.spec)
    assert (done["promoted"], done["source_release"], done["announced"]) == (True, 2, False)
    assert promote_due(place.spec)["promoted"]
    skip(shadow, "d3", "the gate refused it")
    night(shadow, 4)
    assert (
        "1 of 2 nights in a row have passed the gates (d3 was refused or skipped)" in promote_due(place.spec)["reason"]
    )
    night(shadow, 5, decisions=[{"task": "gate", "by": "a person"}])
    assert "0 of 2 nights in a row have passed the gates (d5 was approved by hand)" in promote_due(place.spec)["reason"]
    night(shadow, 6)
    assert served(shadow) == "r2"
    night(shadow, 7)
    assert promote_due(place.spec)["source_release"] == 6
    assert served(shadow) == "r7"


def test_rollback_of_readers_begins_the_count_anew(place):
    shadow = spec(place, after_nights=2)
    for number in (1, 2, 3):
        night(shadow, number)
        promote_due(place.spec)
    rollback(place.spec, by="mia")
    assert promote_due(place.spec)["reason"] == "channel production was rolled back from release 3 of shadow"
    night(shadow, 4)
    assert (
        "1 of 2 nights in a row have passed the gates (counted since the roll-back)"
        in (promote_due(place.spec)["reason"])
    )
    night(shadow, 5)
    assert promote_due(place.spec)["promoted"]
    assert served(shadow) == "r5"
    rollback(place.spec, channel="shadow", to=1)
    assert promote_due(place.spec)["reason"] == "channel production serves a newer snapshot than shadow"


def test_share_follows_each_night_until_promotion(place):
    shadow = spec(place, share=0.1)
    night(shadow, 1)
    assert "has no release whose readers could be shared: promote one by hand" in promote_due(place.spec)["reason"]
    promote(place.spec, by="mia")
    for number in (2, 3):
        night(shadow, number)
        assert (promote_due(place.spec)["share"], served(shadow)) == (0.1, "r1")
        assert Channel(shadow.store, "production").current().canary.seq == number
    night(shadow, 4, space="other")
    with pytest.raises(IncompatibleError, match="--other-space"):
        promote_due(place.spec)
    assert Channel(shadow.store, "production").current().canary.seq == 3


def test_promotion_is_announced_once(place):
    shadow = spec(place, after_nights=1)
    night(shadow, 1)
    assert promote_due(place.spec)["announced"] is False
    assert promote_due(place.spec)["announced"] is False  # the task was killed before its event
    shadow.store.put_new("runs/r1/announced/promote.json", b"{}")
    assert promote_due(place.spec)["announced"] is True
    write_run(shadow.store, "r2", channel="shadow", space="s")
    shadow.store.delete("runs/r2/spec.json")
    fields = candidate(shadow.store, "r2", "d2") | {"graph": "toy"}  # as an adopted release, which no run made
    shadow.publish(fields, planned_on=1)
    promoted = promote(place.spec, by="mia")
    assert (promoted["run"], promoted["announced"]) == (None, False)
    assert promote_due(place.spec)["announced"] is True


def test_releases_list_their_readers(place, shadow):
    for number in (1, 2, 3, 4):
        night(shadow, number)
    promote(place.spec, 1, by="mia")
    promote(place.spec, 4, share=0.1, by="noah")
    pin(place.spec, 1, service="ads", owner="team ads", until=date(2999, 1, 1))
    pin(place.spec, 2, service="old", owner="zoe", until=date(2999, 1, 1), channel="shadow")
    key = "channels/shadow/pins/for-old.json"
    shadow.store.put(key, shadow.store.get(key).data.replace(b"2999", b"2001"))
    pin(place.spec, 1, channel="shadow")
    rows = pbg("releases", place.spec)
    assert [(row["channel"], row["release"], row["current"], row["pinned"]) for row in rows] == [
        ("shadow", 1, False, True),
        ("shadow", 2, False, False),
        ("shadow", 3, False, False),
        ("shadow", 4, True, False),
        ("production", 1, True, False),
    ]
    assert rows[4]["promoted_from"] == "shadow 1"
    readers = [
        (row["release"], each["reader"], each["share"], each["owner"], each["expired"])
        for row in rows
        for each in row["readers"]
    ]
    assert readers == [
        (2, "old", None, "zoe", True),
        (4, "shadow", 1.0, None, False),
        (4, "production", 0.1, "noah", False),
        (1, "production", 0.9, "mia", False),
        (1, "ads", None, "team ads", False),
    ]
    pages = release_readers([shadow, Channel(shadow.store, "production")], {})
    assert {(row["release"], row["reader"], row["share"], row["owner"], row["expired"]) for row in pages} == {*readers}
    assert {row["promoted_from"] for row in pages if row["channel"] == "production"} == {"shadow 1"}
    text = CliRunner().invoke(app, ["releases", str(place.spec)]).stdout
    for line in (
        r"channel shadow +shadow 4 +\d{4}-\d\d-\d\d +0 d +a night",
        r"old +shadow 2 .* 0 d +zoe +2001-01-01, over",
        r"channel production, 0\.1 of its keys +shadow 4 .* noah",
        r"channel production, 0\.9 of its keys +production 1 .* mia",
        r"ads +production 1 .* team ads +2999-01-01",
    ):
        assert re.search(line, text), text
    told = CliRunner().invoke(app, ["gc", str(place.store), "--keep-releases", "0", "--grace", "0", "--json"])
    assert json.loads(told.stdout)["runs"] == []
    assert "warning: the pin of service 'old' on release 2 of channel shadow ended on 2001-01-01" in told.stderr
    unpin(place.spec, service="old", channel="shadow")
    assert gc(str(place.store), keep_releases=0, grace_hours=1, trust_clock=True)["runs"] == []  # its reader may finish
    for each in place.store.joinpath("runs/r2").rglob("*"):
        os.utime(each, (0, 0))
    assert gc(str(place.store), keep_releases=0, grace_hours=1, trust_clock=True)["runs"] == ["r2"]
    for wrong in ({}, {"release": 1, "service": "ads"}):
        with pytest.raises(ConfigError, match="unpin takes the number of a release, or --for"):
            unpin(place.spec, **wrong)
    with pytest.raises(ConfigError, match="--owner and --until are of a service's pin"):
        pin(place.spec, 1, owner="mia")


def test_damaged_or_missing_release_is_not_promoted(place, shadow):
    night(shadow, 1)
    with pytest.raises(InputError, match="has no release 7"):
        promote(place.spec, 7, by="mia")
    shadow.store.put("runs/r1/release/model.v1.h5", b"cut")
    with pytest.raises(FormatError, match=r"model\.v1\.h5: missing or of another size"):
        promote(place.spec, by="mia")
    assert served(shadow) is None


@pytest.mark.parametrize(
    "end", [lambda place: stop(place.spec, by="mia"), lambda place: rollback(place.spec, by="mia")]
)
def test_share_ended_by_a_person_stays_ended(place, end):
    shadow = spec(place, share=0.1, after_nights=9)
    for number in (1, 2, 3):
        night(shadow, number)
        promote(place.spec, number, by="mia") if number < 3 else promote_due(place.spec)
    end(place)
    ended = Channel(shadow.store, "production").current()
    assert (ended.canary, ended.stopped.seq, ended.stopped.by) == (None, 3, "mia")
    refused = "the share of release 3 was ended; `pbg promote SPEC 3 --share` sets it again"
    assert promote_due(place.spec)["reason"] == refused
    promote(place.spec, 3, share=0.2, by="noah")
    shared = Channel(shadow.store, "production").current()
    assert (shared.canary.seq, shared.stopped) == (3, None)
    stop(place.spec, by="mia")
    night(shadow, 4)
    assert promote_due(place.spec)["source_release"] == 4


def test_promotion_of_the_served_release_ends_the_share(place, shadow):
    for number in (1, 2):
        night(shadow, number)
    promote(place.spec, 1, by="mia")
    promote(place.spec, share=0.5, by="mia")
    assert promote(place.spec, 1, by="noah")["release"] == 1
    pointer = Channel(shadow.store, "production").current()
    assert (pointer.canary, pointer.stopped.seq, pointer.stopped.by) == (None, 2, "noah")


def test_rule_ends_shares_of_its_own_source_only(place):
    shadow, other = spec(place, share=0.1, after_nights=1), place.channel("other")
    night(shadow, 1)
    promote_due(place.spec)
    night(other, 2)
    promote(place.spec, source="other", share=0.5, by="mia")
    assert promote_due(place.spec)["promoted"]
    assert Channel(shadow.store, "production").current().canary.channel == "other"
    night(shadow, 3)
    promote(place.spec, share=0.5, by="mia")
    rollback(place.spec, channel="shadow", to=1)
    assert promote_due(place.spec)["promoted"]
    pointer = Channel(shadow.store, "production").current()
    assert (pointer.canary, pointer.stopped) == (None, None)


def test_failed_sink_names_the_channel_to_try_again(place, monkeypatch):
    exports = [{"format": "lancedb", "destination": f"{place.store}/vectors"}]
    place.write_spec(channel="shadow", promote={"to": "production"}, exports=exports)
    shadow = place.channel("shadow")
    for number in (1, 2):
        night(shadow, number)

    def unreachable(graph, export):
        raise StorageError("no answer")

    monkeypatch.setattr(serving, "follow", unreachable)
    with pytest.raises(StorageError, match="`pbg rollback SPEC --to 1 --channel production` again"):
        promote(place.spec, by="mia")
    with pytest.raises(StorageError, match="`pbg rollback SPEC --to 1 --channel shadow` again"):
        rollback(place.spec, channel="shadow")


def test_advised_roll_back_moves_the_channel_of_nights(place, shadow, capsys):
    for number in (1, 2):
        night(shadow, number)
        promote(place.spec, by="mia")
    skip_day(place.spec, "d2")
    command, options = re.search(r"`pbg (\S+) SPEC (.+?)`", capsys.readouterr().err.rpartition("skip: ")[2]).groups()
    assert pbg(command, place.spec, *options.split())["channel"] == "shadow"
    assert [served(shadow, name) for name in ("shadow", "production")] == ["r1", "r2"]


def test_process_without_a_name_is_its_number(place, shadow, monkeypatch):
    def nameless():
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.setattr(getpass, "getuser", nameless)
    night(shadow, 1)
    pbg("promote", place.spec)
    assert Channel(shadow.store, "production").current().by == f"uid {os.getuid()}"
    assert "--owner: has 201 characters" in pbg("pin", place.spec, 1, "--for", "ads", "--owner", "x" * 201, status=2)


def test_rules_look_again_when_the_channel_was_moved(place, monkeypatch):
    """A person stops the share between look and swap."""
    shadow = spec(place, share=0.1)
    for number in (1, 2):
        night(shadow, number)
    promote(place.spec, 1, by="mia")
    swap, done = LocalStore.swap, []

    def stopped_before(store, key, *arguments, **options):
        if not done and key == "channels/production/CURRENT.json":
            done.append(key)
            promote(place.spec, 2, share=0.5, by="noah")
            stop(place.spec, by="noah")
        return swap(store, key, *arguments, **options)

    monkeypatch.setattr(LocalStore, "swap", stopped_before)
    assert promote_due(place.spec)["reason"].startswith("the share of release 2 was ended")
    assert Channel(shadow.store, "production").current().canary is None

    def always_moved(store, key, *arguments, **options):
        if key == "channels/production/CURRENT.json":
            raise ConflictError("another version")
        return swap(store, key, *arguments, **options)

    night(shadow, 3)
    monkeypatch.setattr(LocalStore, "swap", always_moved)
    with pytest.raises(ConflictError, match="meanwhile; look at `pbg releases` and try again"):
        promote_due(place.spec)


def test_redone_nights_count_once_and_as_redone(place, shadow):
    for number in (1, 2, 3):
        night(shadow, number, **({"decisions": [{"task": "gate", "by": "a person"}]} if number == 2 else {}))
    assert nights_passed(shadow, shadow.current().release) == (1, "d2 was approved by hand")
    for number, day in ((4, 2), (5, 3)):
        write_run(shadow.store, f"r{number}", channel="shadow", space="s")
        fields = candidate(shadow.store, f"r{number}", f"d{day}") | {
            "graph": "toy",
            "metrics": {"filtered": {"mrr": 1}},
        }
        shadow.publish(fields, planned_on=None, independent=True)
    assert nights_passed(shadow, shadow.current().release) == (3, "there are no more")


def test_newest_night_of_two_channels_is_by_snapshot(place):
    production = place.channel()
    for number in (1, 2, 3):
        night(production, number)
    shadow = spec(place)
    promote(place.spec, source="production", to="shadow", by="mia")
    night(shadow, 4)
    for _ in range(2):
        newest = max(show.history(place.spec), key=show._age)
        assert (newest["channel"], newest["snapshot"]) == ("shadow", "d4")
        promote(place.spec, by="mia")
