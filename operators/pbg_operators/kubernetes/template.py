"""A pod's template of the user under that of the launcher.

Where both have a value, the launcher's counts. What would undo its container's confinement beside such values is
refused where a spec is read (``pbg_tasks.config.pods``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BY_KEY = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
}
"""Lists whose entries have a key: entries of one key are merged."""
JOINED = frozenset({"envFrom", "tolerations", "topologySpreadConstraints", "hostAliases"})
"""Lists that hold the entries of both."""


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return both parts of an object.

    ``over`` counts where both have a value.
    """
    result = {**under, **over}
    for name in under.keys() & over.keys():
        below, above = under[name], over[name]
        if isinstance(below, dict) and isinstance(above, dict):
            result[name] = merged(below, above)
        elif name in JOINED:
            result[name] = [*below, *above]
        elif name in BY_KEY:
            result[name] = _by_key(below, above, BY_KEY[name])
    return result


def _by_key(below: Sequence[Mapping[str, Any]], above: Sequence[Mapping[str, Any]], key: str) -> list[Any]:
    """Return the entries of both lists, those of ``above`` first."""
    found = {entry[key]: entry for entry in below if key in entry}
    ours = [merged(found.pop(entry[key], {}), entry) for entry in above]
    return [*ours, *found.values(), *(entry for entry in below if key not in entry)]
