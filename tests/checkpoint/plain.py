"""Committed versions of a plain checkpoint."""

from __future__ import annotations

from tests.checkpoint import pbg
from tests.checkpoint.samples import iteration


def commit(writer, content=b"ours"):
    version = writer.version + 1
    objects = {name: writer.put(name, f"{name} ".encode() + content) for name in pbg.names(version)}
    return writer.commit(objects, iteration=iteration(version), edges=10)
