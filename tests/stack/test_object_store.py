from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import boto3
import pytest

from examples.stack.object_store import GRPC_OFFSET, ObjectStore, ObjectStoreError, stop_recorded, without_proxy

pytestmark = pytest.mark.s3


def client(environment: dict[str, str]):
    session = boto3.session.Session(
        environment["AWS_ACCESS_KEY_ID"], environment["AWS_SECRET_ACCESS_KEY"], region_name=environment["AWS_REGION"]
    )
    return session.client("s3", endpoint_url=environment["AWS_ENDPOINT_URL"])


def sockets(server: ObjectStore) -> set[Path]:
    """Return sockets that a running server made outside its directory.

    Other servers have theirs there, too.
    """
    ports = json.loads((server.directory / "weed.pid").read_text())["ports"].values()
    found = Path("/tmp").glob("seaweedfs-*.sock")  # noqa: S108 (where the server puts them)
    return {path for path in found if any(path.stem.endswith(f"-{port + GRPC_OFFSET}") for port in ports)}


def test_objects_and_keys_outlive_a_restart(tmp_path):
    with ObjectStore(tmp_path) as server:
        outside = sockets(server)
        assert outside
        one = min(outside)
        of_earlier = one.with_stem(f"seaweedfs-earlier-grpc-{one.stem.rpartition('-')[2]}")
        of_earlier.touch()  # as left by a killed server whose other service had this port
        first = server.environment()
        server.create_bucket("kept")
        for number in range(5):
            client(first).put_object(Bucket="kept", Key=f"k{number}", Body=b"x" * 100_000)
        assert (tmp_path / "s3.json").stat().st_mode & 0o077 == 0
        pid = json.loads((tmp_path / "weed.pid").read_text())["pid"]
        assert os.getpgid(pid) == pid
    assert not Path(f"/proc/{pid}").exists()
    assert not any(path.exists() for path in [*outside, of_earlier])
    with ObjectStore(tmp_path) as server:
        second = server.environment()
        assert second["AWS_ACCESS_KEY_ID"] == first["AWS_ACCESS_KEY_ID"]
        for number in range(5):
            assert client(second).get_object(Bucket="kept", Key=f"k{number}")["Body"].read() == b"x" * 100_000
        client(second).put_object(Bucket="kept", Key="after", Body=b"1")
        assert server.create_bucket("kept") == "s3://kept"


def test_server_outlives_killed_parent_until_stopped(tmp_path):
    code = (
        "import os, sys, signal; from pathlib import Path; from examples.stack.object_store import ObjectStore\n"
        "ObjectStore(Path(sys.argv[1])).start(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False, timeout=60)
    orphan = ObjectStore(tmp_path).environment()
    assert client(orphan).list_buckets()["Buckets"] == []
    with ObjectStore(tmp_path) as server:
        assert server.environment() != orphan
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", int(orphan["AWS_ENDPOINT_URL"].rpartition(":")[2])))
    stop_recorded(tmp_path)


def test_server_on_loopback_needs_no_proxy(tmp_path, monkeypatch):
    """Behind a proxy, packages come by it and the server does not."""
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "index.example")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setattr("examples.stack.object_store.START_SECONDS", 5.0)
    with ObjectStore(tmp_path) as server:
        server.create_bucket("near")
        environment = server.environment()
        assert environment["no_proxy"] == environment["NO_PROXY"] == "127.0.0.1,localhost,index.example"
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        assert [each["Name"] for each in client(environment).list_buckets()["Buckets"]] == ["near"]


@pytest.mark.parametrize(("named", "hosts"), [("*", "*"), ("a,localhost", "127.0.0.1,localhost,a")])
def test_hosts_without_proxy_stay(monkeypatch, named, hosts):
    monkeypatch.setenv("no_proxy", named)
    assert set(without_proxy().values()) == {hosts}


def test_process_that_inherited_the_number_is_left_alone(tmp_path):
    with subprocess.Popen(["/bin/sleep", "60"], start_new_session=True) as bystander:
        (tmp_path / "weed.pid").write_text(json.dumps({"pid": bystander.pid, "born": "1", "ports": {"s3": 1}}))
        stop_recorded(tmp_path)
        assert bystander.poll() is None
        bystander.kill()


def test_full_disk_is_named_before_the_start(small_disk):
    with pytest.raises(ObjectStoreError, match=r"s3: has 0\.0 GB free, and the S3 server takes 1\.1 GB: .* free some"):
        ObjectStore(small_disk / "s3").start()
    assert not (small_disk / "s3" / "weed.pid").exists()
