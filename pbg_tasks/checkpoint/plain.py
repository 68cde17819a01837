"""Checkpoint directories to which PBG and this package write by turns.

The module finds the version that counts, and its files. PBG uses ``checkpoint_version.txt`` only; this package commits
by HEAD.json and then writes that file for PBG. The two show which program wrote last. PBG continued after this package
when its number is ahead, or when the files that HEAD.json names have changed (PBG started at a number that lagged
behind HEAD.json and replaced them).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pbg_tasks.checkpoint.contents import Contents
from pbg_tasks.checkpoint.preserve import open_preserved
from pbg_tasks.checkpoint.reader import (
    HEAD,
    SHA256,
    VERSION_MIRROR,
    VerifiedFiles,
    found_twice,
    location,
    manifest_name,
    read_head,
    read_manifest,
    read_mirror,
)
from pbg_tasks.errors import FormatError, NotFoundError
from pbg_tasks.progress import say
from pbg_tasks.storage.names import join
from pbg_tasks.storage.parallel import in_parallel
from pbg_tasks.storage.staging import Scratch, fetch_verified

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pbg_tasks.checkpoint.contents import Names
    from pbg_tasks.checkpoint.manifest import Head, Manifest, ObjectRecord
    from pbg_tasks.checkpoint.reader import CheckpointFiles
    from pbg_tasks.storage import Store

_AT_ONCE = 4  # requests to the store


@dataclass(frozen=True, slots=True)
class PlainFiles:
    """Files of a version that PBG wrote, read without verification.

    There is no record of their hashes.

    Attributes:
        prefix: the directory's key, empty for the store's root.
        version: checkpoint version in the file names.
        names: of the files that existed when the directory was opened.
    """

    store: Store
    prefix: str
    version: int
    names: frozenset[str]

    @property
    def url(self) -> str:
        """URL of the directory, for messages."""
        return location(self.store, self.prefix)

    def fetch(self, name: str, directory: Path) -> Path:
        """Download one file into ``directory``.

        Raises:
            FormatError: it does not belong to the version.
        """
        if name not in self.names:
            raise FormatError(f"{self.url}: has no file {name!r}")
        self.store.fetch(join(self.prefix, name), directory / name)
        return directory / name

    def fetch_all(self, names: Iterable[str], directory: Path, *, threads: int = 4) -> list[Path]:
        """Download several files in parallel."""
        return in_parallel(lambda name: self.fetch(name, directory), names, threads)


@dataclass(frozen=True, slots=True)
class Newest:
    """Version of a directory that counts.

    Attributes:
        files: of that version; none at a version 0 that holds no initial embeddings.
        manifest: None when PBG wrote it.
    """

    files: CheckpointFiles
    manifest: Manifest | None = None


def open_directory(store: Store, prefix: str, *, expect: Names) -> CheckpointFiles:
    """Open the newest version of a checkpoint directory, or a preserved one.

    PBG or this package may have written it.

    Args:
        store: of the directory.
        prefix: its key, empty for the store's root.
        expect: names the files of a version (``checkpoint_names``); all of them must exist.

    Returns:
        Verified files where this package wrote last, else plain ones.

    Raises:
        NotFoundError: no version has been trained there.
        FormatError: the directory is damaged; the message names the file and the versions that are there.
    """
    return found_twice(lambda: _open_directory(store, prefix, expect))


def _open_directory(store: Store, prefix: str, expect: Names) -> CheckpointFiles:
    head, _ = read_head(store, prefix)
    preserved = _preserved(store, prefix) if head is None else None
    files = preserved or newest(store, prefix, head, expect).files
    missing = [name for name in expect(files.version) if name not in files.names]
    if not missing:
        return files
    if not files.version and not files.names:
        there = Contents(store, prefix, expect).summary()
        raise NotFoundError(
            f"{files.url}: holds no trained version of a checkpoint ({there}); train it, or name another directory"
        )
    raise FormatError(
        f"{files.url}: version {files.version} was saved without {', '.join(missing[:5])}; the config's entities or "
        "num_partitions are not those it was trained with"
    )


def newest(store: Store, prefix: str, head: Head | None, expect: Names) -> Newest:
    """Find the version of a directory that counts.

    A version of PBG is judged by its file names only.

    Raises:
        FormatError: the directory is damaged.
    """
    contents = Contents(store, prefix, expect)
    mirror = _mirror(store, prefix, contents)
    if head is None or (head.manifest_sha256 is None and head.version == 0):
        return Newest(_by_mirror(store, prefix, contents, mirror))
    if mirror is not None and mirror > head.version:
        return Newest(_whole(store, prefix, contents, mirror))
    went_on = mirror is None and max(contents.versions, default=0) > head.version + 1
    if not went_on and (found := _of_head(store, prefix, head, contents, finished=mirror == head.version)):
        return found
    if mirror is None:
        raise FormatError(
            f"{location(store, prefix, VERSION_MIRROR)}: missing or empty, and version {head.version} of {HEAD} is not "
            f"the newest or not whole; {contents.summary()}: put the number of a whole one there"
        )
    say(f"{contents.url}: another program replaced version {head.version}; version {mirror} is the newest")
    return Newest(_whole(store, prefix, contents, mirror))


def _preserved(store: Store, prefix: str) -> VerifiedFiles | None:
    """Open a snapshot that this package preserved.

    None is returned when it is no such snapshot, or when PBG continued to train in it.
    """
    try:
        files = open_preserved(store, prefix)
    except NotFoundError:
        return None
    mirror = read_mirror(store, prefix)
    return files if mirror is None or mirror <= files.version else None


def _mirror(store: Store, prefix: str, contents: Contents) -> int | None:
    try:
        return read_mirror(store, prefix)
    except FormatError as error:
        raise FormatError(f"{error}; {contents.summary()}: put the number of a whole one there") from None


def _by_mirror(store: Store, prefix: str, contents: Contents, mirror: int | None) -> PlainFiles:
    """Return the version that PBG's own rule names.

    Unlike PBG, it does not take a missing ``checkpoint_version.txt`` for version 0.
    """
    trained = [version for version in contents.versions if version > 0]
    first_epoch = trained == [1] and contents.missing(1)  # PBG was interrupted before it wrote its first number
    if mirror is None and trained and not first_epoch:
        raise FormatError(
            f"{location(store, prefix, VERSION_MIRROR)}: missing or empty, so that PBG would start over; "
            f"{contents.summary()}: put the number of a whole one there, or 0 to start over"
        )
    if not mirror:
        return PlainFiles(store, prefix, 0, frozenset(contents.versions.get(0, ())))
    return _whole(store, prefix, contents, mirror)


def _of_head(store: Store, prefix: str, head: Head, contents: Contents, *, finished: bool) -> Newest | None:
    """Return the version that HEAD.json names, committed or adopted.

    None is returned when its files were replaced since.
    """
    manifest = read_manifest(store, prefix, head)
    if manifest is None:
        return None if contents.missing(head.version) else Newest(_whole(store, prefix, contents, head.version))
    if not _is_ours(store, prefix, manifest, finished=finished):
        return None
    return Newest(VerifiedFiles(store, prefix, manifest.version, manifest.objects), manifest)


def _whole(store: Store, prefix: str, contents: Contents, version: int) -> PlainFiles:
    """Return a version that PBG finished, after checking that it is whole.

    Any file of version 0 may be missing: they are the start that a user may give.

    Raises:
        FormatError: files are missing.
    """
    if version and contents.missing(version):
        raise contents.incomplete(version)
    return PlainFiles(store, prefix, version, frozenset(contents.versions.get(version, ())))


def _is_ours(store: Store, prefix: str, manifest: Manifest, *, finished: bool) -> bool:
    """Return whether a manifest's files are still this package's.

    PBG may have replaced them under the same names.

    Args:
        store: of the directory.
        prefix: its key.
        manifest: of the version that HEAD.json names.
        finished: whether ``checkpoint_version.txt`` names that version. Then PBG has replaced either every file or
            none, so that the smallest file decides, unless another program has damaged it.

    Raises:
        FormatError: some files were changed, and not by PBG.
    """
    names = sorted(manifest.objects, key=lambda name: manifest.objects[name].size)

    def is_same(name: str) -> bool:
        return _is_unchanged(store, join(prefix, name), manifest.objects[name])

    if finished and is_same(names[0]):
        return True
    changed = [name for name in names if not is_same(name)]
    if finished and changed and len(changed) < len(names):
        raise FormatError(
            f"{location(store, prefix, changed[0])}: missing or changed after version {manifest.version} was "
            "committed, while other files of that version are as they were; restore it"
        )
    return not changed


def _is_unchanged(store: Store, key: str, record: ObjectRecord) -> bool:
    """Return whether an object is as recorded.

    It is judged by the hash stored beside it. A copied directory has lost that hash, so there the bytes are read.
    """
    info = store.head(key)
    if info is None or info.size != record.size:
        return False
    if SHA256 in info.metadata:
        return info.metadata[SHA256] == record.sha256
    with Scratch() as scratch:
        try:
            fetch_verified(store, key, scratch.path / "object", sha256=record.sha256, size=record.size)
        except FormatError:
            return False
    return True


def is_followed(store: Store, prefix: str, head: Head, found: Newest) -> bool:
    """Return whether HEAD.json's record follows the version that counts.

    PBG may have replaced that version under its number. One of PBG's has no hashes: it was replaced where a file is
    younger than the record.
    """
    if (head.version, not head.manifest_sha256) != (found.files.version, not found.manifest):
        return False
    if head.progress is None or found.manifest is not None:
        return True
    names = [head.progress.name, *found.files.names]
    record, *files = in_parallel(lambda name: store.head(join(prefix, name)), names, _AT_ONCE)
    newest_file = max((info.modified or 0.0 for info in files if info is not None), default=0.0)
    if record is None or newest_file <= (record.modified or 0.0):
        return True
    say(f"{found.files.url}: another program replaced version {head.version}; the stored part of the next is left")
    return False


def outdated_files(store: Store, prefix: str, found: Newest, head: Head | None, expect: Names) -> list[str]:
    """List the files that the next commit makes needless.

    They are those of an adopted version, and what a crash kept of the one before.

    Version 0 and what PBG's preserved snapshots link to stay, as PBG leaves them.
    """
    version = found.files.version
    before = [version - 1] if version > 1 else []
    adopted = [version] if version and found.manifest is None else []
    keep = Contents(store, prefix, expect).linked()
    data = [name for number in before + adopted for name in expect(number) if name not in keep]
    # HEAD.json may have named a version that PBG went beyond, or one that is now trained again.
    stale = [head.version] if head is not None and found.manifest is None and head.version < version else []
    return [*data, *(manifest_name(number) for number in before + adopted + stale)]
