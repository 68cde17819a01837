"""Embeddings in the formats that other tools read, and from those that they write.

A format is a module with ``write`` (an export), ``read`` (an import) or both; it is imported when it is used, for some
need a library of their own. Writers get ``Contents`` and leave files in an ``Outbox``; readers get an ``Inbox`` and
yield ``Vectors`` of one entity type each. Who moves bytes between these and a store is ``tasks.exchange``.
"""

from __future__ import annotations

from pbg_tasks.publish.exchange.contents import Contents, EntityRows
from pbg_tasks.publish.exchange.inbox import Inbox
from pbg_tasks.publish.exchange.manifest import MANIFEST, ExchangeManifest, TypeRecord
from pbg_tasks.publish.exchange.outbox import Outbox
from pbg_tasks.publish.exchange.registry import READERS, WRITERS, reader, writer
from pbg_tasks.publish.exchange.vectors import ReadOptions, Vectors

__all__ = [
    "MANIFEST",
    "READERS",
    "WRITERS",
    "Contents",
    "EntityRows",
    "ExchangeManifest",
    "Inbox",
    "Outbox",
    "ReadOptions",
    "TypeRecord",
    "Vectors",
    "reader",
    "writer",
]
