"""Steps of every task: open the run, work once, store the result."""

from __future__ import annotations

import time
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, unquote

from pbg_tasks.checkpoint.manifest import decode, encode, sha256
from pbg_tasks.config import ConfigSchema, RunLayout, RunSpec
from pbg_tasks.config.base import Frozen, canonical_json
from pbg_tasks.config.results import Result, Stored, TaskResult, TrainResult, parse_result, read_result
from pbg_tasks.config.run import run_id_of
from pbg_tasks.errors import ConfigError, ConflictError, FormatError, NotFoundError, QualityGateError
from pbg_tasks.memory.machine import forget_peak, peak_bytes
from pbg_tasks.progress import human_seconds, note, say
from pbg_tasks.publish import Channel
from pbg_tasks.publish.gc_holds import hold
from pbg_tasks.publish.skips import skip
from pbg_tasks.storage import open_store
from pbg_tasks.storage.metered import MeteredStore
from pbg_tasks.tasks.failure import begin_again, read_failure, store_failure

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from pbg_tasks.config import GraphSpec
    from pbg_tasks.report.documents import Failed
    from pbg_tasks.storage import Store


def graph_store(graph: GraphSpec) -> Store:
    """Open the store of a graph spec; report a relative path."""
    store = open_store(graph.store)
    if "://" not in graph.store and not graph.store.startswith(("/", "~")):
        note(f"store {graph.store} is relative to the working directory: {store.url}")
    return store


def names_run(url: str) -> bool:
    """Return whether a URL is of a run.

    A store in a folder called ``runs`` is none.
    """
    if "/runs/" not in url:
        return False
    store = open_store(url)
    below = () if store.head(RunLayout.spec) is not None else ("channels/", "runs/")  # a reader of runs may not list
    return all(next(store.list(each), None) is None for each in below)


Shape = TypeVar("Shape", bound=TaskResult)
_REPLAYS = "replays"
_REFUSED = "refused.json"
_NAMED: ContextVar[str] = ContextVar("named", default="")
"""Run that this process has named in a line last: several tasks of one run name it once."""
CHAIN = ("plan", "validate", "partition", "bucket", "train", "preserve", "eval", "drift", "gate", "publish")


class _Refusal(Frozen):
    """Reason for which the nights after a run go on without it."""

    reason: str


