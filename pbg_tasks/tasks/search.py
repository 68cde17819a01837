"""Documents of a search in its run: candidates, outcomes, decisions.

Each is stored by a write that only the first of two processes can make. So processes at one search, and a search that
is begun again, come to the same decisions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from pbg_tasks.checkpoint.manifest import decode, encode, find_document
from pbg_tasks.config.base import Frozen, digest
from pbg_tasks.config.tune_results import Outcome, Rung, Search, TriedCandidate
from pbg_tasks.config.tune_space import candidates, rung_epochs
from pbg_tasks.errors import ConfigError, ConflictError, QualityGateError
from pbg_tasks.report.tune import tune_document
from pbg_tasks.storage.parallel import in_parallel
from pbg_tasks.tasks.context import RunContext

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pbg_tasks.config import GraphSpec
    from pbg_tasks.config.tune import Tune
    from pbg_tasks.report.documents import TuneDocument

Document = TypeVar("Document", bound=Frozen)
FOLDER = "tune"
"""Folder of the searches below a run."""
SEARCH = "search.json"
PATCH = "best.yaml"
_THREADS = 8
_ID = re.compile(r"[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class SearchContext:
    """A begun search and its place in the store.

    Attributes:
        run: with the prepared snapshot.
        id: names the search below the run.
        search: as it was begun.
    """

    run: RunContext
    id: str
    search: Search

    @classmethod
    def open(cls, url: str, search_id: str) -> SearchContext:
        """Open a search of the run at ``url``.

        Raises:
            ConfigError: there is no such run or search.
            FormatError: a document is damaged.
        """
        return cls.within(RunContext.open(url), search_id)

    @classmethod
    def within(cls, run: RunContext, search_id: str) -> SearchContext:
        """Open a search of a run; raises as ``open`` does."""
        found = _read(run, f"{FOLDER}/{search_id}/{SEARCH}", Search) if _ID.fullmatch(search_id) else None
        if found is None:
            raise ConfigError(f"{run.url}: has no search {search_id!r}; `pbg tune-start` begins one")
        return cls(run, search_id, found)

    @classmethod
    def begin(cls, run: RunContext, graph: GraphSpec, tune: Tune) -> SearchContext:
        """Store a search, or find it begun before."""
        tried = [TriedCandidate(trial=each.id, changes=dict(each.changes)) for each in candidates(tune)]
        search = Search(
            graph=graph.graph,
            snapshot=run.spec.snapshot,
            metric=tune.metric,
            eta=None if tune.halving is None else tune.halving.eta,
            epochs=tuple(rung_epochs(graph, tune)),
            candidates=tuple(tried),
        )
        found = cls(run, digest(search.model_dump(mode="json"))[:12], search)
        return cls(run, found.id, found._keep(SEARCH, search))

    def key(self, name: str) -> str:
        """Return the store's key of something below the search."""
        return self.run.key(f"{FOLDER}/{self.id}/{name}")

    @property
    def url(self) -> str:
        """The search's URL."""
        return f"{self.run.store.url}/{self.key('')}".rstrip("/")

    def changes(self, trial: str) -> TriedCandidate:
        """Return a candidate by its name.

        Raises:
            ConfigError: the search has none of that name.
        """
        for each in self.search.candidates:
            if each.trial == trial:
                return each
        raise ConfigError(f"{self.url}: has no candidate {trial!r}")

    def trials(self, rung: int) -> tuple[str, ...]:
        """Return the candidates of a rung.

        Raises:
            ConfigError: the rung before is not decided, or the search has no such rung.
        """
        if not 0 <= rung < len(self.search.epochs):
            raise ConfigError(f"{self.url}: has no rung {rung}; it has {len(self.search.epochs)}, counted from 0")
        if rung == 0:
            return tuple(each.trial for each in self.search.candidates)
        before = self.decision(rung - 1)
        if before is None:
            raise ConfigError(f"{self.url}: rung {rung - 1} is not decided; `pbg tune-select` decides it")
        return before.kept

    def outcome(self, trial: str, rung: int) -> Outcome | None:
        """Return the result of a candidate in a rung.

        It is the failure in any rung, where the candidate failed. None: there is none.
        """
        found = _read(self.run, f"{FOLDER}/{self.id}/{_outcome(trial, rung)}", Outcome)
        return found or _read(self.run, f"{FOLDER}/{self.id}/{_failure(trial)}", Outcome)

    def keep_outcome(self, outcome: Outcome, rung: int) -> Outcome:
        """Store a result, unless there is one; return the one that counts."""
        failed = outcome.status == "failed"
        return self._keep(_failure(outcome.trial) if failed else _outcome(outcome.trial, rung), outcome)

    def decision(self, rung: int) -> Rung | None:
        """Return the decision about a rung; None: it is not made."""
        return _read(self.run, f"{FOLDER}/{self.id}/rung-{rung}.json", Rung)

    def decide(self, rung: int, lost: Mapping[str, str]) -> Rung:
        """Decide which candidates go on, unless that is decided.

        Where all fail in a later rung, the first one stands for them: each counts by its earlier rungs.

        Args:
            rung: its number.
            lost: reasons why candidates have no result, by name.

        Raises:
            QualityGateError: no candidate has a result.
        """
        if (before := self.decision(rung)) is not None:
            return before
        found = [self.outcome(trial, rung) or _missing(trial, lost) for trial in self.trials(rung)]
        ranking = ranked(found, self.search.metric)
        if ranking[0].status != "finished" and (not rung or any(each.status == "missing" for each in ranking)):
            raise QualityGateError(
                f"{self.url}: no candidate of rung {rung} could be trained and ranked; the first: {ranking[0].reason}"
            )
        last = rung == len(self.search.epochs) - 1
        count = 1 if last or self.search.eta is None else -(-len(ranking) // self.search.eta)
        kept = tuple(each.trial for each in ranking[:count] if each.status == "finished") or (ranking[0].trial,)
        return self._keep(f"rung-{rung}.json", Rung(rung=rung, ranking=tuple(ranking), kept=kept))

    def _keep(self, name: str, document: Document) -> Document:
        """Store a document once, and return the one that is there."""
        key = self.key(name)
        try:
            self.run.store.put_new(key, encode(document))
        except ConflictError:
            data = self.run.store.get(key).data
            return decode(type(document), data, source=f"{self.run.store.url}/{key}")
        return document


def _outcome(trial: str, rung: int) -> str:
    return f"trials/{trial}/rung-{rung}.json"


def _failure(trial: str) -> str:
    return f"trials/{trial}/failed.json"


def ranked(outcomes: Iterable[Outcome], metric: str) -> list[Outcome]:
    """Order results, the best first; of equal ones the first stays first."""
    return sorted(outcomes, key=lambda each: (each.status != "finished", -each.figures.get(metric, 0.0)))


def searches(run: RunContext) -> list[SearchContext]:
    """List the searches of a run, the last begun first."""
    pattern = re.compile(rf"{re.escape(run.key(FOLDER))}/{_ID.pattern}/{SEARCH}")
    begun = [info for info in run.store.list(f"{run.key(FOLDER)}/") if pattern.fullmatch(info.key)]
    begun.sort(key=lambda info: -(info.modified or 0.0))
    return [SearchContext.within(run, info.key.split("/")[3]) for info in begun]


def read_search(context: SearchContext) -> TuneDocument:
    """Read everything that the page of a search shows."""
    rungs = []
    for number in range(len(context.search.epochs)):
        if (decision := context.decision(number)) is None:
            break
        rungs.append(decision)

    names = context.trials(len(rungs)) if len(rungs) < len(context.search.epochs) else ()
    latest = in_parallel(lambda name: context.outcome(name, len(rungs)), names, _THREADS)
    return tune_document(
        {
            "run": context.run.run_id,
            "store": context.run.store.url,
            "search_id": context.id,
            "search": context.search,
            "rungs": rungs,
            "latest": {outcome.trial: outcome for outcome in latest if outcome is not None},
        }
    )


def described(changes: Mapping[str, object]) -> str:
    """Return changes on one line."""
    return ", ".join(f"{key}={value}" for key, value in changes.items())


def _missing(trial: str, lost: Mapping[str, str]) -> Outcome:
    reason = lost.get(trial, "its training ended without a result; see the log of its task")
    return Outcome(trial=trial, status="missing", reason=reason)


def _read(run: RunContext, name: str, model: type[Document]) -> Document | None:
    found = find_document(model, run.store, run.key(name))
    return None if found is None else found[0]
