from __future__ import annotations

import os

import numpy as np
import pytest

from pbg_tasks.errors import ResourceError
from pbg_tasks.memory import machine
from pbg_tasks.memory.forecast import Forecast, Line
from pbg_tasks.memory.machine import check_fits, forget_peak, peak_bytes, resident_bytes, usable_bytes, usable_cpus

BLOCK = 200_000_000


@pytest.fixture
def linux(tmp_path, monkeypatch):
    """A machine with 8 GB free, whose files can be written."""

    def write(path, text):
        target = tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    write("proc/meminfo", "MemTotal:       16000000 kB\nMemAvailable:    8000000 kB\n")
    write("proc/self/status", "Name:\tpbg\nVmHWM:\t  600000 kB\nVmRSS:\t  500000 kB\n")
    write("proc/self/cgroup", "4:memory:/old/train\n1:cpu,cpuacct:/old/train\n0::/night/train\n")
    monkeypatch.setattr(machine, "PROC", tmp_path / "proc")
    monkeypatch.setattr(machine, "CGROUPS", tmp_path / "cgroup")
    return write


def test_peak_counts_freed_memory_until_reset():
    before = resident_bytes()
    block = np.ones(BLOCK, np.uint8)
    assert resident_bytes() >= before + 0.9 * BLOCK
    del block
    assert peak_bytes() >= before + 0.9 * BLOCK
    forget_peak()
    assert peak_bytes() < before + 0.5 * BLOCK


def test_free_and_own_memory_are_usable(linux):
    assert usable_bytes() == (8_000_000 + 500_000) * 1024


@pytest.mark.parametrize(
    ("path", "limit", "expected"),
    [
        ("cgroup/night/train/memory.max", "2000000000\n", 2_000_000_000),
        ("cgroup/night/memory.max", "3000000000\n", 3_000_000_000),  # the limit of a group around it
        ("cgroup/memory.max", "4000000000\n", 4_000_000_000),  # the limit that a container sees as its own
        ("cgroup/memory/old/memory.limit_in_bytes", "3000000000\n", 3_000_000_000),  # of cgroups v1
        ("cgroup/memory/memory.limit_in_bytes", f"{2**63 - 4096}\n", 8_500_000 * 1024),  # no limit there
        ("cgroup/night/train/memory.max", "max\n", 8_500_000 * 1024),
        ("cgroup/night/train/memory.max", "99000000000\n", 8_500_000 * 1024),  # more than is free
    ],
)
def test_limit_of_cgroup_counts(linux, path, limit, expected):
    linux(path, limit)
    assert usable_bytes() == expected


def test_processes_that_begin_together_share_equally(linux):
    assert usable_bytes(4) == (2_000_000 + 500_000) * 1024
    linux("cgroup/night/train/memory.max", "2000000000\n")
    assert usable_bytes(4) == 500_000_000
    forecast = Forecast.of("train", [Line("embeddings in memory", 10**9, ("num_partitions",))])
    check_fits(forecast)
    with pytest.raises(ResourceError, match="where 500 MB may be used by each of 4 processes; change num_partitions"):
        check_fits(forecast, processes=4)


@pytest.mark.parametrize(
    ("path", "share", "expected"),
    [
        ("cgroup/night/train/cpu.max", "200000 100000\n", 2),
        (
            "cgroup/night/cpu.max",
            "250000 100000\n",
            3,
        ),  # the share of a group around it; a started share counts as a CPU
        ("cgroup/cpu.max", "50000 100000\n", 1),
        ("cgroup/night/train/cpu.max", "max 100000\n", 64),
        ("cgroup/night/train/cpu.max", "9900000 100000\n", 64),  # more than there are
    ],
)
def test_share_of_cgroup_counts(linux, monkeypatch, path, share, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    linux(path, share)
    assert usable_cpus() == expected


@pytest.mark.parametrize(("quota", "expected"), [("200000\n", 2), ("250000\n", 3), ("-1\n", 64)])
@pytest.mark.parametrize("place", ["cgroup/cpu/old/train", "cgroup/cpu"])
def test_share_of_older_cgroup_counts(linux, monkeypatch, place, quota, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    linux(f"{place}/cpu.cfs_quota_us", quota)
    linux(f"{place}/cpu.cfs_period_us", "100000\n")
    assert usable_cpus() == expected


def test_unknown_system_limits_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "PROC", tmp_path)
    monkeypatch.setattr(machine, "CGROUPS", tmp_path)
    assert usable_bytes() is None
    assert peak_bytes() > 0  # getrusage knows
    check_fits(Forecast.of("train", [Line("embeddings", 10**15)]))


def test_too_large_forecast_is_refused_with_remedy(linux, capsys):
    linux("cgroup/memory.max", "2000000000\n")
    forecast = Forecast.of(
        "train", [Line("process", 10**9), Line("embeddings in memory", 5 * 10**9, ("num_partitions", "dimension"))]
    )
    with pytest.raises(ResourceError) as refused:
        check_fits(forecast)
    assert str(refused.value) == (
        "train would take 6 GB of memory at its peak, 5 GB of them for embeddings in memory, where 2 GB may be used; "
        "change num_partitions, dimension, or begin all the same: `pbg train --ignore-memory`"
    )
    check_fits(forecast, ignore=True)
    assert "warning: train would take 6 GB" in capsys.readouterr().err
