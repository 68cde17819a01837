from __future__ import annotations

import json
import threading

import pytest

from pbg_tasks.checkpoint import Iteration, claim, preserve
from pbg_tasks.config.base import canonical_json
from pbg_tasks.errors import ConfigError, ConflictError, FormatError, InputError, NotFoundError
from pbg_tasks.publish import Channel
from pbg_tasks.storage import open_store
from tests.publish.runs import candidate as offered
from tests.publish.runs import write_run
from tests.publish.turned_store import TurnedStore

HASH = "c" * 64


@pytest.fixture
def store(tmp_path):
    return open_store(str(tmp_path))


def candidate(store, run, snapshot):
    """Train and preserve a run of one object; return its publishable fields."""
    step = Iteration(
        number=1, epoch_idx=0, num_epochs=1, edge_path_idx=0, num_edge_paths=1, edge_chunk_idx=0, num_edge_chunks=1
    )
    with claim(store, f"runs/{run}/checkpoint", HASH) as writer:
        manifest = writer.commit({"model.v1.h5": writer.put("model.v1.h5", run.encode())}, iteration=step, edges=1)
    directory = f"runs/{run}/release"
    document = preserve(store, f"runs/{run}/checkpoint", manifest, directory, epochs=1)
    return {
        "graph": "g",
        "run": run,
        "snapshot": snapshot,
        "directory": directory,
        "manifest_sha256": document.sha256(),
        "id_layout": HASH,
        "vector_space": HASH,
        "split": HASH,
    }


def test_releases_are_numbered_and_the_pointer_moves(store):
    channel = Channel(store, "production")
    assert channel.current().release is None
    first, points = channel.publish(candidate(store, "a", "2026-01-01"), planned_on=None)
    assert (first.seq, first.previous, points) == (1, None, True)
    second, _ = channel.publish(candidate(store, "b", "2026-01-02"), planned_on=1)
    assert (second.seq, second.previous) == (2, 1)
    assert channel.numbers() == [1, 2]
    assert channel.current().release == second


def test_releases_are_walked_from_either_end(store):
    channel = Channel(store, "production")
    for day in range(1, 12):  # more releases than are read at a time
        channel.publish(candidate(store, f"r{day}", f"2026-01-{day:02d}"), planned_on=day - 1 or None)
    store.delete(channel.release_key(4))
    walked = [release.seq for release in channel.releases()]
    assert walked == [1, 2, 3, *range(5, 12)]
    assert [release.seq for release in channel.releases(newest_first=True)] == walked[::-1]


def test_stray_object_is_no_release(store):
    channel = Channel(store, "production")
    channel.publish(candidate(store, "a", "2026-01-01"), planned_on=None)
    for name in ("notes.txt", "2.json", "copy of 00000001.json", "00000001.json.bak"):
        store.put_new(f"channels/production/releases/{name}", b"{}")
    assert channel.numbers() == [1]
    assert [release.run for release in channel.releases()] == ["a"]


def test_pointer_with_other_metadata_is_named(store):
    channel = Channel(store, "production")
    channel.publish(candidate(store, "a", "2026-01-01"), planned_on=None)
    rewrite_pointer(store, without=("highest", "nonce"), metadata={"highest": "one"})
    with pytest.raises(FormatError, match=r"CURRENT\.json: metadata 'highest' is 'one', not a number"):
        channel.current()


def test_channel_serves_one_graph(store):
    channel = Channel(store, "production")
    served, _ = channel.publish(candidate(store, "a", "2026-01-01"), planned_on=None)
    channel.check_graph("g")
    with pytest.raises(ConfigError, match="serves graph 'g', not 'h': give one of them a `channel` of its own"):
        channel.check_graph("h")
    with pytest.raises(ConfigError, match="serves graph 'g', not 'h'"):
        channel.publish({**candidate(store, "b", "2026-01-02"), "graph": "h"}, planned_on=1)
    assert list(channel.releases()) == [served] == [channel.current().release]


def test_publishing_twice_changes_nothing(store):
    channel = Channel(store, "production")
    fields = candidate(store, "a", "2026-01-01")
    first = channel.publish(fields, planned_on=None)
    assert channel.publish(fields, planned_on=None) == first
    assert len(list(channel.releases())) == 1


