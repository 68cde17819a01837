"""``tune``: search hyper-parameters on one prepared snapshot."""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING, TypedDict

from pbg_tasks.checkpoint.writer import LEASE
from pbg_tasks.checkpoint.writer_heartbeat import SILENCE_SECONDS
from pbg_tasks.config.tune_space import read_patch
from pbg_tasks.errors import ConfigError, ConflictError, ResourceError
from pbg_tasks.progress import fraction, human_seconds, say
from pbg_tasks.storage.files import disk_errors
from pbg_tasks.tasks.nightly.chain import run_together, write_pages
from pbg_tasks.tasks.search import SearchContext
from pbg_tasks.tasks.tuning.steps import decide, finish, start
from pbg_tasks.tasks.tuning.trial import try_candidate

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pbg_tasks.config.tune_results import Outcome
    from pbg_tasks.report.documents import TuneDocument


class Tried(TypedDict):
    """Answer of ``tune-trial``."""

    task: str
    run: str
    trial: str
    rung: int
    status: str
    mrr: float | None
    seconds: float
    reason: str | None


def tune(
    spec: Path, snapshot: str, *, overrides: Sequence[str] = (), accept_data: str | None = None, out: Path | None = None
) -> TuneDocument:
    """Prepare a snapshot once and search on it, rung by rung.

    A second call goes on where the first one was ended, and trains nothing again.

    Args:
        spec: the graph spec's file.
        snapshot: key of the edges.
        overrides: ``key.path=value`` changes of the spec.
        accept_data: reason for which the search goes on although the data gate refuses the snapshot.
        out: file for the values of the best candidate.

    Returns:
        The document of the search's page.

    Raises:
        ConfigError: the spec or its space is wrong, or ``out`` is the spec or can be no YAML file; nothing was begun.
        QualityGateError: the data gate refuses the snapshot, or no candidate could be trained.
        ResourceError: a candidate cannot be trained here, while another process is at the search.
    """
    if out is not None and (out.is_dir() or not out.parent.is_dir()):
        raise ConfigError(f"{out}: is a folder, or has none to be in; name a file of an existing folder")
    if out is not None and out.suffix.lower() not in {".yaml", ".yml"}:
        raise ConfigError(f"{out}: the values are written as YAML, which --patch knows by its suffix; name it *.yaml")
    if out is not None and out.resolve() == spec.resolve():
        raise ConfigError(f"{out}: is the graph spec itself, which the values would replace; name another file")
    begun = start(spec, snapshot, overrides=overrides, accept_data=accept_data)
    run_together("prepare", begun["run"])
    context = SearchContext.open(begun["run"], begun["search"])
    pace, others = _Pace(context), False
    try:
        for rung in range(begun["rungs"]):
            others = _climb(context, rung, pace, others=others)
        document = finish(begun["run"], begun["search"])
    finally:
        write_pages(begun["run"])
    if out is not None and document["patch"] is not None:
        with disk_errors(out):
            out.write_text(document["patch"], encoding="utf-8")
        say(f"tune: the best values are in {out}; {way_to_use(spec, out, overrides)} uses them")
    return document


def way_to_use(spec: Path, patch: Path, overrides: Sequence[str]) -> str:
    """Return the command that trains with the values of a search.

    They were ranked with the changes that the search was given, which a patch lacks. A change goes before the patch, so
    values of the patch at its place, or within it, follow it.
    """
    best = [each for each in read_patch(patch) if _is_hidden(each, overrides)]
    given = [part for each in (*overrides, *best) for part in ("-p", each)]
    return f"`{shlex.join(['pbg', 'run', str(spec), '--patch', str(patch), *given])}`"


def _is_hidden(value: str, overrides: Sequence[str]) -> bool:
    """Return whether a change is of a value's key, section or part."""
    place, *others = (f"{each.partition('=')[0]}." for each in (value, *overrides))
    return any(place.startswith(other) or other.startswith(place) for other in others)


def trial(url: str, search_id: str, name: str, rung: int) -> Tried:
    """Train and rank a candidate to the end of a rung."""
    found = try_candidate(SearchContext.open(url, search_id), name, rung)
    return {
        "task": "tune-trial",
        "run": url,
        "trial": name,
        "rung": rung,
        "status": found.status,
        "mrr": found.figures.get("mrr"),
        "seconds": found.seconds,
        "reason": found.reason,
    }


