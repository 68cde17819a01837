"""A machine whose wrong clock makes the server refuse its signatures.

The error names the clock, and nothing is changed in the store.
"""

from __future__ import annotations

from datetime import timedelta

import botocore.auth
import pytest

from pbg_tasks.errors import AccessError
from pbg_tasks.storage import open_store
from tests.clocks import HOUR


@pytest.mark.s3
@pytest.mark.parametrize("wrong", [HOUR, -HOUR], ids=["ahead", "behind"])
def test_clock_wrong_by_an_hour_is_reported(s3_bucket, monkeypatch, wrong):
    store = open_store(s3_bucket)
    head = store.put_new("HEAD.json", b"1")
    now = botocore.auth.get_current_datetime
    with monkeypatch.context() as patch:
        patch.setattr(botocore.auth, "get_current_datetime", lambda **asked: now(**asked) + timedelta(seconds=wrong))
        with pytest.raises(AccessError, match="RequestTimeTooSkewed"):
            store.swap("HEAD.json", b"2", expected=head)
        with pytest.raises(AccessError, match="RequestTimeTooSkewed"):
            store.put("checkpoint_version.txt", b"2")
    assert [(info.key, info.tag) for info in store.list()] == [("HEAD.json", head.tag)]
    store.swap("HEAD.json", b"2", expected=head)
