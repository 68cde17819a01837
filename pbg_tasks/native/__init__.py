"""Native library: the heavy computations, in C++ with a plain C interface.

It exists only where the installation could compile it.
"""

from __future__ import annotations

from pbg_tasks.native.library import instruction_set, library

__all__ = ["instruction_set", "library"]
