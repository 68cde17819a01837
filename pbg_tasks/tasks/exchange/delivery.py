"""Delivery of an export or import: every file, then its manifest.

A reader takes only files that the manifest lists. A writer first stores a mark that names the files to come, and
removes it once the manifest is stored. So the files of a killed writer are known and may be replaced, and of two
writers at once the later one wins while the other gets a ``ConflictError``. A delivery that replaces an export uploads
its files beside the old ones first and then renames them, in a short moment in which there is no manifest.
"""

from __future__ import annotations

import re
import secrets
from abc import ABC, abstractmethod
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pbg_tasks.checkpoint import ObjectRecord
from pbg_tasks.checkpoint.manifest import decode, encode
from pbg_tasks.errors import ConflictError, FormatError, NotFoundError
from pbg_tasks.progress import say
from pbg_tasks.publish.exchange import MANIFEST, ExchangeManifest
from pbg_tasks.publish.exchange.manifest import MARK, PARTS, STAGED, UnfinishedMark
from pbg_tasks.storage import LocalStore, tidy
from pbg_tasks.storage.files import disk_errors, make_directory
from pbg_tasks.storage.staging import sha256_file
from pbg_tasks.storage.uploads import end_old_uploads

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from pbg_tasks.publish.exchange import Outbox
    from pbg_tasks.publish.exchange.manifest import ModelSource, VectorSource
    from pbg_tasks.storage import Store
    from pbg_tasks.storage.base import Blob, ObjectInfo


_WEEK_SECONDS = 7 * 86_400.0
_OF_VERSION = re.compile(rf"{PARTS}[0-9a-f]{{12}}_[0-9]+/")


def check_free(store: Store, *, overwrite: bool) -> None:
    """Refuse a destination with files of other origin.

    The files that a killed export or import left do not count, nor do parts that wait for their merge.

    Raises:
        ConflictError: there are other files, and they may not be overwritten.
    """
    left = {MARK, *_objects(UnfinishedMark, blob(store, MARK))}
    there = (info.key for info in store.list() if info.key not in left and not info.key.startswith((STAGED, PARTS)))
    found = None if overwrite else next(there, None)
    if found is not None:
        raise ConflictError(f"{store.url}: is not empty (it holds {found}); name another place, or give --overwrite")


def records_of(outbox: Outbox) -> dict[str, ObjectRecord]:
    """Return the sizes and hashes of an outbox's files."""
    return {name: object_record(path) for name, path in outbox.files.items()}


def object_record(path: Path) -> ObjectRecord:
    """Return the size and hash of a file."""
    return ObjectRecord(sha256=sha256_file(path), size=path.stat().st_size)


def deliver(
    store: Store,
    outbox: Outbox,
    *,
    exchange: str,
    source: ModelSource | VectorSource,
    overwrite: bool,
    check: Callable[[], None] = lambda: None,
    **facts: Any,  # noqa: ANN401 - fields of the manifest
) -> ExchangeManifest:
    """Upload the files of an export or import, and its manifest last.

    Args:
        store: rooted at the destination.
        outbox: the files.
        exchange: name of the exchange format.
        source: origin of the vectors.
        overwrite: whether files at the destination are replaced. Files that only the old manifest lists are removed
            last.
        check: raises an error when this may not be written any more, for example because an export with precedence was
            stored meanwhile.
        facts: more fields of the manifest.

    Raises:
        ConflictError: another writer stored something there meanwhile.
        StorageError: the store failed. An export that was there is whole, or its files stay without a manifest and a
        further try replaces them.
    """
    objects = records_of(outbox)
    manifest = ExchangeManifest(exchange=exchange, source=source, types=outbox.types, objects=objects, **facts)
    carry_out(store, manifest, partial(_Upload, outbox.files), overwrite=overwrite, check=check)
    return manifest


