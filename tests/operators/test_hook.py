"""The hook of stores, and the form of its connection."""

from __future__ import annotations

import json

import jsonschema
import pytest
from airflow.models.connection import Connection as StoredConnection

from pbg_operators.hook import StoreHook
from pbg_operators.provider_info import get_provider_info
from pbg_tasks.errors import ConfigError


@pytest.fixture
def connect(monkeypatch):
    """Make a connection, and return its hook."""

    def connect(**fields):
        monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps({"conn_type": "pbg"} | fields))
        return StoreHook("store")

    return connect


def test_airflow_finds_hook_and_form_by_type(connect, tmp_path):
    """Its button *Test* calls the same."""
    from airflow.providers_manager import ProvidersManager

    connect(extra={"store": str(tmp_path)})
    stored = StoredConnection(conn_id="store", conn_type="pbg", extra=json.dumps({"store": str(tmp_path)}))
    assert isinstance(stored.get_hook(), StoreHook)
    worked, sentence = stored.test_connection()
    assert (worked, sentence) == (True, f"{tmp_path} can be read and written, and keeps the conditions of writes")
    widgets = ProvidersManager().connection_form_widgets
    fields = {name.removeprefix("extra__pbg__") for name in widgets if name.startswith("extra__pbg__")}
    assert {"store", "endpoint_url", "region_name"} <= fields
    assert widgets["extra__pbg__aws_session_token"].is_sensitive
    assert "host" in ProvidersManager().field_behaviours["pbg"]["hidden_fields"]


def test_form_follows_schema_and_names_what_tasks_read():
    from importlib.resources import files

    from pbg_operators.connection import FROM_EXTRA

    schema = json.loads(files("airflow").joinpath("provider.yaml.schema.json").read_text())
    (form,) = get_provider_info()["connection-types"]
    jsonschema.validate([form], schema["properties"]["connection-types"])
    assert set(form["conn-fields"]) == {*FROM_EXTRA, "store"}


def test_connection_without_store_names_field_to_fill_in(connect):
    worked, sentence = connect().test_connection()
    assert not worked
    assert sentence == "connection 'store': fill in Store, such as s3://bucket/prefix"


def test_wrong_place_is_one_sentence(connect):
    assert connect(extra={"store": "gs://bucket/x"}).test_connection()[0] is False
    worked, sentence = connect(extra={"store": "/x", "role_arn": "arn:x"}).test_connection()
    assert not worked
    assert "role_arn is not supported" in sentence
    with pytest.raises(ConfigError, match="fill in Store"):
        connect().get_conn()


def test_s3_store_is_read_and_written(connect, s3_bucket, object_store, monkeypatch):
    given = object_store.environment()
    for name in given:
        monkeypatch.delenv(name)
    keys = {"login": given["AWS_ACCESS_KEY_ID"], "password": given["AWS_SECRET_ACCESS_KEY"]}
    endpoint = next(value for name, value in given.items() if name.startswith("AWS_ENDPOINT_URL"))
    extra = {"store": s3_bucket, "endpoint_url": endpoint, "region_name": "us-east-1"}
    hook = connect(**keys, extra=extra)
    assert hook.test_connection() == (True, f"{s3_bucket} can be read and written, and keeps the conditions of writes")
    assert list(hook.get_conn().list()) == []
    worked, sentence = connect(**keys | {"password": "wrong"}, extra=extra).test_connection()
    assert not worked
    assert keys["password"] not in sentence
