"""The files of docker/, and images where they were built."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from importlib.metadata import packages_distributions

import pytest
import yaml
from pyarrow import parquet

from pbg_tasks.tasks.nightly.chain import run_task
from pbg_tasks.tasks.nightly.plan import plan
from pbg_tasks.tasks.view.show import show_task
from tests.docker.files import DOCKER, IMAGES, REPOSITORY, installed, pins, stages
from tests.docker.images import CONFINED, IMAGE, exists, make, missing_programs, name_of, podman_refuses
from tests.operators.specs import small_spec
from tests.stack.conftest import edges


@pytest.mark.parametrize("image", IMAGES)
def test_images_are_non_root_and_contain_no_compiler(image):
    instructions = stages()[image]
    assert [line for line in instructions if line.startswith("USER")][-1] == "USER 65532:65532"
    installs = [line for line in instructions if "apt-get" in line or "pip install" in line]
    java = "RUN apt-get update && apt-get install --yes --no-install-recommends openjdk-17-jre-headless tini && "
    assert installs == ([f"{java}rm -rf /var/lib/apt/lists/*"] if image == "spark" else [])


@pytest.mark.parametrize("image", IMAGES)
def test_any_user_of_group_0_has_a_home(image):
    """OpenShift gives pods a user id without an entry in /etc/passwd."""
    instructions = stages()[image]
    made = "install --directory --owner pbg --group root --mode 775 /scratch"
    assert any(line.endswith(made) for line in instructions)
    (variables,) = [line.split() for line in instructions if "PBG_SCRATCH=" in line]
    assert {"HOME=/scratch", "USER=pbg"} <= set(variables)


def test_everything_is_installed_by_hash():
    """A build argument without a default may name another torch."""
    installs = [each for lines in stages().values() for line in lines for each in re.findall("pip install[^;]*", line)]
    assert installs
    for each in installs:
        by_name = each.strip() == "pip install ${TORCH}"
        assert "--require-hashes" in each or "--no-deps --no-build-isolation ." in each or by_name
    torch = stages()["torch"]
    assert "ARG TORCH" in torch
    assert [line for line in torch if line.startswith('RUN if [ -n "${TORCH}" ]; then pip install ${TORCH} ;')]


def test_every_build_of_this_package_takes_its_version():
    """The version is of git's tags, which no image is built from."""
    builds = {
        name: lines
        for name, lines in stages().items()
        if name.endswith("-build") and "COPY pbg_tasks pbg_tasks" in lines
    }
    assert len(builds) == len(IMAGES) - 1  # all but the object store's
    for lines in builds.values():
        assert "ARG SETUPTOOLS_SCM_PRETEND_VERSION" in lines


