"""Answers that break off anywhere, in their headers too.

None is taken for a whole one.
"""

from __future__ import annotations

import itertools

import pytest
from botocore.exceptions import BotoCoreError

from pbg_tasks.errors import ConflictError, OvertakenError, StorageError
from pbg_tasks.storage.s3 import S3Store
from pbg_tasks.storage.s3_answers import LostAnswerError, found_object, listed_object, tag_of
from pbg_tasks.storage.s3_client import connect
from pbg_tasks.storage.s3_transfer import Sizes
from tests.rotation import of_today
from tests.storage.fault_proxy import SDK_ATTEMPTS, Fault
from tests.storage.unfinished import uploads

MIB = 1 << 20
METADATA = {"epoch": "3", "written-by": "rank 0"}


@pytest.fixture
def parts(s3_bucket, behind):
    """Store behind the proxy that uploads even small files in parts."""
    bucket, _, prefix = s3_bucket.removeprefix("s3://").partition("/")
    return S3Store(bucket, prefix, connect(), Sizes(part=5 * MIB, copy=MIB, copy_part=5 * MIB))


def places(answer):
    """Return the places to cut an answer.

    They are around each line end of its head, and inside each line.
    """
    head, line = answer.index(b"\r\n\r\n") + 4, 0
    found = {0}
    while line < head:
        end = answer.index(b"\r\n", line)
        found |= {line, (line + end) // 2, end - 1, end, end + 1}
        line = end + 2
    return sorted(place for place in found if 0 <= place < head)


def put_new(store, behind, key):
    return behind.put_new(key, b"mine", metadata=METADATA), store.head(key)


def swap(store, behind, key):
    first = store.put_new(key, b"1")
    return behind.swap(key, b"2", expected=first, metadata=METADATA), store.head(key)


def copy(store, behind, key):
    store.put_new(f"{key}.source", b"1", metadata=METADATA)
    return behind.copy(f"{key}.source", key), store.head(key)


def head(store, behind, key):
    store.put_new(key, b"1", metadata=METADATA)
    return behind.head(key), store.head(key)


def get(store, behind, key):
    store.put_new(key, b"1", metadata=METADATA)
    return behind.get(key), store.get(key)


def listing(store, behind, key):
    store.put_new(key, b"1")
    return list(behind.list(key)), list(store.list(key))


def delete(store, behind, key):
    store.put_new(key, b"1")
    return behind.delete(key), store.head(key)


OPERATIONS = {
    "put_new": ("PUT", put_new),
    "swap": ("PUT", swap),
    "copy": ("PUT", copy),
    "head": ("HEAD", head),
    "get": ("GET", get),
    "list": ("GET", listing),
    "delete": ("DELETE", delete),
}


@pytest.mark.s3
@pytest.mark.parametrize("name", of_today(sorted(OPERATIONS), days=2))
def test_answer_cut_in_head_changes_no_result(proxy, behind, store, unhurried, name):
    method, operation = OPERATIONS[name]
    operation(store, behind, "first")
    for place, times in itertools.product(places(proxy.answer), (1, SDK_ATTEMPTS)):
        proxy.faults = [Fault(method, times=times, cut=place)]
        there, expected = operation(store, behind, f"k{place}.{times}")
        assert there == expected, f"cut {place} bytes into {proxy.answer!r}"
        assert proxy.faults[0].times < times


@pytest.mark.s3
@pytest.mark.parametrize("cut", [Fault("GET", "list-type", truncate=0), Fault("GET", "list-type", truncate=150)])
def test_listing_cut_in_body_is_read_again(proxy, behind, store, unhurried, cut):
    store.put_new("k", b"1")
    cut.times = SDK_ATTEMPTS
    proxy.faults = [cut]
    assert [info.key for info in behind.list()] == ["k"]
    assert cut.times == 0


@pytest.mark.s3
@pytest.mark.parametrize(
    ("method", "text"),
    [("POST", "uploads"), ("PUT", "partNumber=1"), ("POST", "uploadId=")],
    ids=["begin", "part", "complete"],
)
def test_upload_with_cut_answers_leaves_no_other(proxy, parts, store, s3_bucket, tmp_path, unhurried, method, text):
    path = tmp_path / "large"
    path.write_bytes(bytes(6 * MIB))
    for number, times in enumerate((1, SDK_ATTEMPTS, SDK_ATTEMPTS + 1)):
        proxy.faults = [Fault(method, text, times=times, cut=60)]
        assert parts.put_new(f"k{number}", path, metadata=METADATA) == store.head(f"k{number}")
        assert proxy.faults[0].times < times
    assert uploads(s3_bucket) == set()


@pytest.mark.s3
@pytest.mark.parametrize("times", [1, SDK_ATTEMPTS, 2 * SDK_ATTEMPTS + 1])
def test_completion_that_never_arrived_leaves_no_upload(proxy, parts, store, s3_bucket, tmp_path, unhurried, times):
    path = tmp_path / "large"
    path.write_bytes(bytes(6 * MIB))
    proxy.faults = [Fault("POST", "uploadId=", times=times, forward=False)]
    assert parts.put_new("k", path, metadata=METADATA) == store.head("k")
    assert proxy.faults[0].times == 0
    assert proxy.count("PUT") == 2, "no part is sent again"
    assert uploads(s3_bucket) == set()


@pytest.mark.s3
def test_copy_in_parts_with_cut_answers_ends(proxy, parts, store, s3_bucket, tmp_path, unhurried):
    path = tmp_path / "large"
    path.write_bytes(bytes(6 * MIB))
    store.put_new("a", path, metadata=METADATA)
    proxy.faults = [Fault("PUT", "partNumber=1", times=SDK_ATTEMPTS, cut=60), Fault("POST", "uploads", cut=60)]
    assert parts.copy("a", "b") == store.head("b")
    assert [fault.times for fault in proxy.faults] == [0, 0]
    assert uploads(s3_bucket) == set()


@pytest.mark.s3
def test_server_that_cuts_every_answer_raises(proxy, behind, store, unhurried):
    store.put_new("k", b"1")
    proxy.faults = [Fault("HEAD", times=99, cut=60)]
    with pytest.raises(StorageError, match="broke off"):
        behind.head("k")


@pytest.mark.s3
@pytest.mark.parametrize("took_place", [True, False])
def test_write_without_answer_is_reported_as_uncertain(proxy, behind, store, took_place):
    """Let another writer follow a write whose answer is lost.

    The lost write took place in one case and not in the other.
    """
    first = store.put_new("k", b"1")

    def follow():
        store.swap("k", b"3", expected=store.head("k"))

    lost = Fault("PUT", "/k", forward=took_place, before=lambda: None if took_place else follow())
    after = Fault("PUT", "/k", before=follow if took_place else lambda: None, status=503)
    proxy.faults = [lost, after]
    with pytest.raises(OvertakenError, match="did not take place, or did and was replaced since"):
        behind.swap("k", b"2", expected=first)
    assert store.get("k").data == b"3"


@pytest.mark.s3
def test_refused_write_is_reported_as_refused(behind, store):
    store.put_new("k", b"1")
    with pytest.raises(ConflictError, match="nothing was overwritten") as caught:
        behind.put_new("k", b"2")
    assert not isinstance(caught.value, OvertakenError)


@pytest.mark.parametrize(
    ("header", "tag"),
    [
        ('"0123456789abcdef0123456789abcdef"', "0123456789abcdef0123456789abcdef"),
        ('"0123456789abcdef0123456789abcdef-2"', "0123456789abcdef0123456789abcdef-2"),
        ('"opaque of a server with keys of its own"', "opaque of a server with keys of its own"),
        ('W/"made-weak-by-a-proxy"', "made-weak-by-a-proxy"),
        ("without-quotes", "without-quotes"),
    ],
)
def test_tag_is_opaque(header, tag):
    assert tag_of({"ETag": header}) == tag


@pytest.mark.parametrize("answer", [{}, *({"ETag": tag} for tag in ("", '"', '""', '"0123', '0123"', 'W/"01', "W/"))])
def test_cut_tag_counts_as_lost_answer(answer):
    with pytest.raises(LostAnswerError, match="ETag") as caught:
        tag_of(answer)
    assert isinstance(caught.value, BotoCoreError)


def test_answer_without_its_fields_counts_as_lost():
    with pytest.raises(LostAnswerError, match="LastModified"):
        found_object("k", {"ETag": '"a"', "ContentLength": 1, "Metadata": {}})
    with pytest.raises(LostAnswerError, match="Size"):
        listed_object("k", {"ETag": '"a"'})
