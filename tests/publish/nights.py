"""Nights of a channel, and their collection."""

from __future__ import annotations

from pbg_tasks.publish import Channel
from pbg_tasks.publish.collection import collect
from pbg_tasks.publish.retention import Retention
from tests.publish.runs import candidate, write_run

GRACE = 100.0
DAY = 86_400.0


def night(store, *numbers, channel="production"):
    """Publish nights of a chain; after each, a day passes."""
    for number in numbers:
        previous, run = Channel(store, channel).current().release, f"d{number}-{channel}"
        write_run(store, run, previous=previous.run if previous else None, channel=channel)
        fields = candidate(store, run, f"d{number}")
        Channel(store, channel).publish(fields, planned_on=previous.seq if previous else None)
        store.now += DAY


def gc(store, releases=0, days=0.0, **options):
    return collect(store, Retention(releases, days), **{"grace": GRACE, **options})
