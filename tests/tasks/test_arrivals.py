"""Which snapshots count as whole, on a disk and in S3."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from pbg_tasks.errors import AccessError, StorageError
from pbg_tasks.storage import open_store
from pbg_tasks.tasks.arrivals import Arrivals
from pbg_tasks.tasks.watermark import Watermark

EVER = Watermark("0")


class Place:
    """A location of snapshots, and a clock that is set."""

    def __init__(self, root):
        self.root, self.now = str(root), 0.0
        self.store = open_store(self.root)

    def put(self, name, data=b"edges"):
        self.store.put(name, data)

    def arrivals(self, complete, form="{snapshot}/*.tsv"):
        return Arrivals(f"{self.root}/{form}", complete, 60.0, dict(os.environ), clock=lambda: self.now)


@pytest.fixture(params=["disk", "s3"])
def place(request, tmp_path):
    return Place(tmp_path / "edges" if request.param == "disk" else request.getfixturevalue("s3_bucket"))


def test_nothing_there_yet(place):
    assert place.arrivals("success").look(EVER) == []
    assert place.arrivals("settled").look(None) == []


def test_a_marker_tells_that_a_snapshot_is_whole(place):
    place.put("d1/part.tsv")
    place.put("d2/part.tsv")
    place.put("d1/_SUCCESS", b"")
    look = place.arrivals("success").look
    assert look(EVER) == ["d1"]
    place.put("d2/_SUCCESS", b"")
    assert look(EVER) == ["d1", "d2"]
    assert look(EVER.passing(["d2"])) == ["d1"]


def test_a_manifest_tells_by_the_sizes_of_all_it_lists(place):
    objects = {"a.tsv": {"size": 5, "sha256": "0" * 64}, "deep/b.tsv": {"size": 5}}
    look = place.arrivals("manifest").look
    place.put("d1/_manifest.json", json.dumps({"objects": objects}).encode())
    place.put("d1/a.tsv")
    assert look(EVER) == []
    place.put("d1/deep/b.tsv", b"half")
    assert look(EVER) == []
    place.put("d1/deep/b.tsv")
    assert look(EVER) == ["d1"]


NO_MANIFESTS = {
    "empty": b"",
    "cut": b"{",
    "list": b"[]",
    "nothing": b"{}",
    "no objects": b'{"objects": {}}',
    "no records": b'{"objects": {"a": 5}}',
    "names": b'{"objects": ["a"]}',
    "endless": b'{"objects": {"a": {"size": 1e400}}}',
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("data", NO_MANIFESTS.values(), ids=NO_MANIFESTS)
def test_a_manifest_that_is_none_tells_nothing(tmp_path, data):
    place = Place(tmp_path)
    place.put("d1/_manifest.json", data)
    assert place.arrivals("manifest").look(EVER) == []


def test_files_that_stay_the_same_for_a_while_have_settled(place):
    arrivals = place.arrivals("settled")
    place.put("d1/a.tsv")
    assert arrivals.look(EVER) == []
    place.now += 59
    place.put("d1/b.tsv")
    assert arrivals.look(EVER) == []
    place.now += 59
    assert arrivals.look(EVER) == []
    place.now += 1
    assert arrivals.look(EVER) == ["d1"]


def test_files_without_a_folder_of_their_own_can_settle(tmp_path):
    place = Place(tmp_path)
    arrivals = place.arrivals("settled", "edges-{snapshot}.tsv")
    place.put("edges-d1.tsv")
    arrivals.look(EVER)
    place.now += 60
    assert arrivals.look(EVER) == ["d1"]


def test_a_watch_begins_with_the_newest_whole_snapshot(place):
    for key in ("v9", "v10", "v11"):
        place.put(f"{key}/part.tsv")
    for key in ("v9", "v10"):
        place.put(f"{key}/_SUCCESS", b"")
    assert place.arrivals("success").look(None) == ["v10"]


def test_a_snapshot_that_was_removed_is_not_announced(tmp_path):
    place = Place(tmp_path)
    place.put("d1/part.tsv")
    settling = place.arrivals("settled")
    settling.look(EVER)
    shutil.rmtree(tmp_path / "d1")
    place.now += 60
    assert settling.look(EVER) == []
    place.put("d1/part.tsv")
    assert settling.look(EVER) == []  # it begins to settle anew


def test_a_store_that_refuses_or_is_silent_is_told_from_an_empty_one(s3_bucket):
    wrong = {**os.environ, "AWS_SECRET_ACCESS_KEY": "wrong"}
    with pytest.raises(AccessError):
        Arrivals(f"{s3_bucket}/{{snapshot}}/*.tsv", "success", 60.0, wrong).look(EVER)
    silent = {**os.environ, "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
    with pytest.raises(StorageError, match="cannot be listed"):
        Arrivals(f"{s3_bucket}/{{snapshot}}/*.tsv", "success", 60.0, silent).look(EVER)
