"""A night's evaluation in parts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from pbg_tasks.checkpoint import VerifiedFiles
from pbg_tasks.errors import ConfigError, FormatError
from pbg_tasks.publish import Channel
from pbg_tasks.publish.gc_holds import condemn, hold_key
from pbg_tasks.storage import open_store
from pbg_tasks.tasks.context import RunContext
from pbg_tasks.tasks.nightly import evaluation_parts, moved_vectors
from pbg_tasks.tasks.nightly.chain import run_chain, run_task
from pbg_tasks.tasks.nightly.comparison_target import release_before
from pbg_tasks.tasks.nightly.evaluate import Releases, _evaluate, count_part, evaluate
from pbg_tasks.tasks.nightly.plan import plan
from pbg_tasks.tasks.nightly.yardstick import best_release
from pbg_tasks.tasks.runs import part_files
from tests.publish.runs import candidate, write_run
from tests.tasks.conftest import ring

INDEPENDENT = {"walk": "independent"}
HEADER = ("format", "task", "run", "seconds", "usage", "kept", "parts")


def second_night(place, before, now, **evaluation):
    """Release a night of three partitions, preserve the next one."""
    place.write_spec({"entities": {"n": {"num_partitions": 3}}, "num_epochs": 1}, eval=evaluation)
    place.snapshot("d1", ring(before))
    run_chain(place.spec, "d1")
    place.snapshot("d2", ring(now))
    return preserved(place, "d2")


def preserved(place, snapshot):
    url = plan(place.spec, snapshot)["run"]
    for task in ("validate", "partition", "bucket", "train", "preserve"):
        run_task(task, url)
    return url


@pytest.fixture
def night(place):
    """The second night of a graph of three partitions, preserved."""
    return second_night(place, 60, 64, max_candidates=50)


def test_releases_to_compare_with_are_held(tmp_path, monkeypatch):
    store = open_store(str(tmp_path))
    channel, released = Channel(store, "production"), []
    for run in ("d1-a", "d1-b", "d1-c"):
        write_run(store, run)
        released.append(channel.publish(candidate(store, run, "d1"), planned_on=None, independent=True)[0])
        store.delete(hold_key(run))
    best, replaced, current = released
    monkeypatch.setattr(evaluation_parts, "best_release", lambda *_: best)
    monkeypatch.setattr(evaluation_parts, "replaced_release", lambda _: replaced)
    graph = SimpleNamespace(channel="production")
    spec = SimpleNamespace(previous=None, publish=False, walk="chain", snapshot="d2", graph=graph)
    run = SimpleNamespace(store=store, run_id="d2-a", spec=spec)
    assert Releases.of(run) == Releases(current, best, None, replaced)
    assert all(store.head(hold_key(each.run)) is not None for each in released)
    condemn(store, best.run).move("removing")
    assert Releases.of(run) == Releases(current, None, None, replaced)


def whole(url):
    run = RunContext.open(url)
    current = release_before(run)
    return _evaluate(run, Releases(current, best_release(run, current), None), None).document()


def key(url, name):
    store, _, run = url.rpartition("/runs/")
    return open_store(store), f"runs/{run}/{name}"


def figures(result):
    return {name: value for name, value in result.items() if name not in HEADER}


def test_parts_merge_to_the_digits_of_the_whole(night):
    expected = whole(night)
    assert expected["against"]["edges"] > 0
    with pytest.raises(ConfigError, match=r"part 1/3 of the evaluation is missing; run `pbg eval RUN --part 1/3`"):
        evaluate(night, 3)
    for part in ("3/3", "1/3", "1/3", "2/2"):
        count_part(night, part)
    with pytest.raises(ConfigError, match=r"part 2/3 of the evaluation is missing"):
        evaluate(night, 3)
    count_part(night, "2/3")
    merged = evaluate(night, 3)
    assert figures(merged) == figures(json.loads(json.dumps(expected)))
    assert evaluate(night, 3) == merged
    run_task("drift", night)
    assert run_task("gate", night)["against_release"] == 1
    assert run_task("publish", night)["published"]


def test_killed_part_is_counted_again(night):
    expected = whole(night)
    count_part(night, "1/2")
    command = [sys.executable, "-m", "pbg_tasks", "eval", night, "--part", "2/2", "--json"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as part:
        for line in part.stderr:
            if "eval-2-of-2: " in line:
                part.send_signal(signal.SIGKILL)
                break
    assert part.returncode == -signal.SIGKILL
    with pytest.raises(ConfigError, match=r"part 2/2 of the evaluation is missing"):
        evaluate(night, 2)
    assert count_part(night, "2/2")["part"] == "2/2"
    merged = subprocess.run(
        [*command[:5], "--parts", "2", "--json"], check=True, capture_output=True, text=True, env=environment
    )
    assert figures(json.loads(merged.stdout)) == figures(json.loads(json.dumps(expected)))


def test_damaged_or_foreign_counts_are_refused(night):
    first, _ = (count_part(night, part) for part in ("1/2", "2/2"))
    store, counts = key(night, f"eval/{first['sha256']}.npy")
    kept = store.get(counts).data
    store.put(counts, kept[:-1] + bytes([kept[-1] ^ 1]))
    with pytest.raises(FormatError, match=r"\.npy: was changed after part 1/2 was counted; remove it and results"):
        evaluate(night, 2)
    store.put(counts, kept)
    _, result = key(night, "results/eval-2-of-2.json")
    document = json.loads(store.get(result).data)
    store.put(result, json.dumps(document | {"asked": "0" * 64}).encode())
    with pytest.raises(FormatError, match=r"part 2/2 .* was asked other edges or releases than part 1/2"):
        evaluate(night, 2)
    for name in ("1-of-2", "2-of-2"):
        _, result = key(night, f"results/eval-{name}.json")
        store.put(result, json.dumps(document | json.loads(store.get(result).data) | {"asked": "0" * 64}).encode())
    with pytest.raises(FormatError, match="other edges, candidates or releases than there are now"):
        evaluate(night, 2)


def test_parts_beside_other_releases_are_refused(night):
    for part in ("1/2", "2/2"):
        count_part(night, part)
    store, releases = key(night, "results/eval-releases.json")
    chosen = store.get(releases).data
    store.put(releases, json.dumps(json.loads(chosen) | {"against": None}).encode())
    with pytest.raises(FormatError, match=r"part 1/2 .* ranked beside other releases than results/eval-releases\.json"):
        evaluate(night, 2)
    store.delete(releases)
    with pytest.raises(ConfigError, match=r"eval-releases\.json is missing.* count them again"):
        evaluate(night, 2)


@pytest.mark.parametrize("store", ["s3", "local"])
def test_part_brings_its_partitions_and_rows_of_others(place, request, monkeypatch, store):
    """Of the release before, too; digits stay."""
    monkeypatch.setattr(part_files, "REQUEST_BYTES", 0)
    monkeypatch.setattr(moved_vectors, "QUERIES", 4)
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: write(file, data[:1000], at))  # as a full disk may
    if store == "s3":
        place.store = request.getfixturevalue("s3_bucket")
    url = second_night(place, 1200, 1210, max_edges=10, parts=3)
    expected, fetched = whole(url), []
    store, planned = key(url, "results/plan.json")
    memory = json.loads(store.get(planned).data)["memory"]
    assert memory["eval_part"]["peak"] < memory["eval"]["peak"]

    def fetch_all(files, names, directory):
        fetched.extend(names)
        return bring(files, names, directory)

    bring = VerifiedFiles.fetch_all
    monkeypatch.setattr(VerifiedFiles, "fetch_all", fetch_all)
    for part, own in (("1/3", "embeddings_n_0"), ("2/3", "embeddings_n_1"), ("3/3", "embeddings_n_2")):
        fetched.clear()
        count_part(url, part)
        assert [name.split(".")[0] for name in fetched if name.startswith("embeddings")] == [own, own]
    fetched.clear()
    assert figures(evaluate(url, 3)) == figures(json.loads(json.dumps(expected)))
    assert len([name for name in fetched if name.startswith("embeddings")]) == 3  # tonight's, for their health
    assert (expected["against"]["edges"] > 0, expected["drift"]["types"]["n"]["overlap"]["queries"]) == (True, 4)


def test_parts_merge_to_digits_beside_other_releases(place, monkeypatch):
    """Only parts bring the vectors of the best and the replaced release."""
    second_night(place, 60, 62)
    run_chain(place.spec, "d2")
    place.snapshot("d3", ring(64))
    url, first = preserved(place, "d3"), place.channel().release(1)
    monkeypatch.setattr(evaluation_parts, "best_release", lambda *_: first)
    monkeypatch.setattr(evaluation_parts, "replaced_release", lambda *_: first)
    run = RunContext.open(url)
    expected = _evaluate(run, Releases(release_before(run), first, None, first)).document()
    assert (expected["against"]["release"], expected["best"]["release"]) == (2, 1)
    assert expected["replaced"]["difference"] == expected["best"]["difference"]
    for part in ("1/2", "2/2"):
        count_part(url, part)
    assert figures(evaluate(url, 2)) == figures(json.loads(json.dumps(expected)))


def test_parts_of_independent_nights_merge_to_digits(place, monkeypatch):
    place.write_spec({"entities": {"n": {"num_partitions": 3}}, "num_epochs": 1, "dimension": 4}, nights=INDEPENDENT)
    place.snapshot("d1", ring(80))
    run_chain(place.spec, "d1")
    place.snapshot("d2", ring(75, seed=2))
    url = preserved(place, "d2")
    expected = whole(url)
    assert expected["drift"]["types"]["n"]["aligned"]
    for part in ("1/2", "2/2"):
        count_part(url, part)
    fetched, bring = [], VerifiedFiles.fetch
    monkeypatch.setattr(
        VerifiedFiles, "fetch", lambda files, name, to: (fetched.append(name), bring(files, name, to))[1]
    )
    assert figures(evaluate(url, 2)) == figures(json.loads(json.dumps(expected)))
    assert not [name for name in fetched if name.startswith("embeddings")]  # of the release, which names match


def test_part_without_partitions_of_independent_night_counts(place):
    place.write_spec({"entities": {"n": {"num_partitions": 2}}, "num_epochs": 1, "dimension": 4}, nights=INDEPENDENT)
    place.snapshot("d1", ring(60))
    run_chain(place.spec, "d1")
    place.snapshot("d2", ring(55))
    url = preserved(place, "d2")
    assert count_part(url, "3/3")["counts"] == count_part(url, "4/4")["counts"] != {}


def test_damaged_drift_of_part_is_refused(night):
    parts = [count_part(night, part) for part in ("1/2", "2/2")]
    expected = whole(night)
    store, drift = key(night, f"eval/{parts[1]['drift']}.drift")
    kept = store.get(drift).data
    store.put(drift, kept[:-1] + bytes([kept[-1] ^ 1]))
    with pytest.raises(FormatError, match=r"\.drift: was changed after part 2/2 was counted; remove it and results"):
        evaluate(night, 2)
    _, result = key(night, "results/eval-2-of-2.json")  # an earlier version's part has no drift: the merge compares
    document = json.loads(store.get(result).data)
    store.put(result, json.dumps({name: document[name] for name in document if name != "drift"}).encode())
    assert figures(evaluate(night, 2)) == figures(json.loads(json.dumps(expected)))


def test_dense_rows_are_read_in_short_stretches():
    """Beside 16 others, a stretch of gigabytes would be in memory."""
    rows = np.arange(0, 10**6, 100)
    spans = part_files._spans(rows, 400)
    assert max(stop - start for start, stop in spans) <= 1 << 22
    assert [stop for _, stop in spans[:-1]] == [start for start, _ in spans[1:]]
    assert (spans[0][0], spans[-1][1]) == (0, int(rows[-1] + 1) * 400)
