"""Entry point of the image ``spark``, with programs that print their arguments."""

from __future__ import annotations

import os
import re
import subprocess

import pytest

from pbg_tasks.config.prepare import SparkKubernetes
from tests.docker.files import DOCKER, REPOSITORY, stages

SCRIPT = DOCKER / "spark-entrypoint.sh"
EXECUTOR = {
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@driver:7078",
    "SPARK_EXECUTOR_ID": "1",
    "SPARK_EXECUTOR_CORES": "4",
    "SPARK_EXECUTOR_MEMORY": "16g",
    "SPARK_APPLICATION_ID": "spark-0",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.1",
    "SPARK_EXECUTOR_POD_NAME": "pbg-bucket-exec-1",
    "SPARK_RESOURCE_PROFILE_ID": "0",
}
"""Variables of an executor's pod, as Spark 4 names them."""
JOB = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"


@pytest.fixture
def started(tmp_path):
    """Start the script; return what it ran, an argument a line."""
    home = tmp_path / "spark"
    (home / "bin").mkdir(parents=True)
    programs = [tmp_path / name for name in ("java", "pbg")] + [home / "bin" / "spark-submit"]
    for program in programs:
        program.write_text('#!/bin/sh\nprintf "%s\\n" "${0##*/}" "$@"\n')
    (tmp_path / "tini").write_text('#!/bin/sh\n[ "$1 $2" = "-s --" ] && shift 2 && exec "$@"\n')
    for program in [*programs, tmp_path / "tini"]:
        program.chmod(0o755)

    def start(*arguments, **variables):
        path = f"{tmp_path}:{os.defpath}"
        return subprocess.run(
            [SCRIPT, *arguments],
            env={"PATH": path, "SPARK_HOME": str(home), **variables},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )

    return start


def test_driver_is_submitted_in_its_pod(started):
    application = ["--properties-file", "/opt/spark/conf/spark.properties", "local:///x y.py", "bucket"]
    done = started("driver", *application, SPARK_DRIVER_BIND_ADDRESS="10.0.0.2")
    address = ["spark.driver.bindAddress=10.0.0.2", "spark.executorEnv.SPARK_DRIVER_POD_IP=10.0.0.2"]
    settings = [word for each in address for word in ("--conf", each)]
    assert done.stdout.splitlines() == ["spark-submit", *settings, "--deploy-mode", "client", *application], done.stderr


def test_executor_has_options_by_number_and_classes(started, tmp_path):
    options = {f"SPARK_JAVA_OPT_{number}": f"-Da.b={number} x" for number in range(12)}
    places = {"SPARK_CONF_DIR": "/conf", "SPARK_EXTRA_CLASSPATH": "/extra/*"}
    done = started("executor", **EXECUTOR, **options, **places)
    begun, _, after = done.stdout.partition("-cp\n")
    assert begun.splitlines() == ["java", *options.values(), "-Xms16g", "-Xmx16g"], done.stderr
    classes, job, *rest = after.splitlines()
    assert classes == f"/conf:{tmp_path}/spark/jars/*:/extra/*:{tmp_path}"
    assert job == JOB
    assert dict(zip(rest[::2], rest[1::2], strict=True)) == {
        "--driver-url": EXECUTOR["SPARK_DRIVER_URL"],
        "--executor-id": "1",
        "--cores": "4",
        "--app-id": "spark-0",
        "--hostname": "10.0.0.1",
        "--resourceProfileId": "0",
        "--podName": "pbg-bucket-exec-1",
    }


@pytest.mark.parametrize("missing", ["SPARK_DRIVER_URL", "SPARK_EXECUTOR_MEMORY"])
def test_executor_outside_a_pod_names_missing_variable(started, missing):
    done = started("executor", **{name: value for name, value in EXECUTOR.items() if name != missing})
    assert done.returncode
    assert done.stdout == ""
    assert f"{missing}: unbound variable" in done.stderr


@pytest.mark.parametrize("command", [["bucket", "s3://b/g/runs/r", "--json"], []])
def test_other_command_is_that_of_pbg(started, command):
    assert started(*command).stdout.splitlines() == ["pbg", *command]


def test_image_has_script_home_and_application():
    instructions = stages()["spark"]
    assert f"COPY docker/{SCRIPT.name} /opt/entrypoint.sh" in instructions
    assert [line for line in instructions if line.startswith("ENTRYPOINT")] == ['ENTRYPOINT ["/opt/entrypoint.sh"]']
    (home,) = re.findall(r"SPARK_HOME=(\S+)/pyspark$", "\n".join(instructions), re.MULTILINE)
    application = SparkKubernetes.model_fields["application"].default
    assert application == f"local://{home}/pbg_tasks/__main__.py"
    assert SCRIPT.relative_to(REPOSITORY).as_posix() in (REPOSITORY / ".dockerignore").read_text()
    assert os.access(SCRIPT, os.X_OK)
