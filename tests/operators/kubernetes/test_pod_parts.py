"""Parts of pods that clusters ask for.

Labels, volumes, sidecars, templates, queues and several clusters.
"""

from __future__ import annotations

import pytest
from airflow.sdk.exceptions import AirflowFailException
from structlog.testing import capture_logs

from pbg_operators.kubernetes import manifest
from pbg_operators.task import RetryableError
from pbg_tasks.config import KubernetesLaunch
from pbg_tasks.config.base import parse
from pbg_tasks.config.launch import Launch
from pbg_tasks.config.pods import USER
from pbg_tasks.errors import ConfigError
from tests.operators.kubernetes.conftest import IMAGE, JOB, launch
from tests.operators.kubernetes.double import KubernetesDouble
from tests.operators.kubernetes.double.problems import RefusedError
from tests.operators.kubernetes.gangs import EVERYTHING, gang
from tests.operators.kubernetes.jobs import QUICK, RANKS, RESULT, TRAIN, Try, logged_lines


@pytest.fixture(scope="module")
def job():
    return manifest.job(gang(**EVERYTHING), 1)


@pytest.fixture(scope="module")
def pod(job):
    return job["spec"]["template"]


def own(pod):
    (found,) = [container for container in pod["spec"]["containers"] if container["name"] == "train"]
    return found


