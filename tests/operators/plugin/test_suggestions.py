"""Lists of snapshots over the life of an API server."""

from __future__ import annotations

import time

import anyio

from pbg_operators.plugin import suggestions


def test_list_whose_thread_never_began_is_made(monkeypatch):
    """The event loop stood still until the wait was over."""
    monkeypatch.setattr(suggestions, "PATIENCE", 0.05)
    monkeypatch.setattr(suggestions, "listed", lambda _: ["d1"])
    layer = suggestions.SuggestSnapshots(None)

    async def stand_still():
        time.sleep(0.2)  # noqa: ASYNC251 - that is what it is for

    async def ask():
        async with anyio.create_task_group() as group:
            group.start_soon(layer._keys, "toy")
            group.start_soon(stand_still)
        assert layer._known["toy"].keys == []
        monkeypatch.setattr(suggestions, "PATIENCE", 60.0)
        return await layer._keys("toy")

    assert anyio.run(ask) == ["d1"]
