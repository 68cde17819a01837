"""Loading of the native library.

ctypes releases the interpreter's lock while a function of the library runs.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

from pbg_tasks.errors import ResourceError
from pbg_tasks.native.abi import Lines, RankProducts, RankTile, Step

ABI = 9
"""Version of the structures and functions. ``pbg_abi`` in native.cpp returns the version that was compiled."""


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return the library, ready to be called.

    None is returned where it was not built.

    Raises:
        ResourceError: it was built from the sources of another version, or cannot be loaded here.
    """
    found = sorted(Path(__file__).parent.glob("_native*.so"))
    if not found:
        return None
    try:
        loaded = ctypes.CDLL(str(found[0]))
    except OSError as error:  # such as of a newer C library than this machine's
        raise ResourceError(f"{found[0]}: cannot be loaded here ({error}); install the package again") from None
    if loaded.pbg_abi() != ABI:
        raise ResourceError(f"{found[0]}: has interface {loaded.pbg_abi()}, this version needs {ABI}: install again")
    loaded.pbg_instruction_set.restype = ctypes.c_char_p
    loaded.pbg_use_instruction_set.argtypes = [ctypes.c_char_p]
    loaded.pbg_workspace_new.restype = ctypes.c_void_p
    loaded.pbg_workspace_free.argtypes = [ctypes.c_void_p]
    loaded.pbg_workspace_free.restype = None
    loaded.pbg_train_steps.argtypes = [ctypes.POINTER(Step), ctypes.c_void_p]
    loaded.pbg_train_steps.restype = ctypes.c_int64
    loaded.pbg_rank.argtypes = [ctypes.POINTER(RankTile)]
    loaded.pbg_rank.restype = ctypes.c_int64
    loaded.pbg_rank_products.argtypes = [ctypes.POINTER(RankProducts)]
    loaded.pbg_rank_products.restype = ctypes.c_int64
    loaded.pbg_write_lines.argtypes = [ctypes.POINTER(Lines)]
    loaded.pbg_write_lines.restype = ctypes.c_int64
    return loaded


def instruction_set() -> str | None:
    """Return the instruction set in use, such as avx512, avx2 or portable.

    None is returned without the library.
    """
    loaded = library()
    return loaded.pbg_instruction_set().decode("ascii") if loaded is not None else None
