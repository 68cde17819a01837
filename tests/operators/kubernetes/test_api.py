"""Answers of the API, as errors with a remedy."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from pbg_operators.kubernetes import manifest
from pbg_operators.kubernetes.api import Cluster, DoubtfulError
from pbg_operators.kubernetes.submission import submit
from pbg_operators.kubernetes.trigger import error_of, event_of
from pbg_tasks.errors import AccessError, ConfigError, ConflictError, NotFoundError, ResourceError
from tests.operators.kubernetes.double.problems import RefusedError, conflict
from tests.operators.kubernetes.double.server import Handler
from tests.operators.kubernetes.gangs import UID, gang


@pytest.mark.parametrize(
    ("code", "message", "expected"),
    [
        (401, "Unauthorized", AccessError),
        (403, 'jobs.batch is forbidden: User "x" cannot get resource "jobs"', AccessError),
        (403, 'secrets "x" is forbidden: exceeded quota: small, requested: count/secrets=1', ResourceError),
        (422, 'Job.batch "x" is invalid: spec.completions: Required value', ConfigError),
        (429, "too many requests", ResourceError),
        (500, "etcdserver: leader changed", ResourceError),
        (504, "timeout", ResourceError),
    ],
)
def test_refusal_becomes_error_with_remedy(double, cluster, code, message, expected):
    def refuse(*_):
        raise RefusedError(code, "Reason", message)

    double.before = refuse
    with pytest.raises(expected) as caught:
        cluster.read("Job", "x")
    assert type(caught.value) is expected
    assert f"Kubernetes API, GET /apis/batch/v1/namespaces/default/jobs/x: {message} ({code})" in str(caught.value)


@pytest.mark.usefixtures("surroundings")
def test_refusal_of_unnamed_cluster_may_pass(double):
    cluster = Cluster.connected("kubernetes_default", "default")
    with pytest.raises(NotFoundError):
        cluster.read("Job", "x")
    double.rules = []
    for each in (cluster, cluster.again()):
        with pytest.raises(AccessError, match="'kubernetes_default' names no cluster, or Airflow did not") as refused:
            each.read("Job", "x")
        assert error_of(event_of(refused.value)).retryable
        with pytest.raises(DoubtfulError):
            list(each.log("x-0", None))


def test_connection_that_is_not_found_may_come(surroundings):
    with pytest.raises(ResourceError, match="connection 'nowhere' does not exist, or Airflow did not find it"):
        Cluster.connected("nowhere", "default")
    surroundings.unlink()
    with pytest.raises(ResourceError, match="connection 'kubernetes_default' names no cluster, or Airflow did not"):
        Cluster.connected("kubernetes_default", "default")


def test_time_is_that_of_the_cluster(cluster, monkeypatch):
    """A worker's clock may be an hour ahead.

    By it, gangs that have just begun to start would be ended.
    """
    monkeypatch.setattr(Handler, "date_time_string", lambda _: "Thu, 20 Nov 2025 06:00:00 GMT")
    with pytest.raises(NotFoundError):
        cluster.read("Job", "x")
    cluster.pods(UID)
    assert cluster.now == datetime(2025, 11, 20, 6, tzinfo=UTC)


def test_missing_api_may_come_back(double, cluster):
    double.__exit__()
    with pytest.raises(ResourceError, match=r"Kubernetes API, GET .*: no answer"):
        cluster.again().read("Job", "x")


def test_job_is_changed_and_deleted_by_uid(double, cluster):
    uid = cluster.create(manifest.job(gang(), 1))["metadata"]["uid"]
    name = manifest.job_name(gang(), 1)
    with pytest.raises(ConflictError):
        cluster.create(manifest.job(gang(), 1))
    with pytest.raises(ConflictError, match="Precondition failed"):
        cluster.change_job(name, UID, manifest.resumed())
    cluster.delete_job(name, UID)
    assert cluster.read("Job", name)["spec"]["suspend"] is True
    cluster.delete_job(name, uid)
    cluster.delete_job(name, uid)
    with pytest.raises(NotFoundError):
        cluster.read("Job", name)


def test_pod_that_never_started_has_no_log(double, cluster):
    double.node.delays = {0: 60}
    uid = cluster.create(manifest.job(gang(ranks=1), 1))["metadata"]["uid"]
    cluster.change_job(manifest.job_name(gang(ranks=1), 1), uid, manifest.resumed())
    double.wait(double.pods)
    (pod,) = cluster.pods(uid)
    assert list(cluster.log(pod["metadata"]["name"], None)) == []
    assert list(cluster.log("nobody", None)) == []


def test_job_deleted_while_begun_is_retried(double, cluster):
    def delete(method, _path):
        if method == "PATCH":
            double.objects.remove("jobs", "default", manifest.job_name(gang(), 1))

    double.before = delete
    with pytest.raises(ResourceError, match="or an object of it, is gone"):
        submit(cluster, gang(), None, {}, lambda _: None)


def test_quota_changed_by_others_is_retried(double, cluster):
    """The API then answers with a conflict, though nothing has the name."""

    def refuse(method, path):
        if method == "POST" and path.endswith("/secrets"):
            raise conflict('Operation cannot be fulfilled on resourcequotas "q": the object has been modified')

    double.before = refuse
    with pytest.raises(ResourceError):
        submit(cluster, gang(), None, {}, lambda _: None)