def carry_out(
    store: Store,
    manifest: ExchangeManifest,
    begin: Callable[[Store, Iterable[str]], Delivery],
    *,
    overwrite: bool,
    check: Callable[[], None],
    done: Callable[[], bool] = lambda: False,
) -> bool:
    """Deliver files and their manifest.

    Args:
        store: rooted at the destination.
        manifest: of the files.
        begin: stores the mark.
        overwrite: as for ``deliver``.
        check: as for ``deliver``.
        done: whether another process has delivered the same meanwhile; asked under the mark.

    Returns:
        Whether no other writer has begun meanwhile.
    """
    check()  # before the mark, which would stop a writer with precedence that is at work now
    before = blob(store, MANIFEST) if overwrite else None
    delivery = begin(store, _objects(ExchangeManifest, before))
    try:
        # A writer with precedence that finished before the mark was stored is seen here; one that begins after it, by
        # `delivery.check`.
        check()
        if not done():
            if before is None:
                delivery.put(any_key=overwrite)
            else:
                delivery.stage()
                delivery.check()
                store.delete(MANIFEST)
                delivery.unstage()
            delivery.conclude(manifest)
    except BaseException:
        delivery.abandon()
        raise
    else:
        return delivery.finish()
    finally:
        tidy(store)


class Delivery(ABC):
    """Delivery of files to a store, under a mark of its own.

    Args:
        store: rooted at the destination.
        files: their keys.
        before: keys of the export that they replace.

    Raises:
        ConflictError: another writer stored its mark at the same moment.
    """

    def __init__(self, store: Store, files: Collection[str], before: Iterable[str]) -> None:
        self._store = store
        self._token, self._put = secrets.token_hex(8), list[str]()
        self._mixed = False
        mark = blob(store, MARK)
        self._left = _objects(UnfinishedMark, mark)
        self._old = self._left.union(before, _checksums(store, files)) - set(files)
        # The token is this mark's own, so in S3 too its tag is no other mark's (`Store`).
        document = UnfinishedMark(token=self._token, objects=(*sorted(files), *sorted(self._old)))
        self._mark = store.swap(MARK, encode(document), expected=None if mark is None else mark.info)
        end_old_uploads(store, "", written=MARK)
        for info in list(store.list(STAGED)):
            store.delete(info.key)

    @abstractmethod
    def put(self, *, any_key: bool) -> None:
        """Write the files.

        Args:
            any_key: write over any file; else only over those of a killed writer.
        """

    @abstractmethod
    def stage(self) -> None:
        """Write the files beside those they replace.

        Raises:
            NotFoundError: one that should be there already is missing.
        """

    @abstractmethod
    def unstage(self) -> None:
        """Give the files their names.

        Meanwhile the destination has neither the whole old export nor the whole new one.
        """

    def check(self) -> None:
        """Make sure that no other writer has begun here.

        Raises:
            ConflictError: another one has.
        """
        if not self._is_ours():
            raise ConflictError(f"{self._store.url}: another export or import began to write here; this one gave up")

    def conclude(self, manifest: ExchangeManifest) -> None:
        """Store the manifest.

        Raises:
            ConflictError: another writer has begun here.
        """
        self.check()
        self._mixed = True  # an interrupt, or an answer that is lost, leaves open whether the manifest is there
        self._store.put_new(MANIFEST, encode(manifest))

    def abandon(self) -> None:
        """Remove the files that were stored beside older ones.

        Where older files were replaced already, or the manifest may be there, the new ones and the mark stay, so that
        the next writer knows them.
        """
        ours = self._is_ours()
        for key in self._put:
            if key.startswith(STAGED) or (ours and not self._mixed):
                self._store.delete(key)
        if ours and not self._mixed and self._left:  # what a killed writer left is still there
            document = UnfinishedMark(token=self._token, objects=tuple(sorted(self._left)))
            self._store.swap(MARK, encode(document), expected=self._mark)
        elif ours and not self._mixed:
            self._store.delete(MARK)

    def finish(self) -> bool:
        """Remove what only the export of before had, and the mark.

        Returns False where another writer has begun here; then all stays.
        """
        ours = self._is_ours()
        if ours:
            for key in (*self._old, *_left_parts(self._store), MARK):
                self._store.delete(key)
        return ours

    def _is_ours(self) -> bool:
        found = self._store.head(MARK)
        return found is not None and found.tag == self._mark.tag


