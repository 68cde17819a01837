"""A machine whose wrong clock, or ended session, makes the server refuse.

The error names the cause, and nothing is changed in the store.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import SimpleNamespace

import botocore.auth
import pytest
from botocore.exceptions import ClientError, SSLError

from pbg_tasks.errors import AccessError, StorageError
from pbg_tasks.storage import open_store
from pbg_tasks.storage.s3_client import s3_errors
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


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (HOUR, "clock is 1:00:0. ahead of the server's: set it"),
        (-HOUR, "clock is (59:59|1:00:00) behind the server's: set it"),
        (0, "set AWS_ACCESS_KEY_ID"),
    ],
)
def test_refusal_without_body_blames_wrong_clock(wrong, words):
    date = format_datetime(datetime.now(UTC) - timedelta(seconds=wrong), usegmt=True)
    metadata = {"HTTPStatusCode": 403, "HTTPHeaders": {"date": date}}
    answer = {"Error": {"Code": "403", "Message": "Forbidden"}, "ResponseMetadata": metadata}
    client = SimpleNamespace(meta=SimpleNamespace(endpoint_url="https://s3"))
    with pytest.raises(AccessError, match=words), s3_errors(client, "s3://bucket/key"):
        raise ClientError(answer, "HeadObject")


@pytest.mark.parametrize("code", ["ExpiredToken", "400"])
def test_ended_session_is_named_and_retried(code):
    answer = {"Error": {"Code": code, "Message": "ended"}, "ResponseMetadata": {"HTTPStatusCode": 400}}
    client = SimpleNamespace(meta=SimpleNamespace(endpoint_url="https://s3"))
    with pytest.raises(StorageError, match=r"SESSION_TOKEN.*new ones") as refused, s3_errors(client, "s3://bucket/key"):
        raise ClientError(answer, "GetObject")
    assert refused.value.retryable


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("self-signed certificate in certificate chain", "no encrypted connection .*AWS_CA_BUNDLE"),
        ("EOF occurred in violation of protocol (_ssl.c:2427)", "broke off .*check AWS_ENDPOINT_URL"),
    ],
)
def test_certificate_of_unknown_authority_names_its_variable(reason, words):
    """A connection that broke off has nothing to do with it."""
    client = SimpleNamespace(meta=SimpleNamespace(endpoint_url="https://s3.example"))
    with pytest.raises(StorageError, match=words), s3_errors(client, "s3://b/k"):
        raise SSLError(endpoint_url="https://s3.example", error=reason)
