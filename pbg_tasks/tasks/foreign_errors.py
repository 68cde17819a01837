"""Meaning of errors that this package does not raise on purpose."""

from __future__ import annotations

import errno

from pbg_tasks.errors import ConfigError, EvictedError, PbgError, ResourceError
from pbg_tasks.memory.address_space import limit_hint
from pbg_tasks.storage.files import disk_error

_SHORTAGE = ("failed to map segment", "annot allocate memory", "can't start new thread")  # texts of loaders


def foreseen(error: Exception) -> PbgError | None:
    """Return the meaning of a foreign error for the user.

    The error is Python's or a library's; None means that it is a bug.
    """
    match error:
        case ModuleNotFoundError(name="torch"):
            return ConfigError("this command needs torch: pip install 'pbg-tasks[train]', or '.[train]' in a checkout")
        case ImportError() | RuntimeError() if any(sign in str(error) for sign in _SHORTAGE):
            return ResourceError(f"{error}; raise `ulimit -v` and `ulimit -u`, or the memory and pids of the cgroup")
        case MemoryError() | OSError(errno=errno.ENOMEM):
            return ResourceError(f"out of memory; lower resources.memory_gb or raise num_partitions{limit_hint()}")
        case RuntimeError() if "can't allocate memory" in str(error):  # the text of torch
            return ResourceError("out of memory; lower dimension or raise num_partitions, and check the entity counts")
        case OSError(errno=errno.ENOSPC | errno.EDQUOT | errno.EFBIG | errno.EMFILE | errno.ENFILE):
            where = error.filename or "the scratch directory"
            full = ResourceError(f"no room left on the disk of {where}; set PBG_SCRATCH")
            return disk_error(where, error) if error.errno in {errno.EMFILE, errno.ENFILE} else full
    return None


def as_pbg_error(error: BaseException) -> PbgError:
    """Return an error of this package for any error, on one line."""
    if isinstance(error, PbgError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return EvictedError("interrupted from the keyboard; the same command goes on with what was stored")
    meaning = foreseen(error) if isinstance(error, Exception) else None
    return meaning or PbgError(" ".join(f"{type(error).__name__}: {error}".split()))
