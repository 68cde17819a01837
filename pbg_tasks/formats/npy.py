"""Numpy's ``.npy`` files: arrays on disk, and those that other programs wrote.

The header of these is a Python literal, so a damaged one fails in many ways.
"""

from __future__ import annotations

import zlib
from contextlib import contextmanager
from tokenize import TokenError
from typing import TYPE_CHECKING, Any

import numpy as np

from pbg_tasks.errors import FormatError
from pbg_tasks.storage.files import disk_errors, take_room

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_DAMAGE = (ValueError, TypeError, OverflowError, SyntaxError, TokenError, OSError, EOFError, zlib.error)


def map_array(path: Path, source: str) -> np.ndarray:
    """Map an array of any type but objects, read-only.

    Args:
        path: of the file.
        source: name of the file in errors.

    Raises:
        FormatError: it is no such array, or truncated.
    """
    with damage_named(source):
        array: np.ndarray = np.lib.format.open_memmap(path, mode="r")  # np.load would open archives, too
    return array


def new_array(path: Path, shape: tuple[int, ...]) -> np.memmap[Any, Any]:
    """Make a file of float32 zeros, and map it.

    Raises:
        ResourceError: the disk has no room for it.
    """
    with disk_errors(path):
        array = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape)
    take_room(path)
    return array


@contextmanager
def damage_named(source: str) -> Iterator[None]:
    """Turn errors of numpy and the disk into one of a file.

    Its message names the file.

    Raises:
        FormatError: in place of those.
    """
    try:
        yield
    except _DAMAGE as error:
        raise FormatError(f"{source}: not a readable .npy array ({error}); it may be truncated") from None