def test_publish_interrupted_before_the_swap_is_finished(store, monkeypatch):
    channel = Channel(store, "production")
    fields = candidate(store, "a", "2026-01-01")
    with monkeypatch.context() as patch:
        patch.setattr(channel, "_point", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            channel.publish(fields, planned_on=None)
    assert channel.current().release is None
    release, points = channel.publish(fields, planned_on=None)
    assert (release.seq, points, len(list(channel.releases()))) == (1, True, 1)


def test_run_planned_on_older_release_conflicts(store):
    channel = Channel(store, "production")
    channel.publish(candidate(store, "a", "2026-01-01"), planned_on=None)
    channel.publish(candidate(store, "b", "2026-01-02"), planned_on=1)
    with pytest.raises(ConflictError, match="planned on 1"):
        channel.publish(candidate(store, "c", "2026-01-03"), planned_on=1)
    assert channel.current().release.run == "b"


def test_channel_never_goes_back_by_publishing(store):
    channel = Channel(store, "production")
    channel.publish(candidate(store, "b", "2026-01-02"), planned_on=None)
    old, points = channel.publish(candidate(store, "a", "2026-01-01"), planned_on=None)
    assert (old.seq, points) == (2, False)
    assert channel.current().release.snapshot == "2026-01-02"


def test_new_run_of_same_snapshot_replaces_it(store):
    channel = Channel(store, "production")
    channel.publish(candidate(store, "a", "2026-01-01"), planned_on=None)
    channel.publish(candidate(store, "b", "2026-01-02"), planned_on=1)
    assert channel.before("2026-01-02").run == "a"
    redo, points = channel.publish(candidate(store, "b2", "2026-01-02"), planned_on=1)
    assert (redo.seq, points) == (3, True)


def test_rollback_is_one_swap_and_has_a_floor(store):
    channel = Channel(store, "production")
    with pytest.raises(InputError, match="no release yet"):
        channel.rollback()
    for number, day in enumerate(["2026-01-01", "2026-01-02", "2026-01-03"]):
        channel.publish(candidate(store, f"r{number}", day), planned_on=number or None)
    was, now = channel.rollback()
    assert (was.seq, now.seq, channel.current().release.seq) == (3, 2, 2)
    assert channel.rollback(to=1)[1].run == "r0"
    with pytest.raises(InputError, match="nothing to go back to"):
        channel.rollback()
    with pytest.raises(InputError, match="no release 9"):
        channel.rollback(to=9)


def test_releases_published_newest_first_roll_back_by_snapshot(store):
    channel = Channel(store, "production")
    for day in (6, 5, 4):
        channel.publish(candidate(store, f"r{day}", f"2026-01-{day:02d}"), planned_on=None, independent=True)
    assert channel.before("2026-01-06").snapshot == "2026-01-05"
    went = [[release.snapshot for release in channel.rollback()] for _ in range(2)]
    assert went == [["2026-01-06", "2026-01-05"], ["2026-01-05", "2026-01-04"]]
    with pytest.raises(InputError, match="is the first: nothing to go back to"):
        channel.rollback()


@pytest.mark.parametrize("independent", [False, True])
def test_repeated_publish_undoes_no_rollback(store, independent):
    channel = Channel(store, "production")
    channel.publish(candidate(store, "a", "2026-01-01"), planned_on=None)
    fields = candidate(store, "b", "2026-01-02")
    second, _ = channel.publish(fields, planned_on=1, independent=independent)
    channel.rollback()
    assert channel.publish(fields, planned_on=1, independent=independent) == (second, False)
    assert channel.current().release.run == "a"
    # a release that did not exist at the roll-back is published
    third, points = channel.publish(candidate(store, "c", "2026-01-03"), planned_on=1, independent=independent)
    assert (points, channel.current().release) == (True, third)


@pytest.mark.parametrize("independent", [False, True])
def test_publish_interrupted_after_a_rollback_is_finished(store, monkeypatch, independent):
    channel = Channel(store, "production")
    channel.publish(candidate(store, "a", "2026-01-01"), planned_on=None)
    left = candidate(store, "b", "2026-01-02")
    second, _ = channel.publish(left, planned_on=1, independent=independent)
    channel.rollback()
    fields = candidate(store, "c", "2026-01-03")
    with monkeypatch.context() as patch:
        patch.setattr(channel, "_point", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            channel.publish(fields, planned_on=1, independent=independent)
    assert channel.numbers() == [1, 2, 3]
    # a release that was rolled back stays rolled back, whatever was recorded since
    assert channel.publish(left, planned_on=1, independent=independent) == (second, False)
    release, points = channel.publish(fields, planned_on=1, independent=independent)
    assert (release.seq, points, channel.current().release) == (3, True, release)
    channel.rollback()
    assert channel.publish(fields, planned_on=1, independent=independent) == (release, False)


def test_publish_after_rollback_without_record_changes_nothing(store):
    """Remove the record of the served release from the pointer.

    An early version of this package wrote no such record, and a copy of the store without metadata has none.
    """
    channel = Channel(store, "production")
    fields = {day: candidate(store, f"r{day}", f"2026-01-0{day}") for day in (1, 2, 3, 4)}
    for day in (1, 2, 3):
        channel.publish(fields[day], planned_on=day - 1 or None)
    channel.rollback()
    rewrite_pointer(store, without=("highest", "nonce"))
    third = channel.release(3)
    for served in (2, 1):  # the second time the pointer began with metadata that lack the record
        assert channel.current().release.seq == served
        assert channel.publish(fields[3], planned_on=served) == (third, False)
        channel.rollback(to=1)
    assert channel.publish(fields[4], planned_on=1) == (channel.release(4), True)


def rewrite_pointer(store, *, without=(), metadata=None, **fields):
    """Write the pointer as another version of this package would.

    It lacks the fields ``without``, or has more.
    """
    pointer = store.get("channels/production/CURRENT.json")
    kept = {name: value for name, value in json.loads(pointer.data).items() if name not in without}
    store.swap(pointer.info.key, canonical_json(kept | fields), expected=pointer.info, metadata=metadata)


def test_pointer_of_earlier_version_is_read(store):
    channel = Channel(store, "production")
    for day in (1, 2, 3):
        channel.publish(candidate(store, f"r{day}", f"2026-01-0{day}"), planned_on=day - 1 or None)
    channel.rollback(to=1)
    rewrite_pointer(store, without=("highest", "nonce"), metadata={"highest": "3"})
    pointer = channel.current()
    assert (pointer.release.seq, pointer.rolled_back, pointer.highest) == (1, True, 3)
    channel.rollback(to=2)  # and the next swap keeps the contents of the metadata
    assert channel.current().highest == 3
    assert store.head("channels/production/CURRENT.json").metadata == {}


def test_pointer_with_unknown_fields_is_read(store):
    channel = Channel(store, "production")
    first, _ = channel.publish(candidate(store, "a", "2026-01-01"), planned_on=None)
    rewrite_pointer(store, region="north", approved_by={"name": "x"})
    assert channel.current().release == first
    assert channel.publish(candidate(store, "b", "2026-01-02"), planned_on=1)[1]


def test_one_of_two_simultaneous_publishers_wins(store):
    channel = Channel(store, "production")
    fields = [candidate(store, f"r{number}", "2026-01-01") for number in range(4)]
    outcomes = []

    def publish(number):
        try:
            outcomes.append(channel.publish(fields[number], planned_on=None)[0].run)
        except ConflictError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert channel.current().release.run in outcomes
    assert len(outcomes) == 4


@pytest.mark.parametrize("theirs", ["a", "b"])
def test_publish_after_lost_swap_reads_pointer_again(store, monkeypatch, theirs):
    """Let two publishers of one run meet; both find it published.

    A run planned on an older release is refused.
    """
    channel, other = Channel(store, "production"), Channel(store, "production")
    first = channel.publish(candidate(store, "first", "2026-01-01"), planned_on=None)[0]
    mine = candidate(store, "a", "2026-01-03")
    others = mine if theirs == "a" else candidate(store, "b", "2026-01-02")
    swap = channel._point

    def late(*args, **how):
        monkeypatch.setattr(channel, "_point", swap)
        other.publish(others, planned_on=first.seq)
        return swap(*args, **how)

    monkeypatch.setattr(channel, "_point", late)
    if theirs == "a":
        assert channel.publish(mine, planned_on=first.seq)[0].seq == 2
        assert channel.numbers() == [1, 2]
    else:
        with pytest.raises(ConflictError, match="this run was planned on 1"):
            channel.publish(mine, planned_on=first.seq)
    assert channel.current().release.run == theirs


@pytest.mark.parametrize("place", ["tmp_path", pytest.param("s3_bucket", marks=pytest.mark.s3)])
def test_slow_publisher_undoes_no_rollback_meanwhile(request, place, monkeypatch):
    """The pointer is the same after the roll-back as before the release."""
    store = open_store(str(request.getfixturevalue(place)))
    slow, other = Channel(store, "production"), Channel(store, "production")
    for day in (1, 2):
        other.publish(candidate(store, f"r{day}", f"2026-01-0{day}"), planned_on=day - 1 or None)
    other.rollback()
    mine, bad = candidate(store, "slow", "2026-01-03"), candidate(store, "bad", "2026-01-04")
    swap = slow._point

    def late(*args, **how):
        monkeypatch.setattr(slow, "_point", swap)
        assert other.publish(bad, planned_on=1)[0].seq == 4
        other.rollback(to=1)
        return swap(*args, **how)

    monkeypatch.setattr(slow, "_point", late)
    release, points = slow.publish(mine, planned_on=1)
    assert (release.seq, points) == (3, False)
    pointer = other.current()
    assert (pointer.release.seq, pointer.rolled_back, pointer.highest) == (1, True, 4)
    assert other.publish(bad, planned_on=1)[1] is False  # a release that was rolled back stays rolled back


def test_run_published_twice_at_once_is_one_release(tmp_path):
    for after in range(1, 40):
        store = TurnedStore(tmp_path / str(after))
        mine = write_and_offer(store)
        store.interrupt(after, lambda store=store, mine=mine: Channel(store, "production").publish(mine, planned_on=1))
        release, points = Channel(store, "production").publish(mine, planned_on=1)
        if not store.calm():
            return  # the other publisher would come after all was done
        assert (release.seq, points, Channel(store, "production").numbers()) == (2, True, [1, 2])
    pytest.fail("the other publisher came in every time: the range is too short")


def test_run_published_twice_after_rollback_is_one_release(tmp_path):
    for after in range(1, 60):
        store = TurnedStore(tmp_path / str(after))
        channel = Channel(store, "production")
        channel.publish(write_and_offer(store), planned_on=1)
        channel.rollback()
        write_run(store, "b")
        mine = offered(store, "b", "2026-01-03")
        told = []
        store.interrupt(after, lambda store=store, mine=mine, told=told: told.append(publish_on_first(store, mine)))
        told.append(publish_on_first(store, mine))
        if not store.calm():
            return  # the other publisher would come after all was done
        assert told == [(3, True)] * 2
        assert channel.current().release.seq == 3
    pytest.fail("the other publisher came in every time: the range is too short")


def publish_on_first(store, fields):
    release, points = Channel(store, "production").publish(fields, planned_on=1)
    return release.seq, points


def write_and_offer(store):
    """Publish a first run, and return the publishable fields of a second."""
    for run in ("first", "a"):
        write_run(store, run)
    Channel(store, "production").publish(offered(store, "first", "2026-01-01"), planned_on=None)
    return offered(store, "a", "2026-01-02")


def test_release_with_unfinished_files_is_refused(store):
    fields = candidate(store, "a", "2026-01-01")
    store.delete("runs/a/release/manifest.json")
    with pytest.raises(NotFoundError):
        Channel(store, "production").publish(fields, planned_on=None)


def test_lost_release_is_named_by_its_key(store):
    channel = Channel(store, "production")
    release, _ = channel.publish(candidate(store, "a", "2026-01-01"), planned_on=None)
    store.delete(channel.release_key(release.seq))
    with pytest.raises(FormatError, match=r"production/releases/00000001\.json: lost, .* points to it; restore it"):
        channel.current()


def test_edited_release_is_refused(store):
    channel = Channel(store, "production")
    release, _ = channel.publish(candidate(store, "a", "2026-01-01"), planned_on=None)
    key = channel.release_key(release.seq)
    store.put(key, store.get(key).data.replace(b"2026-01-01", b"2026-01-09"))
    with pytest.raises(FormatError, match="changed after it was published"):
        channel.current()
