"""Best version of a training with early stopping, which is released."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from pbg_tasks.checkpoint.manifest import BestVersion, Manifest, decode, sha256
from pbg_tasks.checkpoint.reader import VerifiedFiles, found_twice, location, manifest_name, open_committed
from pbg_tasks.errors import FormatError, NotFoundError
from pbg_tasks.storage.names import join

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pbg_tasks.checkpoint.manifest import Iteration
    from pbg_tasks.storage import Store


def best_before(
    iteration: Iteration | None, valid: tuple[float, ...], before: Manifest | None, before_sha256: str | None
) -> BestVersion | None:
    """Return the best version, if it is an older one.

    Args:
        iteration: the one just finished, which makes the version.
        valid: figures of all finished epochs.
        before: the version before it.
        before_sha256: of that version's manifest.
    """
    if iteration is None or before is None or before_sha256 is None or not valid:
        return None
    best = (valid.index(max(valid)) + 1) * iteration.num_edge_paths * iteration.num_edge_chunks
    if best == iteration.number:
        return None
    return BestVersion(version=best, manifest_sha256=before_sha256) if best == before.version else before.best


def superseded(store: Store, prefix: str, before: Manifest, newest: Manifest | None) -> Iterator[Manifest]:
    """Yield the versions that the newest makes needless.

    ``before`` comes after a best one that is older, so that after a crash its manifest still names that one.
    """
    kept = None if newest is None or newest.best is None else newest.best.version
    if before.best is not None and before.best.version != kept:
        with suppress(NotFoundError, FormatError):  # it was removed before a crash
            yield _manifest_of(store, prefix, before.best)
    if before.version != kept:
        yield before


def open_best(store: Store, prefix: str) -> tuple[Manifest, VerifiedFiles]:
    """Open the version to release: the best, or else the newest.

    Raises:
        NotFoundError: nothing has been committed there.
        FormatError: HEAD.json or a manifest is damaged, or the best version's manifest is missing.
    """
    return found_twice(lambda: _open_best(store, prefix))


def _open_best(store: Store, prefix: str) -> tuple[Manifest, VerifiedFiles]:
    newest, files = open_committed(store, prefix)
    if newest.best is None:
        return newest, files
    try:
        best = _manifest_of(store, prefix, newest.best)
    except NotFoundError:
        name = manifest_name(newest.best.version)
        raise FormatError(
            f"{location(store, prefix, name)}: missing, although the newest version names it as the best; remove the "
            "checkpoint and train the run again"
        ) from None
    return best, VerifiedFiles(store, prefix, best.version, best.objects)


def _manifest_of(store: Store, prefix: str, best: BestVersion) -> Manifest:
    name = manifest_name(best.version)
    data = store.get(join(prefix, name)).data
    source = location(store, prefix, name)
    if sha256(data) != best.manifest_sha256:
        raise FormatError(f"{source}: not the manifest that was committed; it was changed afterwards")
    return decode(Manifest, data, source=source)
