"""Complete snapshots, recognized on a disk and in S3."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from pbg_tasks.errors import AccessError, StorageError
from pbg_tasks.publish import Channel
from pbg_tasks.publish.skips import skip
from pbg_tasks.storage import open_store
from pbg_tasks.storage.s3_client import connect
from pbg_tasks.tasks.nightly.arrivals import Arrivals
from pbg_tasks.tasks.nightly.watermark import Watermark
from tests.publish.runs import candidate, write_run

EVER = Watermark("0")


class Place:
    """A location of snapshots, and a clock that the test sets."""

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


def test_empty_location_has_no_arrivals(place):
    assert place.arrivals("success").look(EVER) == []
    assert place.arrivals("settled").look(None) == []


def test_marker_completes_a_snapshot(place):
    place.put("d1/part.tsv")
    place.put("d2/part.tsv")
    place.put("d1/_SUCCESS", b"")
    look = place.arrivals("success").look
    assert look(EVER) == ["d1"]
    place.put("d2/_SUCCESS", b"")
    assert look(EVER) == ["d1", "d2"]
    assert look(EVER.passing(["d2"])) == ["d1"]


def test_manifest_with_all_sizes_completes_a_snapshot(place):
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
    "no records": b'{"objects": {"a": 5}}',
    "names": b'{"objects": ["a"]}',
    "endless": b'{"objects": {"a": {"size": 1e400}}}',
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("data", NO_MANIFESTS.values(), ids=NO_MANIFESTS)
def test_invalid_manifest_completes_nothing(tmp_path, data):
    place = Place(tmp_path)
    place.put("d1/_manifest.json", data)
    assert place.arrivals("manifest").look(EVER) == []


def test_manifest_of_no_files_completes_empty_day(place):
    look = place.arrivals("manifest").look
    place.put("d1/_manifest.json", b'{"objects": {}}')
    assert look(EVER) == ["d1"]
    place.put("d1/part.tsv")
    assert look(EVER) == []


def test_folder_without_files_needs_an_empty_manifest(place):
    """A marker may have been copied before the files.

    Their names come later.
    """
    arrivals = place.arrivals("settled")
    place.put("d1/_SUCCESS", b"")
    place.put("d2/_temporary/part.tsv")
    place.put("d3/_manifest.json", b'{"objects": {}}')
    assert arrivals.look(EVER) == []
    place.now += 60
    assert arrivals.look(EVER) == ["d3"]


@pytest.mark.s3
def test_object_of_folder_leaves_day_empty(s3_bucket):
    bucket, _, prefix = s3_bucket.removeprefix("s3://").partition("/")
    connect().put_object(Bucket=bucket, Key=f"{prefix}/d1/", Body=b"")
    place = Place(s3_bucket)
    place.put("d1/_manifest.json", b'{"objects": {}}')
    assert place.arrivals("manifest").look(EVER) == ["d1"]


def test_unchanged_files_have_settled_after_a_while(place):
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


def test_files_without_own_folder_can_settle(tmp_path):
    place = Place(tmp_path)
    arrivals = place.arrivals("settled", "edges-{snapshot}.tsv")
    place.put("edges-d1.tsv")
    arrivals.look(EVER)
    place.now += 60
    assert arrivals.look(EVER) == ["d1"]


def test_name_with_wildcard_settles_for_plan(tmp_path):
    (tmp_path / "d1").mkdir()
    (tmp_path / "d1" / "part[1].tsv").write_text("edges")
    place = Place(tmp_path)
    arrivals = place.arrivals("settled")
    assert arrivals.look(EVER) == []
    place.now += 60
    assert arrivals.look(EVER) == ["d1"]


def test_watch_begins_with_newest_whole_snapshot(place):
    for key in ("v9", "v10", "v11"):
        place.put(f"{key}/part.tsv")
    for key in ("v9", "v10"):
        place.put(f"{key}/_SUCCESS", b"")
    assert place.arrivals("success").look(None) == ["v10"]


@pytest.fixture
def chain(tmp_path):
    return Channel(open_store(str(tmp_path / "store")), "production")


def watched(tmp_path, chain, *, incomplete):
    """Return six days, some incomplete, watched for a chain.

    With them comes the list of the watch's messages.
    """
    place, said = Place(tmp_path / "edges"), []
    for key in ("d1", "d2", "d3", "d4", "d5", "d6"):
        place.put(f"{key}/part.tsv")
        if key not in incomplete:
            place.put(f"{key}/_SUCCESS", b"")
    arrivals = place.arrivals("success")
    arrivals.chain, arrivals.say = chain, said.append
    return place, arrivals, said


def test_nights_of_chain_wait_for_incomplete_snapshot(tmp_path, chain):
    place, arrivals, said = watched(tmp_path, chain, incomplete={"d2", "d6"})
    begun = Watermark("d1").passing(["d1"])
    assert arrivals.look(Watermark("d1")) == ["d1"]
    assert arrivals.look(begun) == arrivals.look(begun) == []
    assert said == ["d3 waits for d2, which is not whole; `pbg skip SPEC d2` goes on without it"]
    place.put("d2/_SUCCESS", b"")
    assert arrivals.look(begun) == ["d2", "d3", "d4", "d5"]
    arrivals.chain = None
    (tmp_path / "edges" / "d2" / "_SUCCESS").unlink()
    assert arrivals.look(begun) == ["d3", "d4", "d5"]  # nights that wait for nothing


def test_chain_continues_without_skipped_or_released_snapshot(tmp_path, chain):
    _, arrivals, said = watched(tmp_path, chain, incomplete={"d2", "d4"})
    begun = Watermark("d1").passing(["d1"])
    skip(chain, "d2", "it never came")
    assert arrivals.look(begun) == ["d3"]
    write_run(chain.store, "by-hand")
    chain.publish(candidate(chain.store, "by-hand", "d4"), planned_on=None)
    assert arrivals.look(begun) == ["d3", "d5", "d6"]
    assert said == ["d5 waits for d4, which is not whole; `pbg skip SPEC d4` goes on without it"]


def test_late_snapshot_delays_no_later_ones(tmp_path, chain):
    _, arrivals, said = watched(tmp_path, chain, incomplete={"d2"})
    assert arrivals.look(Watermark("d1").passing(["d1", "d3"])) == ["d4", "d5", "d6"]
    assert said == []


def test_removed_snapshot_is_not_announced(tmp_path):
    place = Place(tmp_path)
    place.put("d1/part.tsv")
    settling = place.arrivals("settled")
    settling.look(EVER)
    shutil.rmtree(tmp_path / "d1")
    place.now += 60
    assert settling.look(EVER) == []
    place.put("d1/part.tsv")
    assert settling.look(EVER) == []  # it begins to settle anew


def test_refusing_or_silent_store_raises(s3_bucket):
    wrong = {**os.environ, "AWS_SECRET_ACCESS_KEY": "wrong"}
    with pytest.raises(AccessError):
        Arrivals(f"{s3_bucket}/{{snapshot}}/*.tsv", "success", 60.0, wrong).look(EVER)
    silent = {**os.environ, "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
    with pytest.raises(StorageError, match="cannot be listed"):
        Arrivals(f"{s3_bucket}/{{snapshot}}/*.tsv", "success", 60.0, silent).look(EVER)
