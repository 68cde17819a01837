"""Variables for AWS clients from an Airflow connection to S3."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import Connection
from airflow.sdk.exceptions import AirflowFailException, AirflowNotFoundException

from pbg_tasks.config.airflow import CONNECTION
from pbg_tasks.config.base import did_you_mean
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
OTHERS = ("aws_access_key_id", "aws_secret_access_key", "service_config", "store", "verify")
"""Further keys of the extra that are read."""
OF_S3 = ("bucket_name", "endpoint_url")
"""Keys of S3 in ``service_config``. A default bucket changes nothing here, as each URL of a store names its own."""
UNSUPPORTED = {
    "role_arn": "its credentials would run out during a long task; give the worker that role itself and remove the "
    "connection",
    "config_kwargs": "clients have settings of their own; remove it, or give graphs a connection without it",
    "session_kwargs": "write its keys into the extra itself",
}
"""Keys of Amazon's provider that variables cannot express, with the reason or the way on."""


def with_store(environment: Mapping[str, str], conn_id: str | None) -> dict[str, str]:
    """Return ``environment`` with the variables of a connection.

    It is returned unchanged when there is no connection ``pbg_s3``. A worker that gets its credentials from its
    surroundings (instance profile, mounted token) needs no connection.

    Raises:
        AirflowNotFoundException: there is no connection of another name.
        AirflowFailException: it is of another type, has settings that variables cannot express or nothing reads, or its
            endpoint is malformed or holds credentials.
    """
    if conn_id is None:
        return dict(environment)
    try:
        connection = Connection.get(conn_id)
    except AirflowNotFoundException:
        if conn_id == CONNECTION:
            return dict(environment)
        raise missing(conn_id, "airflow.connection") from None
    if connection.conn_type not in TYPES:
        raise AirflowFailException(
            f"connection {conn_id!r} is of type {connection.conn_type!r}; type {' or '.join(TYPES)} is needed"
        )
    extra: dict[str, Any] = connection.extra_dejson
    if connection.host:
        raise _refusal(conn_id, "its host is not read; write the server as endpoint_url into its extra")
    _check_keys(conn_id, extra)
    of_s3, endpoint_key = _settings_of_s3(conn_id, extra), "endpoint_url"
    if endpoint_key in of_s3:  # as in Amazon's provider, before that of all services
        extra = {**extra, endpoint_key: of_s3[endpoint_key]}
        endpoint_key = "service_config.s3.endpoint_url"
    own = {"AWS_ACCESS_KEY_ID": connection.login, "AWS_SECRET_ACCESS_KEY": connection.password}
    given = {name: value or extra.get(name.lower()) for name, value in own.items()}  # Amazon's provider takes either
    given |= {name: extra.get(key) for key, names in FROM_EXTRA.items() for name in names}
    given["AWS_CA_BUNDLE"] = _authority(conn_id, extra.get("verify"))
    found = {name: str(value) for name, value in given.items() if value}
    if endpoint := extra.get("endpoint_url"):
        try:
            Endpoints(found).check_form(str(endpoint), f"connection {conn_id!r}, {endpoint_key} of its extra,")
        except ConfigError as error:
            raise AirflowFailException(str(error)) from None
    # Credentials belong together: the worker's session token must not be combined with the connection's keys, and AWS
    # clients would take the worker's keys before the connection's profile.
    dropped = CREDENTIALS if given["AWS_ACCESS_KEY_ID"] or extra.get("profile_name") else ()
    return {name: value for name, value in environment.items() if name not in dropped} | found


def missing(conn_id: str, key: str) -> AirflowNotFoundException:
    """Return the error for a connection that was not found.

    It may be there: Airflow, up to 3.3.2 at least, also finds none where its server or database does not answer.

    Args:
        conn_id: of the connection.
        key: of the graph spec that names it.
    """
    return AirflowNotFoundException(
        f"connection {conn_id!r} does not exist: add it, or take it out of {key} of the graph spec; while its server "
        "or database fails, Airflow finds none either"
    )


def _check_keys(conn_id: str, extra: Mapping[str, Any]) -> None:
    """Refuse keys with a value that nothing here reads.

    Raises:
        AirflowFailException: the message names connection and key.
    """
    known = (*FROM_EXTRA, *OTHERS)
    key = next((key for key, value in extra.items() if value and key not in known), None)
    if key is None:
        return
    if why := UNSUPPORTED.get("role_arn" if key.startswith("assume_role") else key):
        raise _refusal(conn_id, f"{key} is not supported, {why}")
    hint = did_you_mean(key, known) or f"known keys: {', '.join(sorted(known))}"
    raise _refusal(conn_id, f"nothing reads {key!r} of its extra; {hint}")


def _settings_of_s3(conn_id: str, extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of S3 in ``service_config``.

    Those of other services are for other hooks.

    Raises:
        AirflowFailException: it is no mapping, or has a key that nothing here reads.
    """
    services = extra.get("service_config") or {}
    found = services.get("s3") or {} if isinstance(services, dict) else services
    if not isinstance(found, dict):
        raise _refusal(conn_id, "service_config of its extra is no mapping, such as {'s3': {'endpoint_url': ...}}")
    if unread := [key for key in found if key not in OF_S3]:
        raise _refusal(conn_id, f"service_config.s3.{unread[0]} of its extra is not supported; remove it")
    return found


def _authority(conn_id: str, verify: object) -> str | None:
    """Return the file of certificates that ``verify`` names.

    Raises:
        AirflowFailException: it would leave certificates unchecked.
    """
    text = str(verify).lower()
    if verify is None or text in ("", "true"):
        return None
    if isinstance(verify, str) and text != "false":
        return verify
    raise _refusal(
        conn_id,
        f"verify of its extra is {text}, yet certificates are checked; write the file of the server's authority there",
    )


def _refusal(conn_id: str, why: str) -> AirflowFailException:
    return AirflowFailException(f"connection {conn_id!r}: {why}")
