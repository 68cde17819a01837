"""SparkApplications of the double: their schema and their controller.

``SPEC`` has fields, types and words of ``spec`` that this package or its tests write, as Kubeflow's Spark operator has
them in its CustomResourceDefinition (``sparkoperator.k8s.io``, version ``v1beta2``); any other field is refused. Of the
controller: a driver's pod is made, whose process runs the command of the application's arguments, and the state follows
the pod's phase. What it does not: no ``spark-submit``, no executors, no restarts, no conf and no volumes.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from tests.operators.kubernetes.double.controller import going, phase
from tests.operators.kubernetes.double.jobset import check_object
from tests.operators.kubernetes.double.problems import invalid

if TYPE_CHECKING:
    from tests.operators.kubernetes.double.objects import Objects

DRIVER = "spark-kubernetes-driver"
TEXTS = {"*": str}
POD = {
    "cores": int,
    "coreLimit": str,
    "env": "list[V1EnvVar]",
    "envFrom": "list[V1EnvFromSource]",
    "labels": TEXTS,
    "memory": str,
    "memoryOverhead": str,
    "serviceAccount": str,
}
SPEC = {
    "arguments": [str],
    "driver!": POD,
    "executor!": POD | {"instances": int},
    "image": str,
    "imagePullPolicy": str,
    "labels": TEXTS,  # of the provider; the operator prunes it
    "mainApplicationFile": str,
    "mode": {"cluster", "client"},
    "pythonVersion": {"2", "3"},
    "restartPolicy": {"type": {"Never", "Always", "OnFailure"}},
    "sparkConf": TEXTS,
    "sparkVersion!": str,
    "type!": {"Java", "Python", "Scala", "R"},
}
STATES = {"Pending": "SUBMITTED", "Running": "RUNNING", "Succeeded": "COMPLETED", "Failed": "FAILED"}


def check_application(body: dict, check_type) -> None:
    """Refuse what the schema of SparkApplications would refuse."""
    if unknown := set(body) - {"apiVersion", "kind", "metadata", "spec", "status"}:
        raise invalid(400, "BadRequest", f'strict decoding error: unknown field "{min(unknown)}"')
    check_type(body["metadata"], "V1ObjectMeta", "SparkApplication.metadata")
    check_object(body.get("spec", {}), SPEC, "spec", check_type)


class SparkController:
    """Makes the driver of each SparkApplication, and the application's state."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def step(self) -> None:
        pods = self._objects.everything("pods")
        for application in self._objects.everything("sparkapplications"):
            uid = application["metadata"]["uid"]
            driver = next((pod for pod in pods if pod["metadata"]["ownerReferences"][0]["uid"] == uid), None)
            if driver is None:
                self._make_driver(application)
                continue
            state = {"state": STATES[phase(driver)]}
            if phase(driver) == "Failed" and not going(driver):
                ended = driver["status"]["containerStatuses"][0]["state"]["terminated"]
                reason = f"ExitCode: {ended['exitCode']}, Reason: {ended['reason']}"
                state["errorMessage"] = f"driver container failed with {reason}"
            if application.get("status") != {"applicationState": state}:
                application["status"] = {"applicationState": state}
                self._objects.touch("sparkapplications", application)

    def _make_driver(self, application: dict) -> None:
        about, spec = application["metadata"], application["spec"]
        owner = {"apiVersion": application["apiVersion"], "kind": "SparkApplication"}
        container = {"name": DRIVER, "image": spec["image"]} | {
            name: copy.deepcopy(spec["driver"][name]) for name in ("env", "envFrom") if name in spec["driver"]
        }
        container["command"] = ["python", "-m", "fake_pbg", *spec["arguments"]]
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{about['name']}-driver",
                "labels": {**spec["driver"].get("labels", {}), "spark-role": "driver"},
                "ownerReferences": [owner | {"name": about["name"], "uid": about["uid"]}],
            },
            "spec": {"containers": [container]},
            "status": {"phase": "Pending"},
            "double": {"index": 0},
        }
        self._objects.create("pods", about["namespace"], pod)
