"""``Application``: a command as a SparkApplication, by Airflow's SparkKubernetesOperator."""

from __future__ import annotations

import contextlib
import copy
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowException

from pbg_operators.internals import as_part_of_task
from pbg_operators.kubernetes.api import doubt_of, refusal
from pbg_operators.kubernetes.manifest import TASK
from pbg_operators.kubernetes.verdict import failure_of_commands
from pbg_operators.spark.ending import error_of
from pbg_operators.spark.providers import check_provider
from pbg_tasks.config.pods import CONTAINER
from pbg_tasks.errors import ERROR_FILE, ResourceError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context

    from pbg_operators.kubernetes.manifest import Manifest
    from pbg_tasks.config import SparkKubernetes
    from pbg_tasks.errors import PbgError

API_VERSION = "sparkoperator.k8s.io/v1beta2"
DRIVER = "spark-kubernetes-driver"
"""Name of the driver's container."""
NOTE = "/dev/termination-log"
"""File of a container that Kubernetes shows in its status."""


def manifest(launch: SparkKubernetes, call: Sequence[str], variables: Mapping[str, str]) -> Manifest:
    """Return the SparkApplication of a command.

    Args:
        launch: of the spec.
        call: command and arguments of ``pbg``.
        variables: of driver and executors, nothing secret.
    """
    spec: Manifest = copy.deepcopy(launch.template.get("spec", {}))
    own = {"driver": {**variables, ERROR_FILE: NOTE, "PYTHONSAFEPATH": "1"}, "executor": variables}
    for part, values in own.items():
        pod = spec.setdefault(part, {})
        pod["env"] = [*pod.get("env", []), *({"name": name, "value": value} for name, value in values.items())]
        if launch.secret is not None:
            pod["envFrom"] = [*pod.get("envFrom", []), {"secretRef": {"name": launch.secret}}]
    return {
        "apiVersion": API_VERSION,
        "kind": "SparkApplication",
        "metadata": copy.deepcopy(launch.template.get("metadata", {})),
        "spec": {
            "sparkVersion": "4.0.0",
            **spec,
            "type": "Python",
            "pythonVersion": "3",
            "mode": "cluster",
            "image": launch.image,
            "mainApplicationFile": launch.application,
            "arguments": [*call, "--json"],
            "restartPolicy": {"type": "Never"},  # Airflow tries again what another try may help
            "sparkConf": launch.settings,
        },
    }


class Application:
    """SparkApplication of one command, for which the worker waits.

    Args:
        launch: of the spec.
        task_id: of the task.
        call: command and arguments of ``pbg``.
    """

    def __init__(self, launch: SparkKubernetes, task_id: str, call: Sequence[str]) -> None:
        self._launch, self._call = launch, call
        self._task_id = task_id
        self._operator: Any = None

    def run(self, context: Context, variables: Mapping[str, str]) -> PbgError | None:
        """Make the SparkApplication, and wait; return why it failed.

        A later try of a task whose worker was lost goes on with the driver that it finds.

        Args:
            context: of the task.
            variables: of driver and executors, nothing secret.

        Raises:
            ConfigError: the provider is missing.
        """
        check_provider("spark_kubernetes")
        from airflow.providers.cncf.kubernetes.operators.spark_kubernetes import SparkKubernetesOperator
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        launch = self._launch
        self._operator = SparkKubernetesOperator(
            task_id=self._task_id,
            name=f"pbg-{self._call[0]}",
            namespace=launch.namespace,
            template_spec=manifest(launch, self._call, variables),
            kubernetes_conn_id=launch.connection,
            startup_timeout_seconds=launch.startup_seconds,
            deferrable=False,
        )
        try:
            as_part_of_task(self._operator, context)
        except ApiException as error:  # the next try finds the driver again
            return self._cause(error)
        except (AirflowException, ValueError) as error:
            cause = self._cause(error)
            with contextlib.suppress(ApiException, HTTPError):  # no driver may begin after its task has failed
                self.kill()
            return cause
        except HTTPError as error:
            return ResourceError(f"pbg {self._call[0]}: Kubernetes API: no answer: {error}")
        return None

    def kill(self) -> None:
        """Delete the SparkApplication."""
        if self._operator is not None:
            self._operator.on_kill()

    def _cause(self, error: Exception) -> PbgError:
        """Return the reason of a failure, from the driver's pod if possible."""
        from kubernetes.client import ApiException

        what, pod = f"pbg {self._call[0]}", self._driver()
        if "took too long to start" in str(error):
            return ResourceError(f"{what}: the driver got no node in {self._launch.startup_seconds} s: {error}")
        if isinstance(error, ApiException):
            reported = refusal(error, f"{what}: Kubernetes API", doubt_of(self._operator.hook))
        else:
            reported = error_of(what, "", str(error))
        if pod is None:
            return reported
        state = pod["status"]["containerStatuses"][0].get("state", {}).get("terminated") or {}
        if state.get("reason") == "OOMKilled":
            return ResourceError(
                f"{what}: the driver ran out of memory; raise spec.driver.memory or memoryOverhead in "
                "launch.spark_kubernetes.template"
            )
        return failure_of_commands(f"SparkApplication {self._operator.name}", [pod]) or reported

    def _driver(self) -> Manifest | None:
        """Return the driver's pod in the form of this package's pods."""
        from kubernetes.client import ApiClient, ApiException
        from urllib3.exceptions import HTTPError

        operator, pod = self._operator, self._operator.remote_pod
        launcher = vars(operator).get("launcher")
        if pod is None and launcher is not None and launcher.pod_spec is not None:  # it ended before it was seen to run
            with contextlib.suppress(ApiException, HTTPError):
                name = launcher.pod_spec.metadata.name
                pod = operator.client.read_namespaced_pod(name, operator.namespace)
        found: Manifest = ApiClient().sanitize_for_serialization(pod) or {}
        statuses = found.get("status", {}).get("containerStatuses") or []
        own = [status | {"name": CONTAINER} for status in statuses if status["name"] == DRIVER]
        if not own:
            return None
        metadata = found["metadata"] | {"labels": {TASK: self._call[0]}}
        return found | {"metadata": metadata, "status": found["status"] | {"containerStatuses": own}}
