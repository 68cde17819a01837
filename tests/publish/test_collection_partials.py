"""Collection of objects outside finished runs.

Killed gangs and writers leave them, or another program stores them.
"""

from __future__ import annotations

import math

import pytest

from pbg_tasks.checkpoint import Head, Iteration, PartialObjects, PartialRecord
from pbg_tasks.checkpoint.manifest import NamedRecord, encode, sha256
from pbg_tasks.checkpoint.partial_record import progress_name
from pbg_tasks.errors import AccessError, ConfigError, FormatError, StorageError
from pbg_tasks.publish.gc_holds import condemn
from pbg_tasks.publish.looks import Dates
from tests.publish.nights import DAY, GRACE, gc, night
from tests.publish.runs import HASH, write_run
from tests.publish.turned_store import TurnedStore


@pytest.fixture
def store(tmp_path):
    return TurnedStore(tmp_path)


CHECKPOINT = "runs/d1-production/checkpoint"


def gang(store, tmp_path):
    """Store two objects as a gang does; a record names the first."""
    (tmp_path / "x").write_bytes(b"1")
    return [PartialObjects(store, CHECKPOINT, 2).put(tmp_path / "x", f"{lease}.0") for lease in (1, 2)]


def put_record(store, number, named):
    """Write a record as a gang does; return its name."""
    step = Iteration(
        number=1, epoch_idx=0, num_epochs=1, edge_path_idx=0, num_edge_paths=1, edge_chunk_idx=0, num_edge_chunks=1
    )
    record = PartialRecord(spec=HASH, writer_epoch=2, number=number, iteration=step, lease=1, partitions={"x": named})
    name = progress_name(1, 2, number)
    store.put(f"{CHECKPOINT}/{name}", encode(record))
    head = Head(writer_epoch=2, progress=NamedRecord(name=name, sha256=sha256(encode(record))))
    store.put(f"{CHECKPOINT}/HEAD.json", encode(head))
    return name


def test_partials_go_unless_a_record_names_them(store, tmp_path):
    night(store, 1)
    named, left = gang(store, tmp_path)
    name = put_record(store, 1, named)
    store.put(f"{CHECKPOINT}/{progress_name(1, 1, 9)}", b"of a writer before")
    assert gc(store).objects == 0  # it is young
    store.now += DAY
    assert gc(store).objects == 2
    there = {info.key.removeprefix(f"{CHECKPOINT}/") for info in store.list(CHECKPOINT)}
    assert named.name in there
    assert name in there
    assert left.name not in there


@pytest.mark.parametrize("replaced", [1, 3])
def test_partials_named_by_just_replaced_record_stay(store, tmp_path, monkeypatch, replaced):
    night(store, 1)
    named, _ = gang(store, tmp_path)
    names = [put_record(store, 1, named)]
    store.now += DAY
    read = store.get

    def get(key):
        blob = read(key)
        if key == f"{CHECKPOINT}/HEAD.json" and len(names) <= replaced:
            names.append(put_record(store, len(names) + 1, named))
            store.delete(f"{CHECKPOINT}/{names[-2]}")
        return blob

    monkeypatch.setattr(store, "get", get)
    gc(store)
    assert len(names) == replaced + 1
    there = {info.key.removeprefix(f"{CHECKPOINT}/") for info in store.list(f"{CHECKPOINT}/p")}
    assert there == {named.name, names[-1]}


def test_partials_of_lost_record_all_stay(store, tmp_path):
    night(store, 1)
    stored = gang(store, tmp_path)
    name = put_record(store, 1, stored[0])
    store.delete(f"{CHECKPOINT}/{name}")
    store.now += DAY
    with pytest.raises(FormatError, match=r"progress\.v1\.e2\.1\.json: missing, although HEAD\.json names it"):
        gc(store)
    there = {info.key.removeprefix(f"{CHECKPOINT}/") for info in store.list(f"{CHECKPOINT}/p")}
    assert there == {each.name for each in stored}


FOREIGN = (
    "runs/Nov01_host/events.out",
    "runs/exp/checkpoint/model.v1.h5",
    "runs/notes.txt",
    "runs/notes/spec.json.old",
)


def test_objects_of_other_program_below_runs_stay(store):
    for key in FOREIGN:
        store.put(key, b"not ours")
    night(store, *range(1, 5))
    store.put("runs/held/held.json", b"{}")
    store.put("runs/planned/spec.json", b"{}")
    store.now += DAY
    told = gc(store, grace=0)
    assert sorted(told.runs) == ["d1-production", "d2-production", "held", "planned"]
    assert {info.key for info in store.list("runs/")} >= set(FOREIGN)
    assert not any("Nov01_host" in info.key for info in store.list("gc/"))


def test_folder_of_other_program_only_is_refused(store):
    for key in FOREIGN:
        store.put(key, b"not ours")
    store.now += DAY
    with pytest.raises(ConfigError, match="no graph's store: none of the 4 folders below runs/ is a run"):
        gc(store, grace=0)
    assert {info.key for info in store.list()} == set(FOREIGN)


def test_last_run_goes_beside_another_programs_objects(store):
    store.put(FOREIGN[0], b"not ours")
    write_run(store, "tried")
    store.now += DAY
    assert condemn(store, "tried").remove(Dates(math.inf))
    for key in (
        "runs/tried/spec.json",
        "runs/tried/release/manifest.json",
    ):  # the collection before deleted these two and was cut off
        store.delete(key)
    assert gc(store).runs == ["tried"]
    assert [info.key for info in store.list("runs/")] == [FOREIGN[0]]
    store.now += DAY
    gc(store)
    assert [info.key for info in store.list()] == [FOREIGN[0]]


def test_a_new_store_has_nothing_to_collect(store):
    assert gc(store).objects == 0


def test_unfinished_uploads_are_aborted_after_the_grace(store, monkeypatch):
    asked = []

    def abort_uploads(prefix, *, before, dry_run):
        asked.append((prefix, store.now - before, dry_run))
        return 2

    monkeypatch.setattr(store, "abort_uploads", abort_uploads)
    assert gc(store).uploads == gc(store, dry_run=True).uploads == 4
    assert asked == [(prefix, GRACE, dry_run) for dry_run in (False, True) for prefix in ("runs/", "exports/")]


@pytest.mark.parametrize("error", [AccessError("403"), StorageError("NotImplemented: HTTP 501")])
def test_store_without_list_of_uploads_is_still_collected(store, monkeypatch, capsys, error):
    def abort_uploads(*_, **__):
        raise error

    night(store, *range(1, 5))
    monkeypatch.setattr(store, "abort_uploads", abort_uploads)
    assert gc(store).runs == ["d1-production", "d2-production"]
    assert capsys.readouterr().err.count("uploads") == 1
