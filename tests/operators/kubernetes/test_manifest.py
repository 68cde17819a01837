"""The objects of a gang.

They are compared with a readable file, the API's schemas, and the rules of a hardened pod.
"""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pbg_operators.kubernetes import manifest, watch
from pbg_tasks.config import KubernetesLaunch
from pbg_tasks.config.base import parse
from pbg_tasks.config.launch import SHORTEST_TTL
from pbg_tasks.config.run import SNAPSHOT_KEY
from pbg_tasks.errors import BY_EXIT_CODE, ConfigError
from tests.operators.kubernetes.conftest import IMAGE
from tests.operators.kubernetes.double import schema
from tests.operators.kubernetes.double.problems import RefusedError
from tests.operators.kubernetes.gangs import EVERYTHING, TEMPLATES, gang, golden, objects


def test_manifest_equals_the_readable_template():
    assert (TEMPLATES / "train-job.yaml").read_text() == golden(), "run: python -m tests.operators.kubernetes.golden"


@pytest.mark.parametrize("changes", [{}, EVERYTHING])
def test_types_of_client_know_every_field(changes):
    for thing in objects(gang(servers=2, **changes)):
        schema.check(thing)


def test_check_would_find_a_mistake():
    wrong = manifest.job(gang(), 1)
    wrong["spec"]["paralelism"] = 4
    with pytest.raises(RefusedError, match=r'unknown field "Job\.spec\.paralelism"'):
        schema.check(wrong)


@pytest.mark.parametrize("version", ["1.29", "1.33", "1.37"])
def test_schemas_of_api_accept_the_objects(version):
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    everything = [*objects(gang()), *objects(gang(servers=2, **EVERYTHING))]
    custom = {"jobset.yaml", "kueue.yaml", "values.yaml"}  # of other projects, with schemas of their own
    templates = [path for path in sorted(TEMPLATES.glob("*.yaml")) if path.name not in custom]
    everything += [thing for path in templates for thing in yaml.safe_load_all(path.read_text())]
    for thing in everything:
        validate.validate(thing, version, strict=True)


def test_pod_is_confined():
    spec = manifest.job(gang(), 1)["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"]["requests"] == container["resources"]["limits"]
    assert {"cpu", "memory", "ephemeral-storage"} <= set(container["resources"]["limits"])
    assert spec["volumes"] == [{"name": "scratch", "emptyDir": {"sizeLimit": "20Gi"}}]
    writable = [variable["value"] for variable in container["env"] if variable["name"] in {"HOME", "TMPDIR"}]
    assert writable == [container["volumeMounts"][0]["mountPath"]] * 2


def test_gang_fails_as_one():
    spec = manifest.job(gang(ranks=4, servers=2), 1)["spec"]
    assert (spec["completions"], spec["parallelism"], spec["backoffLimit"]) == (6, 6, 0)
    assert (spec["completionMode"], spec["podReplacementPolicy"]) == ("Indexed", "Failed")
    by_status, by_condition, suspended = spec["podFailurePolicy"]["rules"]
    for_good = {status for status, category in BY_EXIT_CODE.items() if not category.retryable}
    assert set(by_status["onExitCodes"]["values"]) == for_good
    assert by_condition["onPodConditions"][0]["type"] == "DisruptionTarget"
    assert (suspended["action"], suspended["onExitCodes"]["values"]) == ("Ignore", [13, 143])
    assert spec["template"]["spec"]["restartPolicy"] == "Never"


def test_rank_zero_is_found_before_ready():
    what = gang()
    job, service = objects(what)[:2]
    (address,) = [
        variable["value"]
        for variable in job["spec"]["template"]["spec"]["containers"][0]["env"]
        if variable["name"] == "MASTER_ADDR"
    ]
    name = job["metadata"]["name"]
    assert address == f"{name}-0.{name}"
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"] == name
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True


def test_ranks_wait_while_others_may_start():
    (container,) = manifest.job(gang(startup_seconds=1800), 1)["spec"]["template"]["spec"]["containers"]
    assert {"name": "PBG_STARTUP_SECONDS", "value": "1800"} in container["env"]


@given(
    snapshot=st.from_regex(SNAPSHOT_KEY, fullmatch=True),
    spec_hash=st.from_regex(r"[0-9a-f]{12}", fullmatch=True),
    ranks=st.integers(1, 256),
    attempt=st.integers(1, 1000),
)
def test_every_run_and_attempt_has_its_name(snapshot, spec_hash, ranks, attempt):
    what = gang(ranks, run=f"s3://b/g/runs/{snapshot}-{spec_hash}")
    name = manifest.job_name(what, attempt)
    assert schema.LABEL.match(f"{name}-{what.size - 1}")
    assert name.endswith(f"-{spec_hash}-{attempt}")
    assert name == manifest.job_name(what, attempt) != manifest.job_name(what, attempt + 1)


@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        ({"image": "registry.example/pbg:latest"}, "not given by digest .* set allow_tag"),
        ({"image": f"{IMAGE}0"}, "not given by digest"),
        ({"ttl_seconds": 0}, "ttl_seconds is 0, and has to be 1200 at least: a Job that is removed before the task"),
        ({"ttl_seconds": SHORTEST_TTL - 1}, "ttl_seconds is 1199"),
        ({"resources": {"cpu": "1"}}, "resources: memory is missing"),
        ({"resources": {"cpu": "1", "memory": "2GB"}}, "resources.memory"),
        ({"namespace": "Not_A_Label"}, "namespace"),
        ({"environment": {"WORLD_SIZE": "3"}}, "environment: WORLD_SIZE is set for every rank"),
        ({"scrath": "1Gi"}, "unknown key 'scrath'; did you mean 'scratch'"),
        ({"port": 80}, "port"),
    ],
)
def test_each_mistake_of_the_section_is_named(section, sentence):
    right = {"image": IMAGE, "resources": {"cpu": "1", "memory": "2Gi"}}
    with pytest.raises(ConfigError, match=sentence):
        parse(KubernetesLaunch, right | section, source="graph.yaml")
    assert parse(KubernetesLaunch, {**right, "image": "pbg:1", "allow_tag": True}, source="s").image == "pbg:1"


def test_job_stays_until_its_end_was_seen():
    assert watch.PATIENCE_SECONDS + 2 * watch.LONGEST_PAUSE < SHORTEST_TTL
