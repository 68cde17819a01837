"""Kill the nightly chain at random moments.

The store is compared with an undisturbed one.

    python -m tests.kill_chain --kills 200 --seed 1

Three nights of a small graph run in a local store and in a real S3 server. Any process of a night is killed with
SIGKILL at a random moment and started again, and so is the collection after it; meanwhile the S3 server is stopped for
seconds, slowed down, and killed and restarted. A reader opens the current release in a loop and verifies every file
of it. At the end each release must hold the bytes of the undisturbed one, and after ``pbg gc`` the store must hold the
same objects and no others. Prints a table; the last line counts kills and problems, and the exit status is 1 if there
is a problem. The file is longer than others so that the program can be read as a whole.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import multiprocessing
import os
import random
import re
import signal
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from examples.stack.object_store import ObjectStore
from pbg_tasks.checkpoint import open_preserved
from pbg_tasks.errors import BY_EXIT_CODE, NotFoundError, PbgError, StorageError
from pbg_tasks.progress import Progress, aligned, say
from pbg_tasks.publish import Channel
from pbg_tasks.storage import open_store
from pbg_tasks.tasks.nightly.chain import run_chain
from pbg_tasks.tasks.release.releases import gc
from tests.tasks.conftest import Workplace, ring
from tests.tasks.reruns import BY_THE_CLOCK, objects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

STORES = ("local", "s3")
NIGHTS = ("d1", "d2", "d3")
KILLS_A_NIGHT = 12
"""Kills of one night, at most; after them it may run to its end."""
OLD = -1 / 60
"""Grace in hours by which every object is old enough to be collected."""
OF_A_TRY = re.compile(rf"{BY_THE_CLOCK.pattern}|^gc/|(^|/)\.probe/")
"""Objects that depend on tries and collections, not on nights."""
PAGES = re.compile(r"(^|/)report/")
"""They contain times, so only their existence can be compared."""
FORECAST = "forecast"
"""Part of a plan that is computed from the times of earlier nights."""
RUN_ID = re.compile(r"\b(d\d)-[0-9a-f]{12}\b")
TRIES = 20
"""Largest number of starts of a night that end with an error which a later try may overcome."""
FORK = multiprocessing.get_context("fork")  # everything heavy is imported once; a kill then hits work, not imports


@dataclass
class Findings:
    """Everything that is counted.

    Attributes:
        kills: by kind of store and first word of the log's last line.
        troubles: of the S3 server, by kind.
        retried: ends with an error that a later try overcame, by kind of error.
        releases_read: releases that the reader opened and verified.
        problems: outcomes that must not happen.
    """

    kills: Counter[str] = field(default_factory=Counter)
    troubles: Counter[str] = field(default_factory=Counter)
    retried: Counter[str] = field(default_factory=Counter)
    releases_read: int = 0
    problems: list[str] = field(default_factory=list)


class Server:
    """An S3 server behind a relay with a constant port.

    So clients find it again after a restart.
    """

    def __init__(self, folder: Path) -> None:
        self._store = ObjectStore(folder / "s3")
        self._slow = folder / "slow"
        self._ports = FORK.SimpleQueue()
        self._relay = FORK.Process(target=self._serve, daemon=True)

    @contextmanager
    def running(self) -> Iterator[str]:
        """Start server and relay; yield the URL of a bucket.

        The environment gets access to them.
        """
        with self._store:
            self._relay.start()
            os.environ |= self._store.environment() | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._ports.get()}"}
            os.environ |= {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
            try:
                yield self._store.create_bucket("nights")
            finally:
                self._relay.kill()

    def trouble(self, kind: str, seconds: float) -> None:
        """Stop, slow down, or kill and restart the server.

        It is stopped or slow for some seconds.
        """
        record = json.loads((self._store.directory / "weed.pid").read_text())
        if kind == "stopped":
            os.killpg(record["pid"], signal.SIGSTOP)
            time.sleep(seconds)
            os.killpg(record["pid"], signal.SIGCONT)
        elif kind == "slowed":
            self._slow.touch()
            time.sleep(seconds)
            self._slow.unlink()
        else:
            os.killpg(record["pid"], signal.SIGKILL)
            self._store.start()

    def _serve(self) -> None:
        asyncio.run(self._relaying())

    async def _relaying(self) -> None:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self._ports.put(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            port = json.loads((self._store.directory / "weed.pid").read_text())["ports"]["s3"]
            upstream = await asyncio.open_connection("127.0.0.1", port)
        except (OSError, ValueError):  # it is being restarted
            writer.close()
            return
        await asyncio.gather(self._pass_on(reader, upstream[1]), self._pass_on(upstream[0], writer))

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                if self._slow.exists():
                    await asyncio.sleep(0.05)
                writer.write(data)
                await writer.drain()
        writer.close()


class Campaign:
    """Three nights in one store, first undisturbed, then with kills.

    Args:
        name: kind of the store.
        folder: of the snapshots and the spec.
        store: URL of the store.
        server: the S3 server behind it; None for a local store.
        seed: of moments and troubles.
    """

    def __init__(self, name: str, folder: Path, store: str, server: Server | None, seed: str) -> None:
        self.name, self.folder, self.url, self.server = name, folder, store, server
        self.random = random.Random(seed)
        folder.mkdir()
        self.place = Workplace(folder)
        self.place.write_spec({"num_epochs": 3, "checkpoint_preservation_interval": 1}, store=store)
        for number, night in enumerate(NIGHTS):
            self.place.snapshot(night, ring(40 + 4 * number, seed=number))
        self.log = folder / "log"

    def undisturbed(self) -> tuple[dict[str, object], float]:
        """Run the nights once, and leave the store empty.

        Returns:
            The objects after a collection, and the seconds that a night took.
        """
        started = time.monotonic()
        for night in NIGHTS:
            self._finish(self._night(night))
        seconds = (time.monotonic() - started) / len(NIGHTS)
        self._finish(self._collection)
        found = self._contents()
        self._finish(self._empty)
        return found, seconds

    def disturb(self, kills: int, seconds: float, findings: Findings, progress: Progress) -> None:
        """Run the nights with kills, so many at most.

        Args:
            kills: at most.
            seconds: that an undisturbed night takes.
            findings: are added to.
            progress: is advanced by each kill.
        """
        for night in NIGHTS:
            share = min(kills, self.random.randint(KILLS_A_NIGHT // 2, KILLS_A_NIGHT))
            done = self._disturb(self._night(night), share, seconds, findings, progress)
            kills -= done
        self._disturb(self._collection, min(kills, 2), seconds / 5, findings, progress)

    def check(self, expected: dict[str, object], findings: Findings) -> None:
        """Collect, and compare the store with the undisturbed one."""
        self._finish(self._collection)
        self._finish(self._collection)  # the second one buries the tombstones of the first
        found = self._contents()
        for key in sorted(expected.keys() | found.keys()):
            if key not in found:
                findings.problems.append(f"{self.name}: {key} is missing")
            elif key not in expected:
                findings.problems.append(f"{self.name}: {key} is left over")
            elif found[key] != expected[key]:
                findings.problems.append(f"{self.name}: {key} is {found[key]}, undisturbed {expected[key]}")
        self._finish(self._empty)

    @contextmanager
    def reader(self, findings: Findings) -> Iterator[None]:
        """Read the current release in a loop, in another process."""
        done, results = FORK.Event(), FORK.SimpleQueue()
        process = FORK.Process(target=self._read, args=(done, results))
        process.start()
        try:
            yield
        finally:
            done.set()
            read, problems = results.get()
            process.join()
            findings.releases_read += read
            findings.problems += problems

    def _read(self, done: multiprocessing.synchronize.Event, results: multiprocessing.queues.SimpleQueue) -> None:
        channel, read, problems = Channel(open_store(self.url), "production"), 0, []
        while not done.wait(0.2) and not problems:
            try:
                release = channel.current().release
                if release is None:
                    continue
                files = open_preserved(channel.store, release.directory, expected_sha256=release.manifest_sha256)
                with tempfile.TemporaryDirectory(dir=self.folder) as folder:
                    files.fetch_all(files.records, Path(folder))
                read += 1
            except NotFoundError as error:
                problems.append(f"{self.name}: a reader found a release with a part missing: {error}")
            except StorageError:
                continue  # the server is down
            except PbgError as error:
                problems.append(f"{self.name}: a reader found a damaged release: {error}")
        results.put((read, problems))

    def _night(self, night: str) -> Callable[[], object]:
        return lambda: run_chain(self.place.spec, night)

    def _collection(self) -> object:
        return gc(self.url, keep_releases=2, grace_hours=OLD)

    def _empty(self) -> None:
        store = open_store(self.url)
        for info in list(store.list()):
            store.delete(info.key)

    def _contents(self) -> dict[str, object]:
        """Return the contents of the store, by key.

        Runs are named by their snapshots.
        """
        found = FORK.SimpleQueue()
        process = FORK.Process(target=lambda: found.put(objects(open_store(self.url), without=OF_A_TRY)))
        process.start()
        contents: dict[str, object] = json.loads(RUN_ID.sub(r"\1", json.dumps(found.get())))
        process.join()
        for key, content in contents.items():
            if PAGES.search(key):
                contents[key] = None
            elif isinstance(content, dict):
                content.pop(FORECAST, None)
        return contents

    def _start(self, work: Callable[[], object]) -> multiprocessing.context.ForkProcess:
        def child() -> None:
            os.setsid()  # so that a kill also reaches the processes it starts
            log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            try:
                work()
            except PbgError as error:
                say(f"{error.kind}: {error}")
                os._exit(error.exit_code)

        process = FORK.Process(target=child)
        process.start()
        return process

    def _finish(self, work: Callable[[], object]) -> None:
        process = self._start(work)
        process.join()
        if process.exitcode:
            raise RuntimeError(f"status {process.exitcode}: {self.log.read_text()[-4000:]}")

    def _disturb(
        self, work: Callable[[], object], kills: int, seconds: float, findings: Findings, progress: Progress
    ) -> int:
        """Restart work until it succeeds, killing it a few times.

        Returns the number of kills.
        """
        killed = failed = 0
        while True:
            process = self._start(work)
            if killed < kills:
                process.join(self.random.uniform(0.0, seconds))
                self._trouble(seconds, findings)
                if process.exitcode is None:
                    with suppress(ProcessLookupError):  # it has not called setsid yet
                        os.killpg(process.pid, signal.SIGKILL)
                    process.kill()
                    process.join()
                    killed += 1
                    findings.kills[f"{self.name}, {self._task()}"] += 1
                    progress.advance(1)
                    continue
            process.join()
            if not process.exitcode:
                return killed
            failed += 1
            error = BY_EXIT_CODE.get(process.exitcode, PbgError)
            if not error.retryable or failed > TRIES:
                findings.problems.append(f"{self.name}: ended with {error.kind}: {self.log.read_text()[-600:]}")
                return killed
            findings.retried[error.kind] += 1

    def _task(self) -> str:
        """Return the task that wrote the last line of the log."""
        lines = re.findall(r"^\d\d:\d\d:\d\d (\w+)", self.log.read_text() if self.log.exists() else "", re.MULTILINE)
        return lines[-1] if lines else "start"

    def _trouble(self, seconds: float, findings: Findings) -> None:
        if self.server is None or self.random.random() < 0.6:
            return
        kind = self.random.choice(("stopped", "slowed", "restarted"))
        findings.troubles[kind] += 1
        self.server.trouble(kind, self.random.uniform(0.0, min(seconds, 3.0)))


def table(findings: Findings) -> str:
    """Return the figures as lines."""
    rows = [
        ("kills after a line of", _counted(findings.kills)),
        ("S3 server", _counted(findings.troubles) or "untroubled"),
        ("errors that a later try overcame", _counted(findings.retried) or "none"),
        ("releases read and verified", str(findings.releases_read)),
        *(("PROBLEM", problem) for problem in findings.problems),
    ]
    return "\n".join(aligned(rows))


def _counted(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counter.items()))


def kill_often(folder: Path, *, kills: int, seed: int, stores: Sequence[str] = STORES) -> Findings:
    """Kill nights in each kind of store in turn.

    It ends after so many kills.

    Args:
        folder: for stores, snapshots and logs.
        kills: in all.
        seed: of moments and troubles.
        stores: kinds of store: ``local``, ``s3``.
    """
    findings = Findings()
    os.environ["PBG_SCRATCH"] = str(folder / "scratch")
    with ExitStack() as stack:
        campaigns = []
        for name in stores:
            server = Server(folder) if name == "s3" else None
            store = stack.enter_context(server.running()) if server else str(folder / "store")
            campaigns.append(Campaign(name, folder / f"{name}-nights", store, server, f"{seed} {name}"))
        progress = stack.enter_context(Progress("kill_chain", kills, "kills"))
        calm = {campaign.name: campaign.undisturbed() for campaign in campaigns}
        for number, campaign in enumerate(itertools.cycle(campaigns)):
            left = kills - progress.done
            if not left or findings.problems:
                return findings
            expected, seconds = calm[campaign.name]
            with campaign.reader(findings):
                campaign.disturb(-(-left // max(1, len(campaigns) - number)), seconds, findings, progress)
            campaign.check(expected, findings)
    return findings


def main(
    kills: Annotated[int, typer.Option(help="How often a process is killed.")] = 200,
    seed: Annotated[int, typer.Option(help="Of moments and troubles.")] = 0,
) -> None:
    """Kill, start again, and compare."""
    with tempfile.TemporaryDirectory() as folder:
        findings = kill_often(Path(folder), kills=kills, seed=seed)
    print(table(findings))
    print(f"{sum(findings.kills.values())} kills: {len(findings.problems)} problems")
    raise typer.Exit(bool(findings.problems))


if __name__ == "__main__":
    typer.run(main)
