"""Nights of a graph in real S3, each task under its role.

A task has the credentials of the role that the docs assign to it.
"""

from __future__ import annotations

import contextlib
import time
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import boto3
import pytest

from pbg_tasks.api import Model
from pbg_tasks.errors import ConfigError, InputError, QualityGateError
from pbg_tasks.publish import Channel
from pbg_tasks.publish.gc_holds import condemn
from pbg_tasks.storage import open_store
from pbg_tasks.storage.s3 import S3Store
from pbg_tasks.storage.s3_client import connect
from pbg_tasks.storage.s3_transfer import Sizes
from pbg_tasks.tasks.announcing import announced
from pbg_tasks.tasks.approval import approve, reject
from pbg_tasks.tasks.context import RunContext
from pbg_tasks.tasks.nightly.chain import TASKS, run_task
from pbg_tasks.tasks.nightly.evaluate import count_part, evaluate
from pbg_tasks.tasks.nightly.export_release import export_release
from pbg_tasks.tasks.nightly.plan import plan
from pbg_tasks.tasks.nightly.promote import promote
from pbg_tasks.tasks.release.releases import drill, gc, pin, rollback, skip, unpin
from pbg_tasks.tasks.search import SearchContext, read_search
from pbg_tasks.tasks.training.launch import launch
from pbg_tasks.tasks.tuning.steps import finish, select, start
from pbg_tasks.tasks.tuning.tune import trial
from pbg_tasks.tasks.view.report import read_graph, read_run, report, report_graph
from pbg_tasks.tasks.view.show import history, show
from tests.access.policies import BUCKET, PREFIX, SNAPSHOT_BUCKET, SNAPSHOT_FOLDER
from tests.tasks.conftest import Workplace, ring

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from examples.stack.object_store import ObjectStore
    from tests.access.recording import Permission, RecordingProxy

Result = TypeVar("Result")

ROLE_OF = {
    **dict.fromkeys(("plan", "validate", "partition", "bucket"), "prepare"),
    **dict.fromkeys(("train", "preserve", "eval", "drift"), "train"),
    "tune-start": "prepare",
    **dict.fromkeys(("tune-select", "tune-trial", "tune-finish"), "train"),
    **dict.fromkeys(("gate", "publish", "export-release", "announced", "report", "approve", "reject"), "publish"),
    **dict.fromkeys(("promote", "rollback", "drill", "pin", "unpin", "skip"), "publish"),
    **dict.fromkeys(("show", "releases", "Model.open"), "reader"),
    "gc": "gc",
}
STORE = f"s3://{BUCKET}/{PREFIX.rstrip('/')}"
PART = 5 << 20
"""Smallest size in bytes that S3 accepts for a part, except for the last."""
LARGE = {
    "prepare": ("edges/train/large.h5", None),
    "train": ("checkpoint/large.v1.h5", "release/large.v1.h5"),
    "publish": ("large.npy", None),
}
"""For each role that uploads large objects: a key of one, and a key that such objects are copied to."""
OLD = -1 / 60
"""Grace in hours that makes every object older than it, even one stored in the same second."""


class Chain:
    """A graph whose every task runs under its role.

    Attributes:
        taken: permissions that the tasks of each role took, with the statuses of the answers.
    """

    def __init__(self, server: ObjectStore, proxy: RecordingProxy, place: Workplace) -> None:
        self.server, self.proxy, self.place = server, proxy, place
        self.taken: dict[str, list[tuple[str, Permission, int]]] = {}

    @contextlib.contextmanager
    def role(self, name: str) -> Iterator[None]:
        """Take the credentials of an identity for this process and its children.

        Their requests go through the proxy.
        """
        with pytest.MonkeyPatch.context() as patch:
            for variable, value in self.server.environment(name).items():
                patch.setenv(variable, value)
            patch.setenv("AWS_ENDPOINT_URL", self.proxy.url)
            yield

    def do(self, task: str, work: Callable[[], Result]) -> Result:
        """Run a task under its role and record the permissions it took."""
        role = ROLE_OF[task]
        self.proxy.taken.clear()
        try:
            with self.role(role):
                return work()
        finally:
            self.taken.setdefault(role, []).extend((task, *each) for each in self.proxy.taken)

    def spec(self, model: dict[str, object] | None = None, **sections: object) -> None:
        location = f"s3://{SNAPSHOT_BUCKET}/{SNAPSHOT_FOLDER}/{{snapshot}}.tsv"
        snapshots = {"location": location, "format": "tsv"}
        entities = {"n": {"num_partitions": 4}}  # two ranks train at once
        small = {"entities": entities, "num_epochs": 1, "checkpoint_preservation_interval": 1}
        self.place.write_spec(small | (model or {}), store=STORE, snapshots=snapshots, **sections)

    def plan(self, day: str, **options: object) -> str:
        run: str = self.do("plan", lambda: plan(self.place.spec, day, **options))["run"]
        return run

    def tasks(self, run: str, *names: str) -> None:
        """Run tasks of a run that the collector is about to remove.

        Each of them has to rescue the run.
        """
        for name in names:
            with self.role("gc"):
                condemn(open_store(STORE), run.rpartition("/")[2])
            self.do(name, partial(run_task, name, run))


