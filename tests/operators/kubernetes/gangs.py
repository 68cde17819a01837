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


EVERYTHING = {
    "namespace": "pbg",
    "scratch": "100Gi",
    "secret": "pbg-store",
    "environment": {"AWS_REGION": "eu-central-1"},
    "service_account": "pbg-train",
    "image_pull_secrets": ["registry"],
    "node_selector": {"node.kubernetes.io/instance-type": "m6id.4xlarge"},
    "tolerations": [{"key": "batch", "value": "true", "effect": "NoSchedule"}, {"key": "spot"}],
    "priority_class": "nightly",
    "kueue_queue": "night",
    "resources": {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "1"},
    "grace_seconds": 60,
    "requests": {"cpu": "2", "memory": "8Gi"},
    "scratch_class": "local-nvme",
    "env_from": [{"secret": "proxy", "prefix": "PROXY_"}, {"config_map": "site", "optional": True}],
    "labels": {"team": "graphs", "sidecar.istio.io/inject": "true"},
    "annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"},
    "job_labels": {"cost-centre": "42"},
    "job_annotations": {"example.org/ticket": "G-1"},
    "volumes": [
        {"name": "cache", "mount_path": "/cache", "host_path": "/mnt/disks/ssd0"},
        {"name": "big", "mount_path": "/big", "ephemeral": {"size": "1Ti", "storage_class": "fast"}},
        {"name": "ca", "mount_path": "/etc/ssl/site", "config_map": "site-ca", "read_only": True},
        {"name": "keys", "mount_path": "/keys", "secret": "keys", "sub_path": "own"},
        {"name": "old", "mount_path": "/old", "claim": "archive"},
    ],
    "affinity": {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "kubernetes.io/hostname"}]
        }
    },
    "topology_spread": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
    "init_containers": [{"name": "warm", "image": "busybox", "command": ["true"]}],
    "sidecars": [{"name": "metrics", "image": "exporter"}],
    "runtime_class": "gvisor",
    "pod_template": {
        "metadata": {"labels": {"team": "overridden", "own": "yes"}},
        "spec": {
            "dnsPolicy": "ClusterFirst",
            "securityContext": {"runAsUser": 0, "fsGroupChangePolicy": "OnRootMismatch"},
            "tolerations": [{"operator": "Exists"}],
            "containers": [
                {"name": "train", "image": "evil", "imagePullPolicy": "Always", "env": [{"name": "A", "value": "b"}]},
                {"name": "classic", "image": "logger"},
            ],
        },
    },
    "kueue_priority": "nightly",
}