class _Upload(Delivery):
    """Delivery of local files.

    Args:
        files: local paths by key.
        store: rooted at the destination.
        before: as for ``Delivery``.
    """

    def __init__(self, files: Mapping[str, Path], store: Store, before: Iterable[str]) -> None:
        super().__init__(store, files, before)
        self._files = files

    def put(self, *, any_key: bool) -> None:
        self._mixed = any_key
        for name, path in self._files.items():
            found = self._store.head(name) if any_key or name in self._left else None
            self._put.append(name)
            # In S3 the swap compares contents. So it also passes where, since `head`, another export took the mark over
            # and stored a file with the bytes of the leftover; a file of a foreign format can hold no nonce. Then this
            # export stores one file too many before its `check` refuses it. The other's manifest has the hash of each
            # file, so no reader accepts that file, and doing the other export again repairs it. Exports of one run have
            # equal files, so there is nothing to repair.
            try:
                self._store.swap(name, path, expected=found)
            except ConflictError:
                self._put.remove(name)
                raise

    def stage(self) -> None:
        for name, path in self._files.items():
            self._put.append(self._staged(name))
            self._store.put_new(self._staged(name), path)

    def unstage(self) -> None:
        self._mixed = True
        for name in self._files:
            move(self._store, self._staged(name), name)

    def _staged(self, name: str) -> str:
        return f"{STAGED}{self._token}/{name}"


def move(store: Store, source: str, target: str) -> None:
    """Give an object another key, and replace the object there.

    On a disk this is a rename, in S3 the server's copy.
    """
    if isinstance(store, LocalStore):
        old, new = (Path(store.url) / key for key in (source, target))
        with disk_errors(new):
            make_directory(new.parent)
            old.replace(new)
        return
    store.delete(target)
    store.copy(source, target)
    store.delete(source)


def blob(store: Store, key: str) -> Blob | None:
    """Return an object; None without it."""
    try:
        return store.get(key)
    except NotFoundError:
        return None


def _left_parts(store: Store) -> list[str]:
    """Return the keys of parts that have waited for a week.

    Their night failed, or a later one replaced it. A record comes before its files, so that no part lacks files.
    """
    folders = defaultdict[str, list["ObjectInfo"]](list)
    for info in store.list(PARTS):
        if found := _OF_VERSION.match(info.key):  # files of other programs stay
            folders[found[0]].append(info)
    written = store.head(MANIFEST) if folders else None
    if written is None or written.modified is None:
        return []
    since = written.modified - _WEEK_SECONDS
    old = list[str]()
    for infos in folders.values():
        if max(info.modified or since for info in infos) < since:
            old += [info.key for info in infos]
    if old:
        say(f"{store.url}: {len(old)} files of parts, which no merge has taken for a week, are removed")
    return sorted(old, key=lambda key: key.count("/"))


def _checksums(store: Store, files: Iterable[str]) -> set[str]:
    """Return the checksums that Hadoop has left beside files to be replaced.

    On a local disk, Hadoop, and so Spark and Angel, would compare the new bytes with them.
    """
    if not isinstance(store, LocalStore):
        return set()
    parted = (name.rpartition("/") for name in files)
    beside = (f"{folder}{slash}.{name}.crc" for folder, slash, name in parted)
    return {key for key in beside if store.head(key) is not None}


def _objects(kind: type[ExchangeManifest | UnfinishedMark], document: Blob | None) -> set[str]:
    """Return the keys that a document lists.

    A damaged document lists none; its files are then replaced by name.
    """
    try:
        return set() if document is None else set(decode(kind, document.data, source=document.info.key).objects)
    except FormatError:
        return set()
