from __future__ import annotations

import logging
import os
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from pbg_tasks.errors import AccessError, ConfigError, ConflictError, NotFoundError, StorageError
from pbg_tasks.storage import open_store
from pbg_tasks.storage.probe import probe
from pbg_tasks.storage.s3 import S3Store
from pbg_tasks.storage.s3_client import connect
from pbg_tasks.storage.s3_transfer import Sizes
from tests.contract.store import LARGE, StoreContract, large_file, sha256
from tests.storage.fault_proxy import SDK_ATTEMPTS, Fault

__all__ = ["large_file"]
pytestmark = pytest.mark.s3


class TestS3Store(StoreContract):
    pass


def test_given_settings_override_those_of_the_process(store, s3_bucket, monkeypatch):
    given = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    open_store(s3_bucket, environment=given).put("there", b"x")
    assert store.get("there").data == b"x"


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("report/index.html", "text/html; charset=utf-8"),
        ("a.css", "text/css; charset=utf-8"),
        ("a.js", "text/javascript; charset=utf-8"),
    ],
)
def test_stored_object_has_content_type_for_browsers(store, key, kind):
    store.put(key, b"x")
    place = store._place(key)
    assert place.client.head_object(Bucket=place.bucket, Key=place.key)["ContentType"] == kind


def test_store_with_prefix_sees_its_prefix_only(s3_bucket):
    outer, inner, whole = (
        open_store(s3_bucket),
        open_store(f"{s3_bucket}/in/"),
        open_store(s3_bucket.rpartition("/")[0]),
    )
    inner.put_new("k", b"1")
    assert inner.url == f"{s3_bucket}/in"
    assert [info.key for info in outer.list()] == ["in/k"]
    assert [info.key for info in inner.list()] == ["k"]
    assert whole.get(f"{s3_bucket.rpartition('/')[2]}/in/k").data == b"1"


def test_large_object_is_copied_in_parts(s3_bucket, large_file, tmp_path):
    store = S3Store(*s3_bucket.removeprefix("s3://").split("/"), connect(), Sizes(copy=20 << 20, copy_part=16 << 20))
    store.put_new("a", large_file, metadata={"v": "1"})
    copied = store.copy("a", "b")
    assert (copied.size, copied.metadata) == (LARGE, {"v": "1"})
    assert store.head("b") == copied
    assert store.copy("a", "b") == copied
    store.fetch("b", tmp_path / "b")
    assert sha256((tmp_path / "b").read_bytes()) == sha256(large_file.read_bytes())


def test_object_of_another_program_is_read(s3_bucket, store):
    client = connect()
    bucket, _, prefix = s3_bucket.removeprefix("s3://").partition("/")
    client.put_object(Bucket=bucket, Key=f"{prefix}/folder/", Body=b"")
    client.put_object(Bucket=bucket, Key=f"{prefix}/a", Body=b"one", Metadata={"by": "other"})
    client.put_object(Bucket=bucket, Key=f"{prefix}/b", Body=b"one")
    assert [info.key for info in store.list()] == ["a", "b"]
    assert store.head("a").metadata == {"by": "other"}
    assert store.copy("a", "b").key == "b"
    assert store.copy("a", "c").metadata == {"by": "other"}


def test_equal_bytes_uploaded_in_other_parts_are_recognized(s3_bucket, store, large_file):
    other = S3Store(*s3_bucket.removeprefix("s3://").split("/"), connect(), Sizes(part=8 << 20))
    store.put_new("a", large_file)
    existing = other.put_new("b", large_file)
    assert existing.tag != store.head("a").tag
    assert store.copy("a", "b").tag == existing.tag


# ---- lost answers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, SDK_ATTEMPTS])
def test_put_new_with_lost_answer_succeeds(proxy, behind, store, times):
    proxy.faults = [Fault("PUT", "/k", times=times)]
    info = behind.put_new("k", b"mine", metadata={"v": "1"})
    assert proxy.faults[0].times == 0
    assert store.head("k") == info
    assert store.get("k").data == b"mine"


@pytest.mark.parametrize("times", [1, SDK_ATTEMPTS])
def test_swap_with_lost_answer_succeeds(proxy, behind, store, times):
    first = store.put_new("k", b"1")
    proxy.faults = [Fault("PUT", "/k", times=times)]
    info = behind.swap("k", b"2", expected=first)
    assert proxy.faults[0].times == 0
    assert store.head("k") == info
    assert store.get("k").data == b"2"


@pytest.mark.parametrize("times", [1, SDK_ATTEMPTS])
def test_multipart_upload_with_lost_last_answer_succeeds(proxy, behind, store, large_file, tmp_path, times):
    proxy.faults = [Fault("POST", "uploadId=", times=times)]
    info = behind.put_new("k", large_file, metadata={"v": "1"})
    assert proxy.faults[0].times == 0
    assert store.head("k") == info
    store.fetch("k", tmp_path / "k")
    assert sha256((tmp_path / "k").read_bytes()) == sha256(large_file.read_bytes())


