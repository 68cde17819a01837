"""The objects of a cluster, with versions and all changes recorded.

They are created, changed and deleted with rising versions.
"""

from __future__ import annotations

import base64
import copy
import threading
import uuid
from datetime import UTC, datetime

from tests.operators.kubernetes.double.problems import RefusedError, conflict, not_found

PLURALS = {
    "jobs": "Job",
    "jobsets": "JobSet",
    "pods": "Pod",
    "services": "Service",
    "secrets": "Secret",
    "networkpolicies": "NetworkPolicy",
    "events": "Event",
    "sparkapplications": "SparkApplication",
}
Key = tuple[str, str, str]


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Objects:
    """All objects, by plural, namespace and name.

    A thread that changes them holds ``changed``, which wakes the others.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.version = 0
        self.history: list[tuple[int, str, Key, dict]] = []
        self._stored: dict[Key, dict] = {}

    def create(self, plural: str, namespace: str, body: dict) -> dict:
        name = body["metadata"]["name"]
        key = (plural, namespace, name)
        with self.changed:
            if key in self._stored:
                raise RefusedError(409, "AlreadyExists", f'{plural} "{name}" already exists')
            stored = copy.deepcopy(body)
            if plural in {"jobs", "jobsets"}:
                stored.pop("status", None)  # the controller's alone
            stored["metadata"] |= {"namespace": namespace, "uid": str(uuid.uuid4()), "creationTimestamp": now()}
            for name_, text in stored.pop("stringData", {}).items():
                stored.setdefault("data", {})[name_] = _base64(text)
            self._stored[key] = stored
            self._note("ADDED", key)
            return public(stored)

    def get(self, plural: str, namespace: str, name: str) -> dict:
        """Return a copy."""
        with self.changed:
            return public(self.live(plural, namespace, name))

    def live(self, plural: str, namespace: str, name: str) -> dict:
        """Return the object itself, for callers that hold ``changed``.

        They call ``touch`` after a change.
        """
        try:
            return self._stored[plural, namespace, name]
        except KeyError:
            raise not_found(plural, name) from None

    def everything(self, plural: str, namespace: str | None = None) -> list[dict]:
        """Return the objects themselves, of one or all namespaces."""
        with self.changed:
            return [
                stored
                for (kind, where, _), stored in sorted(self._stored.items())
                if kind == plural and namespace in {None, where}
            ]

    def touch(self, plural: str, thing: dict) -> None:
        """Give a changed object a new version."""
        self._note("MODIFIED", (plural, thing["metadata"]["namespace"], thing["metadata"]["name"]))

    def patch(self, plural: str, namespace: str, name: str, change: dict) -> dict:
        """Merge a change into an object (RFC 7386).

        A uid or version in it is a precondition.
        """
        with self.changed:
            stored = self.live(plural, namespace, name)
            for field in ("uid", "resourceVersion"):
                asked = change.get("metadata", {}).get(field)
                if asked is not None and asked != stored["metadata"][field]:
                    raise conflict(f"Precondition failed: {field}: {asked}, in object: {stored['metadata'][field]}")
            merged = _merged(stored, change)
            if plural in {"jobs", "jobsets"} and _fixed(merged) != _fixed(stored):
                raise RefusedError(422, "Invalid", "spec.template: Invalid value: field is immutable")
            stored.clear()
            stored.update(merged)
            self.touch(plural, stored)
            return public(stored)

    def remove(self, plural: str, namespace: str, name: str) -> None:
        with self.changed:
            key = (plural, namespace, name)
            if key in self._stored:
                self._note("DELETED", key)
                del self._stored[key]

    def collect(self) -> None:
        """Remove the dependants of objects that are gone."""
        with self.changed:
            known = {stored["metadata"]["uid"] for stored in self._stored.values()}
            for (plural, namespace, name), stored in list(self._stored.items()):
                owners = stored["metadata"].get("ownerReferences", [])
                if plural != "pods" and owners and not any(owner["uid"] in known for owner in owners):
                    self.remove(plural, namespace, name)

    def _note(self, kind: str, key: Key) -> None:
        self.version += 1
        stored = self._stored[key]
        stored["metadata"]["resourceVersion"] = str(self.version)
        self.history.append((self.version, kind, key, public(stored)))
        self.changed.notify_all()


def public(thing: dict) -> dict:
    """Return a copy of an object without the double's own notes.

    It keeps them under ``double``.
    """
    return copy.deepcopy({key: value for key, value in thing.items() if key != "double"})


def selected(thing: dict, selector: str) -> bool:
    """Return whether an object matches a label selector of equality and absence."""
    labels = thing["metadata"].get("labels", {})
    return all(_matches(labels, term) for term in selector.split(",") if term)


def _matches(labels: dict[str, str], term: str) -> bool:
    name, _, value = term.partition("=")
    if term.startswith("!"):
        return term[1:] not in labels
    if name.endswith("!"):
        return labels.get(name[:-1]) != value
    return labels.get(name) == value.removeprefix("=")


def _merged(target: dict, change: dict) -> dict:
    result = copy.deepcopy(target)
    for key, value in change.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            result[key] = _merged(result.get(key) or {}, value)
        else:
            result[key] = value
    return result


def _fixed(job: dict) -> dict:
    changeable = {"suspend", "parallelism", "activeDeadlineSeconds", "ttlSecondsAfterFinished", "backoffLimit"}
    if job["kind"] == "JobSet":
        changeable = {"suspend", "ttlSecondsAfterFinished"}
    return {key: value for key, value in job["spec"].items() if key not in changeable}


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
