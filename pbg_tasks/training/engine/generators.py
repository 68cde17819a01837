"""Generators of a bucket's random numbers."""

from __future__ import annotations

import base64

import torch


def forked(generator: torch.Generator, count: int) -> list[torch.Generator]:
    """Return generators with independent streams that follow from ``generator``'s state."""
    if not count:
        return []  # the state of ``generator`` stays
    seeds = torch.randint(2**62, (count,), generator=generator).tolist()
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def state_of(generator: torch.Generator) -> str:
    """Return a generator's state in base64."""
    return base64.b64encode(generator.get_state().numpy().tobytes()).decode()


def restore(generator: torch.Generator, state: str) -> None:
    """Set a generator to a state of ``state_of``.

    The state of a device of another kind is left out: a bucket that was begun there goes on with new draws.
    """
    numbers = torch.frombuffer(bytearray(base64.b64decode(state)), dtype=torch.uint8)
    if len(numbers) == len(generator.get_state()):
        generator.set_state(numbers)
