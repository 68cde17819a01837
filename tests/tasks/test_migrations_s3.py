"""Moves of rows from S3 to S3.

The releases are the same as on a disk.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pbg_tasks.checkpoint import open_preserved
from pbg_tasks.config import RunLayout
from pbg_tasks.publish import Channel
from pbg_tasks.storage import open_store
from pbg_tasks.tasks.nightly.chain import run_chain
from pbg_tasks.tasks.release.adopt import adopt
from pbg_tasks.tasks.release.releases import rollback
from pbg_tasks.tasks.release.repartition import repartition
from tests.tasks.conftest import ring

pytestmark = pytest.mark.s3


def released(url, number):
    """Return the hash of every file of a release, by name.

    The config is left out, since it contains the release's location.
    """
    store = open_store(url)
    records = open_preserved(store, Channel(store, "production").release(number).directory).records
    return {name: record.sha256 for name, record in records.items() if name != "config.json"}


def upload(folder, place, name):
    """Copy a folder into a store unchanged; return its URL there."""
    store = open_store(f"{place}/{name}")
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            store.put_new(str(path.relative_to(folder)), path)
    return store.url


def test_checkpoint_in_s3_is_adopted_and_moved(place, s3_bucket):
    place.write_spec({"num_epochs": 1}, store=str(place.root / "old"))
    place.snapshot("d0", ring(40))
    old = Path(run_chain(place.spec, "d0")["run"])
    checkpoint, entities = old / RunLayout.checkpoint, old / RunLayout.entities
    place.snapshot("d1", ring(44, seed=1))
    found = []
    for store, sources in (
        (str(place.root / "nights"), (str(checkpoint), str(entities))),
        (f"{s3_bucket}/nights", (upload(checkpoint, s3_bucket, "model"), upload(entities, s3_bucket, "names"))),
    ):
        place.write_spec({"num_epochs": 1}, store=store)
        adopted = adopt(*sources, place.spec, snapshot="d0")
        assert (adopted["release"], adopted["entities"]) == (1, {"n": 40})
        assert adopt(*sources, place.spec, snapshot="d0") == adopted
        assert repartition(place.spec, partitions=3)["moved"]
        assert not repartition(place.spec, partitions=3)["moved"]
        place.write_spec({"num_epochs": 1, "entities": {"n": {"num_partitions": 3}}}, store=store)
        night = run_chain(place.spec, "d1")
        entities = {"total": 44, "new": 4, "kept": 40, "gone": 0, "returned": 0, "absent": 0}
        assert (night["warm_start"], night["entities"]) == (True, entities)
        assert rollback(place.spec)["release"] == 2
        found.append([released(store, number) for number in (1, 2)])  # the random numbers of a night are its run's own
    assert found[0] == found[1]
