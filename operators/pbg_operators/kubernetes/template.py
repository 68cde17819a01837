"""A pod's template of the user under that of the launcher.

Where both have a value, the launcher's counts. What would undo its container's confinement beside such values is
refused where a spec is read (``pbg_tasks.config.pods``).
"""

from __future__ import annotations

import posixpath
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
"""Lists whose entries have a key: of two entries of one key, that of the launcher counts."""
CONTAINERS = frozenset({"containers", "initContainers"})
"""Lists whose entries of one key are merged. Parts of others exclude each other, as a volume's sources do."""
JOINED = frozenset({"envFrom", "tolerations", "topologySpreadConstraints", "hostAliases"})
"""Lists that hold the entries of both."""
WHOLE = frozenset({"seccompProfile"})
"""Mappings whose keys depend on each other: that of the launcher counts alone."""


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return both parts of an object.

    ``over`` counts where both have a value.
    """
    result = {**under, **over}
    for name in under.keys() & over.keys():
        below, above = under[name], over[name]
        if isinstance(below, dict) and isinstance(above, dict) and name not in WHOLE:
            result[name] = merged(below, above)
        elif not (isinstance(below, list) and isinstance(above, list)):
            continue  # a label may have the name of such a list
        elif name in JOINED:
            result[name] = [*below, *above]
        elif name in BY_KEY:
            result[name] = _by_key(name, below, above)
    return result


def _by_key(name: str, below: Sequence[Mapping[str, Any]], above: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return the entries of both lists, those of ``above`` first."""
    key = BY_KEY[name]
    found = {_same(key, entry[key]): entry for entry in below if key in entry}
    theirs = [found.pop(_same(key, entry[key]), {}) for entry in above]
    ours = [merged(*pair) for pair in zip(theirs, above, strict=True)] if name in CONTAINERS else above
    return [*ours, *found.values(), *(entry for entry in below if key not in entry)]


def _same(key: str, value: object) -> object:
    """Return what is the same for all ways to write a path."""
    return posixpath.normpath("/" + str(value).lstrip("/")) if key == "mountPath" else value
