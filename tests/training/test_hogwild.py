from __future__ import annotations

import torch

from pbg_tasks.training.engine.generators import forked


def test_workers_draw_from_separate_streams():
    one, two = (forked(torch.Generator().manual_seed(seed), 2) for seed in (1, 1))
    draws = [torch.rand(4, generator=generator).tolist() for generator in (*one, *two)]
    assert draws[0] == draws[2] != draws[1] == draws[3]
