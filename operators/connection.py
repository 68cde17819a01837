"""An Airflow connection to S3, as the environment variables every AWS client reads."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Connection
from airflow.sdk.exceptions import AirflowFailException, AirflowNotFoundException

FROM_EXTRA = {
    "aws_session_token": ("AWS_SESSION_TOKEN",),
    "endpoint_url": ("AWS_ENDPOINT_URL",),
    "region_name": ("AWS_DEFAULT_REGION", "AWS_REGION"),
    "profile_name": ("AWS_PROFILE",),
}
UNSUPPORTED = ("role_arn", "assume_role_method", "assume_role_with_web_identity_token_file")


def store_environment(conn_id: str | None) -> dict[str, str]:
    """Return the variables that stand for a connection; none when it does not exist or ``conn_id`` is None.

    A worker that gets its credentials from its surroundings (instance profile, mounted token) needs no connection.

    Raises:
        AirflowFailException: the connection is of another type, or asks for something that variables cannot say.
    """
    if conn_id is None:
        return {}
    try:
        connection = Connection.get(conn_id)
    except AirflowNotFoundException:
        return {}
    if connection.conn_type != "aws":
        raise AirflowFailException(f"connection {conn_id!r} is of type {connection.conn_type!r}; type aws is needed")
    extra: dict[str, Any] = connection.extra_dejson
    if refused := [key for key in UNSUPPORTED if extra.get(key)]:
        raise AirflowFailException(
            f"connection {conn_id!r}: {refused[0]} is not supported, its credentials would run out during a long task; "
            "give the worker that role itself and remove the connection"
        )
    found = {"AWS_ACCESS_KEY_ID": connection.login, "AWS_SECRET_ACCESS_KEY": connection.password}
    found |= {name: extra.get(key) for key, names in FROM_EXTRA.items() for name in names}
    return {name: str(value) for name, value in found.items() if value}