def _climb(context: SearchContext, rung: int, pace: _Pace, *, others: bool) -> bool:
    """Train the candidates of a rung without a result; decide it.

    One that another process trains comes last.

    Args:
        context: the search.
        rung: its number.
        pace: prints lines.
        others: whether another process was at the search before.

    Returns:
        Whether another process is at the search, or was.

    Raises:
        ResourceError: so it is, and a candidate that cannot be trained here has no result yet.
    """
    names, lost = list(context.trials(rung)), dict[str, str]()
    refused: dict[str, dict[str, str]] = {}
    pace.enter(rung, len(names))
    for name in list(names):
        if (before := context.outcome(name, rung)) is not None:
            names.remove(name)
            pace.found(name, before)
    for patient in (False, True):
        left = []
        for name in names:
            if (before := context.outcome(name, rung)) is not None:
                others = True
                pace.found(name, before)
                continue
            outcome = None
            try:
                outcome = try_candidate(context, name, rung, patient=patient)
            except ConflictError as error:
                if patient:
                    raise
                say(f"tune: candidate {name}: {error}; going on with the others")
                left.append(name)
                others = True
                continue
            except ResourceError as error:  # not stored: another machine may have more
                say(f"tune: candidate {name} failed: {error}")
                lost[name], refused[name] = str(error), _tags(context, name)
            pace.passed(name, outcome)
        names = left
    waiting = [name for name in lost if context.outcome(name, rung) is None]
    others = others or _are_trained(context, {name: refused[name] for name in waiting})
    if others and waiting and context.decision(rung) is None:
        raise ResourceError(
            f"{context.url}: candidate {waiting[0]} cannot be trained here ({lost[waiting[0]]}), and another process "
            "at this search may train it, and decides then; if that one ends without a decision, run the same command "
            "again, alone: it decides without candidates that do not fit"
        )
    decide(context, rung, lost)
    return others


def _are_trained(context: SearchContext, refused: dict[str, dict[str, str]]) -> bool:
    """Return whether another process trains a candidate that was refused here.

    One that was at it before the refusal, which may be for a part that is not installed, has a lease there. While it
    lives, that changes.

    Args:
        context: the search.
        refused: tags of the candidates' objects after the refusal, by name.
    """

    def changed() -> bool:
        return any(_tags(context, name) != before for name, before in refused.items())

    if not changed() and any(key.endswith(f"/{LEASE}") for before in refused.values() for key in before):
        time.sleep(SILENCE_SECONDS)
    return changed()


def _tags(context: SearchContext, name: str) -> dict[str, str]:
    """Return the tags of a candidate's objects.

    They change while a process trains it.
    """
    return {info.key: info.tag for info in context.run.store.list(context.key(f"trials/{name}/"))}


class _Pace:
    """Lines about the progress of a search: share, rate, time left.

    Work is counted in epochs, because rungs differ in them.
    """

    def __init__(self, context: SearchContext) -> None:
        search = context.search
        self._search, self._begun = search, time.monotonic()
        self._done = 0.0
        self._number = self._of = self._rung = 0
        counts = [len(search.candidates)]
        for _ in search.epochs[1:]:
            counts.append(-(-counts[-1] // (search.eta or 1)))
        schedule = context.run.spec.graph.model.lr_schedule
        self._anew = {
            each.trial: each.changes.get("model.lr_schedule", schedule) != "constant" for each in search.candidates
        }
        share = sum(self._anew.values()) / len(self._anew)
        self._left = sum(count * self._epochs(rung, share) for rung, count in enumerate(counts))
        self._best: tuple[float, str] | None = None

    def _epochs(self, rung: int, anew: float) -> float:
        """Return the epochs of a candidate in a rung.

        Args:
            rung: its number.
            anew: whether it trains those of earlier rungs again, or the share of candidates that do.
        """
        epochs = self._search.epochs
        return (epochs[rung] or 1) - (1 - anew) * (epochs[rung - 1] or 0 if rung else 0)

    def enter(self, rung: int, count: int) -> None:
        """Begin a rung of so many candidates."""
        self._rung, self._number = rung, 0
        self._of, self._best = count, None

    def found(self, name: str, outcome: Outcome) -> None:
        """Count a candidate whose result an earlier call stored."""
        self._number += 1
        self._left -= self._epochs(self._rung, self._anew[name])
        self._note(name, outcome)

    def passed(self, name: str, outcome: Outcome | None) -> None:
        """Count a candidate and print a line."""
        self._number += 1
        work = self._epochs(self._rung, self._anew[name])
        self._left -= work
        self._done += work
        self._note(name, outcome)
        seconds = time.monotonic() - self._begun
        rate = self._done / seconds if seconds else 0.0
        best = (
            "" if self._best is None else f"; best {self._search.metric} {fraction(self._best[0])} by {self._best[1]}"
        )
        say(
            f"tune: rung {self._rung + 1}/{len(self._search.epochs)}, {self._number}/{self._of} candidates, "
            f"{60 * rate:.3g} epochs/min, {human_seconds(self._left / rate) if rate else '-'} left{best}"
        )

    def _note(self, name: str, outcome: Outcome | None) -> None:
        figure = None if outcome is None else outcome.figures.get(self._search.metric)
        if figure is not None and (self._best is None or figure > self._best[0]):
            self._best = (figure, name)
