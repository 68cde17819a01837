"""The hook of stores, and the form of its connection."""

from __future__ import annotations

import json
import re

import jsonschema
import pytest
from airflow.models.connection import Connection as StoredConnection
from airflow.sdk.exceptions import AirflowFailException

from pbg_operators.connection import with_store
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


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"extra": {"region": "eu"}}, "nothing reads 'region' of its extra; did you mean 'region_name'"),
        ({"extra": {"profile": "shop"}}, "nothing reads 'profile' of its extra; did you mean 'profile_name'"),
        ({"extra": {"colour": "red"}}, "nothing reads 'colour' of its extra; known keys: allow_http_endpoint, "),
        ({"extra": {"session_kwargs": {"profile_name": "p"}}}, "session_kwargs is not supported, write its keys into"),
        ({"extra": {"config_kwargs": {"retries": {}}}}, "config_kwargs is not supported, clients have settings of"),
        ({"extra": {"assume_role_kwargs": {"ExternalId": "x"}}}, "assume_role_kwargs is not supported, its"),
        ({"extra": {"verify": False}}, "verify of its extra is false, yet certificates are checked"),
        ({"extra": {"verify": "False"}}, "verify of its extra is false, yet certificates are checked"),
        ({"extra": {"service_config": {"s3": {"use_ssl": False}}}}, "service_config.s3.use_ssl of its extra is not"),
        ({"extra": {"service_config": "s3"}}, "service_config of its extra is no mapping"),
        ({"host": "minio"}, "its host is not read; write the server as endpoint_url"),
    ],
)
def test_setting_that_nothing_reads_is_refused(connect, fields, sentence):
    connect(conn_type="aws", **fields)
    with pytest.raises(AirflowFailException, match=f"connection 'store': {re.escape(sentence)}"):
        with_store({}, "store")


def test_endpoint_of_s3_goes_before_that_of_all(connect):
    s3 = {"endpoint_url": "http://127.0.0.1:9", "bucket_name": "graphs"}
    services = {"s3": s3, "sts": {"endpoint_url": "http://127.0.0.1:7"}}
    extra = {"endpoint_url": "http://127.0.0.1:8", "service_config": services, "verify": "/etc/ca.pem"}
    connect(conn_type="aws", extra=extra)
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
    assert with_store({}, "store") == dict.fromkeys(names, s3["endpoint_url"]) | {"AWS_CA_BUNDLE": "/etc/ca.pem"}
    s3["endpoint_url"] = "ftp://h"
    connect(conn_type="aws", extra=extra)
    with pytest.raises(AirflowFailException, match=r"'store', service_config\.s3\.endpoint_url of its extra, is no"):
        with_store({}, "store")


def test_empty_keys_of_form_are_no_settings(connect):
    connect(extra={"store": "", "endpoint_url": None, "verify": True, "role_arn": "", "service_config": {}})
    assert with_store({"HOME": "/h"}, "store") == {"HOME": "/h"}


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