def test_image_without_a_version_is_refused(tmp_path):
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker/base.digest").write_text("python@sha256:0")
    make_image = ["make", "--file", str(REPOSITORY / "Makefile"), "image"]
    done = subprocess.run(make_image, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode
    assert "no version for the image: run `make setup`" in done.stderr
    command = subprocess.check_output(
        [*make_image, "--dry-run", "PBG_VERSION=1.2.3"], cwd=tmp_path, text=True, timeout=60
    )
    assert '--build-arg SETUPTOOLS_SCM_PRETEND_VERSION="1.2.3"' in command


def test_each_image_has_exactly_what_it_needs():
    train, airflow = pins(DOCKER / "train.lock"), pins(DOCKER / "airflow.lock")
    assert {"boto3", "h5py", "duckdb", "setuptools"} <= set(train)
    assert not [name for name in train if "airflow" in name or name == "kubernetes"]
    assert {"apache-airflow", "kubernetes"} <= set(airflow)
    assert not {"torch", "triton"} & (set(train) | set(airflow))
    assert {image for image in IMAGES if "torch" in installed(image)} == {"train", "worker"}
    assert installed("spark") - set(train) >= {"pyspark", "py4j", "pandas", "grpcio", "grpcio-status", "zstandard"}


def test_images_with_airflow_have_the_drivers_of_postgresql():
    for image in ("airflow", "worker"):
        assert {"asyncpg", "psycopg2-binary"} <= installed(image)


def test_docs_give_airflow_processes_images_with_their_packages():
    rows = re.findall(
        r"^ *\| `(\w+)` \| ([^|]*) \|$", (REPOSITORY / "docs" / "kubernetes.md").read_text(), re.MULTILINE
    )
    images = {name: purpose for name, purpose in rows if name in IMAGES}
    (of_workers,) = [name for name, purpose in images.items() if "workers" in purpose]
    (of_triggerer,) = [name for name, purpose in images.items() if "triggerer" in purpose]
    assert {"torch", "apache-airflow", "kubernetes"} <= installed(of_workers)
    assert "torch" not in installed(of_triggerer)


OPTIONAL = {"deltalake", "faiss", "openlineage", "pyiceberg"}
"""Imported where a spec or Airflow's own installation asks for them, and reported when missing."""


CONTRACT = "pbg_tasks.storage.contract"
"""Tests for packages that add a store."""


def absent(image):
    """Return packages that are installed here and not in an image.

    They are named as they are imported.
    """
    there = installed(image) | {"pbg-tasks"}
    return {
        name
        for name, distributions in packages_distributions().items()
        if there.isdisjoint(re.sub(r"[-_.]+", "-", distribution).lower() for distribution in distributions)
    }


def test_worker_has_packages_that_any_command_imports():
    """Imports inside functions count too: not every command needs them."""
    import grimp

    graph = grimp.build_graph(
        "pbg_tasks", "pbg_operators", include_external_packages=True, exclude_type_checking_imports=True, cache_dir=None
    )
    assert (
        graph.find_modules_that_directly_import(CONTRACT) == set()
    )  # the contract needs pytest, and no command runs it
    graph.remove_module(CONTRACT)
    imported = {name.partition(".")[0] for name in graph.modules if graph.find_modules_that_directly_import(name)}
    assert {"torch", "duckdb", "airflow", "kubernetes"} <= imported
    assert imported & absent("worker") <= OPTIONAL
    assert "torch" in imported & absent("airflow")


IMPORT_OPERATORS = """
import importlib, json, pkgutil, sys

absent = set(json.loads(sys.argv[1]))

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
import pbg_operators

missing, modules = set(), [module.name for module in pkgutil.walk_packages(pbg_operators.__path__, "pbg_operators.")]
for name in modules:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing.add(error.name.partition(".")[0])
print(json.dumps([len(modules), sorted(missing)]))
"""


def test_scheduler_triggerer_and_api_server_need_no_torch(tmp_path):
    path = os.pathsep.join((str(REPOSITORY), str(REPOSITORY / "operators")))
    environment = {**os.environ, "PYTHONPATH": path, "AIRFLOW_HOME": str(tmp_path)}
    command = [sys.executable, "-c", IMPORT_OPERATORS, json.dumps(sorted(absent("airflow")))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
    modules, missing = json.loads(done.stdout.splitlines()[-1])
    assert modules > 30
    assert set(missing) <= OPTIONAL


@pytest.mark.parametrize("name", ["train", "airflow", "spark", "store"])
def test_images_run_the_tested_versions(name):
    tested = pins(REPOSITORY / "requirements.lock") | pins(DOCKER / "pyspark.lock")
    differing = {
        package: version for package, version in pins(DOCKER / f"{name}.lock").items() if tested.get(package) != version
    }
    assert set(differing) <= {"setuptools"}


def test_laptop_services_are_local_and_hold_no_secret():
    services = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]
    for service in services.values():
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
        assert service["build"]["target"] in IMAGES
    assert "${STORE_SECRET:?}" in (DOCKER / "compose.yaml").read_text()
    json.loads(services["airflow"]["environment"]["AIRFLOW_CONN_PBG_S3"])


def test_build_sees_the_package_only():
    ignored = (REPOSITORY / ".dockerignore").read_text().splitlines()
    assert ignored[0] == "*"
    copied = {
        word
        for lines in stages().values()
        for line in lines
        if line.startswith("COPY") and "--from" not in line
        for word in line.split()[1:-1]
    }
    for path in copied:
        assert f"!{path}" in ignored or ("!docker/*.lock" in ignored and path.endswith(".lock")), path


def test_jobset_runs_the_command_of_the_job():
    job = next(yaml.safe_load_all((DOCKER / "kubernetes" / "train-job.yaml").read_text()))
    jobset = yaml.safe_load((DOCKER / "kubernetes" / "jobset.yaml").read_text())
    (ranks,) = jobset["spec"]["replicatedJobs"]
    spec, pod = ranks["template"]["spec"], ranks["template"]["spec"]["template"]["spec"]
    expected = job["spec"]["template"]["spec"]
    for thing, template in ((spec, job["spec"]), (pod, expected), (pod["containers"][0], expected["containers"][0])):
        differing = {key for key in thing if thing[key] != template.get(key)}
        assert differing <= {"template", "podFailurePolicy", "containers", "env", "envFrom"}
    assert spec["podFailurePolicy"]["rules"][0] == job["spec"]["podFailurePolicy"]["rules"][0]
    names = [variable["name"] for variable in pod["containers"][0]["env"]]
    assert names == [variable["name"] for variable in expected["containers"][0]["env"]]


@pytest.fixture(scope="module")
def podman(tmp_path_factory):
    """Return the command that runs a container as confined as a pod.

    Skips where there is no image or no program to run it.
    """
    if missing := missing_programs():
        pytest.skip(f"{', '.join(missing)}: not installed")
    with pytest.MonkeyPatch.context() as patch:
        if os.environ.get("PBG_TEST_IMAGES"):
            make("train", "spark")
        built = [image for image in (IMAGE, name_of("spark")) if exists(image)]
        if not built:
            pytest.skip("no image; PBG_TEST_IMAGES=1 has them built, which takes minutes")
        if refusal := podman_refuses(built[0], tmp_path_factory.mktemp("containers"), patch):
            pytest.skip(f"podman cannot run a container here: {refusal}")
        yield ["podman", "run", "--rm", *CONFINED]


@pytest.fixture(scope="module")
def train_image(podman):
    assert podman
    if not exists(IMAGE):
        pytest.skip(f"no image {IMAGE}")
    return IMAGE


def test_the_training_image_is_confined_and_complete(podman, train_image):
    code = "import importlib.util as u, os; print(os.getuid(), u.find_spec('airflow'))"
    command = [*podman, "--network=none", "--entrypoint=python", train_image, "-P", "-c", code]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert said.split() == ["65532", "None"]
    info = subprocess.run(
        [*podman, "--network=none", train_image, "info", "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert json.loads(info.stdout)["engines"] == ["torch", "native"]


def test_four_containers_train_a_graph_to_the_end(podman, train_image, tmp_path):
    spec = small_spec(tmp_path, "contained")
    spec["model"] |= {"entities": {"node": {"num_partitions": 8}}, "num_epochs": 1, "dimension": 8}
    (tmp_path / "graph.yaml").write_text(yaml.safe_dump(spec))
    (tmp_path / "snapshots" / "day").mkdir(parents=True)
    (tmp_path / "snapshots" / "day" / "edges.parquet").write_bytes(edges(range(100)))
    run = plan(tmp_path / "graph.yaml", "day")["run"]
    for task in ("validate", "partition", "bucket"):
        run_task(task, run)
    for rank in range(4):
        (tmp_path / f"scratch{rank}").mkdir()
    subprocess.run(["chmod", "-R", "a+rwX", str(tmp_path)], check=True)  # noqa: S607 (of this machine)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    gang = {"WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "PBG_RUN_TOKEN": "t" * 64}
    ranks = [
        subprocess.Popen(
            [
                *podman,
                "--network=host",
                f"--volume={tmp_path}:{tmp_path}",
                f"--volume={tmp_path}/scratch{rank}:/scratch",
                *[f"--env={name}={value}" for name, value in (gang | {"JOB_COMPLETION_INDEX": str(rank)}).items()],
                train_image,
                "train",
                run,
                "--json",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(4)
    ]
    said = [rank.communicate(timeout=300)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * 4, said
    result = show_task(run, "train")
    assert result["ranks"] == 4
    assert result["edges_trained"] == show_task(run, "bucket")["edges"]["train"]


def test_the_spark_image_prepares_a_graph(podman, tmp_path):
    image = name_of("spark")
    if "PBG_TEST_IMAGES" not in os.environ or not exists(image):
        pytest.skip(f"takes minutes, and {image}; set PBG_TEST_IMAGES=1")
    spec = small_spec(tmp_path, "contained")
    spec["resources"] = {"engine": "spark"}
    (tmp_path / "graph.yaml").write_text(yaml.safe_dump(spec))
    snapshot = tmp_path / "snapshots" / "day" / "edges.parquet"
    snapshot.parent.mkdir(parents=True)
    snapshot.write_bytes(edges(range(100)))
    (tmp_path / "scratch").mkdir()
    subprocess.run(["chmod", "-R", "a+rwX", str(tmp_path)], check=True)  # noqa: S607 (of this machine)
    volumes = [f"--volume={tmp_path}:{tmp_path}", f"--volume={tmp_path}/scratch:/scratch", "--tmpfs=/tmp"]
    command = [*podman, "--network=none", *volumes, image]
    asked = [*command, "plan", str(tmp_path / "graph.yaml"), "--snapshot", "day", "--json"]
    run = json.loads(subprocess.run(asked, capture_output=True, text=True, timeout=300, check=True).stdout)["run"]
    for task in ("validate", "partition", "bucket"):
        subprocess.run([*command, task, run, "--json"], timeout=600, check=True)
    assert show_task(run, "bucket")["edges"]["total"] == parquet.read_metadata(snapshot).num_rows