@dataclass(frozen=True, slots=True)
class RunContext:
    """A planned run: its spec and its place in the store.

    Attributes:
        store: the graph's store.
        run_id: names the run below ``runs/``.
        spec: the run's spec.
        document: its spec as stored, from which id and hash are made: a later version of this package may know more
            keys.
        replays: URL of the run that this one replays, None for other runs. The files of a replay name the paths of that
            run.
    """

    store: Store
    run_id: str
    spec: RunSpec
    document: bytes
    replays: str | None = None

    @classmethod
    def open(cls, url: str) -> RunContext:
        """Open the run at ``{store}/runs/{run id}``.

        Raises:
            ConfigError: the URL is not of that form, or there is no run.
            FormatError: the stored spec is not the one the run's id was made from.
        """
        root, slash, run_id = url.rstrip("/").rpartition("/runs/")
        if not slash or not root or "/" in run_id:
            raise ConfigError(f"{url!r} is not a run; expected {{store}}/runs/{{run id}}, as `pbg plan` prints it")
        return cls.within(open_store(root), run_id)

    @classmethod
    def within(cls, store: Store, run_id: str) -> RunContext:
        """Open a run of a store; raises as ``open`` does."""
        url = f"{store.url}/runs/{run_id}"
        try:
            blob = store.get(f"runs/{run_id}/{RunLayout.spec}")
        except NotFoundError:
            raise ConfigError(f"{url}: no such run; `pbg plan` makes one") from None
        spec = decode(RunSpec, blob.data, source=f"{url}/{RunLayout.spec}", ignore_unknown=False)
        if (found := run_id_of(spec.snapshot, blob.data)) != run_id:
            raise FormatError(f"{url}/{RunLayout.spec}: changed after it was planned (it would be run {found})")
        replays = blob.info.metadata.get(_REPLAYS)
        return cls(store, run_id, spec, blob.data, unquote(replays) if replays else None)

    def store_spec(self) -> None:
        """Make the run, or find it made before.

        Raises:
            ConflictError: it is being removed.
            FormatError: it was changed since.
        """
        hold(self.store, self.run_id)
        metadata = {_REPLAYS: quote(self.replays)} if self.replays else None
        try:
            self.store.put_new(self.key(RunLayout.spec), self.document, metadata=metadata)
        except ConflictError:
            self.open(self.url)  # refuses one that was changed

    def begin(self) -> None:
        """Make later nights wait for this one from now on.

        Also if it was refused or skipped before. The same inputs make the same run, whose spec is written once. So only
        the date of this mark shows that a new try has begun.
        """
        if self.spec.publish:
            self.store.put(self.key(RunLayout.planned), b"{}")

    def planned(self) -> float:
        """Return when the run was last planned.

        In seconds since 1970, by the store's clock. Older versions of this package stored no mark of it; of their runs
        this is the time of the first plan.
        """
        infos = (self.store.head(self.key(name)) for name in (RunLayout.spec, RunLayout.planned))
        return max((info.modified or 0.0 for info in infos if info is not None), default=0.0)

    @property
    def url(self) -> str:
        """The run's URL."""
        return f"{self.store.url}/runs/{self.run_id}"

    @property
    def config(self) -> ConfigSchema:
        """PBG's config of this run."""
        return self.spec.pbg_config(self.replays or self.url)

    @property
    def spec_hash(self) -> str:
        """Hash of the stored spec."""
        return sha256(self.document)

    def key(self, name: str) -> str:
        """Return the store's key of something below the run."""
        return f"runs/{self.run_id}/{name}"

    def result(self, task: str) -> Result | None:
        """Return what a task found, None when it has not finished.

        Raises:
            FormatError: its document is damaged, or of another version.
        """
        try:
            data = self.store.get(self.key(RunLayout.result(task))).data
        except NotFoundError:
            return None
        return read_result(task, data, source=f"{self.url}/{RunLayout.result(task)}")

    def require(self, task: str) -> Result:
        """Return the result of an earlier task.

        Raises:
            ConfigError: it has not run.
            FormatError: its document is damaged, or of another version.
        """
        result = self.result(task)
        if result is None:
            raise self._unfinished(task)
        return result

    def _unfinished(self, task: str) -> ConfigError:
        return ConfigError(f"{self.url}: `pbg {task}` has not finished for this run; run it first")

    def find(self, shape: type[Shape], task: str | None = None) -> Shape | None:
        """Return a task's result by its model, None when unfinished.

        Args:
            shape: the model.
            task: its name, where the model does not give it, as of an export.

        Raises:
            FormatError: its document is damaged, or of another version.
        """
        name = RunLayout.result(task or shape.TASK)
        try:
            data = self.store.get(self.key(name)).data
        except NotFoundError:
            return None
        return parse_result(shape, data, source=f"{self.url}/{name}")

    def need(self, shape: type[Shape], task: str | None = None) -> Shape:
        """Return the result of an earlier task, as ``find`` does.

        Raises:
            ConfigError: it has not run.
            FormatError: its document is damaged, or of another version.
        """
        found = self.find(shape, task)
        if found is None:
            raise self._unfinished(task or shape.TASK)
        return found

    def refuse(self, reason: str) -> None:
        """Record that this run is not good enough.

        Later nights then go on without it, unless another run of its snapshot was planned after it: the newest one
        decides. The first reason since the run was last planned stays, also as that of its snapshot.
        """
        if self.spec.publish:
            if self.refusal() is None:
                self.store.put(self.key(_REFUSED), encode(_Refusal(reason=reason)))
            channel, told = Channel(self.store, self.spec.graph.channel), f"{reason} (run {self.run_id})"
            skip(channel, self.spec.snapshot, told, planned=self.planned())

    def refusal(self) -> str | None:
        """Return why the run was refused since it was last planned.

        None when it was not, and for runs of older versions, which did not store it.

        Raises:
            FormatError: its document is damaged.
        """
        try:
            refused = self.store.get(self.key(_REFUSED))
        except NotFoundError:
            return None
        # With equal times the refusal counts: a task may refuse a run within a tick of the store's clock after the
        # plan, while a user takes longer than that to plan again.
        if (refused.info.modified or 0.0) < self.planned():
            return None
        return decode(_Refusal, refused.data, source=f"{self.url}/{_REFUSED}").reason

    def failure(self, finished: Collection[str]) -> Failed | None:
        """Return the error with which the run's last task ended.

        None where the task was tried again since or has finished, where the run was planned again, and where another
        task is next: one that was run too early by hand stops nothing.

        Args:
            finished: tasks of the chain that have a result.
        """
        there = read_failure(self.store, self.run_id)
        if there is None or there[0].begun_again or (there[1].info.modified or 0.0) < self.planned():
            return None
        found = there[0]
        due = next((task for task in CHAIN[1:] if task not in finished), None)
        is_due = chain_task(found.task) == due
        if not is_due or (due is None and self.store.head(self.key(RunLayout.result(found.task))) is not None):
            return None
        return found.told()

    def save_result(self, shape: type[Shape], task: str, document: Result) -> Shape:
        """Store a task's result once; of two writers the first one's stays.

        Raises:
            FormatError: readers would refuse it; nothing is stored.
        """
        name, data = RunLayout.result(task), canonical_json(document)
        result = parse_result(shape, data, source=f"{self.url}/{name}")
        try:
            self.store.put_new(self.key(name), data)
        except ConflictError:
            return self.need(shape, task)
        return result


