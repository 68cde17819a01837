"""Holds on runs and tombstones of runs.

They decide between a task that relies on a run and a collection. A task *holds* a run before it relies on it (works on
it, plans on it, publishes it, rolls back to it, pins it)::

  1. write runs/{run}/held.json, whose date by the store's clock is when the run was last relied on
  2. read the tombstone gc/{run}.json: turn ``condemned`` into ``rescued``; refuse the run when it is being removed

A collection reads the store's clock (``looks`` in a directory, which has none), looks up what is reachable, and removes
a run that nothing reaches so::

  1. write the tombstone: ``condemned``
  2. list the run again, and leave it if any of its objects, held.json too, was written within the grace
  3. swap exactly the tombstone that step 1 wrote for ``removing``, or leave the run

Every write of a tombstone holds a random number, so that two of them never have equal bytes: in S3 the tag by which an
object is swapped is a hash of its bytes.

A run that is relied on is never removed, for this reason: assume that step 3 succeeds. Then no other process wrote the
tombstone after step 1. A task whose step 1 came before step 2 of the collection was seen there: the collection left the
run, unless the hold was older than the grace when the collection began; then the work for which the run was held was
done by that time, and the collection found the run reachable. A task whose step 1 came later reads the tombstone after
the collection wrote it: it either finds ``condemned`` and swaps it, and step 3 fails, or finds ``removing``, and
refuses the run. It does not matter how long ago a collection looked up what is reachable, nor how many collections
there are: each needs its own tombstone unchanged, so of several that are at one run at most one gets past step 3.

A run that is ``removing`` never comes back. The collection that removes it owns the tombstone: it swaps it again before
each batch of deletions and stops when another collection has taken it over. A tombstone that is older than the grace
belongs to a collection that has ended or was killed. Then it is swapped for ``removed``, which no process changes any
more, and deleted; from then on the same inputs may be planned again.

One thing is assumed: no process pauses for longer than the grace between a hold and the work that needs it, within one
batch of deletions, or between the swap of a tombstone for ``removed`` and its deletion. Earlier versions wrote
tombstones without a random number. They are read; earlier versions refuse those of this one as damaged, so a collection
or a task of an earlier version ends with an error rather than miss a decision.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pbg_tasks.checkpoint.manifest import Stamped, encode_unique, find_document
from pbg_tasks.errors import ConflictError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pbg_tasks.publish.looks import Ages
    from pbg_tasks.storage import ObjectInfo, Store

TOMBSTONES = "gc/"
State = Literal["condemned", "rescued", "removing", "removed"]
_GOING: tuple[State, ...] = ("removing", "removed")


class Tombstone(Stamped):
    """Decision about a run."""

    format: Literal[1] = 1
    state: State


def hold_key(run: str) -> str:
    """Return the key of a run's hold."""
    return f"runs/{run}/held.json"


def tombstone_key(run: str) -> str:
    """Return the key of a run's tombstone."""
    return f"{TOMBSTONES}{run}.json"


def run_with(directory: str, run: str) -> str:
    """Return the run below which a release is stored.

    It is ``run``, unless the release's rows were moved to another run.
    """
    return directory.split("/")[1] if directory.startswith("runs/") else run


def hold(store: Store, run: str) -> None:
    """Keep a run from collections for the length of the grace.

    Call it before the run is relied on.

    Raises:
        ConflictError: it is being removed already.
    """
    _refuse_if_going(store, run)  # before the write, so that a refused hold leaves no object
    store.put(hold_key(run), b"{}")
    while (found := _refuse_if_going(store, run)) is not None and found.state == "condemned":
        if found.move("rescued"):
            return


def _refuse_if_going(store: Store, run: str) -> Decision | None:
    found = read_decision(store, run)
    if found is not None and found.state in _GOING:
        raise ConflictError(
            f"{store.url}/runs/{run}: is being removed by `pbg gc`; plan its snapshot again once {tombstone_key(run)} "
            "is gone, or with other options now"
        )
    return found


@dataclass(slots=True)
class Decision:
    """Tombstone of a run as this process read or wrote it last.

    All changes start from exactly this version.

    Attributes:
        store: the graph's.
        run: its id.
        state: of the version.
        version: of the tombstone; None: there is none.
    """

    store: Store
    run: str
    state: State
    version: ObjectInfo | None

    def move(self, state: State) -> bool:
        """Write the tombstone with a new state.

        Return False, and change nothing, where another process wrote it since.
        """
        data = encode_unique(Tombstone(state=state))
        try:
            self.version = self.store.swap(tombstone_key(self.run), data, expected=self.version)
        except ConflictError:
            return False
        self.state = state
        return True

    def remove(self, ages: Ages, exports: Iterable[ObjectInfo] = ()) -> bool:
        """Decide that a condemned run is removed.

        Return False where it is in use, or where another process decided.

        Args:
            ages: of the run's objects: it is in use where one was written within the grace.
            exports: objects that belong to the run besides those below its prefix.
        """
        objects = self.store.list(f"runs/{self.run}/")
        return ages.unchanged([*objects, *exports]) and self.move("removing")

    def is_over(self, ages: Ages) -> bool:
        """Return whether no collection removes the run any more.

        That is so where the tombstone was not renewed within the grace.
        """
        unchanged = self.version is not None and ages.unchanged([self.version])
        return self.state == "removed" or (self.state == "removing" and unchanged)

    def bury(self) -> None:
        """Delete the tombstone of a run that is wholly removed.

        No collection may be removing it any more.
        """
        if self.move("removed"):
            self.store.delete(tombstone_key(self.run))


def condemn(store: Store, run: str) -> Decision | None:
    """Write a tombstone for a run that nothing reaches.

    None is returned where another process is deciding about the run.
    """
    found = read_decision(store, run) or Decision(store, run, "rescued", None)
    return found if found.state not in _GOING and found.move("condemned") else None


def read_decision(store: Store, run: str) -> Decision | None:
    """Read a run's tombstone; None when it has none.

    Raises:
        FormatError: it is damaged, or of a later version of this package.
    """
    found = find_document(Tombstone, store, tombstone_key(run))
    return None if found is None else Decision(store, run, found[0].state, found[1])


def removals(store: Store) -> dict[str, Decision]:
    """Return the tombstones of the runs that are to be removed.

    Earlier collections, or others at work, decided that.
    """
    listed = [info.key.removeprefix(TOMBSTONES).removesuffix(".json") for info in store.list(TOMBSTONES)]
    found = {run: read_decision(store, run) for run in listed}
    return {run: each for run, each in found.items() if each is not None and each.state in _GOING}
