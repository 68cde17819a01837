"""Count of the swaps of a schedule, without making them."""

from __future__ import annotations

from typing import NamedTuple

from pbg_tasks.training.data.partitions import Layout
from pbg_tasks.training.data.swaps import SwapPlan


class Traffic(NamedTuple):
    """Cost of a schedule.

    Attributes:
        loads: number of partitions that are read.
        waits: number of those whose reading no bucket's training hides, because there was no room earlier.
        peak_bytes: most memory that partitions take at once.
    """

    loads: int
    waits: int
    peak_bytes: int


def simulate(config, orders, sizes):
    """Count the swaps of some iterations without making them.

    Args:
        config: the partitions of buckets and the capacity of memory.
        orders: the buckets of each iteration, as ``iteration_order`` returns them; two iterations show every case.
        sizes: bytes of each partition in memory: its embeddings and its optimizer sums.
    """
    layout = Layout(config)
    plan = SwapPlan([layout.needs(bucket) for order in orders for bucket in order], layout.capacity())
    loads, waits, peak, held = 0, 0, 0, 0
    for bucket in (bucket for order in orders for bucket in order):
        needed = layout.needs(bucket)
        for load, evict in plan.advance():
            held += sizes[load] - (0 if evict is None else sizes[evict])
            peak = max(peak, held)
            loads += 1
            waits += load in needed
    return Traffic(loads, waits, peak)