def released_run(chain: Chain, day: str) -> str:
    """Return the URL of a released night."""
    with chain.role("owner"):
        (run,) = _runs(f"{day}-")
    return f"{STORE}/runs/{run}"


def write_snapshots(chain: Chain, folder: Path) -> None:
    with chain.role("owner"):
        store = open_store(f"s3://{SNAPSHOT_BUCKET}/{SNAPSHOT_FOLDER}")
        for number in range(1, 6):
            store.put_new(f"d{number}.tsv", chain.place.snapshot(f"d{number}", ring(40 + number, seed=number)))
        other = open_store(f"s3://{BUCKET}/other/channels/production")
        other.put_new("CURRENT.json", b"{}")


def nights(chain: Chain) -> None:
    """Run everything that the roles exist for, once."""
    _released_nights(chain)
    _refused_nights(chain)
    _searched(chain)
    _large_objects(chain)
    _filled_tables(chain)
    _upkeep(chain)
    _reading(chain)
    chain.do("gc", lambda: gc(STORE, channel="production", keep_releases=1, grace_hours=OLD))
    chain.do("gc", lambda: gc(STORE, keep_releases=1, grace_hours=OLD))


def _released_nights(chain: Chain) -> None:
    """Release a night of one process, and one in parts."""
    chain.spec(exports=[{"format": "npy"}], eval={"max_candidates": 20})
    # A plan of an absent day asks what is absent.
    with pytest.raises(InputError, match="no snapshot there"):
        chain.plan("d99")
    _released(chain, "d1", lambda run: chain.tasks(run, "train"))
    _released(
        chain,
        "d2",
        lambda run: chain.do("train", partial(launch, ["train", run, "--json"], ranks=2, servers=0, max_restarts=0)),
        parts=2,
    )


def _released(chain: Chain, day: str, train: Callable[[str], object], parts: int | None = None) -> None:
    run = chain.plan(day)
    names = list(TASKS)
    at = names.index("train")
    chain.tasks(run, *names[:at])
    train(run)
    if parts is not None:
        chain.tasks(run, "preserve")
        for part in range(parts):
            chain.do("eval", partial(count_part, run, f"{part + 1}/{parts}"))
        chain.do("eval", partial(evaluate, run, parts))
    chain.tasks(run, *names[at:])
    for _ in range(2):  # the second replaces nothing
        chain.do("export-release", partial(export_release, run, "npy"))
    chain.do("announced", partial(announced, run, "publish"))
    chain.do("report", partial(report, run))


def _refused_nights(chain: Chain) -> None:
    """Run nights that gates, forecast limits or the training itself stop."""
    chain.spec(gates={"min_mrr": 1.5, "max_mrr_drop": 1.0})
    run = chain.plan("d3")
    with pytest.raises(QualityGateError):
        chain.tasks(run, *TASKS)
    chain.do("approve", lambda: approve(run, by="ada", reason="a first night"))
    chain.tasks(run, "publish")
    chain.spec(gates={"data": {"min_edges": {"block": 10**6}}})
    small = chain.plan("d4")
    with pytest.raises(QualityGateError):
        chain.tasks(small, "validate")
    for task in ("bucket", "publish"):  # too early: each role stores the errors of its tasks
        with pytest.raises(ConfigError):
            chain.tasks(small, task)
    chain.do("reject", lambda: reject(small, by="ada", reason="half of it is missing"))
    _cut_off_plan(chain, "d5")
    chain.spec(limits={"max_hours": {"block": 1e-9}})
    with pytest.raises(QualityGateError):  # it takes the error of the plan before back
        chain.plan("d5")
    time.sleep(1.1)  # the store's clock has seconds: of two refusals within one, the first one's reason stays
    chain.spec({"lr": 1e38})
    run = chain.plan("d5")
    with pytest.raises(QualityGateError):
        chain.tasks(run, "validate", "partition", "bucket", "train")
    chain.spec(exports=[{"format": "npy"}])


def _cut_off_plan(chain: Chain, day: str) -> None:
    """Plan a day whose snapshot is not whole yet."""
    with chain.role("owner"):
        snapshots = open_store(f"s3://{SNAPSHOT_BUCKET}/{SNAPSHOT_FOLDER}")
        whole = snapshots.get(f"{day}.tsv").data
        snapshots.put(f"{day}.tsv", b"lhs\trel\ne1\tnext\n")
    with pytest.raises(InputError):
        chain.plan(day)
    with chain.role("owner"):
        snapshots.put(f"{day}.tsv", whole)