def chain_task(task: str) -> str | None:
    """Return the chain's task to which a task or part belongs.

    None for exports.
    """
    first = task.partition("-")[0]
    return first if first in CHAIN else None


def perform(shape: type[Shape], url: str, body: Callable[[RunContext], Stored], *, task: str | None = None) -> Shape:
    """Do one task of a run, or return its stored result.

    The error of a task that fails is stored in the run, for people.

    Args:
        shape: model of its result.
        url: of the run.
        body: does the work and returns the findings, without the keys that every result has.
        task: its name, where the model does not give it, as for an export.
    """
    task = task or shape.TASK
    run = RunContext.open(url)
    before = run.find(shape, task)
    if before is not None:
        say(f"{task}: done before, nothing to do")
        return before
    if _NAMED.get() != run.url:
        _NAMED.set(run.url)
        say(f"{task}: {run.spec.graph.graph} {run.spec.snapshot}, run {run.run_id}")
    hold(run.store, run.run_id)
    begin_again(run.store, run.run_id, task)
    try:
        return _work(shape, run, body, task)
    except (Exception, KeyboardInterrupt) as error:
        # Of two processes at one training the store lets one go on; the other one's end is no failure of the task.
        if not (isinstance(error, ConflictError) and task == TrainResult.TASK):
            store_failure(run.store, run.run_id, task, error)
        # A part, `eval-1-of-3`, refuses as its task does. An export that is not good enough takes nothing back from a
        # night that is released.
        if isinstance(error, QualityGateError) and chain_task(task) is not None:
            run.refuse(str(error))
        raise


def _work(shape: type[Shape], run: RunContext, body: Callable[[RunContext], Stored], task: str) -> Shape:
    """Do the work of a task and store its result."""
    store = MeteredStore(run.store)
    forget_peak()
    started, computed = time.monotonic(), time.process_time()
    findings = body(replace(run, store=store))
    seconds = time.monotonic() - started
    usage: Result = {
        "cpu_seconds": round(time.process_time() - computed, 3),
        "memory_bytes": peak_bytes(),
        "store_bytes_read": store.read,
        "store_bytes_written": store.written,
    }
    header: Result = {"task": task, "run": run.url, "seconds": round(seconds, 3), "usage": usage}
    say(f"{task}: finished in {human_seconds(seconds)}")
    return run.save_result(shape, task, header | findings.document())