@pytest.mark.parametrize("times", [1, SDK_ATTEMPTS])
def test_copy_with_lost_answer_succeeds(proxy, behind, store, times):
    store.put_new("a", b"1", metadata={"v": "1"})
    proxy.faults = [Fault("PUT", "/b", times=times)]
    info = behind.copy("a", "b")
    assert proxy.faults[0].times == 0
    assert store.head("b") == info


def test_write_that_never_arrived_is_sent_again(proxy, behind, store):
    proxy.faults = [Fault("PUT", "/k", times=SDK_ATTEMPTS, forward=False)]
    info = behind.put_new("k", b"mine")
    assert store.head("k") == info


def test_other_writer_during_lost_put_new_wins(proxy, behind, store):
    other = []
    proxy.faults = [Fault("PUT", "/k", forward=False, before=lambda: other.append(store.put_new("k", b"other")))]
    with pytest.raises(ConflictError):
        behind.put_new("k", b"mine")
    assert store.head("k") == other[0]


def test_other_writer_during_lost_swap_wins(proxy, behind, store):
    first = store.put_new("k", b"1")
    other = []
    take_over = Fault("PUT", "/k", forward=False, before=lambda: other.append(store.swap("k", b"2", expected=first)))
    proxy.faults = [take_over]
    with pytest.raises(ConflictError):
        behind.swap("k", b"3", expected=first)
    assert store.head("k") == other[0]


def test_writer_after_409_tries_again(proxy, behind, store):
    proxy.faults = [Fault("PUT", "/k", times=2, status=409, forward=False)]
    assert behind.put_new("k", b"1") == store.head("k")
    assert proxy.count("PUT") == 3


def test_write_of_unknown_outcome_raises(proxy, behind, store, unhurried):
    proxy.faults = [Fault("PUT", "/k", times=99), Fault("HEAD", "/k", times=99)]
    with pytest.raises(StorageError, match=proxy.url):
        behind.put_new("k", b"1")


def test_failing_server_raises_with_its_status(proxy, behind, store):
    proxy.faults = [Fault("PUT", "/k", times=99, status=503, forward=False)]
    start = time.monotonic()
    with pytest.raises(StorageError, match="503"):
        behind.put_new("k", b"1")
    assert time.monotonic() - start < 30
    assert store.head("k") is None


def test_write_succeeds_despite_many_faults(proxy, behind, store, large_file, tmp_path):
    proxy.faults = [
        Fault("PUT", "partNumber", times=2, status=503, forward=False),
        Fault("PUT", "partNumber", times=1),
        Fault("POST", "uploads", times=1),
        Fault("POST", "uploadId", times=1, status=500),
        Fault("GET", "/k", times=2, truncate=1_000_000),
        Fault("GET", "/k", times=2, status=503, forward=False),
    ]
    info = behind.put_new("k", large_file)
    assert behind.fetch("k", tmp_path / "k") == info
    assert sha256((tmp_path / "k").read_bytes()) == sha256(large_file.read_bytes())
    assert not any(fault.times for fault in proxy.faults)


def test_body_that_breaks_off_is_read_again(proxy, behind, store):
    store.put_new("k", b"x" * 100_000)
    proxy.faults = [Fault("GET", "/k", truncate=50_000)]
    assert behind.get("k").data == b"x" * 100_000
    proxy.faults = [Fault("GET", "/k", times=99, truncate=50_000)]
    with pytest.raises(StorageError, match="broke off"):
        behind.get("k")


def test_object_changed_during_download_leaves_nothing(proxy, behind, store, large_file, tmp_path):
    first = store.put_new("k", large_file)
    change = Fault("GET", "/k", before=lambda: store.swap("k", b"2", expected=first), truncate=1_000_000)
    proxy.faults = [Fault("GET", "/k", truncate=1000), change]
    with pytest.raises(StorageError, match="changed while it was read"):
        behind.fetch("k", tmp_path / "k")
    assert list(tmp_path.iterdir()) == []


def test_empty_object_replaced_between_requests_is_changed(proxy, behind, store, large_file, tmp_path):
    """A request of a range is refused; one of the whole follows."""
    store.put("k", b"")
    replaced = Fault("GET", "/k", before=lambda: store.put("k", large_file), edit=bytes)
    proxy.faults = [Fault("GET", "/k", edit=bytes), replaced]
    with pytest.raises(StorageError, match="/k was changed while it was read; read it again"):
        behind.fetch("k", tmp_path / "k")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("data", "requests"), [(b"1", ["GET"]), (b"", ["GET", "GET"])])
def test_small_object_is_fetched_without_look(proxy, behind, store, tmp_path, data, requests):
    written = store.put_new("k", data, metadata={"v": "1"})
    proxy.requests.clear()
    assert behind.fetch("k", tmp_path / "k") == written
    assert (tmp_path / "k").read_bytes() == data
    assert [request.split()[0] for request in proxy.requests] == requests


