"""Places of preparation in a spec, and mistakes in them."""

from __future__ import annotations

import pytest

from pbg_tasks.config import GraphSpec, SparkConnect, SparkKubernetes, SparkSubmit
from pbg_tasks.config.base import parse
from pbg_tasks.errors import ConfigError
from tests.operators.specs import small_spec

IMAGE = f"registry.example/pbg-spark@sha256:{'0' * 64}"
POD = {"image": IMAGE, "resources": {"cpu": "1", "memory": "2Gi"}}
AZURE = "spark.hadoop.fs.azure.account.key.a.dfs.core.windows.net"


def spec(launch, place="s3://bucket", engine="spark", **keys):
    document = small_spec(place, "small") | {"launch": launch} | keys
    return parse(GraphSpec, document | {"resources": {"engine": engine}}, source="graph.yaml")


def application(**spec):
    """Return a launch by a SparkApplication whose template has a spec."""
    return {"spark_kubernetes": {"image": IMAGE, "template": {"spec": spec}}}


@pytest.mark.parametrize(
    ("launch", "expected"),
    [
        ({}, None),
        ({"prepare": "pods", "kubernetes": POD}, None),
        ({"prepare": "spark_submit"}, SparkSubmit(connection="spark_default")),
        (
            {"prepare": "spark_kubernetes", "spark_kubernetes": {"image": IMAGE}, "spark_submit": {"connection": "a"}},
            SparkKubernetes(image=IMAGE),
        ),
        ({"prepare": "spark_connect", "spark_connect": {"connection": "a"}}, SparkConnect(connection="a")),
    ],
)
def test_place_of_preparation_is_that_of_its_key(launch, expected):
    assert spec(launch).launch.spark == expected


def test_pods_of_preparation_are_those_of_tasks_first():
    launch = spec({"prepare": "pods", "kubernetes": POD, "tasks": {"bucket": {"namespace": "large"}}}).launch
    found = {task: launch.pod(task) for task in ("validate", "bucket", "eval")}
    assert (found["validate"].namespace, found["bucket"].namespace, found["eval"]) == ("default", "large", None)


def test_settings_are_text_as_spark_reads_them():
    conf = {"spark.authenticate": True, "spark.executor.cores": 2, "spark.executor.memory": "4g"}
    secrets = {"spark.kubernetes.driver.secretKeyRef.AWS_SECRET_ACCESS_KEY": "keys:secret"}
    expected = {"spark.authenticate": "true", "spark.executor.cores": "2", "spark.executor.memory": "4g"}
    assert SparkSubmit(conf=conf | secrets).settings == expected | secrets


