"""Airflow assets that the DAGs of a graph read and write."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import attrs
from airflow.sdk import Asset

from pbg_tasks.errors import ConfigError

if TYPE_CHECKING:
    from pbg_tasks.config import GraphSpec
    from pbg_tasks.config.exports import Export


LONGEST_URI = 1500
"""Number of characters that Airflow's database can store."""


def s3_uri(uri: str) -> str:
    """Return a URI in the form of Airflow's Amazon provider.

    The provider itself, whose imports are slow, is not needed.

    Raises:
        ValueError: it names no bucket.
    """
    parts = urlsplit(uri)
    if not parts.netloc:
        raise ValueError("URI format s3:// must contain a bucket name")
    path, query = parts.path.rstrip("/") or "/", urlencode(sorted(parse_qsl(parts.query)))
    return urlunsplit(parts._replace(path=path, query=query, fragment=""))


# Whenever Airflow makes an asset, it looks for the provider that normalizes URIs of the scheme. So it loads every
# provider with assets: boto3 and botocore, 300 modules for 0.2 s of each parse.
@attrs.define(init=False, eq=False)
class S3Asset(Asset):  # type: ignore[override] # of the initialiser, which Airflow calls with names only
    """Asset in S3, equal to Airflow's of the same name and URI."""

    uri: str = attrs.field(kw_only=True, converter=s3_uri, validator=attrs.validators.max_len(LONGEST_URI))


def edges_asset(spec: GraphSpec) -> Asset:
    """Return the asset of a graph's snapshots.

    Its URI ends with the graph's name: Airflow takes two assets with one URI for a mistake and refuses the tasks of
    one, yet two graphs may be made of the same snapshots, each begun by its own events.

    Raises:
        ConfigError: they are at no place that Airflow can name.
    """
    place = spec.snapshots.location.partition("{snapshot}")[0]
    return _asset(f"{spec.graph}_edges", place, "edges", graph=spec.graph)


def channel_asset(spec: GraphSpec) -> Asset:
    """Return the asset of the channel to which nights publish.

    Raises:
        ConfigError: it is at no place that Airflow can name.
    """
    return _channel(spec, spec.channel)


def readers_asset(spec: GraphSpec) -> Asset:
    """Return the asset of the channel that takes over releases of nights.

    Raises:
        ConfigError: it is at no place that Airflow can name.
    """
    return _channel(spec, spec.read_channel)


def _channel(spec: GraphSpec, name: str) -> Asset:
    return _asset(f"{spec.graph}_{name}", f"{spec.store.rstrip('/')}/channels/{name}", "embeddings")


def export_asset(spec: GraphSpec, export: Export) -> Asset:
    """Return the asset of the place of all exports of a name.

    The exports are those of all nights. The URI ends with the names of graph, channel and export, for the same reason
    as that of the edges: exports to ``s3://vectors/{snapshot}/a`` and ``s3://vectors/{snapshot}/b``, of one graph or of
    two, share the place.

    Raises:
        ConfigError: it is at no place that Airflow can name.
    """
    place = export.place(spec.store)
    scheme = urlsplit(place).scheme
    if export.is_sink and scheme not in {"", "file", "s3", "http", "https"}:
        # Providers demand more of their schemes: by one in Airflow's image, postgresql:// names a table.
        place = f"{re.sub(r'[^a-z0-9]', '-', export.format.lower())}+{place}"
    return _asset(
        f"{spec.graph}_{spec.channel}_{export.name}",
        place,
        "exports",
        graph=spec.graph,
        channel=spec.channel,
        export=export.name,
    )


def _asset(name: str, place: str, group: str, **whose: str) -> Asset:
    uri = place if urlsplit(place).scheme else Path(place).absolute().as_uri()
    kind = S3Asset if urlsplit(uri).scheme == "s3" else Asset
    query = f"{'&' if urlsplit(uri).query else '?'}{urlencode(whose)}" if whose else ""
    try:
        return kind(name=name, uri=uri + query, group=group)
    except ValueError as error:
        raise ConfigError(f"{place!r} is no place that can be an Airflow asset: {error}") from None
