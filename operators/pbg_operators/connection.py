"""Variables for AWS clients from an Airflow connection to S3."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import Connection
from airflow.sdk.exceptions import AirflowFailException, AirflowNotFoundException

from pbg_tasks.config.airflow import CONNECTION
from pbg_tasks.errors import ConfigError
from pbg_tasks.storage.endpoint import ALLOWED_VARIABLE, ENDPOINT_VARIABLES, Endpoints

if TYPE_CHECKING:
    from collections.abc import Mapping

FROM_EXTRA = {
    "aws_session_token": ("AWS_SESSION_TOKEN",),
    "endpoint_url": ENDPOINT_VARIABLES,  # both, because one of the worker's own would go before the connection's
    "allow_http_endpoint": (ALLOWED_VARIABLE,),
    "region_name": ("AWS_DEFAULT_REGION", "AWS_REGION"),
    "profile_name": ("AWS_PROFILE",),
}
CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE")
TYPES = ("aws", "pbg")
"""Types of connections: that of the Amazon provider, and our own."""
UNSUPPORTED = ("role_arn", "assume_role_method", "assume_role_with_web_identity_token_file")


def with_store(environment: Mapping[str, str], conn_id: str | None) -> dict[str, str]:
    """Return ``environment`` with the variables of a connection.

    It is returned unchanged when there is no connection ``pbg_s3``. A worker that gets its credentials from its
    surroundings (instance profile, mounted token) needs no connection.

    Raises:
        AirflowFailException: there is no connection of another name, or it is of another type, has settings that
            variables cannot express, or its endpoint is malformed or holds credentials.
    """
    if conn_id is None:
        return dict(environment)
    try:
        connection = Connection.get(conn_id)
    except AirflowNotFoundException:
        if conn_id == CONNECTION:
            return dict(environment)
        raise AirflowFailException(
            f"connection {conn_id!r} does not exist: add it, or take it out of airflow.connection of the graph spec"
        ) from None
    if connection.conn_type not in TYPES:
        raise AirflowFailException(
            f"connection {conn_id!r} is of type {connection.conn_type!r}; type {' or '.join(TYPES)} is needed"
        )
    extra: dict[str, Any] = connection.extra_dejson
    if refused := [key for key in UNSUPPORTED if extra.get(key)]:
        raise AirflowFailException(
            f"connection {conn_id!r}: {refused[0]} is not supported, its credentials would run out during a long task; "
            "give the worker that role itself and remove the connection"
        )
    own = {"AWS_ACCESS_KEY_ID": connection.login, "AWS_SECRET_ACCESS_KEY": connection.password}
    given = {name: value or extra.get(name.lower()) for name, value in own.items()}  # Amazon's provider takes either
    given |= {name: extra.get(key) for key, names in FROM_EXTRA.items() for name in names}
    found = {name: str(value) for name, value in given.items() if value}
    if endpoint := extra.get("endpoint_url"):
        try:
            Endpoints(found).check_form(str(endpoint), f"connection {conn_id!r}, endpoint_url of its extra,")
        except ConfigError as error:
            raise AirflowFailException(str(error)) from None
    # Credentials belong together: the worker's session token must not be combined with the connection's keys, and AWS
    # clients would take the worker's keys before the connection's profile.
    dropped = CREDENTIALS if given["AWS_ACCESS_KEY_ID"] or extra.get("profile_name") else ()
    return {name: value for name, value in environment.items() if name not in dropped} | found
