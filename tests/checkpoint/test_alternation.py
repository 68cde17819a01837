"""PBG and this package train one directory by turns and crash anywhere.

The newest committed version is always the one opened.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pbg_tasks.checkpoint import claim, open_directory
from pbg_tasks.checkpoint.reader import HEAD, VERSION_MIRROR, manifest_name
from pbg_tasks.checkpoint.writer import LEASE
from pbg_tasks.errors import FormatError, NotFoundError
from pbg_tasks.storage import LocalStore
from tests.checkpoint import pbg
from tests.checkpoint.plain import commit
from tests.checkpoint.samples import SPEC

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 (a private directory is made there)


class Crash(BaseException):
    """The process ended."""


class MortalStore(LocalStore):
    """A store whose process dies before its ``lifetime``-th change."""

    def __init__(self, root, lifetime):
        super().__init__(root)
        self.lifetime, self.changed = lifetime, []

    def _live(self, key):
        if key == LEASE:
            return
        if len(self.changed) == self.lifetime:
            raise Crash
        self.changed.append(key)

    def swap(self, key, source, **options):
        self._live(key)
        return super().swap(key, source, **options)

    def put(self, key, source, **options):
        self._live(key)
        return super().put(key, source, **options)

    def delete(self, key):
        self._live(key)
        super().delete(key)

    def has_committed(self, version):
        manifest = manifest_name(version)
        return manifest in self.changed and HEAD in self.changed[self.changed.index(manifest) :]


class Alternation(RuleBasedStateMachine):
    """The model: the counting version, PBG's known version, and their contents."""

    def __init__(self):
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="alternation-", dir=MEMORY))
        self.directory, self.scratch = self.root / "checkpoint", self.root / "scratch"
        self.directory.mkdir()
        self.newest = self.known_to_pbg = (0, "")
        self.snapshots = {}
        self.runs = 0

    def teardown(self):
        shutil.rmtree(self.root)

    def _content(self, who):
        self.runs += 1
        return f"{who}{self.runs}"

    @rule(keep=strategies.booleans())
    def pbg_trains(self, keep):
        content = self._content("pbg")
        version = pbg.train(self.directory, content)
        assert version == self.known_to_pbg[0] + 1
        self.newest = self.known_to_pbg = (version, content)
        if keep:
            pbg.preserve(self.directory, self.runs)
            self.snapshots[self.runs] = self.newest

    @rule(after=strategies.integers(0, 8))
    def pbg_crashes(self, after):
        content, done = self._content("pbg"), []
        steps = pbg.iterate(self.directory, content)
        for step in steps:
            if len(done) == after:
                break
            done.append(step)
        steps.close()
        if "write the version file" in done or len(done) < after:
            self.newest = self.known_to_pbg = (self.known_to_pbg[0] + 1, content)
        elif done:
            self.newest = self.known_to_pbg  # versions of ours beyond it are overwritten
        empty = (self.directory / VERSION_MIRROR).exists() and not (self.directory / VERSION_MIRROR).read_text()
        if empty or ("write model.v1.h5" in done and not self.newest[0]):
            self._mend()

    def _mend(self):
        """Write the version number that PBG did not leave.

        HEAD.json contains it; otherwise a person has to write it down.
        """
        try:
            opened = self._opened()
        except FormatError as error:
            opened = self.newest if "missing or empty" in str(error) else None
        assert opened == self.newest
        (self.directory / VERSION_MIRROR).write_text(f"{self.newest[0]}\n")

    @rule()
    def we_train(self):
        store, content = LocalStore(self.directory), self._content("ours")
        assert self._train(store, content) == self.newest[0] + 1
        self.newest = self.known_to_pbg = (self.newest[0] + 1, content)

    @rule(after=strategies.integers(0, 14))
    def we_crash(self, after):
        store, content = MortalStore(self.directory, after), self._content("ours")
        version = self.newest[0] + 1
        try:
            self._train(store, content)
        except Crash:
            (self.directory / LEASE).unlink(missing_ok=True)  # its heartbeat has stopped
        if store.has_committed(version):
            self.newest = (version, content)
        if VERSION_MIRROR in store.changed:  # the claim repaired it, the commit wrote it
            last = store.changed.count(VERSION_MIRROR) == 2
            self.known_to_pbg = self.newest if last or version > self.newest[0] else self._claimed(version)

    def _train(self, store, content):
        with claim(store, "", SPEC, adopt=pbg.names) as writer:
            before = writer.manifest
            self.claim = (writer.version, self.newest[1])
            manifest = commit(writer, content.encode())
            if before is not None:
                writer.drop(before)
        return manifest.version

    def _claimed(self, version):
        assert pbg.version_of(self.directory) == version - 1 == self.claim[0]
        return self.claim

    def _opened(self):
        store = LocalStore(self.directory)
        try:
            files = open_directory(store, "", expect=pbg.names)
        except NotFoundError:
            return (0, "")
        return files.version, self._read(files)

    def _read(self, files):
        paths = files.fetch_all(pbg.names(files.version), self.scratch)
        (content,) = {path.read_text().split()[1] for path in paths}
        return content

    @invariant()
    def the_newest_committed_version_is_opened(self):
        assert self._opened() == self.newest
        assert pbg.version_of(self.directory) == self.known_to_pbg[0]

    @invariant()
    def snapshots_stay(self):
        for epoch, (version, content) in self.snapshots.items():
            files = open_directory(LocalStore(self.directory), f"epoch_{epoch}", expect=pbg.names)
            assert (files.version, self._read(files)) == (version, content)


TestAlternation = Alternation.TestCase
TestAlternation.settings = settings(
    max_examples=30, stateful_step_count=12, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def test_state_machine_notices_a_lost_version(monkeypatch):
    """The state machine fails without the look at our own hashes."""
    monkeypatch.setattr("pbg_tasks.checkpoint.plain._is_ours", lambda *_, **__: True)
    machine = Alternation()
    try:
        machine.we_crash(after=7)  # HEAD.json is swapped, checkpoint_version.txt is not
        machine.pbg_trains(keep=False)
        with pytest.raises(FormatError, match=r"has sha256|has \d+ bytes"):
            machine.the_newest_committed_version_is_opened()
    finally:
        machine.teardown()


@pytest.mark.parametrize(
    "steps",
    [
        # PBG begins to replace the files that HEAD.json names, then the same version is committed again.
        [("we_crash", {"after": 7}), ("pbg_crashes", {"after": 1}), ("we_train", {})],
        # PBG went beyond HEAD.json and lost its number while the files of HEAD.json are still there.
        [("we_train", {}), ("pbg_crashes", {"after": 5}), ("pbg_crashes", {"after": 4}), ("we_train", {})],
    ],
)
def test_earlier_defects_stay_fixed(steps):
    machine = Alternation()
    try:
        for name, arguments in steps:
            getattr(machine, name)(**arguments)
            machine.the_newest_committed_version_is_opened()
    finally:
        machine.teardown()
