"""Assets in S3, equal to those of Airflow's own class."""

from __future__ import annotations

import copy

import pytest
from airflow.sdk import Asset
from airflow.sdk.definitions.asset import AssetUniqueKey
from airflow.serialization.encoders import encode_asset_like, ensure_serialized_asset

from pbg_operators.assets import S3Asset, channel_asset, edges_asset, export_asset
from pbg_tasks.config.graph import GraphSpec
from pbg_tasks.errors import ConfigError
from tests.operators.specs import small_spec


def in_s3(tmp_path, **changes):
    spec = small_spec(tmp_path, "small")
    spec["snapshots"] = {**spec["snapshots"], "location": "s3://bucket/edges/{snapshot}/*.parquet"}
    return GraphSpec.model_validate({**spec, "store": "s3://bucket/graphs/small/", **changes})


@pytest.mark.parametrize(
    "uri",
    [
        "s3://bucket/graphs/g/channels/production",
        "s3://bucket/graphs/g//",
        "s3://bucket",
        "S3://bucket/edges/?graph=g",
        "s3://bucket/edges/?graph=g&a=b%20c#part",
        "s3://bucket/snapshots of today/{run}/ä+b",
    ],
)
def test_asset_equals_airflows_own(uri):
    ours, airflows = S3Asset(name="n", uri=uri, group="edges"), Asset(name="n", uri=uri, group="edges")
    assert ours.uri == airflows.uri
    assert ours == airflows
    assert airflows == ours
    assert hash(ours) == hash(airflows)
    assert AssetUniqueKey.from_asset(ours) == AssetUniqueKey.from_asset(airflows)
    assert encode_asset_like(ours) == encode_asset_like(airflows)
    assert ensure_serialized_asset(ours) == ensure_serialized_asset(airflows)


def test_copies_of_asset_are_equal():
    asset = S3Asset(name="n", uri="s3://bucket/graphs/g", group="edges")
    assert copy.deepcopy(asset) == copy.copy(asset) == asset


def test_graph_in_s3_keeps_its_published_names(tmp_path):
    edges, channel = edges_asset(in_s3(tmp_path)), channel_asset(in_s3(tmp_path))
    assert (edges.name, edges.uri) == ("small_edges", "s3://bucket/edges?graph=small")
    assert (channel.name, channel.uri) == ("small_production", "s3://bucket/graphs/small/channels/production")


def test_no_two_assets_share_a_uri(tmp_path):
    exports = [
        {"format": "parquet", "destination": "s3://vectors/{snapshot}/parquet"},
        {"format": "npy", "destination": "s3://vectors/{snapshot}/npy"},
        {"format": "faiss", "destination": "s3://vectors/{run}"},
        {"format": "tsv", "destination": "s3://bucket/graphs/small/channels/production/{run}"},
        {"format": "safetensors"},
    ]
    specs = [
        in_s3(tmp_path, exports=exports),
        in_s3(tmp_path, exports=exports, graph="other", channel="other"),
        in_s3(tmp_path, exports=exports, graph="third", store="s3://bucket/graphs/third"),
    ]
    assets = [
        asset
        for spec in specs
        for asset in (edges_asset(spec), channel_asset(spec), *(export_asset(spec, each) for each in spec.exports))
    ]
    assert len({asset.name for asset in assets}) == len({asset.uri for asset in assets}) == len(assets) == 21


def test_database_is_an_asset_beside_the_postgres_provider(tmp_path, monkeypatch):
    """The provider, which Airflow's image has, takes nothing but names of tables."""

    def refuse(uri):
        if len(uri.path.split("/")) != 4:
            raise ValueError("URI format postgres:// must contain database, schema, and table names")
        return uri

    handlers = dict.fromkeys(("postgres", "postgresql"), refuse)
    monkeypatch.setattr("airflow.sdk.definitions.asset._get_uri_normalizer", handlers.get)
    spec = in_s3(tmp_path, exports=[{"format": "pgvector", "destination": "postgresql://db.internal/vectors"}])
    place = "pgvector+postgresql://db.internal/vectors"
    assert export_asset(spec, spec.exports[0]).uri == f"{place}?channel=production&export=pgvector&graph=small"


@pytest.mark.parametrize(
    ("store", "said"), [("s3:///graphs", "must contain a bucket name"), ("s3://b/" + 1500 * "x", "1500")]
)
def test_location_that_airflow_cannot_name_is_refused(tmp_path, store, said):
    with pytest.raises(ConfigError, match=said):
        channel_asset(in_s3(tmp_path, store=store))
