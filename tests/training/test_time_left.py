"""Time that is left, on the lines of committed epochs."""

from __future__ import annotations

import pytest

from pbg_tasks.errors import EvictedError
from pbg_tasks.storage.local import LocalStore
from pbg_tasks.training import commits
from tests.training.buckets import make_config, train


def test_time_left_counts_whole_epochs_after_resume(buckets, tmp_path, monkeypatch):
    """The seconds of the first epoch are those of its last part."""
    config, store = make_config(num_epochs=3), LocalStore(tmp_path / "store")
    shown: list[float] = []
    looks = iter(range(40))
    with pytest.raises(EvictedError):
        train(config, buckets, store, tmp_path / "a", stopping=lambda: next(looks, None) is None)
    monkeypatch.setattr(commits, "human_seconds", lambda seconds: str(shown.append(seconds)))
    rest, second, third = train(config, buckets, store, tmp_path / "b")
    assert rest.edges < second.edges / 2
    left = shown[::2]  # beside the times of the epochs
    assert left == pytest.approx(
        [
            2 * rest.seconds * second.edges / rest.edges,
            (rest.seconds + second.seconds) * third.edges / (rest.edges + second.edges),
            0,
        ]
    )
