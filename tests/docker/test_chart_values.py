"""docker/kubernetes/values.yaml against the keys of the official Airflow chart.

helm and the chart are not there where tests run; where they are, ``test_chart_rendering`` renders all objects. Here the
pod of a task is, by Airflow's own code, from a double of the chart's template. ``CHART`` has the keys and types of
those parts of the chart's values that the file uses, as ``chart/values.yaml`` and ``chart/values.schema.json`` of
apache/airflow have them in chart 1.19. Its releases since 1.19.0 look at ``createUserJob`` to create a user.
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import time
from pathlib import Path

import pytest
import yaml
from sqlalchemy.engine import make_url

from pbg_tasks.config import GraphSpec
from tests.airflow_home import use_private_airflow
from tests.operators.specs import small_spec

use_private_airflow()

DOCKER = Path(__file__).resolve().parents[2] / "docker"
KUBERNETES = DOCKER / "kubernetes"
IMAGE = {"repository": str, "tag": str, "digest": str, "pullPolicy": str}
ACCOUNT = {"automountServiceAccountToken": bool, "create": bool, "name": str, "annotations": dict}
PROBE, GROOMER = {"command": list}, {"enabled": bool, "args": list}
SERVICE = {
    "enabled": bool,
    "replicas": int,
    "serviceAccount": ACCOUNT,
    "livenessProbe": PROBE,
    "logGroomerSidecar": GROOMER,
}
CHART = {
    "airflowVersion": str,
    "airflowHome": str,
    "executor": str,
    "uid": int,
    "gid": int,
    "images": {"airflow": IMAGE, "pod_template": {"repository": str, "tag": str, "pullPolicy": str}},
    "workers": {"serviceAccount": ACCOUNT, "resources": dict, "extraVolumes": list, "extraVolumeMounts": list},
    "scheduler": {"livenessProbe": PROBE, "startupProbe": PROBE, "logGroomerSidecar": GROOMER},
    "triggerer": SERVICE,
    "dagProcessor": SERVICE,
    "statsd": {"enabled": bool},
    "secret": [{"envName": str, "secretName": str, "secretKey": str}],
    "fernetKeySecretName": str,
    "apiSecretKeySecretName": str,
    "jwtSecretName": str,
    "data": {"metadataSecretName": str},
    "postgresql": {"enabled": bool},
    "redis": {"enabled": bool},
    "createUserJob": {"enabled": bool},
    "config": dict,
}


@pytest.fixture(scope="module")
def values():
    return yaml.safe_load((KUBERNETES / "values.yaml").read_text())


def misfits(value, expected, where=""):
    """Yield the places where a value is not of the chart's form."""
    if isinstance(expected, dict):
        for key, item in value.items():
            place = f"{where}.{key}".strip(".")
            if key not in expected:
                yield f"{place}: unknown"
            else:
                yield from misfits(item, expected[key], place)
    elif isinstance(expected, list):
        for item in value:
            yield from misfits(item, expected[0], where)
    elif type(value) is not expected:
        yield f"{where}: no {expected.__name__}"


def test_every_key_is_one_of_the_chart(values):
    assert list(misfits(values, CHART)) == []


@pytest.mark.parametrize(
    ("mistake", "found"),
    [
        ({"worker": {}}, "worker: unknown"),
        ({"images": {"airflow": {"name": "a"}}}, "images.airflow.name: unknown"),
        ({"airflowVersion": 3.3}, "airflowVersion: no str"),
        ({"secret": [{"name": "s"}]}, "secret.name: unknown"),
    ],
)
def test_a_mistake_in_keys_would_be_found(mistake, found):
    assert list(misfits(mistake, CHART)) == [found]


def test_settings_are_those_of_airflow(values):
    from airflow.configuration import conf
    from airflow.providers.cncf.kubernetes.get_provider_info import get_provider_info

    known = conf.configuration_description | get_provider_info()["config"]
    for section, options in values["config"].items():
        assert set(options) <= set(known[section]["options"])
    module, _, name = values["config"]["core"]["auth_manager"].rpartition(".")
    assert hasattr(importlib.import_module(module), name)


def test_templates_name_values_of_the_file(values):
    paths = re.findall(r"\.Values\.([\w.]+)", yaml.safe_dump(values["config"]))
    assert len(paths) == 2
    for path in paths:
        found = values
        for key in path.split("."):
            found = found[key]
        assert isinstance(found, str)


def chart_pod(values):
    """Return a pod as the chart's template makes it.

    A double of that template, with the parts that come from these values.
    """
    workers = values["workers"]
    container = {
        "name": "base",
        "image": "{repository}:{tag}".format(**values["images"]["pod_template"]),
        "resources": workers["resources"],
        "volumeMounts": workers["extraVolumeMounts"],
    }
    spec = {
        "containers": [container],
        "volumes": workers["extraVolumes"],
        "serviceAccountName": workers["serviceAccount"]["name"],
        "securityContext": {"runAsUser": values["uid"], "fsGroup": values["gid"]},
        "restartPolicy": "Never",
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "placeholder"}, "spec": spec}


