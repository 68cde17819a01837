"""Claim of an import to a directory, with a mark for readers.

The mark ``import.unfinished`` is taken by compare-and-swap, so of two imports that start together the store lets one
win. A heartbeat beside it shows the next import whether the mark's owner is still alive.
"""

from __future__ import annotations

import secrets
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from pbg_tasks.checkpoint.writer_heartbeat import PATIENCE_SECONDS, WriterHeartbeat, wait_until_free
from pbg_tasks.errors import ConflictError
from pbg_tasks.storage.uploads import end_old_uploads
from pbg_tasks.tasks.files import UNFINISHED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pbg_tasks.storage import ObjectInfo, Store

LEASE = "import.lease.json"


class ImportClaim:
    """The right to change some directories.

    It holds until another import takes one of them over.

    Attributes:
        changing: set once something was written: from then on only a whole import removes the marks.
    """

    def __init__(self) -> None:
        self.changing = False
        self._marks: list[tuple[Store, ObjectInfo, bool]] = []

    @property
    def follows_cut_off(self) -> bool:
        """Whether an earlier import into one of the directories was cut off."""
        return any(was_there for _, _, was_there in self._marks)

    def take(self, store: Store) -> None:
        """Put our mark into a directory.

        Raises:
            ConflictError: another import was first.
        """
        before = store.head(UNFINISHED)
        # The token is this mark's own, so in S3 too its tag is no other mark's (`Store`).
        text = f"an import is running, or was cut off; run it again ({secrets.token_hex(8)})\n"
        try:
            mark = store.swap(UNFINISHED, text.encode(), expected=before)
        except ConflictError:
            raise ConflictError(f"{store.url}: another import started here at the same moment") from None
        self._marks.append((store, mark, before is not None))

    def check(self) -> None:
        """Refuse to go on when another import has taken a directory over.

        Raises:
            ConflictError: naming it.
        """
        for store, mark, _ in self._marks:
            now = store.head(UNFINISHED)
            if now is None or now.tag != mark.tag:
                raise ConflictError(f"{store.url}: another import took this directory over while this one was silent")

    def release(self, *, whole: bool) -> None:
        """Remove the marks.

        After a whole import all of them; else only those of directories that are unchanged.
        """
        for store, mark, was_there in self._marks:
            now = store.head(UNFINISHED)
            mine = now is not None and now.tag == mark.tag
            if mine and (whole or not (self.changing or was_there)):
                store.delete(UNFINISHED)


@contextmanager
def claimed(stores: Iterable[Store], *, patience: float = PATIENCE_SECONDS) -> Iterator[ImportClaim]:
    """Be the only import into some directories.

    Args:
        stores: the directories; one may be given twice.
        patience: seconds a living import is waited for.

    Raises:
        ConflictError: another import is running there, or started at the same moment.
    """
    distinct = {store.url: store for store in stores}
    claim = ImportClaim()
    with ExitStack() as leases:
        whole = False
        try:
            for _, store in sorted(distinct.items()):
                wait_until_free(store, LEASE, patience=patience)
                claim.take(store)
                leases.enter_context(WriterHeartbeat(store, LEASE))
                end_old_uploads(store, "", written=LEASE)
            yield claim
            claim.check()
            whole = True
        finally:
            claim.release(whole=whole)
