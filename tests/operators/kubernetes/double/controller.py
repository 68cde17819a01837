"""The Indexed Job controller.

It makes pods for a Job's indexes, and the Job's status from its pods.
"""

from __future__ import annotations

import copy
import secrets
from datetime import UTC, datetime, timedelta

from tests.operators.kubernetes.double.objects import Objects, now

FINISHED = ("Succeeded", "Failed")
PREFIX = "batch.kubernetes.io"


class JobController:
    """Makes pods and statuses of Jobs agree, a step at a time."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self.injected: list[dict] = []  # containers that a webhook puts in front of those of each pod

    def step(self) -> None:
        for job in self._objects.everything("jobs"):
            if has(job, "Complete") or has(job, "Failed"):
                self._expire(job)
            else:
                self._reconcile(job)
        self._objects.collect()

    def _reconcile(self, job: dict) -> None:
        before = copy.deepcopy(job.get("status"))
        status = job.setdefault("status", {})
        job.setdefault("double", {"failed": 0, "done": set()})
        spec, pods = job["spec"], self.pods_of(job)
        if spec.get("suspend"):
            status.pop("startTime", None)
            for pod in pods:
                if phase(pod) not in FINISHED:
                    self.delete(pod)
        else:
            status.setdefault("startTime", now())
        self._count(job, pods)
        self._judge(job, pods)
        if not spec.get("suspend") and not has(job, "FailureTarget") and not has(job, "Complete"):
            self._create_missing(job, pods)
        self._release(job, pods)
        if status != before:
            self._objects.touch("jobs", job)

    def _count(self, job: dict, pods: list[dict]) -> None:
        status = job["status"]
        failed = [pod for pod in pods if phase(pod) == "Failed" and not pod["double"].get("uncounted")]
        done = {pod["double"]["index"] for pod in pods if phase(pod) == "Succeeded"}
        status["active"] = sum(phase(pod) not in FINISHED and not going(pod) for pod in pods)
        status["ready"] = sum(phase(pod) == "Running" for pod in pods)
        status["terminating"] = sum(phase(pod) not in FINISHED and going(pod) for pod in pods)
        done |= job["double"]["done"]
        status["failed"] = len(failed) + job["double"]["failed"]
        status["succeeded"] = len(done)
        status["completedIndexes"] = ",".join(str(index) for index in sorted(done))

    def _judge(self, job: dict, pods: list[dict]) -> None:
        spec, status = job["spec"], job["status"]
        if not has(job, "FailureTarget"):
            reason = self._failure(job, pods)
            if reason is not None:
                add(job, "FailureTarget", *reason)
        if has(job, "FailureTarget"):
            for pod in pods:
                if phase(pod) not in FINISHED:
                    self.delete(pod)
            if not status["active"] and not status["terminating"]:
                target = has(job, "FailureTarget")
                add(job, "Failed", target["reason"], target["message"])
                job["double"]["finished"] = datetime.now(UTC)
        elif status["succeeded"] == spec["completions"]:
            add(job, "SuccessCriteriaMet", "CompletionsReached", "Reached expected number of succeeded pods")
            add(job, "Complete", "CompletionsReached", "Reached expected number of succeeded pods")
            status["completionTime"] = now()
            job["double"]["finished"] = datetime.now(UTC)

    def _failure(self, job: dict, pods: list[dict]) -> tuple[str, str] | None:
        spec = job["spec"]
        deadline = spec.get("activeDeadlineSeconds")
        started = job["status"].get("startTime")
        if deadline and started and datetime.now(UTC) - moment(started) >= timedelta(seconds=deadline):
            return "DeadlineExceeded", "Job was active longer than specified deadline"
        for pod in pods:
            if phase(pod) != "Failed":
                continue
            for at, rule in enumerate(spec.get("podFailurePolicy", {}).get("rules", [])):
                matched = matches(rule, pod)
                if matched is None:
                    continue
                if rule["action"] == "FailJob":
                    return "PodFailurePolicy", f"{matched} matching FailJob rule at index {at}"
                if rule["action"] == "Ignore":
                    pod["double"]["uncounted"] = True
                break
        self._count(job, pods)
        if job["status"]["failed"] > spec.get("backoffLimit", 6):
            return "BackoffLimitExceeded", "Job has reached the specified backoff limit"
        return None

    def _create_missing(self, job: dict, pods: list[dict]) -> None:
        held = {pod["double"]["index"] for pod in pods if phase(pod) != "Failed"}
        for index in range(job["spec"]["completions"]):
            if index not in held and job["status"]["active"] < job["spec"].get("parallelism", 1):
                self._create(job, index)
                job["status"]["active"] += 1

    def _create(self, job: dict, index: int) -> None:
        name, uid = job["metadata"]["name"], job["metadata"]["uid"]
        pod = copy.deepcopy(job["spec"]["template"])
        metadata = pod.setdefault("metadata", {})
        metadata["name"] = f"{name}-{index}-{secrets.token_hex(3)[:5]}"
        metadata["labels"] = metadata.get("labels", {}) | {
            f"{PREFIX}/job-name": name,
            f"{PREFIX}/controller-uid": uid,
            f"{PREFIX}/job-completion-index": str(index),
            "job-name": name,
            "controller-uid": uid,
        }
        metadata["annotations"] = metadata.get("annotations", {}) | {f"{PREFIX}/job-completion-index": str(index)}
        metadata["ownerReferences"] = [{"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid}]
        pod["spec"]["hostname"] = f"{name}-{index}"
        pod |= {"apiVersion": "v1", "kind": "Pod", "status": {"phase": "Pending"}, "double": {"index": index}}
        pod["spec"]["containers"][:0] = copy.deepcopy(self.injected)
        for container in pod["spec"]["containers"]:
            container.setdefault("env", []).append({"name": "JOB_COMPLETION_INDEX", "value": str(index)})
        self._objects.create("pods", job["metadata"]["namespace"], pod)

    def _release(self, job: dict, pods: list[dict]) -> None:
        """Release deleted pods that have ended and were counted.

        Their finalizer kept them until then.
        """
        for pod in pods:
            if going(pod) and phase(pod) in FINISHED:
                if phase(pod) == "Succeeded":
                    job["double"]["done"].add(pod["double"]["index"])
                elif not pod["double"].get("uncounted"):
                    job["double"]["failed"] += 1
                self._objects.remove("pods", pod["metadata"]["namespace"], pod["metadata"]["name"])

    def delete(self, pod: dict) -> None:
        """Request a pod's end.

        The node removes it when its process is gone.
        """
        if not going(pod):
            pod["metadata"]["deletionTimestamp"] = now()
            self._objects.touch("pods", pod)

    def pods_of(self, job: dict) -> list[dict]:
        """Return a Job's pods, deleted and ended ones included.

        Their finalizer lets them be counted.
        """
        uid = job["metadata"]["uid"]
        return [
            pod
            for pod in self._objects.everything("pods", job["metadata"]["namespace"])
            if pod["metadata"]["labels"][f"{PREFIX}/controller-uid"] == uid
        ]

    def _expire(self, job: dict) -> None:
        ttl = job["spec"].get("ttlSecondsAfterFinished")
        if ttl is not None and datetime.now(UTC) - job["double"]["finished"] >= timedelta(seconds=ttl):
            self._objects.remove("jobs", job["metadata"]["namespace"], job["metadata"]["name"])


def matches(rule: dict, pod: dict) -> str | None:
    """Return a podFailurePolicy rule's action for a failed pod.

    None when it does not apply.
    """
    where = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
    if (codes := rule.get("onExitCodes")) is not None:
        for container in pod["status"].get("containerStatuses", []):
            status = container["state"].get("terminated", {}).get("exitCode", 0)
            known = status in codes["values"]
            if status != 0 and known == (codes["operator"] == "In"):
                return f"Container {container['name']} for pod {where} failed with exit code {status}"
    for pattern in rule.get("onPodConditions", []):
        if has(pod, pattern["type"]):
            return f"Pod {where} has condition {pattern['type']}"
    return None


def phase(pod: dict) -> str:
    return pod["status"]["phase"]


def going(pod: dict) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def has(thing: dict, kind: str) -> dict | None:
    listed = thing.get("status", {}).get("conditions", [])
    return next((found for found in listed if found["type"] == kind and found["status"] == "True"), None)


def add(thing: dict, kind: str, reason: str, message: str) -> None:
    conditions = thing["status"].setdefault("conditions", [])
    conditions.append(
        {"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": now()}
    )


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)
