"""Rules of promotion beside shares that people have set."""

from __future__ import annotations

import pytest

from pbg_tasks.publish import Channel
from pbg_tasks.tasks.nightly.promote import promote, promote_due
from tests.publish.runs import candidate, write_run


def night(shadow, number):
    there = shadow.current().release
    write_run(shadow.store, f"r{number}", channel="shadow", space="s")
    fields = candidate(shadow.store, f"r{number}", f"d{number}") | {"graph": "toy"}
    fields["metrics"] = {"filtered": {"mrr": 0.5}}
    shadow.publish(fields, planned_on=there.seq if there else None)


@pytest.fixture
def shadow(place):
    """Two nights, the first in production, the second shared by rule."""
    place.write_spec(channel="shadow", promote={"to": "production", "share": 0.1, "after_nights": 3})
    shadow = place.channel("shadow")
    night(shadow, 1)
    promote(place.spec, by="mia")
    night(shadow, 2)
    assert promote_due(place.spec)["share"] == 0.1
    return shadow


def canary(shadow):
    found = Channel(shadow.store, "production").current().canary
    return None if found is None else (found.seq, found.share, found.by)


@pytest.mark.parametrize("share", [0.01, 0.5])
def test_rule_leaves_share_that_a_person_set(place, shadow, share):
    promote(place.spec, share=share, by="noah")
    found = promote_due(place.spec)
    assert (found["promoted"], found["reason"]) == (False, f"{share:g} of the keys read release 2, as noah decided")
    assert canary(shadow) == (2, share, "noah")


def test_rule_changes_its_own_share(place, shadow):
    place.write_spec(channel="shadow", promote={"to": "production", "share": 0.2, "after_nights": 3})
    assert promote_due(place.spec)["share"] == 0.2
    assert canary(shadow) == (2, 0.2, "promote: share 0.2")


def test_rule_promotes_release_that_a_person_shared(place, shadow):
    night(shadow, 3)
    promote(place.spec, share=0.5, by="noah")
    assert promote_due(place.spec)["release"] == 2
    assert canary(shadow) is None
