"""The fastest true float32 matrix product of torch on a CPU.

MKL leaves AVX-512 unused on AMD; oneDNN, in the same wheel, does not. PyTorch routes ``mm`` and ``bmm`` to oneDNN when
reduced precision is allowed, which on CPUs without AMX still computes in float32. With AMX it would not, so the result
is compared with float64 before the switch stays on.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

import torch

MAX_RELATIVE_ERROR = 2e-6
_TRIAL = threading.Lock()


def use_fast_float32() -> bool:
    """Route this process's matrix products to oneDNN if that is exact.

    Threads that ask together wait for one trial: else each would compute by the setting that another tries, and take it
    for the one before.

    Returns:
        Whether it is exact on this machine.
    """
    with _TRIAL:
        return _tried()


@functools.cache
def _tried() -> bool:
    onednn: Any = torch.backends.mkldnn  # its type hints lack the attributes used here
    if not onednn.is_available():
        return False
    settings = onednn.matmul
    before = settings.fp32_precision
    settings.fp32_precision = "bf16"
    if relative_error() <= MAX_RELATIVE_ERROR:
        return True
    settings.fp32_precision = before
    return False


def relative_error() -> float:
    """Return the largest error of a float32 product of usual size.

    It is measured against float64, and relative to the largest value.
    """
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(4, 64, 512, generator=generator)
    b = torch.randn(4, 512, 128, generator=generator)
    exact = a.double() @ b.double()
    return float((torch.bmm(a, b) - exact).abs().max() / exact.abs().max())