def test_answer_with_less_than_was_asked_is_refused(proxy, behind, store, tmp_path):
    """A file would have zeros in the place of what is missing."""
    store.put_new("k", b"0123456789")

    def cut(answer):
        answer = re.sub(rb"(?im)^x-amz-checksum-.*\r\n", b"", answer)
        for whole, half in ((b"bytes 0-9/10", b"bytes 0-4/10"), (b"ength: 10", b"ength: 5"), (b"0123456789", b"01234")):
            assert whole in answer
            answer = answer.replace(whole, half)
        return answer

    proxy.faults = [Fault("GET", "/k", edit=cut)]
    with pytest.raises(StorageError, match="ignored a range of"):
        behind.fetch("k", tmp_path / "k")
    assert list(tmp_path.iterdir()) == []


def test_failed_upload_is_aborted(proxy, behind, s3_bucket, large_file):
    proxy.faults = [Fault("PUT", "partNumber=2", times=99, status=400, forward=False)]
    with pytest.raises(StorageError, match="400"):
        behind.put_new("k", large_file)
    bucket, _, prefix = s3_bucket.removeprefix("s3://").partition("/")
    assert connect().list_multipart_uploads(Bucket=bucket, Prefix=prefix).get("Uploads", []) == []


def test_conflicting_upload_is_aborted(store, s3_bucket, large_file):
    store.put_new("k", b"1")
    with pytest.raises(ConflictError):
        store.put_new("k", large_file)
    bucket, _, prefix = s3_bucket.removeprefix("s3://").partition("/")
    assert connect().list_multipart_uploads(Bucket=bucket, Prefix=prefix).get("Uploads", []) == []


def test_server_that_ignores_conditions_is_refused(proxy, behind, monkeypatch):
    send = S3Store._send
    monkeypatch.setattr(S3Store, "_send", lambda self, key, source, metadata, _: send(self, key, source, metadata, {}))
    with pytest.raises(ConfigError, match="If-None-Match"):
        probe(behind)
    assert list(behind.list()) == []


# ---- wrong settings -----------------------------------------------------------------------------------------------


def every_operation(store, tmp_path):
    return [
        lambda: store.head("k"),
        lambda: store.get("k"),
        lambda: store.fetch("k", tmp_path / "k"),
        lambda: store.put_new("k", b"1"),
        lambda: list(store.list()),
        lambda: store.delete("k"),
        lambda: store.copy("a", "b"),
    ]


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_wrong_credentials_raise(s3_bucket, monkeypatch, tmp_path, caplog, name):
    canary = "CANARYxCANARYxCANARY"
    caplog.set_level(logging.INFO)
    monkeypatch.setenv(name, canary)
    for operation in every_operation(open_store(s3_bucket), tmp_path):
        start = time.monotonic()
        with pytest.raises(AccessError, match="AWS_SECRET_ACCESS_KEY") as caught:
            operation()
        assert time.monotonic() - start < 10
        assert canary not in str(caught.value)
    assert canary not in caplog.text


def test_missing_credentials_raise(s3_bucket, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(AccessError, match="AWS_ACCESS_KEY_ID"):
        open_store(s3_bucket).put_new("k", b"1")


def test_missing_bucket_raises(s3_bucket, tmp_path):
    for operation in every_operation(open_store("s3://not-there/x"), tmp_path)[:5]:
        with pytest.raises(ConfigError, match=r"not-there.*does not exist"):
            operation()


def test_endpoint_without_listener_raises(s3_bucket, monkeypatch, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # the socket is bound but does not listen, so connections are refused
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        for operation in every_operation(open_store(s3_bucket), tmp_path)[2:4]:
            start = time.monotonic()
            with pytest.raises(StorageError, match=url):
                operation()
            assert time.monotonic() - start < 30


def test_endpoint_that_swallows_every_packet_raises(s3_bucket, monkeypatch):
    """A full backlog drops connection attempts as a firewall does."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        waiting = [socket.socket() for _ in range(8)]
        for client in waiting:
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        start = time.monotonic()
        with pytest.raises(StorageError, match=url):
            open_store(s3_bucket).put_new("k", b"1")
        assert 10 < time.monotonic() - start < 30
        for client in waiting:
            client.close()


@pytest.mark.parametrize("endpoint", ["nonsense", "http://"])
def test_malformed_endpoint_raises(s3_bucket, monkeypatch, endpoint):
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    with pytest.raises(ConfigError, match="AWS_ENDPOINT_URL"):
        open_store(s3_bucket)


@pytest.mark.parametrize("place", ["/" + "x" * 300, "~unknown-user-of-tests/models"])
def test_unreadable_place_of_descriptions_is_passed_over(s3_bucket, monkeypatch, place):
    monkeypatch.setenv("AWS_DATA_PATH", place)  # the system refuses to look for a name so long
    open_store(s3_bucket).put_new("k", b"1")


def test_missing_profile_raises(s3_bucket, monkeypatch):
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(ConfigError, match="nobody"):
        open_store(s3_bucket)


def test_one_store_serves_many_threads(store):
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda n: store.put_new(f"k{n}", b"1"), range(64)))
    assert len(list(store.list())) == 64
    with pytest.raises(NotFoundError):
        store.get("k64")
