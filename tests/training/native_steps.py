"""Steps of the native engine beside those of torch."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch

from pbg_tasks.native import instruction_set, library
from tests.training.steps import assert_same_step

BOUND = 1e-5
native = pytest.mark.skipif(library() is None, reason="no native library: it is built where a C++ compiler is")


def usable(name):
    before = instruction_set().encode()
    found = library().pbg_use_instruction_set(name.encode()) == 0
    library().pbg_use_instruction_set(before)
    return found


INSTRUCTIONS = [name for name in ("portable", "avx2", "avx512", "avx512_bf16", "amx") if library() and usable(name)]


@contextmanager
def instructions(name):
    before = instruction_set().encode()
    library().pbg_use_instruction_set(name.encode())
    try:
        yield
    finally:
        library().pbg_use_instruction_set(before)


def assert_same_as(case, expected):
    for name in INSTRUCTIONS:
        with instructions(name):
            assert_same_step(case, expected, bound=BOUND, dtype=torch.float32)
