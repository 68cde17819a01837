"""The node: each pod's command as a process of this machine.

It has the pod's environment and its log.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from tests.operators.kubernetes.double.controller import FINISHED, add, going, phase
from tests.operators.kubernetes.double.objects import Objects, now
from tests.operators.kubernetes.double.problems import RefusedError

LAST_BYTES = 2048
NOTE = "/dev/termination-log"


@dataclass
class Container:
    """A pod's process and its output, a time before each line."""

    process: subprocess.Popen
    scratch: Path
    lines: list[str] = field(default_factory=list)
    reason: str | None = None
    note: str = ""
    kill_at: float | None = None
    reader: threading.Thread | None = None

    def read(self) -> None:
        with self.process.stdout as stream:
            for line in stream:
                moment = time.time_ns()
                stamp = datetime.fromtimestamp(moment // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%S")
                self.lines.append(f"{stamp}.{moment % 10**9:09d}Z {line.rstrip()}\n")

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


class Node:
    """Starts, watches and ends the processes of all pods.

    Attributes:
        variables: of every process, beneath those of its pod.
        places: number of pods that have room.
        delays: seconds before the pod of an index starts.
        images: those that cannot be pulled.
    """

    def __init__(self, objects: Objects, variables: dict[str, str]) -> None:
        self.variables = variables
        self.places = 1000
        self.delays: dict[int, float] = {}
        self.unpullable: set[str] = set()
        self.logs: dict[str, list[str]] = {}
        self._objects = objects
        self._running: dict[str, Container] = {}

    def step(self) -> None:
        made_by = [*self._objects.everything("jobs"), *self._objects.everything("sparkapplications")]
        owners = {each["metadata"]["uid"] for each in made_by}
        for pod in self._objects.everything("pods"):
            container = self._running.get(pod["metadata"]["uid"])
            if container is not None:
                self._watch(pod, container)
            elif phase(pod) == "Pending":
                self._end(pod, 0, None) if going(pod) else self._start(pod)
            elif phase(pod) == "Running" and going(pod):  # its other containers end by their signal
                pod["status"]["phase"] = pod["double"]["left"]
                self._objects.touch("pods", pod)
            if pod["metadata"]["ownerReferences"][0]["uid"] not in owners:
                self._orphan(pod)

    def stop(self) -> None:
        for container in self._running.values():
            container.signal(signal.SIGKILL)
            container.process.wait()
            shutil.rmtree(container.scratch, ignore_errors=True)

    def kill(self, pod: dict, number: signal.Signals, reason: str | None = None) -> None:
        """Send a signal to a pod's processes.

        ``reason`` is the name of their end.
        """
        container = self._running[pod["metadata"]["uid"]]
        container.reason = reason
        container.signal(number)

    def _start(self, pod: dict) -> None:
        uid, spec, index = pod["metadata"]["uid"], _own(pod), pod["double"]["index"]
        born = pod["double"].setdefault("born", time.monotonic())
        if time.monotonic() - born < self.delays.get(index, 0.0):
            return
        if len(self._running) >= self.places:
            self._refuse(pod, None, "Unschedulable", "0/1 nodes are available: 1 Insufficient cpu.")
            return
        if spec["image"] in self.unpullable:
            self._refuse(pod, spec["name"], "ImagePullBackOff", f'Back-off pulling image "{spec["image"]}"')
            return
        try:
            environment = self._environment(pod, spec)
        except RefusedError as problem:
            self._refuse(pod, spec["name"], "CreateContainerConfigError", str(problem))
            return
        scratch = Path(tempfile.mkdtemp(prefix="pod-"))
        for mount in spec.get("volumeMounts", []):
            at = re.compile(f"^{re.escape(mount['mountPath'])}(?=/|$)")
            environment = {name: at.sub(str(scratch), value) for name, value in environment.items()}
        noted = str(scratch / Path(NOTE).name)
        environment = {name: noted if value == NOTE else value for name, value in environment.items()}
        process = subprocess.Popen(
            [sys.executable if word == "python" else word for word in spec["command"]] + spec.get("args", []),
            env={**self.variables, **environment},
            cwd=scratch,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._running[uid] = container = Container(process, scratch)
        self.logs[pod["metadata"]["name"]] = container.lines
        container.reader = threading.Thread(target=container.read, daemon=True)
        container.reader.start()
        state = {"running": {"startedAt": now()}}
        pod["status"] = {"phase": "Running", "startTime": now(), "containerStatuses": [_status(spec, state)]}
        self._objects.touch("pods", pod)

    def _refuse(self, pod: dict, container: str | None, reason: str, message: str) -> None:
        if container is None:
            unscheduled = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
            status = {"phase": "Pending", "conditions": [unscheduled]}
        else:
            waiting = {"waiting": {"reason": reason, "message": message}}
            status = {"phase": "Pending", "containerStatuses": [_status(_own(pod), waiting)]}
        if pod["status"] != status:
            pod["status"] = status
            self._objects.touch("pods", pod)

    def _environment(self, pod: dict, spec: dict) -> dict[str, str]:
        namespace = pod["metadata"]["namespace"]
        environment: dict[str, str] = {}
        for source in spec.get("envFrom", []):
            secret = self._objects.get("secrets", namespace, source["secretRef"]["name"])
            environment |= {name: base64.b64decode(value).decode() for name, value in secret.get("data", {}).items()}
        for variable in spec.get("env", []):
            environment[variable["name"]] = self._resolved(variable["value"], namespace)
        return environment

    def _resolved(self, value: str, namespace: str) -> str:
        """Stand in for DNS.

        The host name of a pod behind a headless Service becomes this machine.
        """
        host = re.fullmatch(r"([a-z0-9-]+)-\d+\.([a-z0-9-]+)", value)
        if host is None:
            return value
        service = self._objects.get("services", namespace, host[2])
        return "127.0.0.1" if service["spec"].get("clusterIP") == "None" else value

    def _watch(self, pod: dict, container: Container) -> None:
        status = container.process.poll()
        if status is not None:
            container.signal(signal.SIGKILL)  # processes left by the command end with its container
            container.reader.join(timeout=5)
            self._running.pop(pod["metadata"]["uid"])
            with contextlib.suppress(FileNotFoundError):
                container.note = (container.scratch / Path(NOTE).name).read_text()
            shutil.rmtree(container.scratch, ignore_errors=True)
            self._end(pod, status if status >= 0 else 128 - status, container)
        elif going(pod) and container.kill_at is None:
            grace = pod["double"].get("grace", pod["spec"].get("terminationGracePeriodSeconds", 30))
            container.kill_at = time.monotonic() + grace
            container.signal(signal.SIGTERM if grace else signal.SIGKILL)
        elif container.kill_at is not None and time.monotonic() >= container.kill_at:
            container.signal(signal.SIGKILL)

    def _end(self, pod: dict, status: int, container: Container | None) -> None:
        reason = (container.reason if container else None) or ("Completed" if status == 0 else "Error")
        ended = {"exitCode": status, "reason": reason, "finishedAt": now()}
        if container is not None and container.note:
            ended["message"] = container.note
        elif container is not None and status != 0 and "terminationMessagePolicy" in _own(pod):
            ended["message"] = "".join(line.partition(" ")[2] for line in container.lines)[-LAST_BYTES:]
        phase_ = "Failed" if status or (container is None) else "Succeeded"
        others = [each for each in pod["spec"]["containers"] if each is not _own(pod)]
        pod["double"]["left"] = phase_
        stays = bool(others) and container is not None and not going(pod)
        pod["status"]["phase"] = "Running" if stays else phase_
        state = {"running": {"startedAt": now()}} if stays else {"terminated": ended | {"exitCode": 0}}
        statuses = [*(_status(each, state) for each in others), _status(_own(pod), {"terminated": ended})]
        pod["status"]["containerStatuses"] = statuses
        self._objects.touch("pods", pod)

    def _orphan(self, pod: dict) -> None:
        """End and remove a pod whose Job is gone."""
        if phase(pod) in FINISHED:
            self._objects.remove("pods", pod["metadata"]["namespace"], pod["metadata"]["name"])
        elif not going(pod):
            pod["metadata"]["deletionTimestamp"] = now()
            self._objects.touch("pods", pod)


def disrupt(pod: dict, reason: str, message: str) -> None:
    """Mark a pod as ended from outside."""
    add(pod, "DisruptionTarget", reason, message)


def _own(pod: dict) -> dict:
    """Return the container that runs the command; others are run by nothing."""
    containers = pod["spec"]["containers"]
    return next((each for each in containers if each["name"] == "train"), containers[0])


def _status(spec: dict, state: dict) -> dict:
    return {
        "name": spec["name"],
        "state": state,
        "image": spec["image"],
        "imageID": "",
        "ready": "running" in state,
        "restartCount": 0,
    }
