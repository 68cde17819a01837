"""Nights through the whole chain of tasks: independent ones in any order, refused ones passed over."""

from __future__ import annotations

import shutil

import pytest

from pbg_tasks.config import RunLayout
from pbg_tasks.errors import OutOfTurnError, QualityGateError
from pbg_tasks.publish import Channel
from pbg_tasks.storage import open_store
from pbg_tasks.tasks.chain import run_chain
from pbg_tasks.tasks.context import RunContext
from pbg_tasks.tasks.plan import plan
from pbg_tasks.tasks.publish import publish
from tests.tasks.conftest import ring

QUICK = {"num_epochs": 1}


def channel(place):
    return Channel(open_store(str(place.store)), "production")


def test_independent_nights_give_the_same_bytes_in_any_order_and_the_channel_stays_at_the_newest(place):
    place.write_spec(model=QUICK, nights={"walk": "independent"})
    for number in (1, 2):
        place.snapshot(f"d{number}", ring(40 + 5 * number))
    found = []
    for order in (("d1", "d2"), ("d2", "d1")):
        for day in order:
            assert run_chain(place.spec, day)["entities"]["kept"] == 0
        assert channel(place).current().release.snapshot == "d2"
        found.append({release.snapshot: release.manifest_sha256 for release in channel(place).releases()})
        shutil.rmtree(place.store)
    assert found[0] == found[1]
    assert set(found[0]) == {"d1", "d2"}


def test_a_chain_waits_for_the_night_before_and_goes_on_without_one_that_was_refused(place):
    place.write_spec(model=QUICK)
    for number in (1, 2, 3):
        place.snapshot(f"d{number}", ring(40))
    run_chain(place.spec, "d1")
    with pytest.raises(OutOfTurnError, match="'d3' continues that of 'd2'"):
        plan(place.spec, "d3")
    assert plan(place.spec, "d3", publish=False)["previous_release"] == 1
    place.write_spec(model=QUICK, gates={"data": {"min_edges": {"block": 1000}}})
    with pytest.raises(QualityGateError, match=r"at least 1000 asked \(gates\.data\.min_edges\)"):
        run_chain(place.spec, "d2")
    place.write_spec(model=QUICK)
    assert plan(place.spec, "d3")["previous_release"] == 1


def test_a_night_that_is_published_again_says_what_became_of_it(place):
    place.write_spec(model=QUICK)
    for number in (1, 2):
        place.snapshot(f"d{number}", ring(40))
    first, second = (run_chain(place.spec, f"d{number}")["run"] for number in (1, 2))
    assert publish(second)["published"]
    told = publish(first)
    assert (told["published"], told["release"]) == (False, 1)
    assert told["reason"] == "it was published before; channel 'production' serves release 2 now"
    channel(place).rollback()
    assert publish(first)["published"]
    channel(place).store.delete(RunContext.open(second).key(RunLayout.result("publish")))  # lost before it was recorded
    told = publish(second)
    assert told["published"] is False
    assert "was rolled back to release 1 meanwhile; `pbg rollback SPEC --to 2` brings it back" in told["reason"]
    # an older day is not served because it is older, whatever was rolled back
    channel(place).rollback(to=2)
    channel(place).store.delete(RunContext.open(first).key(RunLayout.result("publish")))
    assert publish(first)["reason"] == "channel 'production' already serves a newer snapshot"
