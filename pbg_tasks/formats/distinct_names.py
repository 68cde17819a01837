"""Search for a name that two entities of a type have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pbg_tasks.errors import FormatError
from pbg_tasks.formats.entities import stream_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path


def hashes_of(names: Sequence[str]) -> np.ndarray:
    """Return the hash of each name in this process: int64 (N,)."""
    return np.fromiter(map(hash, names), np.int64, len(names))


def repeated_name(hashes: Sequence[np.ndarray], names: Callable[[], Iterable[str]]) -> str | None:
    """Return a name that occurs twice; None: there is none.

    Eight bytes a name are held in memory, and names are compared only where hashes are equal.

    Args:
        hashes: of all names, as ``hashes_of`` gives them.
        names: reads all names again; called only where hashes are equal.
    """
    ordered = np.sort(np.concatenate(hashes)) if hashes else np.empty(0, np.int64)
    suspects = set(ordered[1:][ordered[1:] == ordered[:-1]].tolist())
    seen: set[str] = set()
    for name in names() if suspects else ():
        if hash(name) in suspects:
            if name in seen:
                return name
            seen.add(name)
    return None


def check_distinct(paths: Sequence[Path]) -> None:
    """Refuse a name that occurs twice in the files of a type.

    Args:
        paths: the names of each partition.

    Raises:
        FormatError: there is one; or a file is not a JSON list of names.
    """
    found = repeated_name(
        [hashes_of(names) for path in paths for names in stream_names(path)],
        lambda: (name for path in paths for names in stream_names(path) for name in names),
    )
    if found is None:
        return
    holders = [path for path in paths for names in stream_names(path) if found in names]
    raise FormatError(
        f"{holders[-1]}: has the name {found!r:.60} a second time; restore the names as one import wrote them"
    )
