"""The best version of a training, beside the newest."""

from __future__ import annotations

from contextlib import suppress

import pytest

from pbg_tasks.checkpoint import claim, open_best
from pbg_tasks.checkpoint.writer import CheckpointWriter
from pbg_tasks.errors import FormatError
from tests.checkpoint.samples import PREFIX, SPEC, iteration


def commit(writer, number, valid):
    """Commit a version with a figure, then drop others."""
    before, name = writer.manifest, f"embeddings_all_0.v{number}.h5"
    objects = {name: writer.put(name, f"vectors {number}".encode())}
    writer.commit(objects, iteration=iteration(number), edges=10, valid=valid)
    if before is not None:
        writer.drop(before)


def kept(store):
    """Return the versions whose vectors and manifest are there."""
    names = {info.key.rpartition("/")[2] for info in store.list(PREFIX)}
    found = [number for number in range(1, 9) if f"embeddings_all_0.v{number}.h5" in names]
    assert found == [number for number in range(1, 9) if f"manifest.v{number}.json" in names]
    return found


@pytest.mark.parametrize(
    ("figures", "best", "versions"),
    [
        ((0.1, 0.2, 0.3), 3, [3]),
        ((0.3, 0.2, 0.1), 1, [1, 3]),
        ((0.1, 0.3, 0.2), 2, [2, 3]),
        ((0.2, 0.1, 0.3, 0.1), 3, [3, 4]),
        ((0.2, 0.2, 0.1), 1, [1, 3]),
    ],
)
def test_best_and_newest_version_stay(store, figures, best, versions):
    with claim(store, PREFIX, SPEC) as writer:
        for number, figure in enumerate(figures, 1):
            commit(writer, number, figure)
    manifest, files = open_best(store, PREFIX)
    assert manifest.version == manifest.best_epoch == best
    assert files.names == {f"embeddings_all_0.v{best}.h5"}
    assert kept(store) == versions


def test_without_figures_newest_is_best(store):
    with claim(store, PREFIX, SPEC) as writer:
        for number in (1, 2):
            commit(writer, number, None)
    assert open_best(store, PREFIX)[0].version == 2
    assert kept(store) == [2]


def test_manifest_without_figures_has_old_keys(store):
    with claim(store, PREFIX, SPEC) as writer:
        commit(writer, 1, None)
    stored = store.get(f"{PREFIX}/manifest.v1.json").data
    assert b'"valid"' not in stored
    assert b'"best"' not in stored


@pytest.mark.parametrize("deleted", range(5))
def test_killed_writer_leaves_no_version_behind(store, monkeypatch, deleted):
    """Versions 1 and 2 go; a kill may come before each delete."""
    with claim(store, PREFIX, SPEC) as writer:
        commit(writer, 1, 0.2)
        commit(writer, 2, 0.1)
        assert kept(store) == [1, 2]
        left = iter(range(deleted))
        delete = store.delete

        def dying(key):
            if next(left, None) is None:
                raise KeyboardInterrupt
            delete(key)

        monkeypatch.setattr(type(store), "delete", lambda _, key: dying(key))
        with suppress(KeyboardInterrupt):
            commit(writer, 3, 0.3)
        monkeypatch.undo()
    with claim(store, PREFIX, SPEC):
        assert kept(store) == [3]
        assert open_best(store, PREFIX)[0].version == 3


def test_next_writer_keeps_best_version(store):
    with claim(store, PREFIX, SPEC) as writer:
        commit(writer, 1, 0.2)
        commit(writer, 2, 0.1)
    for number in (3, 4):
        with claim(store, PREFIX, SPEC) as writer:
            assert kept(store) == [1, number - 1]
            commit(writer, number, 0.1)
    assert open_best(store, PREFIX)[0].version == 1


@pytest.mark.parametrize("document", ["HEAD.json", "manifest.v2.json"])
def test_version_replaced_while_opened_is_followed(store, monkeypatch, document):
    """A training commits after a reader has read one document."""
    with claim(store, PREFIX, SPEC) as writer:
        commit(writer, 1, 0.2)
        commit(writer, 2, 0.1)
        get, later = store.get, [0.3]

        def slow(key):
            found = get(key)
            if key.endswith(document) and later:
                commit(writer, 3, later.pop())
            return found

        monkeypatch.setattr(type(store), "get", lambda _, key: slow(key))
        manifest, files = open_best(store, PREFIX)
    assert manifest.version == files.version == 3


def test_changed_manifest_of_best_is_refused(store):
    with claim(store, PREFIX, SPEC) as writer:
        commit(writer, 1, 0.2)
        commit(writer, 2, 0.1)
    key = f"{PREFIX}/manifest.v1.json"
    store.put(key, store.get(key).data.replace(b'"edges":[10]', b'"edges":[11]'))
    with pytest.raises(FormatError, match=r"manifest\.v1\.json: not the manifest that was committed"):
        open_best(store, PREFIX)
    store.delete(key)
    with pytest.raises(FormatError, match=r"manifest\.v1\.json: missing, although the newest version names it"):
        open_best(store, PREFIX)


@pytest.mark.s3
def test_best_version_stays_in_s3(s3_bucket):
    from pbg_tasks.storage import open_store

    store = open_store(s3_bucket)
    with claim(store, PREFIX, SPEC) as writer:
        assert isinstance(writer, CheckpointWriter)
        for number, figure in enumerate((0.1, 0.3, 0.2, 0.2), 1):
            commit(writer, number, figure)
    assert open_best(store, PREFIX)[0].version == 2
    assert kept(store) == [2, 4]
