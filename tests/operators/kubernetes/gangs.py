"""Manifests of a gang beside those that are kept as files."""

from __future__ import annotations

from pathlib import Path

import yaml

from pbg_operators.kubernetes import manifest
from pbg_operators.kubernetes.manifest import Gang
from tests.operators.kubernetes.conftest import RUN, launch

TEMPLATES = Path(__file__).resolve().parents[3] / "docker" / "kubernetes"

UID = "00000000-0000-0000-0000-000000000000"


def gang(ranks=4, servers=0, run=RUN, **changes):
    command = ("python", "-P", "-m", "pbg_tasks", "train", run, "--json")
    return Gang(run, ranks, servers, "reembed_g/manual__1/train.train/-1", launch(**changes), command)


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
