"""HOGWILD (Niu et al. 2011): several workers step through one bucket at once and change its tables without locks.

Workers are threads of one process: torch leaves the interpreter's lock while it computes, and threads need no shared
memory segments, no copies of the edges and no start-up (PBG starts a pool of processes for all three).
"""

from __future__ import annotations

import torch


def forked(generator: torch.Generator, count: int) -> list[torch.Generator]:
    """Return generators with streams of their own, which follow from where ``generator`` stands."""
    if not count:
        return []  # and ``generator`` stays where it is
    seeds = torch.randint(2**62, (count,), generator=generator).tolist()
    return [torch.Generator().manual_seed(seed) for seed in seeds]
