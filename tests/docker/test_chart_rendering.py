"""The official Airflow chart, rendered by helm with docker/kubernetes/values.yaml.

``PBG_AIRFLOW_CHART`` names the folder of the chart (``helm pull --untar apache-airflow/airflow``), ``PBG_HELM`` helm
itself, unless it is in PATH.
"""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

VALUES = Path(__file__).resolve().parents[2] / "docker" / "kubernetes" / "values.yaml"
CHART = os.environ.get("PBG_AIRFLOW_CHART", "")
HELM = shutil.which(os.environ.get("PBG_HELM", "helm"))
pytestmark = [
    pytest.mark.skipif(not CHART, reason="PBG_AIRFLOW_CHART does not name the folder of Airflow's chart"),
    pytest.mark.skipif(HELM is None, reason="helm is not installed"),
]
AIRFLOW, WORKER = "registry.example/team-airflow:1", "registry.example/team-worker:1"


@pytest.fixture(scope="module")
def objects():
    """Render all objects; helm compares the values with the chart's schema."""
    command = [HELM, "template", "airflow", CHART, "--namespace", "airflow", "--values", str(VALUES)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    return [document for document in yaml.safe_load_all(made.stdout) if document]


@pytest.fixture(scope="module")
def config(objects):
    """Return the data of the chart's ConfigMap for Airflow."""
    (found,) = (each["data"] for each in objects if "airflow.cfg" in (each.get("data") or {}))
    return found


@pytest.fixture(scope="module")
def pod(config):
    """Return the template from which the executor makes the pods of tasks."""
    return yaml.safe_load(config["pod_template_file.yaml"])["spec"]


def services(objects):
    """Yield component and pod of each service and job."""
    for each in objects:
        if each["kind"] in {"Deployment", "StatefulSet", "Job"}:
            labels = each["spec"]["template"]["metadata"]["labels"]
            yield labels["component"], each["spec"]["template"]["spec"]


def sources(container):
    """Return the Secrets from which variables of a container come."""
    found = [
        each["valueFrom"]["secretKeyRef"] for each in container["env"] if "secretKeyRef" in each.get("valueFrom", {})
    ]
    return {each["name"] for each in found}


def test_task_pod_has_image_scratch_account_and_store(pod):
    (container,) = pod["containers"]
    assert (container["name"], container["image"]) == ("base", WORKER)
    assert "/scratch" in [mount["mountPath"] for mount in container["volumeMounts"]]
    assert {"name": "scratch", "emptyDir": {"sizeLimit": "100Gi"}} in pod["volumes"]
    assert container["resources"]["limits"] == {"memory": "8Gi"}
    assert pod["serviceAccountName"] == "airflow-worker"
    assert (pod["securityContext"]["runAsUser"], pod["securityContext"]["fsGroup"]) == (65532, 65532)
    store = {"name": "pbg-store", "key": "connection"}
    assert {"name": "AIRFLOW_CONN_PBG_S3", "valueFrom": {"secretKeyRef": store}} in container["env"]
    assert "command" not in container


def test_airflow_reads_configuration_of_values(config, pod):
    parsed = configparser.RawConfigParser()
    parsed.read_string(re.sub(r"(?m)^[ \t]+", "", config["airflow.cfg"]))
    assert parsed["core"]["executor"] == "KubernetesExecutor"
    assert parsed["core"]["dags_folder"] == "/opt/airflow/dags"
    assert parsed["core"]["auth_manager"].endswith("SimpleAuthManager")
    executor = parsed["kubernetes_executor"]
    assert f"{executor['worker_container_repository']}:{executor['worker_container_tag']}" == WORKER
    assert (parsed["logging"]["remote_logging"], parsed["logging"]["remote_log_conn_id"]) == ("True", "pbg_s3")
    homes = [each["value"] for each in pod["containers"][0]["env"] if each["name"] == "AIRFLOW_HOME"]
    assert homes == ["/opt/airflow"]  # where the configuration is mounted; the image has another


def test_services_take_airflow_image_and_secrets(objects):
    made = {each["metadata"]["name"] for each in objects if each["kind"] == "Secret"}
    own = set(re.findall(r"create secret generic ([\w-]+)", VALUES.read_text()))
    found = set()
    for component, spec in services(objects):
        for container in [*(spec.get("initContainers") or ()), *spec["containers"]]:
            assert container["image"] == AIRFLOW, component
            found |= sources(container)
            assert "/clean-logs" not in str(container)
            assert "/entrypoint" not in str(container)
    assert found <= own | made
    assert found >= own
    assert not {"create-user-job", "webserver", "statsd", "worker"} & {component for component, _ in services(objects)}


def test_triggerer_runs_by_account_of_role(objects):
    (spec,) = (spec for component, spec in services(objects) if component == "triggerer")
    assert spec["serviceAccountName"] == "airflow-triggerer"
    assert {"scheduler", "dag-processor", "api-server"} <= {component for component, _ in services(objects)}