@pytest.mark.parametrize(
    ("launch", "keys", "sentence"),
    [
        ({"prepare": "spark_submit"}, {"engine": "duckdb"}, "launch.prepare is spark_submit, yet resources.engine is"),
        ({"prepare": "spark_kubernetes"}, {}, "needs the section spark_kubernetes, with image at least"),
        ({"prepare": "spark_connect"}, {}, "needs the section spark_connect, with remote or connection at least"),
        ({"prepare": "pods"}, {}, "prepare pods needs the section kubernetes"),
        ({"prepare": "spark_submt"}, {}, "launch.prepare"),
        (
            {"prepare": "spark_submit", "tasks": {"bucket": POD}},
            {},
            "tasks makes 'bucket' a pod, yet prepare spark_sub",
        ),
        ({"prepare": "pods", "kubernetes": POD}, {"place": "/srv"}, "launch.prepare is pods, which cannot .* store"),
        (
            {"prepare": "spark_kubernetes", "spark_kubernetes": {"image": IMAGE}},
            {"snapshots": {"location": "/srv/{snapshot}.parquet"}},
            "launch.prepare is spark_kubernetes, which cannot reach snapshots.location",
        ),
        ({"spark_kubernetes": {"image": "pbg:1"}}, {}, "image 'pbg:1' is not given by digest"),
        ({"spark_kubernetes": {"image": IMAGE, "template": {"specs": {}}}}, {}, "template: unknown key 'specs'"),
        ({"spark_kubernetes": {"image": IMAGE, "template": {"spec": {"mode": "client"}}}}, {}, "spec.mode is the laun"),
        (
            {"spark_kubernetes": {"image": IMAGE, "template": {"metadata": {"name": "a"}}}},
            {},
            "metadata.name is the la",
        ),
        ({"spark_kubernetes": {"image": IMAGE, "template": {"spec": {"driver": []}}}}, {}, "driver must be a mapping"),
        (
            {"spark_kubernetes": {"image": IMAGE, "template": {"spec": {"driver": {"env": {}}}}}},
            {},
            "spec.driver.env must be a list",
        ),
        ({"spark_submit": {"conf": {"executor.cores": 2}}}, {}, "launch.spark_submit.conf"),
        ({"spark_submit": {"conf": {"spark.authenticate.secret": "s"}}}, {}, "spark.authenticate.secret would be kept"),
        ({"spark_submit": {"conf": {"spark.executorEnv.AWS_SECRET_ACCESS_KEY": "s"}}}, {}, "_KEY would be kept"),
        ({"spark_submit": {"conf": {"spark.hadoop.fs.s3a.secret.key": "s"}}}, {}, "secret.key would be kept"),
        ({"spark_submit": {"conf": {AZURE: "s"}}}, {}, "account.key.a.dfs.core.windows.net would be kept"),
        ({"spark_submit": {"conf": {"spark.hadoop.fs.gs.auth.service.account.private.key": "s"}}}, {}, "would be kept"),
        ({"spark_submit": {"conf": {"spark.driver.extraJavaOptions": "-Dfs.s3a.secret.key=s"}}}, {}, "would be kept"),
        (application(hadoopConf={"fs.s3a.secret.key": "s"}), {}, r"template: spec.hadoopConf: fs.s3a.secret.key would"),
        (
            application(driver={"env": [{"name": "AWS_SECRET_ACCESS_KEY", "value": "s"}]}),
            {},
            r"template: spec.driver.env: AWS_SECRET_ACCESS_KEY would be kept with the DAG .* valueFrom in env",
        ),
        (application(executor={"envVars": {"DB_PASSWORD": "s"}}), {}, "spec.executor.envVars: DB_PASSWORD would be"),
        (
            application(executor={"javaOptions": "-Dfs.s3a.secret.key=s"}),
            {},
            "spec.executor: javaOptions would be kept",
        ),
        (
            application(driver={"sidecars": [{"name": "a", "env": [{"name": "API_KEY", "value": "s"}]}]}),
            {},
            "spec.driver.sidecars.env: API_KEY would be kept",
        ),
        (
            application(driver={"sidecars": [{"name": "a", "args": ["--verbose", "--password=s"]}]}),
            {},
            "spec.driver.sidecars: args would be kept",
        ),
        (
            application(driver={"env": [{"name": "JAVA_OPTS_FILE", "value": "-Ddb.password=s"}]}),
            {},
            "spec.driver.env: JAVA_OPTS_FILE would be kept",
        ),
        ({"spark_connect": {}}, {}, "spark_connect takes remote"),
        ({"spark_connect": {"remote": "http://host"}}, {}, "launch.spark_connect.remote"),
        (
            {"spark_connect": {"remote": "sc://host:15002/;token=abc"}},
            {},
            "launch.spark_connect.remote holds a signature or key",
        ),
    ],
)
def test_each_mistake_of_preparation_is_named(launch, keys, sentence):
    with pytest.raises(ConfigError, match=sentence):
        spec(launch, **keys)


def test_application_that_names_secrets_is_accepted():
    reference = {"name": "AWS_SECRET_ACCESS_KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "secret"}}}
    driver = {
        "env": [reference, {"name": "AWS_WEB_IDENTITY_TOKEN_FILE", "value": "/var/run/token"}, {"name": "TZ"}],
        "envFrom": [{"secretRef": {"name": "keys"}}],
        "envSecretKeyRefs": {"DB_PASSWORD": {"name": "keys", "key": "password"}},
        "secrets": [{"name": "account", "path": "/mnt", "secretType": "GCPServiceAccount"}],
        "javaOptions": "-Xss8m",
    }
    volumes = [{"name": "keys", "secret": {"secretName": "keys"}}]
    launch = application(driver=driver, volumes=volumes, hadoopConf={"fs.s3a.endpoint": "http://store:9000"})
    found = SparkKubernetes.model_validate(launch["spark_kubernetes"])
    assert found.template["spec"]["driver"] == driver