def test_executor_makes_pod_of_worker_image(values, tmp_path, monkeypatch):
    """Use Airflow's own code for that.

    It puts pod, configuration and the ``executor_config`` of a spec together.
    """
    from airflow.providers.cncf.kubernetes.kube_config import KubeConfig
    from airflow.providers.cncf.kubernetes.pod_generator import PodGenerator

    from pbg_operators.settings import settings_of

    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed").validate
    for name, template in values["config"]["kubernetes_executor"].items():
        *_, key, last = re.findall(r"[\w]+", template)
        monkeypatch.setenv(f"AIRFLOW__KUBERNETES_EXECUTOR__{name.upper()}", values["images"][key][last])
    memory = {"resources": {"requests": {"cpu": "2", "memory": "32Gi"}, "limits": {"memory": "32Gi"}}}
    override = {"pod_override": {"spec": {"containers": [{"name": "base", **memory}]}}}
    airflow = {"tasks": {"eval": {"executor_config": override}}}
    spec = GraphSpec.model_validate(small_spec(tmp_path, "small") | {"airflow": airflow})
    pod = PodGenerator.construct_pod(
        dag_id="reembed_small",
        task_id="release.eval",
        pod_id="reembed-small-release-eval",
        try_number=1,
        kube_image=KubeConfig().kube_image,
        date=None,
        args=["python", "-m", "airflow.sdk.execution_time.execute_workload"],
        pod_override_object=settings_of(spec, "eval", tmp_path)["executor_config"]["pod_override"],
        base_worker_pod=PodGenerator.deserialize_model_dict(chart_pod(values)),
        namespace="airflow",
        scheduler_job_id="1",
    )
    made = PodGenerator.serialize_pod(pod)
    validate(made, "1.33", strict=True)
    (container,) = made["spec"]["containers"]
    assert container["image"] == "registry.example/team-worker:1"
    assert container["args"][0] == "python"
    assert "command" not in container
    assert container["resources"] == memory["resources"]  # in place of the template's, none of which stay
    assert [mount["mountPath"] for mount in container["volumeMounts"]] == ["/scratch"]
    assert made["spec"]["serviceAccountName"] == "airflow-worker"


def test_service_accounts_are_those_of_the_role(values):
    binding = next(
        document
        for document in yaml.safe_load_all((KUBERNETES / "role.yaml").read_text())
        if document["kind"] == "RoleBinding"
    )
    bound = {subject["name"] for subject in binding["subjects"]}
    assert bound == {values[part]["serviceAccount"]["name"] for part in ("workers", "triggerer")}


def test_services_call_only_what_images_have(values):
    """Check what the chart would take from Airflow's own image.

    Its probes call ``/entrypoint``, its groomers of logs ``/clean-logs``.
    """
    jobs = {"scheduler": "SchedulerJob", "triggerer": "TriggererJob", "dagProcessor": "DagProcessorJob"}
    for part, job in jobs.items():
        assert values[part]["logGroomerSidecar"]["args"][:2] == ["bash", "-c"]
        for probe in ("livenessProbe", "startupProbe"):
            if probe in values[part]:
                assert values[part][probe]["command"] == ["airflow", "jobs", "check", "--job-type", job, "--local"]
        assert "livenessProbe" in values[part]
    assert not {"entrypoint", "clean-logs"} & {path.name for path in DOCKER.iterdir()}


def test_groomers_remove_logs_after_a_week(values, tmp_path):
    bash, _, endless = values["dagProcessor"]["logGroomerSidecar"]["args"]
    days = {"old": 9, "new": 1}
    for name, age in days.items():
        (tmp_path / name).touch()
        os.utime(tmp_path / name, times=(time.time() - age * 86_400,) * 2)
    once = endless.replace("/opt/airflow/logs", str(tmp_path)).replace("sleep 3600", "break")
    subprocess.run([bash, "-c", once], check=True)
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_images_have_the_driver_of_the_database():
    url = re.search(r"airflow-metadata --from-literal=connection=(\S+)", (KUBERNETES / "values.yaml").read_text())[1]
    driver = make_url(url).get_dialect().driver
    assert f"\n{driver}-binary==" in (DOCKER / "airflow.lock").read_text()
    assert importlib.import_module(driver)


def test_values_of_install_page_are_in_file(values):
    page = (KUBERNETES.parents[1] / "docs" / "install.md").read_text()
    (block,) = re.findall(r"^```yaml\n(airflowVersion:.*?)^```", page, re.DOTALL | re.MULTILINE)
    shown = yaml.safe_load(block)

    def merged(there, more):
        return {**there, **{key: merged(there[key], each) if isinstance(each, dict) else each
                            for key, each in more.items()}}  # fmt: skip

    assert merged(values, shown) == values


def test_git_sync_replaces_folders_of_the_images():
    """A variable of an image goes before the chart's airflow.cfg."""
    page = (KUBERNETES.parents[1] / "docs" / "install.md").read_text()
    (block,) = re.findall(r"^```yaml\n(dags: .*?)^```", page, re.DOTALL | re.MULTILINE)
    shown = {each["name"]: each["value"] for each in yaml.safe_load(block)["env"]}
    assert set(shown) == set(re.findall(r"(\w+)=/opt/airflow/", (DOCKER / "Dockerfile").read_text()))
    assert all(place.startswith("/opt/airflow/dags/repo/") for place in shown.values())


def test_values_fit_the_images(values):
    dockerfile = (DOCKER / "Dockerfile").read_text()
    assert f"--uid {values['uid']} " in dockerfile
    assert f"--gid {values['gid']} " in dockerfile
    assert f"apache-airflow=={values['airflowVersion']}" in (DOCKER / "airflow.lock").read_text()
    assert "AIRFLOW__CORE__DAGS_FOLDER=/opt/airflow/dags" in dockerfile  # airflowHome's default, with /dags
    mounts = {mount["name"]: mount["mountPath"] for mount in values["workers"]["extraVolumeMounts"]}
    assert mounts == {volume["name"]: "/scratch" for volume in values["workers"]["extraVolumes"]}
    assert "fab" not in (DOCKER / "airflow.in").read_text()
