"""Damage to the bytes of a file.

Disks, networks, editors and hostile writers cause such.
"""

from __future__ import annotations

import numpy as np

_HEAD = 2048  # most formats describe themselves here
_WORDS = (0, 1, 2, 0x7F, 0x80, 0xFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF)


def mutated(data: bytes, rng: np.random.Generator) -> bytes:
    """Return a damaged copy."""
    damage = [flipped, flipped, zeroed, zeroed, numbered, numbered, overwritten, truncated, inserted, removed]
    return damage[rng.integers(len(damage))](data, rng)


def place(data: bytes, rng: np.random.Generator) -> int:
    """Return a position, every second time near the start."""
    return int(rng.integers(max(1, min(len(data), _HEAD) if rng.integers(2) else len(data))))


def flipped(data: bytes, rng: np.random.Generator) -> bytes:
    """Give some single bytes other values."""
    result = bytearray(data)
    for _ in range(rng.integers(1, 5)):
        result[place(data, rng)] = rng.integers(256)
    return bytes(result)


def zeroed(data: bytes, rng: np.random.Generator) -> bytes:
    """Make a nonzero byte the least or the greatest.

    Sizes become those of nothing, or of everything.
    """
    start = int(rng.choice(np.flatnonzero(np.frombuffer(data, np.uint8))))
    return data[:start] + (b"\0" if rng.integers(4) else b"\xff") + data[start + 1 :]


def numbered(data: bytes, rng: np.random.Generator) -> bytes:
    """Overwrite a number with another, often an extreme one.

    Both are of the length of sizes and addresses.
    """
    width = int(rng.choice([1, 2, 4, 8]))
    start = place(data, rng)
    start -= start % int(rng.choice([1, width]))
    old = int.from_bytes(data[start : start + width], "little")
    near = (old + 1, max(old, 1) - 1, old * 2, old // 2)
    new = near[rng.integers(len(near))] if rng.integers(3) == 0 else _WORDS[rng.integers(len(_WORDS))]
    return data[:start] + (new % (1 << 8 * width)).to_bytes(width, "little") + data[start + width :]


def overwritten(data: bytes, rng: np.random.Generator) -> bytes:
    """Overwrite a run of bytes."""
    start, length = place(data, rng), int(rng.integers(1, 513))
    fill = [b"\0" * length, b"\xff" * length, rng.bytes(length)][rng.integers(3)]
    return (data[:start] + fill + data[start + length :])[: max(len(data), start + 1)]


def truncated(data: bytes, rng: np.random.Generator) -> bytes:
    """Cut the end off."""
    return data[: rng.integers(len(data))]


def inserted(data: bytes, rng: np.random.Generator) -> bytes:
    """Put bytes in between."""
    start = place(data, rng)
    return data[:start] + rng.bytes(int(rng.integers(1, 65))) + data[start:]


def removed(data: bytes, rng: np.random.Generator) -> bytes:
    """Take bytes out."""
    start = place(data, rng)
    return data[:start] + data[start + int(rng.integers(1, 65)) :]