def test_labels_and_annotations_reach_pods_and_job(job, pod):
    job, pod = job["metadata"], pod["metadata"]
    assert job["labels"]["team"] == pod["labels"]["team"] == "graphs"
    assert (job["labels"]["cost-centre"], job["annotations"]["example.org/ticket"]) == ("42", "G-1")
    assert "cost-centre" not in pod["labels"]
    assert pod["annotations"]["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"
    assert pod["labels"]["app.kubernetes.io/name"] == "pbg-train"
    assert job["labels"]["kueue.x-k8s.io/priority-class"] == "nightly"


def test_volumes_are_mounted_from_their_sources(pod):
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    assert volumes["cache"]["hostPath"] == {"path": "/mnt/disks/ssd0"}
    claim = volumes["big"]["ephemeral"]["volumeClaimTemplate"]["spec"]
    assert (claim["storageClassName"], claim["resources"]["requests"]["storage"]) == ("fast", "1Ti")
    scratch = volumes["scratch"]["ephemeral"]["volumeClaimTemplate"]["spec"]
    assert (scratch["storageClassName"], scratch["resources"]["requests"]["storage"]) == ("local-nvme", "100Gi")
    assert {mount["mountPath"] for mount in own(pod)["volumeMounts"]} == {
        *("/scratch", "/cache", "/big", "/etc/ssl/site", "/keys", "/old")
    }
    assert "ephemeral-storage" not in own(pod)["resources"]["limits"]


def test_requests_may_be_lower_than_limits(pod):
    assert own(pod)["resources"]["requests"] == {"cpu": "2", "memory": "8Gi", "nvidia.com/gpu": "1"}
    assert own(pod)["resources"]["limits"]["memory"] == "32Gi"


def test_scratch_limits_the_request_of_ephemeral_storage():
    pod = manifest.job(gang(requests={"ephemeral-storage": "1Gi"}, scratch="5Gi"), 1)["spec"]["template"]
    assert own(pod)["resources"]["requests"]["ephemeral-storage"] == "1Gi"
    assert own(pod)["resources"]["limits"]["ephemeral-storage"] == "5Gi"


def test_template_is_merged_under_the_launcher(pod):
    spec = pod["spec"]
    assert (spec["dnsPolicy"], spec["runtimeClassName"], pod["metadata"]["labels"]["own"]) == (
        *("ClusterFirst", "gvisor", "yes"),
    )
    assert spec["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"
    assert spec["securityContext"]["runAsUser"] == USER
    assert (own(pod)["image"], own(pod)["imagePullPolicy"]) == (IMAGE, "Always")
    assert {"name": "A", "value": "b"} in own(pod)["env"]
    assert [container["name"] for container in spec["containers"]] == ["train", "classic"]
    assert {"operator": "Exists"} in spec["tolerations"]


def test_cluster_may_choose_the_user():
    """OpenShift makes no pod with another user than its namespace has."""
    spec = manifest.job(gang(user=None), 1)["spec"]["template"]["spec"]
    assert spec["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


def test_sidecars_are_those_that_kubernetes_ends(pod):
    metrics, warm = pod["spec"]["initContainers"]
    assert (metrics["name"], metrics["restartPolicy"]) == ("metrics", "Always")
    assert (warm["name"], warm.get("restartPolicy")) == ("warm", None)


@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        ({"labels": {"app.kubernetes.io/name": "mine"}}, "labels: app.kubernetes.io/name is set by the launcher"),
        ({"job_labels": {"kueue.x-k8s.io/queue-name": "q"}}, "job_labels: kueue.x-k8s.io/queue-name is set by"),
        ({"labels": {"team": "two words"}}, "labels.team"),
        ({"volumes": [{"name": "a", "mount_path": "/a"}]}, "volume 'a' takes one of claim, .*, and has none"),
        ({"volumes": [{"name": "a", "mount_path": "/a", "claim": "c", "secret": "s"}]}, "has claim and secret"),
        ({"volumes": [{"name": "a", "mount_path": "/scratch", "claim": "c"}]}, "the launcher makes /scratch"),
        ({"volumes": [{"name": n, "mount_path": "/a", "claim": "c"} for n in "ab"]}, "mount_path: '/a' is there twice"),
        ({"env_from": [{}]}, "env_from takes a secret or a config_map"),
        ({"requests": {"cpu": "2000m"}}, "requests: cpu 2000m is more than its limit in resources, 1"),
        ({"requests": {"nvidia.com/gpu": "1"}}, "requests: nvidia.com/gpu has no limit in resources"),
        ({"requests": {"ephemeral-storage": "30Gi"}}, "ephemeral-storage 30Gi is more than its limit in scratch, 20Gi"),
        (
            {"requests": {"ephemeral-storage": "1Gi"}, "scratch_class": "local"},
            "requests: ephemeral-storage has no limit in resources",
        ),
        ({"affinity": {"nodeAfinity": {}}}, "affinity: .*unknown key 'nodeAfinity'; did you mean 'nodeAffinity'"),
        ({"topology_spread": [{"skew": 1}]}, "topology_spread.0: .*unknown key 'skew'"),
        ({"sidecars": [{"name": "a"}]}, "sidecars.0: .*image is missing"),
        ({"sidecars": [{"name": "train", "image": "i"}]}, "sidecars.0: the name 'train' is that of"),
        ({"pod_template": {"spec": {"contaners": []}}}, "pod_template: spec: unknown key 'contaners'; did you mean"),
        ({"pod_template": {"spec": {"containers": [{"name": "train", "args": []}]}}}, "train has args, which is the"),
        ({"pod_template": {"metadata": {"labels": {"pbg-tasks/run": "r"}}}}, "metadata.labels: pbg-tasks/run is set"),
        ({"pod_template": {"metadata": {"labels": None}}}, "metadata.labels: must be a mapping from text to text"),
        ({"pod_template": {"metadata": {"labels": {"cost-centre": 42}}}}, "metadata.labels: .*; quote numbers"),
        ({"pod_template": {"spec": {"volumes": None}}}, "spec: volumes must be a list of mappings"),
        ({"pod_template": {"spec": {"containers": [{"name": "a", "env": {}}]}}}, "containers: a: env must be a list"),
        (
            {"pod_template": {"spec": {"containers": [{"name": "train", "env": [{"name": "PBG_RUN_TOKEN"}]}]}}},
            "pod_template: env of train: PBG_RUN_TOKEN is set for every rank",
        ),
        (
            {"pod_template": {"spec": {"containers": [{"name": "train", "env": [{"name": "PBG_TLS_KEY"}]}]}}},
            "pod_template: env of train: PBG_TLS_KEY is set for every rank .*; set certificates: false",
        ),
        ({"environment": {"PBG_TLS_CA": "a"}}, "environment: PBG_TLS_CA is set for every rank .*; set certificates: "),
        ({"kueue_priority": "high"}, "kueue_priority needs kueue_queue"),
    ],
)
def test_each_mistake_in_parts_is_named(section, sentence):
    right = {"image": IMAGE, "resources": {"cpu": "1", "memory": "2Gi"}}
    with pytest.raises(ConfigError, match=sentence):
        parse(KubernetesLaunch, right | section, source="graph.yaml")


def test_template_entries_are_replaced_by_the_launcher():
    train = {
        "name": "train",
        "env": [{"name": "FOO", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        "volumeMounts": [{"name": "own", "mountPath": "/scratch/"}, {"name": "own", "mountPath": "//a/."}],
        "ports": [{"containerPort": 29500, "hostPort": 29500}],
    }
    template = {
        "metadata": {"labels": {"env": "theirs"}},
        "spec": {
            "volumes": [{"name": "scratch", "hostPath": {"path": "/"}}, {"name": "a", "emptyDir": {}}],
            "securityContext": {"seccompProfile": {"type": "Localhost", "localhostProfile": "own.json"}},
            "containers": [train],
        },
    }
    volumes = [{"name": "a", "mount_path": "/a", "claim": "c"}]
    settings = {"labels": {"env": "ours"}, "environment": {"FOO": "1"}, "volumes": volumes, "scratch": "1Gi"}
    pod = manifest.job(gang(pod_template=template, **settings), 1)["spec"]["template"]
    assert pod["metadata"]["labels"]["env"] == "ours"
    assert pod["spec"]["volumes"] == [
        {"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}},
        {"name": "a", "persistentVolumeClaim": {"claimName": "c"}},
    ]
    assert pod["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert [entry for entry in own(pod)["env"] if entry["name"] == "FOO"] == [{"name": "FOO", "value": "1"}]
    assert [mount["mountPath"] for mount in own(pod)["volumeMounts"]] == ["/scratch", "/a"]
    assert own(pod)["ports"] == [{"name": "rendezvous", "containerPort": 29500}]


CONFINEMENT = [
    {"runAsUser": 0},
    {"runAsNonRoot": False},
    {"privileged": True},
    {"capabilities": {"add": ["SYS_ADMIN"]}},
    {"seccompProfile": {"type": "Unconfined"}},
]


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        *(({"containers": [{"name": "train", "securityContext": own}]}, "has securityContext") for own in CONFINEMENT),
        ({"containers": [{"name": "train", "restartPolicy": "Always"}]}, "train has restartPolicy, which is the"),
        *(({key: True}, f"spec: {key} would let pods share") for key in ("hostNetwork", "hostPID", "hostIPC")),
    ],
)
def test_template_cannot_undo_confinement(spec, sentence):
    section = {"image": IMAGE, "resources": {"cpu": "1", "memory": "2Gi"}, "pod_template": {"spec": spec}}
    for whole in ({"kubernetes": section}, {"tasks": {"eval": section}}):
        with pytest.raises(ConfigError, match=sentence):
            parse(Launch, whole, source="graph.yaml")


def test_cluster_refuses_what_the_spec_lets_pass(double, fake_pbg, train):
    fake_pbg(QUICK)
    ended = train(kubernetes=launch(affinity={"nodeAffinity": {"required": []}}))
    assert isinstance(ended, AirflowFailException)
    assert 'unknown field "Job.spec.template.spec.affinity.nodeAffinity.required"' in str(ended)
    assert not double.jobs()
    assert {query.get("fieldValidation") for verb, _, query in double.requests if verb == "POST"} == {"Strict"}


def test_connection_of_spec_chooses_the_cluster(double, fake_pbg, train, monkeypatch):
    fake_pbg(QUICK)
    with KubernetesDouble(double.node.variables) as other:
        monkeypatch.setenv("AIRFLOW_CONN_GPU_CLUSTER", other.airflow_connection())
        assert train(ranks=1, kubernetes=launch(connection="gpu_cluster")) == RESULT
        assert [job["metadata"]["name"] for job in other.jobs()] == [f"{JOB}-1"]
    assert not double.jobs()


# Containers that others inject


INJECTED = {"name": "istio-proxy", "image": "proxy"}


@pytest.fixture
def mesh(double, monkeypatch):
    double.controller.injected = [INJECTED]
    monkeypatch.setattr("pbg_operators.kubernetes.stuck.OUTLIVED_SECONDS", 1.0)
    monkeypatch.setattr("pbg_operators.kubernetes.stuck.FAILED_SECONDS", 1.0)
    return double


def test_injected_sidecar_keeps_no_job_from_ending(mesh, fake_pbg, train):
    fake_pbg(QUICK)
    with capture_logs() as logged:
        assert train(ranks=2) == RESULT
    assert f"Job {JOB}-1: its commands have ended, other containers have not; it is deleted" in logged_lines(logged)
    mesh.wait(lambda: not mesh.jobs() and not mesh.pods())


def test_failed_command_beside_sidecar_is_classified(mesh, fake_pbg, train):
    fake_pbg(
        RANKS
        + """
    if rank == 1: end("error: config: s3://b/k: no such key", 2)
    ready_to_store(); time.sleep(60)"""
    )
    ended = train(ranks=2)
    assert isinstance(ended, AirflowFailException)
    assert str(ended) == f"config: Job {JOB}-1: rank 1: s3://b/k: no such key"
    mesh.wait(lambda: not mesh.jobs() and not mesh.pods())


def test_memory_limit_is_read_from_own_container(mesh, fake_pbg, train):
    fake_pbg(TRAIN)
    task = Try(train, ranks=1)
    mesh.starve(0)
    ended = task.end()
    assert isinstance(ended, RetryableError)
    assert "ran out of memory (limit 2Gi)" in str(ended)


# Kueue


def test_job_that_kueue_began_gets_its_secret(double, fake_pbg, train):
    fake_pbg(RANKS + "    print(len(os.environ['PBG_RUN_TOKEN']), flush=True)")
    queued = launch(kueue_queue="night", startup_seconds=10)
    double.outage(503, 1, "/secrets")
    assert isinstance(train(ranks=2, kubernetes=queued), RetryableError)
    double.resume(f"{JOB}-1")
    with capture_logs() as logged:
        assert train(ranks=2, kubernetes=queued) == RESULT
    assert {"[rank 0] 64", "[rank 1] 64"} <= set(logged_lines(logged))
    assert len(double.jobs()) == 1


def test_full_quota_holds_up_no_second_try(double, fake_pbg, train):
    """It refuses an object that is there, too."""

    def refuse(method, path):
        if method == "POST" and path.endswith("/secrets"):
            raise RefusedError(403, "Forbidden", 'secrets "x" is forbidden: exceeded quota: small')

    fake_pbg(QUICK)
    double.outage(503, 1, "/networkpolicies")
    assert isinstance(train(ranks=2), RetryableError)
    double.before = refuse
    assert train(ranks=2) == RESULT


# Preemption


def test_preempted_ranks_end_with_13_and_job_waits(double, fake_pbg, train):
    fake_pbg(TRAIN)
    with capture_logs() as logged:
        task = Try(train, ranks=2, kubernetes=launch(kueue_queue="night"))
        double.wait(double.jobs)
        double.resume(f"{JOB}-1")
        for rank in range(2):
            double.printed(rank, "training")
        names = [pod["metadata"]["name"] for pod in double.pods()]
        double.suspend(f"{JOB}-1")
        double.wait(lambda: not double.pods())
        assert {double.node.logs[name][-1].partition(" ")[2] for name in names} == {"error: evicted: told to end\n"}
        (job,) = double.jobs()
        assert (job["status"]["failed"], job["status"].get("conditions")) == (0, None)
        assert task.is_alive()
        fake_pbg(RANKS + "    end('error: resource: no memory', 7)")
        double.wait(lambda: f"Job {JOB}-1 is suspended; its pods start when it is resumed" in logged_lines(logged))
        double.resume(f"{JOB}-1")
        ended = task.end()
    assert f"Job {JOB}-1 is suspended; its pods start when it is resumed" in logged_lines(logged)
    assert "resource: " in str(ended)  # and not the eviction before
    assert isinstance(ended, RetryableError)
