from __future__ import annotations

import errno
import mmap
import threading
from pathlib import Path

import numpy as np
import pytest

from pbg_tasks.formats.memory import passing_array

SIZE = 24 << 20  # bytes that a thread's allocator would keep


def anonymous_bytes():
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon:"))
    return int(line.split()[1]) << 10


@pytest.mark.parametrize("shape", [(), (0,), (5, 3), (SIZE // 8,)])
@pytest.mark.parametrize("kind", [np.int64, np.float32])
def test_array_behaves_as_any_other(shape, kind):
    array = passing_array(shape, np.dtype(kind))
    array[...] = 7
    assert (array.shape, array.dtype) == (shape, kind)
    assert array.flags.c_contiguous
    assert array.flags.aligned
    assert (array == 7).all()


def test_memory_freed_by_any_thread_returns_to_system():
    made = []

    def make():
        array = passing_array((SIZE // 8,), np.dtype(np.int64))
        array[:] = 1
        made.append(array)

    before = anonymous_bytes()
    for _ in range(4):
        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        assert anonymous_bytes() > before + SIZE // 2
        made.clear()
        assert anonymous_bytes() < before + SIZE // 2


def test_a_kernel_without_huge_pages(monkeypatch):
    class Plain(mmap.mmap):
        def madvise(self, *_):
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(mmap, "mmap", Plain)
    assert passing_array((SIZE,), np.dtype(np.int8)).shape == (SIZE,)


def test_too_large_array_raises_memory_error():
    with pytest.raises(MemoryError, match=f"no memory for {1 << 60} bytes"):
        passing_array((1 << 60,), np.dtype(np.int8))
