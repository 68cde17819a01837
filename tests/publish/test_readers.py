"""Readers during publishing, which never see parts of two releases."""

from __future__ import annotations

import os
import threading

from pbg_tasks.checkpoint import open_preserved
from pbg_tasks.publish import Channel
from pbg_tasks.storage import open_store
from tests.publish.runs import FILES, candidate, write_run

PUBLISHES = int(os.environ.get("PBG_PUBLISHES", "40"))
READERS = 8


def test_readers_see_one_release_at_a_time(tmp_path, swift_disk):
    store = open_store(str(tmp_path / "store"))
    channel, done, seen, failures = Channel(store, "production"), threading.Event(), [set() for _ in range(READERS)], []

    def read(reader):
        folder = tmp_path / f"reader{reader}"
        folder.mkdir()
        try:
            while not done.is_set():
                release = channel.current().release
                if release is None:
                    continue
                files = open_preserved(store, release.directory, expected_sha256=release.manifest_sha256)
                contents = [path.read_text() for path in files.fetch_all(FILES, folder, threads=1)]
                assert contents == [f"{release.run} {name}" for name in FILES]
                seen[reader].add(release.seq)
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=read, args=(reader,)) for reader in range(READERS)]
    for thread in threads:
        thread.start()
    for number in range(1, PUBLISHES + 1):
        write_run(store, f"r{number}")
        channel.publish(candidate(store, f"r{number}", f"d{number}"), planned_on=number - 1 or None)
        if number % 10 == 0:
            channel.rollback()
            channel.rollback(to=number)
    done.set()
    for thread in threads:
        thread.join()
    assert not failures
    assert all(len(each) > 1 for each in seen)
