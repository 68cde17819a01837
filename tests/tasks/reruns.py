"""Work on an S3 store that is killed and repeated.

It is killed at one of its writes and begun again.

The result is compared with that of undisturbed work.

Each day kills other writes, so that runs on ``DAYS`` days, each the fifth, come to all of them; a failure names the
``PBG_ROTATION`` that repeats it. With ``--every`` work is killed at every write, in some ten minutes.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
from contextlib import contextmanager

import pytest

from pbg_tasks.storage.s3 import S3Store
from tests.rotation import of_today

WRITES = ("put_new", "swap", "put", "copy", "delete")
KILLED = 77
DAYS = 41
OBJECTS_OF_A_TRY = re.compile(r"/((held|HEAD|training_stats|training_io)\.json|checkpoint/manifest\.v\d+\.json)$")
"""They contain times and writers, so only their existence can be compared."""
BY_THE_CLOCK = re.compile(r"/(lease|live)\.json$|^\.looks/|^runs/[^/]+/failed\.json$")
"""Written every few seconds, so seldom by a small training, or not at all; with the time of a collection; or by a task
that failed, which a killed one does not.
"""
DOCUMENTS = re.compile(r"/(results|decisions)/|/CURRENT\.json$|^gc/")
FIGURES_OF_A_TRY = {"usage", "seconds", "second", "memory", "resumed", "at", "nonce"}
"""Fields that depend on the try: its time, its start, its speed; and the random number of a swapped document."""


class State:
    """All objects of a store with their metadata, to be restored."""

    def __init__(self, store):
        self._store = store
        self._blobs = {info.key: store.get(info.key) for info in list(store.list())}

    def restore(self):
        """Restore the store to this state."""
        there = {info.key: info.tag for info in self._store.list()}
        for key in there.keys() - self._blobs.keys():
            self._store.delete(key)
        for key, blob in self._blobs.items():
            if there.get(key) != blob.info.tag:
                self._store.put(key, blob.data, metadata=blob.info.metadata)


def objects(store, prefix="", *, without=BY_THE_CLOCK):
    """Return the contents below a prefix that no try may change.

    They are by key.
    """
    keys = [info.key for info in store.list(prefix) if not without.search(info.key)]
    return {key: None if OBJECTS_OF_A_TRY.search(key) else comparable(key, store.get(key).data) for key in keys}


def comparable(key, data):
    """Return the SHA-256 of an object.

    Of a document of the tasks, the fields of the try are left out.
    """
    return timeless(json.loads(data)) if DOCUMENTS.search(key) else hashlib.sha256(data).hexdigest()


def timeless(value):
    """Remove the fields that depend on the try from a result."""
    if isinstance(value, dict):
        return {name: timeless(each) for name, each in value.items() if not FIGURES_OF_A_TRY & set(name.split("_"))}
    return [timeless(each) for each in value] if isinstance(value, list) else value


def writes_of(work):
    """Do some work and return its number of writes to S3."""
    with pytest.MonkeyPatch.context() as patch:
        written = []
        _at_writes(patch, written.append, lambda _: None)
        work()
    return len(written)


@contextmanager
def bucket(object_store, name, folder):
    """Yield the URL of a new bucket.

    The environment gives access to it; scratch is in a folder.
    """
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in object_store.environment().items():
            patch.setenv(variable, value)
        patch.setenv("PBG_SCRATCH", str(folder / "scratch"))
        yield object_store.create_bucket(name)


def deaths(count):
    """Return today's writes to be killed, and whether each arrives.

    ``DAYS`` days come to all of them.
    """
    every = [{"write": write, "sent": sent} for write in range(count) for sent in (False, True)]
    return of_today(every, DAYS)


def killed(work, write, *, sent):
    """Do some work in a process that ends at a write.

    It ends before the write is sent, or before its answer is seen.
    """
    child = os.fork()
    if not child:
        try:
            with pytest.MonkeyPatch.context() as patch:
                _at_writes(patch, _end_when(None if sent else write), _end_when(write if sent else None))
                work()
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == KILLED


def _at_writes(patch, before, after):
    """Report the number of each write to S3, before and after.

    Before it is sent and when the server has it.
    """
    numbers = itertools.count()
    for name in WRITES:
        real = getattr(S3Store, name)

        def called(store, key, *args, _real=real, **kwargs):
            if BY_THE_CLOCK.search(key):
                return _real(store, key, *args, **kwargs)
            number = next(numbers)
            before(number)
            try:
                return _real(store, key, *args, **kwargs)
            finally:
                after(number)

        patch.setattr(S3Store, name, called)


def _end_when(wanted):
    return lambda number: os._exit(KILLED) if number == wanted else None
