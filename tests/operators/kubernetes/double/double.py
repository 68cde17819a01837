"""``KubernetesDouble``: server, controller and node in one object.

A test starts it and interferes with it.
"""

from __future__ import annotations

import json
import secrets
import signal
import threading
import time
from typing import TYPE_CHECKING, Self

from tests.operators.kubernetes.double.controller import JobController, phase
from tests.operators.kubernetes.double.jobset import JobSetController
from tests.operators.kubernetes.double.node import Node, disrupt
from tests.operators.kubernetes.double.objects import Objects, public
from tests.operators.kubernetes.double.problems import RefusedError
from tests.operators.kubernetes.double.server import Handler, Server
from tests.operators.kubernetes.double.spark import SparkController

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

STEP_SECONDS = 0.01


class KubernetesDouble:
    """A cluster of one node; a context manager.

    Args:
        variables: of every pod's process, beneath those of the pod.
        rules: of a Role; None allows everything.
    """

    def __init__(self, variables: dict[str, str], rules: list[dict] | None = None) -> None:
        self.objects = Objects()
        self.controller = JobController(self.objects)
        self.jobsets = JobSetController(self.objects)
        self.applications = SparkController(self.objects)
        self.node = Node(self.objects, variables)
        self.token: str | None = secrets.token_hex(8)  # None: every client is let in
        self.rules = rules
        self.requests: list[tuple[str, str, dict]] = []
        self.stopping = False
        self.before: Callable[[str, str], None] = lambda _method, _path: None
        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.double = self
        self._threads = [
            threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True),
            threading.Thread(target=self._run, daemon=True),
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping = True
        self._server.shutdown()
        self._server.server_close()
        for thread in self._threads:
            thread.join()
        self.node.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def kubeconfig(self) -> dict:
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "double",
            "contexts": [{"name": "double", "context": {"cluster": "double", "user": "double"}}],
            "clusters": [{"name": "double", "cluster": {"server": self.url}}],
            "users": [{"name": "double", "user": {"token": self.token}}],
        }

    def airflow_connection(self) -> str:
        """Return the connection as Airflow reads it from a variable."""
        return json.dumps({"conn_type": "kubernetes", "extra": {"kube_config": self.kubeconfig()}})

    def write_kubeconfig(self, path: Path) -> Path:
        path.write_text(json.dumps(self.kubeconfig()))
        return path

    def allowed(self, group: str, resource: str, verb: str) -> bool:
        return self.rules is None or any(
            group in rule["apiGroups"] and resource in rule["resources"] and verb in rule["verbs"]
            for rule in self.rules
        )

    def jobs(self) -> list[dict]:
        return [public(job) for job in self.objects.everything("jobs")]

    def sets(self) -> list[dict]:
        return [public(jobset) for jobset in self.objects.everything("jobsets")]

    def pods(self) -> list[dict]:
        return [public(pod) for pod in self.objects.everything("pods")]

    def wait(self, condition: Callable[[], object], seconds: float = 30.0):
        """Return the result of ``condition`` as soon as it is true."""
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            assert time.monotonic() < deadline, (self.jobs(), self.pods())
            time.sleep(0.01)
        return found

    def running(self, index: int) -> dict:
        """Wait for the pod of an index to run.

        Returns the object itself.
        """
        return self.wait(lambda: next(iter(self._running(index)), None))

    def _running(self, index: int) -> list[dict]:
        with self.objects.changed:
            found = self.objects.everything("pods")
            return [pod for pod in found if pod["double"]["index"] == index and phase(pod) == "Running"]

    def printed(self, index: int, text: str) -> None:
        """Wait until the pod of an index has printed a text."""
        name = self.running(index)["metadata"]["name"]
        self.wait(lambda: any(text in line for line in list(self.node.logs[name])))

    def starve(self, index: int) -> None:
        """Let the pod of an index run out of memory."""
        self.node.kill(self.running(index), signal.SIGKILL, "OOMKilled")

    def kill(self, index: int, number: signal.Signals) -> None:
        self.node.kill(self.running(index), number)

    def disrupt(self, index: int, reason: str, message: str = "") -> None:
        """Delete a pod as a scheduler, a drain or a taint does.

        The pod is that of an index.
        """
        pod = self.running(index)
        with self.objects.changed:
            disrupt(pod, reason, message)
            self.controller.delete(pod)

    def squeeze(self, index: int, message: str) -> None:
        """Evict a pod as a node does under pressure.

        The pod is that of an index.
        """
        pod = self.running(index)
        with self.objects.changed:
            pod["status"] |= {"reason": "Evicted", "message": message}
            disrupt(pod, "TerminationByKubelet", message)
            self.node.kill(pod, signal.SIGKILL)

    def lose_node(self, index: int) -> None:
        """Let the node of a pod vanish.

        Its process ends, and the pod is removed without a status.
        """
        pod = self.running(index)
        with self.objects.changed:
            self.node.kill(pod, signal.SIGKILL)
            disrupt(pod, "DeletionByPodGC", "PodGC: node no longer exists")
            pod["double"]["grace"] = 0
            self.controller.delete(pod)

    def suspend(self, name: str, plural: str = "jobs") -> None:
        """Suspend a Job or JobSet as Kueue does when it preempts one."""
        self.objects.patch(plural, "default", name, {"spec": {"suspend": True}})

    def resume(self, name: str, plural: str = "jobs") -> None:
        self.objects.patch(plural, "default", name, {"spec": {"suspend": False}})

    def outage(self, code: int, times: int, matching: str = "") -> None:
        """Answer the next requests for a path with an error."""
        left = [times]

        def refuse(_method: str, path: str) -> None:
            if matching in path and left[0]:
                left[0] -= 1
                raise RefusedError(code, "ServiceUnavailable", "the server is currently unable to handle the request")

        self.before = refuse

    def _run(self) -> None:
        while not self.stopping:
            with self.objects.changed:
                self.jobsets.step()
                self.applications.step()
                self.controller.step()
                self.node.step()
                self.objects.changed.wait(STEP_SECONDS)
