"""Calls to the Kubernetes API that a training needs.

Errors are classified by what a caller can do about them.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from pbg_operators.kubernetes.manifest import API_VERSIONS, JOB_UID, Manifest
from pbg_tasks.config.pods import CONTAINER
from pbg_tasks.errors import AccessError, ConfigError, ConflictError, NotFoundError, PbgError, ResourceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook
    from kubernetes.client import ApiClient, ApiException

_NOT_FOUND = "Airflow did not find it, as while its server or database fails"
SECONDS = 30.0
"""Time limit of one call."""
MERGE = "application/merge-patch+json"
CORE, BATCH, NETWORKING = "/api/v1", "/apis/batch/v1", "/apis/networking.k8s.io/v1"
PLACES = {
    "Job": (BATCH, "jobs"),
    "JobSet": (f"/apis/{API_VERSIONS['JobSet']}", "jobsets"),
    "Pod": (CORE, "pods"),
    "Service": (CORE, "services"),
    "Secret": (CORE, "secrets"),
    "NetworkPolicy": (NETWORKING, "networkpolicies"),
}
"""Places of objects: path of the API group, plural."""


class DoubtfulError(AccessError):
    """Refusal by a cluster that may be another than is meant."""

    retryable = True


class Cluster:
    """One namespace of a cluster.

    Every method raises

    * ``AccessError``: the API refused the credentials or the permission;
    * ``ConfigError``: it refused the request;
    * ``ResourceError``: it could not be reached, is busy, or a quota is used up: a later call may succeed;
    * ``ConflictError`` and ``NotFoundError`` where the method lists them.

    Args:
        client: of the ``kubernetes`` package.
        namespace: of all objects.
        doubt: why this may be another cluster than the one that is meant; then each ``AccessError`` is a
            ``DoubtfulError``.

    Attributes:
        now: the cluster's time, as of its last answer; this machine's clock may be wrong.
    """

    def __init__(self, client: ApiClient, namespace: str, doubt: str = "") -> None:
        self._client, self._doubt = client, doubt
        self.namespace = namespace
        self.now = datetime.now(UTC)

    @classmethod
    def connected(cls, conn_id: str, namespace: str) -> Cluster:
        """Return the cluster of an Airflow connection.

        Without the default connection, it is the cluster that this process runs in, or kubectl's.

        Raises:
            ConfigError: the package is missing, or the connection leads to no cluster.
            ResourceError: there may be a connection, yet Airflow found none.
        """
        from airflow.sdk.exceptions import AirflowNotFoundException

        try:
            from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook
            from kubernetes.config import ConfigException
        except ImportError as error:
            raise ConfigError(f"launcher kubernetes needs pip install 'pbg-tasks[kubernetes]': {error}") from None
        hook = KubernetesHook(conn_id=conn_id)
        try:
            return cls(hook.get_conn(), namespace, doubt_of(hook))
        except AirflowNotFoundException:
            raise ResourceError(f"connection {conn_id!r} does not exist, or {_NOT_FOUND}") from None
        except ConfigException as error:
            category = ResourceError if (why := doubt_of(hook)) else ConfigError
            raise category(f"{why or f'connection {conn_id!r} leads to no cluster'}: {error}") from None

    def again(self) -> Cluster:
        """Return the same cluster with connections of its own.

        A signal handler uses them, whatever call it interrupted.
        """
        return Cluster(type(self._client)(self._client.configuration), self.namespace, self._doubt)

    def create(self, manifest: Manifest) -> Manifest:
        """Create an object and return it as stored.

        The API refuses unknown fields, which it would drop otherwise.

        Raises:
            ConflictError: an object of that name exists.
        """
        return self._json("POST", self._place(manifest["kind"]), query={"fieldValidation": "Strict"}, body=manifest)

    def read(self, kind: str, name: str) -> Manifest:
        """Return an object.

        Raises:
            NotFoundError: there is none.
        """
        return self._json("GET", f"{self._place(kind)}/{name}")

    def change_job(self, name: str, uid: str, change: Manifest, kind: str = "Job") -> Manifest:
        """Merge a change into a Job or JobSet by name and uid.

        Raises:
            ConflictError: the one of that name has another uid.
            NotFoundError: there is none.
        """
        fenced = {**change, "metadata": {**change.get("metadata", {}), "uid": uid}}
        return self._json("PATCH", f"{self._place(kind)}/{name}", body=fenced)

    def delete_job(self, name: str, uid: str, kind: str = "Job") -> None:
        """Delete a Job or JobSet by name and uid, with its pods.

        One that is missing or has another uid is left as it is.
        """
        body = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        try:
            self._json("DELETE", f"{self._place(kind)}/{name}", body=body)
        except (NotFoundError, ConflictError):
            return

    def pods(self, uid: str) -> list[Manifest]:
        """Return the known pods of a Job by uid, also ended ones."""
        return self.labelled({JOB_UID: uid})

    def labelled(self, labels: Mapping[str, str]) -> list[Manifest]:
        """Return the known pods that have all labels, also ended ones."""
        selector = ",".join(f"{name}={value}" for name, value in labels.items())
        found: list[Manifest] = self._json("GET", self._place("Pod"), query={"labelSelector": selector})["items"]
        return found

    def log(self, pod: str, since: str | None) -> Iterator[str]:
        """Yield the lines of a pod's log from a time on.

        They begin with the second of ``since``. Each has its time and a blank in front. A pod that has not started or
        is gone has no lines.
        """
        query = {"container": CONTAINER, "timestamps": "true"} | ({"sinceTime": since} if since else {})
        path = f"{self._place('Pod')}/{pod}/log"
        try:
            with _explained("GET", path, self._doubt):
                # The client's own method for logs lacks sinceTime.
                response = self._call("GET", path, query=query)
                rest = b""
                for chunk in response.stream(1 << 16):
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        yield line.decode(errors="replace")
                if rest:
                    yield rest.decode(errors="replace")
        except (ConfigError, NotFoundError):  # status 400: its container is waiting to start
            return

    def _place(self, kind: str) -> str:
        group, plural = PLACES[kind]
        return f"{group}/namespaces/{self.namespace}/{plural}"

    def _json(
        self, method: str, path: str, *, query: dict[str, str] | None = None, body: Manifest | None = None
    ) -> Manifest:
        with _explained(method, path, self._doubt):
            answer = self._call(method, path, query=query, body=body)
            date = answer.headers.get("Date")
            self.now = parsedate_to_datetime(date) if date else datetime.now(UTC)
            result: Manifest = json.loads(answer.data)
            return result

    def _call(
        self, method: str, path: str, *, query: dict[str, str] | None = None, body: Manifest | None = None
    ) -> Any:  # noqa: ANN401 - urllib3's response
        content = MERGE if method == "PATCH" else "application/json"
        return self._client.call_api(
            path,
            method,
            query_params=list((query or {}).items()),
            header_params={"Accept": "application/json", "Content-Type": content},
            body=body,
            auth_settings=["BearerToken"],
            _preload_content=False,
            _return_http_data_only=True,
            _request_timeout=SECONDS,
        )


@contextmanager
def _explained(method: str, path: str, doubt: str) -> Iterator[None]:
    """Turn errors of the client into errors of this package."""
    from kubernetes.client import ApiException
    from urllib3.exceptions import HTTPError

    try:
        yield
    except ApiException as error:
        raise refusal(error, f"Kubernetes API, {method} {path}", doubt) from None
    except (HTTPError, OSError, ValueError) as error:
        raise ResourceError(f"Kubernetes API, {method} {path}: no answer: {error}") from None


def doubt_of(hook: KubernetesHook) -> str:
    """Return why a hook may lead to another cluster than is meant.

    The provider takes that of its surroundings where Airflow finds no default connection, or one without settings. With
    settings, there is no doubt.
    """
    return "" if hook.conn_extras else f"connection {hook.conn_id!r} names no cluster, or {_NOT_FOUND}"


def refusal(error: ApiException, call: str, doubt: str) -> PbgError:
    """Return the meaning of an answer that refuses a call.

    Args:
        error: the answer.
        call: which it refuses.
        doubt: why another cluster may be meant; then the refusal may pass.
    """
    try:
        detail = str(json.loads(error.body)["message"])
    except (TypeError, ValueError, KeyError):
        detail = str(error.reason or error.status)
    message = f"{call}: {detail} ({error.status})"
    match error.status:
        case 403 if "exceeded quota" in detail:
            return ResourceError(message)
        case 401 | 403:
            message = f"{message}; docs/kubernetes.md lists what the operator must be allowed to do"
            return DoubtfulError(f"{message}; {doubt}") if doubt else AccessError(message)
        case 404:
            return NotFoundError(message)
        case 409:
            return ConflictError(message)
        case 400 | 405 | 406 | 413 | 415 | 422:
            return ConfigError(message)
        case _:
            return ResourceError(message)
