"""The demo's chain in containers of four images, on one network.

``store`` serves the bucket, ``airflow`` runs API server, DAG processor and triggerer, ``worker`` the scheduler with the
tasks of the first night, and two containers of ``train`` train the second one as a gang.

The tests of this file are one story and run in the order they stand in.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
from pathlib import Path

import pytest
import yaml

from examples.stack.airflow import REPOSITORY
from examples.stack.api import AirflowApi
from examples.stack.demo import BUCKET, DAG, NIGHTS
from examples.stack.stack import connection_of
from examples.stack.watch import Watch
from tests.docker.containers import Network, certificates, until
from tests.docker.files import IMAGES, compose_services
from tests.docker.images import BUILT, make, missing_programs, name_of, podman_refuses

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.timeout(90 * 60),
    pytest.mark.skipif(BUILT not in os.environ, reason=f"takes long; set {BUILT} to run it"),
    pytest.mark.skipif(missing_programs() != [], reason=f"{', '.join(missing_programs())}: not installed"),
]

KEY, SECRET = "demo", secrets.token_hex(20)
STORE = {
    "AWS_ENDPOINT_URL": "http://store:8333",
    "AWS_ACCESS_KEY_ID": KEY,
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_REGION": "us-east-1",
}
USER, PASSWORD, PASSWORDS = "admin", secrets.token_hex(8), "/scratch/passwords.json"
MINUTES = 60.0
AIRFLOW = {
    **STORE,
    "AIRFLOW_CONN_PBG_S3": connection_of(STORE),
    "AIRFLOW__CORE__FERNET_KEY": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
    "AIRFLOW__CORE__PARALLELISM": "2",
    "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": "http://api:8080/execution/",
    "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USER}:admin",
    "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": PASSWORDS,
    "AIRFLOW__API__WORKERS": "1",
    "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",  # the machine may be busy
    "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(32),
    "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
}
"""Variables of each process of Airflow; its database is SQLite, in a volume that they share."""
COMPONENTS = {
    "api": ("airflow", ["api-server"]),
    "dag-processor": ("airflow", ["dag-processor"]),
    "triggerer": ("airflow", ["triggerer", "--skip-serve-logs"]),
    "scheduler": ("worker", ["scheduler", "--skip-serve-logs"]),
}
RANKS = 2
SPEC = "/opt/airflow/graphs/wordnet.yaml"


@pytest.fixture(scope="module")
def graphs(tmp_path_factory):
    """Volume with the graph of the demo.

    It has four partitions, so that two ranks have work at any time, and less epochs, which its gate then allows.
    """
    folder = tmp_path_factory.mktemp("graphs")
    folder.chmod(0o755)
    spec = yaml.safe_load((REPOSITORY / "examples" / "graphs" / "wordnet.yaml").read_text())
    spec["model"] |= {"entities": {"synset": {"num_partitions": 4}}, "num_epochs": 4}
    spec["train"] |= {"warm_epochs": 1}
    spec["gates"] |= {"min_mrr": 0.01, "min_over_popularity": {}}
    (folder / "wordnet.yaml").write_text(yaml.safe_dump(spec))
    return f"{folder}:{Path(SPEC).parent}:ro"


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """A network with the object store, which has both snapshots."""
    with pytest.MonkeyPatch.context() as patch:
        if os.environ[BUILT] != "built":
            make(*IMAGES)
        if refusal := podman_refuses(name_of("train"), tmp_path_factory.mktemp("containers"), patch):
            pytest.skip(f"podman cannot run a container here: {refusal}")
        with Network(f"pbg-{os.getpid()}") as network:
            service = compose_services({"STORE_KEY": KEY, "STORE_SECRET": SECRET})["store"]
            options = {"environment": service["environment"], "volumes": [f"{network.volume('store')}:/scratch"]}
            network.start("store", "store", service["command"].split(), **options)
            healthy = service["healthcheck"]["test"][-1].replace("127.0.0.1", "store")
            until("the store is healthy", lambda: network.run("store", ["python", "-c", healthy]) == "", 3 * MINUTES)
            variables, volumes = certificates()
            scratch = f"{network.volume('data')}:/scratch"
            given = {"environment": STORE | variables, "volumes": [scratch, *volumes]}
            assert len(network.result(["datasets", "wordnet", f"s3://{BUCKET}/snapshots/wordnet"], **given)) > 0
            yield network


@pytest.fixture(scope="module")
def api(network, graphs):
    """The API of an Airflow of four containers."""
    options = {"environment": AIRFLOW, "volumes": [f"{network.volume('airflow')}:/scratch", graphs]}
    write = f"from pathlib import Path; Path({PASSWORDS!r}).write_text({json.dumps({USER: PASSWORD})!r})"
    network.run("airflow", ["-c", write], entrypoint="python", **options)
    network.run("airflow", ["db", "migrate"], **options)
    for name, (target, command) in COMPONENTS.items():
        network.start(name, target, command, **options, publish=[8080] if name == "api" else [])
    api = AirflowApi(f"http://{network.address('api', 8080)}", USER, PASSWORD)
    logs = lambda: "\n".join(network.log(name) for name in COMPONENTS)  # noqa: E731 - where it fails
    until("the DAG is read", lambda: DAG in api.dag_ids(), 10 * MINUTES, logs)
    until(
        "all is healthy", lambda: set(api.health().values()) == {"healthy"}, 5 * MINUTES, lambda: (api.health(), logs())
    )
    return api


def releases(network, graphs):
    """Return the releases by snapshot, as the training image lists them."""
    found = network.result(["releases", SPEC], environment=STORE, volumes=[graphs])
    return {release["snapshot"]: release for release in found}


def test_plugin_loads_in_the_image_without_torch(api):
    assert api.plugin_errors() == []
    assert api.import_errors() == []


def test_night_of_the_worker_image_is_published(api, network, graphs):
    run_id = api.trigger(DAG, partition_key=NIGHTS[0])
    watch = Watch(api, DAG, run_id, label=NIGHTS[0], report=print)
    assert watch.until_finished(30 * MINUTES) == "success", "\n".join(watch.errors())
    summary = api.result(DAG, run_id, "summary")
    assert summary["release"]["published"]
    assert set(releases(network, graphs)) == {NIGHTS[0]}
    scratch = [f"{network.volume('verify')}:/scratch"]
    assert network.result(["verify", summary["run"]], environment=STORE, volumes=scratch)["verified"] > 0


def test_gang_of_training_images_publishes_next_night(network, graphs):
    scratch = f"{network.volume('prepare')}:/scratch"
    given = {"environment": STORE, "volumes": [graphs, scratch]}
    run = network.result(["plan", SPEC, f"--snapshot={NIGHTS[1]}"], **given)["run"]
    network.result(["prepare", run], **given)
    gang = STORE | {
        "WORLD_SIZE": str(RANKS),
        "MASTER_ADDR": "rank0",
        "MASTER_PORT": "29500",
        "PBG_RUN_TOKEN": secrets.token_hex(32),
    }
    for rank in range(RANKS):
        environment = gang | {"JOB_COMPLETION_INDEX": str(rank)}
        own = [f"{network.volume(f'rank{rank}')}:/scratch"]
        network.start(f"rank{rank}", "train", ["train", run, "--json"], environment=environment, volumes=own)
    statuses = [network.wait(f"rank{rank}") for rank in range(RANKS)]
    assert statuses == [0] * RANKS, [network.log(f"rank{rank}") for rank in range(RANKS)]
    trained = network.result(["show", run, "--task=train"], **given)
    assert trained["ranks"] == RANKS
    finished = network.result(["finish", run], **given)
    assert finished["published"]
    found = releases(network, graphs)
    assert set(found) == set(NIGHTS)
    assert found[NIGHTS[1]]["continues"] == found[NIGHTS[0]]["release"]
