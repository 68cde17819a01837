"""Checks of bodies against the types of the official client.

The types are generated from the API's OpenAPI document.
"""

from __future__ import annotations

import re
from datetime import datetime

from tests.operators.kubernetes.double.jobset import check_jobset
from tests.operators.kubernetes.double.problems import invalid
from tests.operators.kubernetes.double.spark import check_application

KINDS = {
    "Job": "V1Job",
    "Pod": "V1Pod",
    "Service": "V1Service",
    "Secret": "V1Secret",
    "NetworkPolicy": "V1NetworkPolicy",
    "Event": "CoreV1Event",
}
SCALARS = {"str": str, "int": int, "bool": bool, "float": (int, float), "object": object, "datetime": str, "date": str}
LABEL = re.compile(r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")
ENUMS = {
    "completionMode": {"Indexed", "NonIndexed"},
    "podReplacementPolicy": {"Failed", "TerminatingOrFailed"},
    "restartPolicy": {"Always", "OnFailure", "Never"},
    "terminationMessagePolicy": {"File", "FallbackToLogsOnError"},
    "action": {"FailJob", "FailIndex", "Ignore", "Count"},
    "imagePullPolicy": {"Always", "Never", "IfNotPresent"},
}
QUANTITY = re.compile(r"^[0-9]+(\.[0-9]+)?(m|[kMGTPE]|[KMGTPE]i)?$")


def check(body: dict) -> None:
    """Refuse what the API would refuse.

    Unknown fields, wrong types, missing ones, unknown words, and broken rules between fields.
    """
    if body["kind"] == "JobSet":
        check_jobset(body, _check)
    elif body["kind"] == "SparkApplication":
        check_application(body, _check)
    else:
        _check(body, KINDS[body["kind"]], body["kind"])
    _names(body)
    if body["kind"] == "Job":
        _job(body)


def _check(value, type_name: str, where: str) -> None:
    if value is None:
        return
    if (listed := re.fullmatch(r"list\[(.+)\]", type_name)) is not None:
        _expect(isinstance(value, list), where, type_name)
        for at, item in enumerate(value):
            _check(item, listed[1], f"{where}[{at}]")
    elif (mapped := re.fullmatch(r"dict\[str, (.+)\]", type_name)) is not None:
        _expect(isinstance(value, dict), where, type_name)
        for key, item in value.items():
            _check(item, mapped[1], f"{where}.{key}")
    elif type_name in SCALARS:
        right = isinstance(value, SCALARS[type_name]) and not (type_name == "int" and isinstance(value, bool))
        _expect(right, where, type_name)
        if type_name == "datetime":
            datetime.fromisoformat(value)
    else:
        from kubernetes.client import models  # large, and most tests of a run do without it

        _object(value, getattr(models, type_name), where)


def _object(value, model, where: str) -> None:
    _expect(isinstance(value, dict), where, model.__name__)
    attributes = {name: attribute for attribute, name in model.attribute_map.items()}
    for key, item in value.items():
        if key not in attributes:
            raise invalid(400, "BadRequest", f'strict decoding error: unknown field "{where}.{key}"')
        _check(item, model.openapi_types[attributes[key]], f"{where}.{key}")
        if key in ENUMS and item not in ENUMS[key]:
            raise invalid(422, "Invalid", f'{where}.{key}: Unsupported value: "{item}"')
        if key in {"requests", "limits"} and not all(QUANTITY.match(str(amount)) for amount in item.values()):
            raise invalid(400, "BadRequest", f"{where}.{key}: quantities must match {QUANTITY.pattern}")
    if not where.endswith(".status"):
        try:
            model(**{attributes[key]: item for key, item in value.items()})
        except ValueError as error:  # the client's models know which fields are required
            raise invalid(422, "Invalid", f"{where}: {error}") from None


def _expect(right: bool, where: str, type_name: str) -> None:  # noqa: FBT001 (a condition, not an option)
    if not right:
        raise invalid(400, "BadRequest", f"{where}: must be of type {type_name}")


def _names(body: dict) -> None:
    name = body["metadata"].get("name", "")
    if not LABEL.match(name):
        raise invalid(422, "Invalid", f'metadata.name: Invalid value: "{name}": must be a DNS label of up to 63')


def _job(body: dict) -> None:
    spec = body["spec"]
    pod = spec["template"]["spec"]
    if pod.get("restartPolicy") not in {"Never", "OnFailure"}:
        raise invalid(422, "Invalid", "spec.template.spec.restartPolicy: Required value: Never or OnFailure")
    if spec.get("completionMode") != "Indexed" or spec.get("completions") is None:
        raise invalid(422, "Invalid", "spec.completionMode: the double runs Indexed Jobs with completions only")
    host = f"{body['metadata']['name']}-{spec['completions'] - 1}"
    if not LABEL.match(host):
        raise invalid(422, "Invalid", f'metadata.name: Invalid value: pod host name "{host}" is no DNS label')
    rules = spec.get("podFailurePolicy", {}).get("rules", [])
    if rules and pod["restartPolicy"] != "Never":
        raise invalid(422, "Invalid", "spec.podFailurePolicy: only with restartPolicy Never")
    if rules and spec.get("podReplacementPolicy", "Failed") != "Failed":
        raise invalid(422, "Invalid", "spec.podReplacementPolicy: must be Failed with podFailurePolicy")
    for rule in rules:
        values = rule.get("onExitCodes", {}).get("values", [])
        if values != sorted(set(values)) or (0 in values and rule["onExitCodes"]["operator"] == "In"):
            raise invalid(422, "Invalid", "spec.podFailurePolicy.rules: values must be ordered, unique and not 0")
    mounts = {mount["name"] for container in pod["containers"] for mount in container.get("volumeMounts", [])}
    if unknown := mounts - {volume["name"] for volume in pod.get("volumes", [])}:
        raise invalid(422, "Invalid", f'spec.template.spec.containers[0].volumeMounts: Not found: "{min(unknown)}"')