def _searched(chain: Chain) -> None:
    """Search hyper-parameters, with a candidate that diverges."""
    chain.spec(tune={"space": {"model.lr": [0.1, 1e38]}}, split={"valid": 0.2, "test": 0.1})
    begun = chain.do("tune-start", lambda: start(chain.place.spec, "d1"))
    run, search = begun["run"], begun["search"]
    chain.tasks(run, "validate", "partition", "bucket")
    for name in chain.do("tune-select", lambda: select(run, search, 0))["trials"]:
        chain.do("tune-trial", partial(trial, run, search, name, 0))
    chain.do("tune-finish", lambda: finish(run, search))
    chain.do("report", lambda: report(run))
    chain.do("show", lambda: read_search(SearchContext.open(run, search)))
    chain.spec(exports=[{"format": "npy"}])


def _large_objects(chain: Chain) -> None:
    """Write, copy and read objects too large for one request.

    The other objects of a graph this small fit into one.
    """
    sizes = Sizes(part=PART, copy=PART, copy_part=PART)
    source = chain.place.root / "large"
    source.write_bytes(bytes(PART + 1))
    for task, role in (("bucket", "prepare"), ("train", "train"), ("export-release", "publish")):
        name, copied = LARGE[role]
        folder = "exports/npy/large" if role == "publish" else "runs/large"

        def work(folder: str = folder, name: str = name, copied: str | None = copied) -> None:
            store = S3Store(BUCKET, f"{PREFIX}{folder}", connect(), sizes)
            store.put_new(name, source)
            if copied:
                store.copy(name, copied)
            store.fetch(name, source.with_name("fetched"))

        chain.do(task, work)
    with chain.role("train"):  # such as a killed writer leaves
        client = boto3.session.Session().client("s3")  # boto3.client would keep these credentials for the next role
        client.create_multipart_upload(Bucket=BUCKET, Key=f"{PREFIX}runs/large/checkpoint/lost.h5")


def _filled_tables(chain: Chain) -> None:
    """Write, replace, read and remove what LanceDB has below the store."""

    def fill() -> None:
        store = open_store(f"{STORE}/sinks/lancedb")
        pointer, table = "_pbg/toy/current.json", "toy_n.lance/data/0.lance"
        store.put_new(table, b"rows")
        store.swap(pointer, b"{}", expected=store.put_new(pointer, b"[]"))
        store.get(pointer)
        store.delete(table)

    chain.do("export-release", fill)


def _upkeep(chain: Chain) -> None:
    spec = chain.place.spec
    chain.do("drill", lambda: drill(spec))
    chain.do("rollback", lambda: rollback(spec, to=2))
    # not 1: a channel keeps what it took over, and the collection has to find a release that nothing needs
    chain.do("promote", lambda: promote(spec, 2, to="readers", by="mia"))
    chain.do("promote", lambda: promote(spec, 3, to="readers", share=0.1, by="mia", other_space=True))
    chain.do("pin", lambda: pin(spec, 1))
    chain.do("unpin", lambda: unpin(spec, 1))
    chain.do("pin", lambda: pin(spec, 1, service="ads", owner="mia"))
    chain.do("unpin", lambda: unpin(spec, service="ads"))
    chain.do("skip", lambda: skip(spec, "d9", reason="half of it is missing"))
    chain.do("report", lambda: report_graph(spec))
    chain.do("rollback", lambda: rollback(spec, to=3))


def _reading(chain: Chain) -> None:
    with chain.role("owner"):
        runs = sorted(_runs("d"))
        exported = next(info.key for info in open_store(STORE).list("exports/npy/") if info.key.endswith("/n.npy"))
    pages = [exported, "report/production/index.html", f"runs/{runs[0]}/report/index.html"]
    pages.append("sinks/lancedb/_pbg/toy/current.json")
    for page in pages:
        chain.do("show", lambda page=page: open_store(STORE).get(page))
    for name in runs:
        url = f"{STORE}/runs/{name}"
        chain.do("show", partial(show, url))
        chain.do("show", lambda url=url: read_run(RunContext.open(url)))
    chain.do("releases", lambda: history(chain.place.spec))
    chain.do("releases", lambda: read_graph("toy", Channel(open_store(STORE), "production"), reported=True))

    def read() -> None:
        with Model.open(STORE, channel="production") as model:
            model.top_k("e1", "next", k=1)

    chain.do("Model.open", read)


def _runs(start: str) -> set[str]:
    return {info.key.split("/")[1] for info in open_store(STORE).list(f"runs/{start}")}
