"""Manifests of a gang beside those that are kept as files."""

from __future__ import annotations

from pathlib import Path

import yaml

from pbg_operators.kubernetes import manifest
from pbg_operators.kubernetes.jobset import jobset
from pbg_operators.kubernetes.manifest import Gang
from tests.operators.kubernetes.conftest import RUN, launch

TEMPLATES = Path(__file__).resolve().parents[3] / "docker" / "kubernetes"

UID = "00000000-0000-0000-0000-000000000000"


def gang(ranks=4, servers=0, run=RUN, kind="Job", restarts=0, **changes):
    command = ("python", "-P", "-m", "pbg_tasks", "train", run, "--json")
    owner = "reembed_g/manual__1/train.train/-1"
    return Gang(run, ranks, servers, owner, launch(**changes), command, kind=kind, restarts=restarts)


def objects(what: Gang) -> list[dict]:
    name = manifest.job_name(what, 1)
    return [
        manifest.job(what, 1),
        manifest.service(name, UID),
        manifest.secret(name, UID, {"PBG_RUN_TOKEN": "0" * 64}),
        manifest.network_policy(name, UID),
    ]


def golden() -> str:
    """Return what docker/kubernetes/train-job.yaml must be."""
    header = "# What a training of four ranks becomes; written by tests/operators/kubernetes/test_manifest.py.\n"
    return header + yaml.safe_dump_all(objects(gang(grace_seconds=60)), sort_keys=False, width=120)


JOBSET_HEADER = """\
# What launcher jobset makes of a training of four ranks, resumed; written by tests/operators/kubernetes/test_jobset.py.
# JobSet makes the headless Service, and starts the whole gang anew when a rank fails, at most maxRestarts times. To use
# it without Airflow, fill in the run's URL, the image and the Secret:
#
#   kubectl create secret generic pbg-train --from-literal=PBG_RUN_TOKEN=$(openssl rand -hex 32) \\
#     --from-literal=AWS_ACCESS_KEY_ID=... --from-literal=AWS_SECRET_ACCESS_KEY=...
"""


def golden_jobset() -> str:
    """Return what docker/kubernetes/jobset.yaml must be."""
    what = gang(kind="JobSet", restarts=2, grace_seconds=60, namespace="pbg")
    made = jobset(what, 1)
    made["spec"]["suspend"] = False
    text = yaml.safe_dump(made, sort_keys=False, width=120)
    return JOBSET_HEADER + text.replace(made["metadata"]["name"], "pbg-train")
