"""JobSets of the double: their schema and their controller.

``SPEC`` has the fields, types, words and required fields of ``spec`` in JobSet's CustomResourceDefinition
(``jobset.x-k8s.io``, version ``v1alpha2``; ``config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml`` of
kubernetes-sigs/jobset at commit 01078527ec4383c3d7289b5af3e0a788324e14ec, made by controller-gen v0.16.2). The Job's
template in it is Kubernetes' own, so the types of the official client check it.

Of the controller: the Job and the headless Service are made, ``suspend`` is passed on, a failed Job is judged by the
first rule that has its reason, and made again with a higher restart attempt once its pods are gone. What it does not:
more than one replicated Job, start-up and success policies, in-place restarts, exclusive placement.
"""

from __future__ import annotations

import copy
import re

from tests.operators.kubernetes.double.controller import add, has
from tests.operators.kubernetes.double.objects import Objects, now
from tests.operators.kubernetes.double.problems import invalid

TEMPLATE = "V1JobTemplateSpec"
NAMES = [str]
SPEC = {
    "coordinator": {"jobIndex": int, "podIndex": int, "replicatedJob!": str},
    "failurePolicy": {
        "maxRestarts": int,
        "restartStrategy": {"Recreate", "BlockingRecreate"},
        "rules": [
            {
                "action!": {"FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"},
                "name!": re.compile(r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"),
                "onJobFailureReasons": NAMES,
                "targetReplicatedJobs": NAMES,
            }
        ],
    },
    "managedBy": str,
    "network": {"enableDNSHostnames": bool, "publishNotReadyAddresses": bool, "subdomain": str},
    "replicatedJobs": [
        {
            "dependsOn": [{"name!": str, "status!": {"Ready", "Complete"}}],
            "groupName": str,
            "name!": str,
            "replicas": int,
            "template!": TEMPLATE,
        }
    ],
    "startupPolicy": {"startupPolicyOrder!": {"AnyOrder", "InOrder"}},
    "successPolicy": {"operator!": {"All", "Any"}, "targetReplicatedJobs": NAMES},
    "suspend": bool,
    "ttlSecondsAfterFinished": int,
}
"""A mark at the end of a name: the field is required. A set: one of these words."""
LABEL = "jobset.sigs.k8s.io"


def check_jobset(body: dict, check_type) -> None:
    """Refuse what the schema of JobSets, or their webhook, would refuse."""
    if unknown := set(body) - {"apiVersion", "kind", "metadata", "spec", "status"}:
        raise invalid(400, "BadRequest", f'strict decoding error: unknown field "{min(unknown)}"')
    check_type(body["metadata"], "V1ObjectMeta", "JobSet.metadata")
    _check(body.get("spec", {}), SPEC, "spec", check_type)
    for job in body["spec"]["replicatedJobs"]:
        last = job["template"]["spec"].get("completions", 1) - 1
        pod = f"{body['metadata']['name']}-{job['name']}-{job.get('replicas', 1) - 1}-{last}-abcde"
        if len(pod) > 63:
            raise invalid(403, "Forbidden", "JobSet name is too long, pod names generated for it exceed 63 characters")


def _check(value, expected, where: str, check_type) -> None:
    if isinstance(expected, str):
        check_type(value, expected, where)
    elif isinstance(expected, dict):
        check_object(value, expected, where, check_type)
    elif isinstance(expected, list):
        for at, item in enumerate(value):
            _check(item, expected[0], f"{where}[{at}]", check_type)
    else:
        _check_scalar(value, expected, where)


def check_object(value: dict, expected: dict, where: str, check_type) -> None:
    """Refuse an object that differs from its fields; ``*`` is any name."""
    if "*" in expected:
        expected = dict.fromkeys(value, expected["*"])
    fields = {name.rstrip("!"): (kind, name.endswith("!")) for name, kind in expected.items()}
    for name, item in value.items():
        if name not in fields:
            raise invalid(400, "BadRequest", f'strict decoding error: unknown field "{where}.{name}"')
        _check(item, fields[name][0], f"{where}.{name}", check_type)
    if missing := [name for name, (_, required) in fields.items() if required and name not in value]:
        raise invalid(422, "Invalid", f"{where}.{missing[0]}: Required value")


def _check_scalar(value, expected, where: str) -> None:
    if isinstance(expected, set):
        if value not in expected:
            raise invalid(422, "Invalid", f'{where}: Unsupported value: "{value}"')
    elif isinstance(expected, re.Pattern):
        if not expected.match(value):
            raise invalid(422, "Invalid", f'{where}: Invalid value: "{value}": should match {expected.pattern}')
    elif type(value) is not expected:
        raise invalid(422, "Invalid", f"{where}: must be of type {expected.__name__}")


class JobSetController:
    """Makes the Job of each JobSet, and the JobSet's status."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def step(self) -> None:
        for jobset in self._objects.everything("jobsets"):
            before = copy.deepcopy(jobset)
            if not has(jobset, "Completed") and not has(jobset, "Failed"):
                self._reconcile(jobset)
            if jobset != before:
                self._objects.touch("jobsets", jobset)

    def _reconcile(self, jobset: dict) -> None:
        status = jobset.setdefault("status", {"restarts": 0})
        suspended = bool(jobset["spec"].get("suspend"))
        mark = ("True", "SuspendedJobs") if suspended else ("False", "ResumeJobs")
        known = next((each for each in status.get("conditions", []) if each["type"] == "Suspended"), None)
        if known is None or known["status"] != mark[0]:
            kept = [each for each in status.get("conditions", []) if each["type"] != "Suspended"]
            changed = {
                "type": "Suspended",
                "status": mark[0],
                "reason": mark[1],
                "message": "",
                "lastTransitionTime": now(),
            }
            status["conditions"] = [*kept, changed]
        self._make_service(jobset)
        job = self._child(jobset)
        if job is None:
            self._make_job(jobset, suspended=suspended)
        elif has(job, "Complete"):
            status["terminalState"] = "Completed"
            add(jobset, "Completed", "AllJobsCompleted", "jobset completed successfully")
        elif has(job, "Failed"):
            self._judge(jobset, job)
        elif bool(job["spec"].get("suspend")) != suspended:
            job["spec"]["suspend"] = suspended
            self._objects.touch("jobs", job)

    def _judge(self, jobset: dict, job: dict) -> None:
        policy, status = jobset["spec"].get("failurePolicy", {}), jobset["status"]
        reason = has(job, "Failed")["reason"]
        rules = [rule for rule in policy.get("rules", []) if reason in (rule.get("onJobFailureReasons") or [reason])]
        action = rules[0]["action"] if rules else "RestartJobSet"
        said = f"(first failed job: {job['metadata']['name']})"
        if action == "FailJobSet":
            self._fail(jobset, "FailJobSetFailurePolicyAction", f"applying FailJobSet failure policy action {said}")
        elif action == "RestartJobSet" and status["restarts"] >= policy.get("maxRestarts", 0):
            self._fail(jobset, "ReachedMaxRestarts", f"jobset failed due to reaching max number of restarts {said}")
        else:
            status["restarts"] += 1
            self._objects.remove("jobs", job["metadata"]["namespace"], job["metadata"]["name"])

    def _fail(self, jobset: dict, reason: str, message: str) -> None:
        jobset["status"]["terminalState"] = "Failed"
        add(jobset, "Failed", reason, message)

    def _child(self, jobset: dict) -> dict | None:
        uid = jobset["metadata"]["uid"]
        jobs = self._objects.everything("jobs", jobset["metadata"]["namespace"])
        return next((job for job in jobs if job["metadata"].get("ownerReferences", [{}])[0].get("uid") == uid), None)

    def _make_job(self, jobset: dict, *, suspended: bool) -> None:
        metadata = jobset["metadata"]
        name, namespace = metadata["name"], metadata["namespace"]
        pods = self._objects.everything("pods", namespace)
        if any(pod["metadata"]["labels"].get(f"{LABEL}/jobset-name") == name for pod in pods):
            return  # those of the gang before it have not ended
        (replicated,) = jobset["spec"]["replicatedJobs"]
        job = copy.deepcopy(replicated["template"])
        labels = {
            f"{LABEL}/jobset-name": name,
            f"{LABEL}/replicatedjob-name": replicated["name"],
            f"{LABEL}/job-index": "0",
            f"{LABEL}/restart-attempt": str(jobset["status"]["restarts"]),
        }
        for thing in (job, job["spec"]["template"]):
            about = thing.setdefault("metadata", {})
            about["labels"] = about.get("labels", {}) | labels
        job["metadata"] |= {"name": f"{name}-{replicated['name']}-0", "ownerReferences": [self._owner(jobset)]}
        job["spec"]["suspend"] = suspended
        job["spec"]["template"]["spec"].setdefault("subdomain", name)
        self._objects.create("jobs", namespace, job | {"apiVersion": "batch/v1", "kind": "Job"})

    def _make_service(self, jobset: dict) -> None:
        name, namespace = jobset["metadata"]["name"], jobset["metadata"]["namespace"]
        known = {service["metadata"]["name"] for service in self._objects.everything("services", namespace)}
        if jobset["spec"].get("network", {}).get("enableDNSHostnames") and name not in known:
            spec = {"clusterIP": "None", "selector": {f"{LABEL}/jobset-name": name}}
            about = {"name": name, "ownerReferences": [self._owner(jobset)]}
            service = {"apiVersion": "v1", "kind": "Service", "metadata": about, "spec": spec}
            self._objects.create("services", namespace, service)

    def _owner(self, jobset: dict) -> dict:
        about = jobset["metadata"]
        kind = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet"}
        return kind | {"name": about["name"], "uid": about["uid"]}
