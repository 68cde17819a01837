"""Runs as a training leaves them, made by hand.

They are small and have the layout that the collector finds.
"""

from __future__ import annotations

import json

from pbg_tasks.checkpoint import ObjectRecord, PreservedManifest
from pbg_tasks.checkpoint.manifest import encode, sha256
from pbg_tasks.config.contract import Contract

HASH = "c" * 64
FILES = ("embeddings_n_0.v1.h5", "model.v1.h5")


def write_run(store, run, *, previous=None, channel="production", space=None):
    """Write a trained and preserved run; return the keys of its objects."""
    spec = {"graph": {"channel": channel}, "previous": previous and {"run": previous}}
    objects = {f"runs/{run}/spec.json": json.dumps(spec).encode(), f"runs/{run}/results/train.json": b"{}"}
    records = {}
    for name in FILES:
        data = f"{run} {name}".encode()
        objects |= {f"runs/{run}/checkpoint/{name}": data, f"runs/{run}/release/{name}": data}
        records[name] = ObjectRecord(sha256=sha256(data), size=len(data))
    contract = Contract(space=space) if space is not None else None
    manifest = PreservedManifest(spec=HASH, version=1, epochs=1, objects=records, contract=contract)
    objects[f"runs/{run}/release/manifest.json"] = encode(manifest)
    for key, data in objects.items():
        store.put_new(key, data)
    return set(objects)


def candidate(store, run, snapshot):
    """Return the publishable fields of a run."""
    return {
        "graph": "g",
        "run": run,
        "snapshot": snapshot,
        "directory": f"runs/{run}/release",
        "manifest_sha256": sha256(store.get(f"runs/{run}/release/manifest.json").data),
        "id_layout": HASH,
        "vector_space": HASH,
        "split": HASH,
    }


def whole(store, release):
    """Return whether every file of a release exists with its bytes."""
    data = store.get(f"{release.directory}/manifest.json").data
    assert sha256(data) == release.manifest_sha256
    for name, record in json.loads(data)["objects"].items():
        if sha256(store.get(f"{release.directory}/{name}").data) != record["sha256"]:
            return False
    return True
