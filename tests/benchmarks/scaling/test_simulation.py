from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from benchmarks.scaling.__main__ import DOCUMENT, RESULTS
from benchmarks.scaling.graphs import FREEBASE, one_type, work_of
from benchmarks.scaling.links import Link, MemoryExchange, Network, Recorder, StoreExchange
from benchmarks.scaling.real import parsed
from benchmarks.scaling.report import write
from benchmarks.scaling.scenarios import FASTER, ahead, published, scaling, ties
from benchmarks.scaling.simulate import Work, simulate
from benchmarks.speed.epochs import Ours
from benchmarks.speed.workloads import LIVEJOURNAL, RandomGraph
from pbg_tasks.training.data.partitions import PartitionKey, partition_keys
from pbg_tasks.training.schedule import Bucket, grid

INSTANT = Network(link=1e18, store=1e18, store_total=1e18, latency=0.0, record=0.0)


def even_work(partitions, *, seconds=1.0, rows=0):
    config = one_type(partitions, 1)
    buckets = dict.fromkeys(grid(partitions, partitions), seconds)
    return Work(config, buckets, dict.fromkeys(partition_keys(config), rows), row_bytes=1)


def keys(*partitions):
    return [PartitionKey("node", partition) for partition in partitions]


def test_link_carries_one_transfer_at_a_time():
    link = Link(rate=10.0)
    assert link.carry(50, now=1.0) == 6.0
    assert link.carry(10, now=2.0) == 7.0
    assert link.carry(10, now=20.0) == 21.0


def test_progress_during_a_record_shares_the_next():
    recorder = Recorder(2.0)
    assert [recorder.record(now) for now in (1.0, 1.5, 2.9, 3.1, 9.0)] == [3.0, 5.0, 5.0, 7.0, 11.0]


def test_store_is_shared_by_all_ranks():
    network = Network(store=10.0, store_total=15.0, latency=0.5)
    exchange = StoreExchange(network, 2, dict.fromkeys(keys(0, 1, 2), 30.0))
    assert exchange.hand_over(0, keys(0), 0.0) == 3.5  # its own link is the slower one
    assert exchange.hand_over(1, keys(1), 0.0) == 4.5  # the store carries half of the first one's bytes already
    assert exchange.fetch(0, keys(2), 0.0) == 3.5  # reading does not slow writing down
    assert exchange.fetch(0, [], 7.0) == 7.0
    assert exchange.moved == 90.0


def test_partition_stays_with_its_server():
    network = Network(link=10.0, store=5.0, latency=0.5)
    exchange = MemoryExchange(network, 2, 0, dict.fromkeys(keys(0, 1, 2, 3), 30.0))
    assert exchange.hand_over(0, keys(0, 2), 0.0) == 0.0  # with itself
    assert exchange.fetch(1, keys(0, 1), 0.0) == 3.5
    assert exchange.moved == 30.0
    assert exchange.finish(10.0) == 22.0  # two partitions at the rate of the store
    assert exchange.moved == 90.0
    assert exchange.finish(30.0) == 30.0


def test_dedicated_servers_are_always_remote():
    exchange = MemoryExchange(Network(link=10.0, latency=0.0), 2, 1, dict.fromkeys(keys(0, 1), 30.0))
    assert exchange.hand_over(0, keys(0), 0.0) == 3.0
    assert exchange.hand_over(1, keys(1), 0.0) == 6.0  # the only server takes one after the other
    exchange.write_behind(10.0)
    exchange.hand_over(0, keys(0), 10.0)
    assert exchange.moved == 150.0


@pytest.mark.parametrize("servers", [-1, 0, 2])
def test_single_rank_without_io_always_trains(servers):
    outcome = simulate(even_work(4), 1, INSTANT, servers=servers)
    assert (outcome.seconds, outcome.trained, outcome.waited) == (pytest.approx(16.0), 16.0, 0.0)
    assert outcome.busy == pytest.approx(1.0)


def test_two_partitions_occupy_two_ranks_on_diagonal():
    outcome = simulate(even_work(2), 2, INSTANT, servers=0)
    assert outcome.seconds == pytest.approx(3.0)  # (0, 0) beside (1, 1), then (0, 1), then (1, 0)
    assert outcome.waited == pytest.approx(2.0)
    assert outcome.waiting == pytest.approx(1 / 3)


def test_seldom_polling_costs_time():
    work = work_of(FREEBASE, 8)
    told, polling = (simulate(work, 4, replace(INSTANT, poll=poll), servers=-1) for poll in (0.0, 60.0))
    assert told.seconds < polling.seconds


