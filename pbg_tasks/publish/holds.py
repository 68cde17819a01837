"""What keeps garbage collection and everyone else apart: holds on runs, and the tombstones of runs that go.

Whoever makes a run reachable (plans on it, publishes it, rolls back to it, pins it) or works on it *holds* it first:
it writes ``runs/{run}/held.json`` anew, then looks for a tombstone. The collector works the other way round: it writes
the tombstone ``gc/{run}.json``, then looks for a hold younger than its grace. So at least one of the two sees the
other, and who then owns the run is decided by compare-and-swap of the tombstone::

    condemned -> removing    by the collector, when nobody holds the run
    condemned -> rescued     by whoever holds it
    rescued   -> condemned   by a later collection

A run that is ``removing`` never comes back; its tombstone goes a grace after its objects. All this rests on one
assumption: nobody pauses for longer than the grace between a hold and what it is for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pbg_tasks.checkpoint.manifest import decode, encode
from pbg_tasks.config.base import Frozen
from pbg_tasks.errors import ConflictError, NotFoundError

if TYPE_CHECKING:
    from pbg_tasks.storage import ObjectInfo, Store

TOMBSTONES = "gc/"
State = Literal["condemned", "rescued", "removing"]


class Tombstone(Frozen):
    """What the collector decided about a run."""

    format: Literal[1] = 1
    state: State


def hold_key(run: str) -> str:
    """Return the key of a run's hold."""
    return f"runs/{run}/held.json"


def tombstone_key(run: str) -> str:
    """Return the key of a run's tombstone."""
    return f"{TOMBSTONES}{run}.json"


def run_with(directory: str, run: str) -> str:
    """Return the run below which a release's directory lies: ``run``, unless the rows were moved by another."""
    return directory.split("/")[1] if directory.startswith("runs/") else run


def hold(store: Store, run: str) -> None:
    """Keep a run from being collected for the length of the grace; call it before the run is relied on.

    Raises:
        ConflictError: it is being removed already.
    """
    store.put(hold_key(run), b"{}")
    if _settle(store, run, "rescued", unless=("rescued",)) == "removing":
        raise ConflictError(
            f"{store.url}/runs/{run}: is being removed by `pbg gc`; plan its snapshot again once {tombstone_key(run)} "
            "is gone, or with other options now"
        )


def condemn(store: Store, run: str) -> State:
    """Put a tombstone to a run that nothing reaches; the collector's first step."""
    try:
        store.put_new(tombstone_key(run), encode(Tombstone(state="condemned")))
    except ConflictError:
        return _settle(store, run, "condemned", unless=("condemned",)) or condemn(store, run)
    return "condemned"


def decide(store: Store, run: str, *, since: float) -> bool:
    """Make a condemned run one that goes, unless it was held meanwhile; the collector's second step.

    Args:
        store: the graph's.
        run: that was condemned.
        since: holds at or after this moment of the store's clock count.

    Returns:
        Whether it goes: from here on nobody gets hold of it.
    """
    held = store.head(hold_key(run))
    if held is not None and held.modified is not None and held.modified >= since:
        return _settle(store, run, "rescued", unless=("rescued",)) == "removing"
    return _settle(store, run, "removing", unless=("rescued",)) == "removing"


def _settle(store: Store, run: str, state: State, *, unless: tuple[State, ...]) -> State | None:
    """Move a tombstone to ``state`` and return the state it has then; ``removing`` and ``unless`` stay as they are."""
    while True:
        found = read_tombstone(store, run)
        if found is None:
            return None
        tombstone, info = found
        if tombstone.state in {"removing", *unless}:
            return tombstone.state
        try:
            store.swap(tombstone_key(run), encode(Tombstone(state=state)), expected=info)
        except ConflictError:
            continue  # someone else moved it: look again
        return state


def read_tombstone(store: Store, run: str) -> tuple[Tombstone, ObjectInfo] | None:
    """Read a run's tombstone; None when it has none."""
    key = tombstone_key(run)
    try:
        blob = store.get(key)
    except NotFoundError:
        return None
    return decode(Tombstone, blob.data, source=f"{store.url}/{key}"), blob.info
