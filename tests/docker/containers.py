"""Containers on one network of podman, each as confined as in ``compose.yaml``."""

from __future__ import annotations

import json
import subprocess
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from examples.stack.api import AirflowApiError
from tests.docker.images import CERTIFICATES, CONFINED, MOUNTED, name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


class Network:
    """A network whose containers reach each other by name.

    It ends with all containers and volumes that were made through it.

    Args:
        name: of the network, and label of what belongs to it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._label = f"pbg-test={name}"

    def __enter__(self) -> Self:
        self._remove()
        podman("network", "create", f"--label={self._label}", self.name)
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def _remove(self) -> None:
        mine = f"--filter=label={self._label}"
        for kind, listing, removal in (
            ("container", ["ps", "--all"], ["rm", "--force", "--time=1"]),
            ("volume", ["ls"], ["rm", "--force"]),
            ("network", ["ls"], ["rm", "--force"]),
        ):
            if found := podman(kind, *listing, "--quiet", mine).split():
                podman(kind, *removal, *found)

    def volume(self, name: str) -> str:
        """Make a volume; return its name."""
        return podman("volume", "create", f"--label={self._label}", f"{self.name}-{name}").strip()

    def start(self, name: str, target: str, command: Sequence[str], **options: Any) -> None:
        """Start a container that goes on; others reach it by its name."""
        podman(
            "run", "--detach", f"--name={self.name}-{name}", *self._options(name, **options), name_of(target), *command
        )

    def run(self, target: str, command: Sequence[str], **options: Any) -> str:
        """Run a container to its end; return what it printed on stdout.

        Raises:
            AssertionError: it failed.
        """
        return podman("run", "--rm", *self._options("", **options), name_of(target), *command)

    def result(self, command: Sequence[str], **options: Any) -> Any:
        """Run a ``pbg`` command in the training image; return its result."""
        return json.loads(self.run("train", [*command, "--json"], **options).strip().splitlines()[-1])

    def wait(self, name: str) -> int:
        """Return the status with which a started container ends."""
        return int(podman("wait", f"{self.name}-{name}").split()[-1])

    def log(self, name: str, lines: int = 40) -> str:
        """Return the last lines of a container."""
        return podman("logs", f"--tail={lines}", f"{self.name}-{name}", errors=True)

    def address(self, name: str, port: int) -> str:
        """Return the place on loopback at which a container's port is published."""
        return podman("port", f"{self.name}-{name}", str(port)).strip()

    def _options(
        self,
        name: str,
        *,
        environment: Mapping[str, str] | None = None,
        volumes: Sequence[str] = (),
        publish: Sequence[int] = (),
        entrypoint: str | None = None,
    ) -> list[str]:
        alias = [f"--network-alias={name}", f"--hostname={name}"] if name else []
        found = [*CONFINED, "--tmpfs=/tmp", f"--network={self.name}", f"--label={self._label}", *alias]
        found += [f"--env={key}={value}" for key, value in (environment or {}).items()]
        found += [f"--volume={volume}" for volume in volumes]
        found += [f"--publish=127.0.0.1::{port}" for port in publish]
        return [*found, *([f"--entrypoint={entrypoint}"] if entrypoint else [])]


def certificates() -> tuple[dict[str, str], list[str]]:
    """Return variables and volumes with this machine's certificates.

    A network may have a certificate of its own.
    """
    if not CERTIFICATES.exists():
        return {}, []
    return {"SSL_CERT_FILE": MOUNTED}, [f"{CERTIFICATES}:{MOUNTED}:ro"]


def podman(*arguments: str, errors: bool = False, timeout: float = 1800.0) -> str:
    """Run podman; return its output, with that of stderr where asked.

    Raises:
        AssertionError: it failed; the message has the end of both.
    """
    command = ["podman", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, f"podman {' '.join(arguments)[:300]}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout + done.stderr if errors else done.stdout


def until(what: str, reached: Callable[[], Any], seconds: float, state: Callable[[], object] = lambda: None) -> Any:
    """Wait for a state; a container that starts may not answer yet."""
    deadline = time.monotonic() + seconds
    while True:
        with suppress(AirflowApiError, AssertionError):
            if found := reached():
                return found
        assert time.monotonic() < deadline, f"not reached: {what}: {state()}"
        time.sleep(1)