def test_partitions_that_stay_are_not_read_again():
    """Let one rank walk through the 4 buckets of 2 partitions.

    Each bucket writes its partitions, and only two buckets read one.
    """
    assert simulate(even_work(2, rows=10), 1, INSTANT, servers=0).moved == (1 + 2 + 2 + 1) * 10 + 2 * 10


@pytest.mark.parametrize("servers", [-1, 0])
def test_partitions_moved_ahead_hide_behind_training(servers):
    """Simulate transfers that take as long as the training."""
    network = Network(link=10.0, store=10.0, store_total=1e18, latency=0.0, record=0.0, copy=1e18)
    work = even_work(16, rows=10, seconds=3.0)
    at_once, ahead = (simulate(work, 4, network, servers=servers, ahead=each) for each in (False, True))
    assert at_once.busy < 0.7
    assert ahead.busy > 0.8
    slow = simulate(work, 4, replace(network, copy=1.0), servers=servers, ahead=True)
    assert slow.seconds > ahead.seconds


def test_graph_takes_its_published_time():
    work = work_of(FREEBASE, 4, ties="rows", faster=2.0)
    assert list(work.seconds) == grid(4, 4)
    assert sum(work.seconds.values()) == pytest.approx(FREEBASE.epoch_seconds / 2)
    assert sum(work.counts.values()) >= FREEBASE.entities


def test_document_is_made_of_the_results(tmp_path):
    real = {"ranks": 2, "servers": -1, "ahead": False, "load": 0.4, "seconds": 3.0, "busy": 0.9, "simulated_busy": 0.95}
    learned = {"order": "affinity", "edges": [9, 9], "retrained": 0, "mrr": 0.25}
    gangs = [(1, False, 0), (1, False, 1), (2, True, 0), (2, True, 1)]
    results = {
        "scaling": list(scaling(quick=True)),
        "ahead": list(ahead(quick=True)),
        "ties": list(ties(quick=True)),
        "published": list(published()),
        "real": [real, real | {"ahead": True}],
        "equality": [learned | {"ranks": ranks, "ahead": ahead, "seed": seed} for ranks, ahead, seed in gangs],
    }
    assert all(row["busy"] <= 1 and row["speed_up"] <= row["ranks"] for row in (*results["scaling"], *results["ties"]))
    write(json.loads(json.dumps(results)), tmp_path / "d.md", tmp_path / "d.svg")
    text = (tmp_path / "d.md").read_text()
    assert "| Freebase | 8 | 16 | 3.9 |" in text
    assert "| 2 | partition servers | 0.4 | 3.0 | 90% | 95% |" in text
    assert "| 2 | partition servers, `partitions_ahead` | 0.4 | 3.0 | 90% | 95% |" in text
    assert "| 2, `partitions_ahead` | 0.2500 | +0.0000 |" in text
    assert (tmp_path / "d.svg").read_text().count("<polyline") == 12


def test_real_runs_are_read_from_their_lines(tmp_path):
    """Read two epochs of a real training; the last one counts.

    It has one rank, so that it costs no processes.
    """
    config = RandomGraph(40, 400, partitions=2).write(LIVEJOURNAL | {"dimension": 4, "batch_size": 50}, tmp_path)
    ours = Ours(config)
    ours.epoch()
    ours.epoch()
    run = parsed(tmp_path / "model", 1, 0)
    assert sum(run.edges.values()) == 400
    assert set(run.edges) == set(grid(2, 2))
    assert 0 < run.trained <= run.seconds
    assert run.simulated(0.0).busy == pytest.approx(1.0)
    # four buckets are stored, and each of the two partitions is fetched once
    assert run.simulated(0.1).seconds == pytest.approx(run.trained + 6 * 0.05)
    ahead = parsed(tmp_path / "model", 1, 0, ahead=True)
    assert ahead.simulated(run.trained / 8).seconds < run.simulated(run.trained / 8).seconds
    assert run.edges[Bucket(0, 0)] > 0


@pytest.mark.parametrize(("step", "name"), [("[ranks]", "scaling"), ("[`partitions_ahead`]", "ahead")])
def test_table_of_steps_has_the_results(step, name):
    """It is written by hand in distributed.md, for partition servers."""
    (row,) = [line for line in (DOCUMENT.parent / "distributed.md").read_text().splitlines() if f"| {step}" in line]
    rows = [found for found in json.loads(RESULTS.read_text())[name] if found["faster"] == FASTER]
    speed_ups = {found["ranks"]: f"{found['speed_up']:.1f}" for found in rows if found["servers"] == -1}
    written = re.findall(r"(\d+)(?: ranks)? ([\d.]+)(?=,| times one)", row)
    assert len(written) > 1
    assert written == [(ranks, speed_ups[int(ranks)]) for ranks, _ in written]
