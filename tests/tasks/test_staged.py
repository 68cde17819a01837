"""A snapshot that `validate` stages, and the tasks after it read."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pbg_tasks.errors import FormatError
from pbg_tasks.prepare.snapshot import STAGED
from pbg_tasks.tasks.context import RunContext
from pbg_tasks.tasks.nightly.chain import run_chain, run_task
from pbg_tasks.tasks.nightly.plan import plan
from pbg_tasks.tasks.release.releases import gc
from tests.tasks.conftest import ring


def validated(place):
    place.write_spec()
    place.snapshot("d1", ring(50))
    url = plan(place.spec, "d1")["run"]
    run_task("validate", url)
    return url


def snapshot_of(place):
    (path,) = (place.root / "edges").glob("d1*")
    return path


def test_names_with_fraction_are_warned_of(place, capsys):
    place.write_spec(snapshots={"location": f"{place.root}/edges/{{snapshot}}.parquet"})
    (place.root / "edges").mkdir()
    lhs, rel, rhs = zip(*ring(50), strict=True)
    numbers = pa.array([float(name.strip("en")) for name in rhs])
    pq.write_table(pa.table({"lhs": lhs, "rel": rel, "rhs": numbers}), place.root / "edges" / "d1.parquet")
    run_task("validate", plan(place.spec, "d1")["run"])
    warned = [line for line in capsys.readouterr().err.splitlines() if "becomes the name" in line]
    assert [line.partition("warning: ")[2] for line in warned] == [
        "column 'rhs' is of type DOUBLE: 7 becomes the name '7.0'; write whole numbers or text"
    ]


def test_weights_of_zero_alone_are_warned_of(place, capsys):
    location = {"location": f"{place.root}/edges/{{snapshot}}.parquet"}
    place.write_spec(snapshots=location, columns={"weight": "w"})
    (place.root / "edges").mkdir()
    lhs, rel, rhs = zip(*ring(50), strict=True)
    edges = pa.table({"lhs": lhs, "rel": rel, "rhs": rhs, "w": [0] * len(lhs)})
    pq.write_table(edges, place.root / "edges" / "d1.parquet")
    run_task("validate", plan(place.spec, "d1")["run"])
    assert "warning: all weights are 0" in capsys.readouterr().err


def test_tasks_after_validate_read_no_snapshot_file(place):
    url = validated(place)
    size, staged = snapshot_of(place).stat().st_size, Path(url) / "snapshot" / STAGED
    snapshot_of(place).unlink()
    for task in ("partition", "bucket"):
        run_task(task, url)
    run = RunContext.open(url)
    assert run.require("bucket")["edges"]["total"] == 150
    assert run.require("validate")["usage"]["store_bytes_read"] >= size
    for task in ("partition", "bucket"):
        assert run.require(task)["usage"]["store_bytes_read"] >= staged.stat().st_size


def test_damaged_staged_rows_are_refused(place):
    url = validated(place)
    staged = Path(url) / "snapshot" / STAGED
    data = bytearray(staged.read_bytes())
    data[len(data) // 2] ^= 1
    staged.unlink()  # it may share its bytes with another name
    staged.write_bytes(data)
    with pytest.raises(FormatError, match=rf"snapshot/{STAGED} has sha256"):
        run_task("partition", url)
    assert RunContext.open(url).result("partition") is None


def test_advice_on_damaged_staged_rows_helps(place):
    url = validated(place)
    staged = Path(url) / "snapshot" / STAGED
    data = staged.read_bytes()
    staged.unlink()  # it may share its bytes with another name
    staged.write_bytes(data[:-1])
    run_task("validate", url)  # has its result, so that it does nothing
    with pytest.raises(FormatError, match=r"remove it and the result of the task that made it, results/TASK\.json"):
        run_task("partition", url)
    for damaged in (staged, Path(url) / "results" / "validate.json"):
        damaged.unlink()
    run_task("validate", url)
    run_task("partition", url)
    assert staged.read_bytes() == data


def test_run_without_staged_rows_reads_the_snapshot(place):
    """An earlier version validated the run."""
    url = validated(place)
    manifest = Path(url) / "snapshot" / "manifest.json"
    document = json.loads(manifest.read_text())
    del document["objects"][STAGED]
    manifest.write_text(json.dumps(document))
    (Path(url) / "snapshot" / STAGED).unlink()
    for task in ("partition", "bucket"):
        run_task(task, url)
    run = RunContext.open(url)
    assert run.require("bucket")["edges"]["total"] == 150
    assert run.require("bucket")["usage"]["store_bytes_read"] > snapshot_of(place).stat().st_size


def test_interrupted_validate_stages_the_same_again(place):
    url = validated(place)
    staged = Path(url) / "snapshot" / STAGED
    before = staged.read_bytes()
    (Path(url) / "results" / "validate.json").unlink()
    run_task("validate", url)
    assert staged.read_bytes() == before


def test_release_holds_no_staged_rows(place):
    place.write_spec()
    place.snapshot("d1", ring(50))
    url = run_chain(place.spec, "d1")["run"]
    assert (Path(url) / "snapshot" / STAGED).exists()
    assert STAGED not in {path.name for path in (Path(url) / "release").rglob("*")}


@pytest.mark.rotated(3)
def test_collection_removes_staged_rows_with_their_run(place):
    place.write_spec()
    urls = []
    for day in ("d1", "d2", "d3"):
        place.snapshot(day, ring(50))
        urls.append(run_chain(place.spec, day)["run"])
    collected = gc(str(place.store), keep_releases=1, grace_hours=0, trust_clock=True)["runs"]
    staged = [(Path(url) / "snapshot" / STAGED).exists() for url in urls]
    assert staged == [url.rpartition("/")[2] not in collected for url in urls]
    assert staged[0] is False
    assert staged[2] is True
