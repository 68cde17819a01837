"""HOGWILD: workers that train one bucket without locks.

Niu et al., "Hogwild!", 2011.

Workers are threads of one process, because torch releases the interpreter's lock while it computes. Threads need no
shared memory segments, no copies of the edges and no start-up, for all of which PBG starts a pool of processes.
"""

from __future__ import annotations

import torch


def forked(generator: torch.Generator, count: int) -> list[torch.Generator]:
    """Return generators with independent streams that follow from ``generator``'s state."""
    if not count:
        return []  # the state of ``generator`` stays
    seeds = torch.randint(2**62, (count,), generator=generator).tolist()
    return [torch.Generator().manual_seed(seed) for seed in seeds]
