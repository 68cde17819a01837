"""Exchange of embeddings with other tools, in their formats.

A format is a module with ``write`` (an export), ``read`` (an import) or both; it is imported when it is used, because
some need a library of their own. Packages add others (``Format``). Writers get ``Contents`` and leave files in an
``Outbox``; readers get an ``Inbox`` and yield ``Vectors`` of one entity type each. ``tasks.exchange`` moves bytes
between these and a store.
"""

from __future__ import annotations

from pbg_tasks.config.base import Options
from pbg_tasks.publish.exchange.contents import Block, Contents, EntityRows
from pbg_tasks.publish.exchange.inbox import Inbox
from pbg_tasks.publish.exchange.manifest import MANIFEST, ExchangeManifest, TypeRecord
from pbg_tasks.publish.exchange.outbox import Outbox
from pbg_tasks.publish.exchange.registry import READERS, WRITERS, Format, join_pieces, part_writer, reader, writer
from pbg_tasks.publish.exchange.vectors import ReadOptions, Vectors

__all__ = [
    "MANIFEST",
    "READERS",
    "WRITERS",
    "Block",
    "Contents",
    "EntityRows",
    "ExchangeManifest",
    "Format",
    "Inbox",
    "Options",
    "Outbox",
    "ReadOptions",
    "TypeRecord",
    "Vectors",
    "join_pieces",
    "part_writer",
    "reader",
    "writer",
]
