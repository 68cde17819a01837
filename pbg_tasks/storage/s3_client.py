"""Connection to S3: time limits, and its failures as errors for users."""

from __future__ import annotations

import functools
import os
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import botocore.session
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    EndpointConnectionError,
    NoCredentialsError,
    PartialCredentialsError,
    SSLError,
    TokenRetrievalError,
)
from botocore.loaders import Loader, create_loader
from urllib3.exceptions import HTTPError

from pbg_tasks.errors import AccessError, ConfigError, NotFoundError, PbgError, StorageError, UnsupportedError
from pbg_tasks.progress import human_seconds
from pbg_tasks.storage.endpoint import ENDPOINT_VARIABLES, Endpoints
from pbg_tasks.storage.s3_answers import demand_whole_answers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from botocore.awsrequest import AWSPreparedRequest
    from mypy_boto3_s3 import S3Client

CONNECTIONS = 16
"""Number of parallel connections of one client."""

TRANSPORT_ERRORS = (BotoCoreError, HTTPError)
"""Errors for an answer that is missing or incomplete."""

CREDENTIAL_ERRORS = (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError, TokenRetrievalError)
"""Errors for missing or unusable credentials; no request was sent."""

_ABSENT = {"404", "NoSuchKey", "NotFound"}
_REFUSED = {"401", "403"}
_ENDED = {"ExpiredToken", "400"}  # the answer to a HEAD has the status alone
_WRONG_CLOCK_SECONDS = 890.0  # S3 refuses requests that are signed 15 minutes before or after its own time
_HOW_TO_ACCESS = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or AWS_PROFILE) to keys that may use it, and AWS_ENDPOINT_URL "
    "when the bucket is not Amazon's"
)


def connect(environment: Mapping[str, str] | None = None) -> S3Client:
    """Build a client from the environment or profile; nothing is sent yet.

    A connection may take 5 s to open and may be silent for 60 s, and a request is tried three times: a host that does
    not answer fails after some 20 s. Before the first request to a host, its addresses are checked, see ``endpoint``.

    Args:
        environment: variables whose endpoint, region, profile, keys and file of certificates go before those of the
            process.

    Raises:
        ConfigError: the endpoint or profile is malformed, or the endpoint is not allowed.
    """
    endpoints, source = Endpoints(environment), "endpoint_url of the AWS profile"
    if found := _configured_endpoint(environment or {}):
        source, url = found
        endpoints.check_form(url, source)  # here too: the SDK's own message shows a bad endpoint
    config = Config(
        connect_timeout=5,
        read_timeout=60,
        retries={"mode": "standard", "total_max_attempts": 3},
        max_pool_connections=CONNECTIONS,
        # The SDK's own is put together anew for each request, which takes a tenth of the request's CPU time.
        user_agent=f"Botocore/{botocore.__version__} pbg-tasks",
    )
    try:
        session = botocore.session.Session(profile=(environment or {}).get("AWS_PROFILE"))
        share_service_data(session)
        client = cast("S3Client", session.create_client("s3", config=config, **_given(environment or {})))
    except BotoCoreError as error:
        raise ConfigError(f"the S3 settings are wrong ({error}): check AWS_ENDPOINT_URL and AWS_PROFILE") from error
    except ValueError:  # its text shows the endpoint, which may hold a secret
        raise ConfigError(f"{source} is no endpoint: write https://host, with :port where it needs one") from None
    endpoints.check_form(client.meta.endpoint_url, source)

    def check(request: AWSPreparedRequest, **_: object) -> None:
        check_request(endpoints, request.url)

    client.meta.events.register("before-send.s3", check)
    client.meta.events.register("before-parse.s3", functools.partial(_refuse_redirect, client.meta.endpoint_url))
    demand_whole_answers(client)
    return client


def _refuse_redirect(endpoint: str, response_dict: Mapping[str, Any], **_: object) -> None:
    """Refuse a redirect, unless it names the bucket's region.

    With the region named, the SDK sends the request to that region's endpoint. It follows no other redirect, yet it
    would request the region of the bucket, and be redirected again, without end.

    Raises:
        StorageError: the answer redirects to another place.
    """
    if leads_elsewhere(response_dict["status_code"], response_dict["headers"]):
        raise StorageError(
            f"the S3 endpoint {endpoint} redirects to another place, which is not followed; name the server itself in "
            "AWS_ENDPOINT_URL"
        )


def leads_elsewhere(status: int, headers: Mapping[str, str]) -> bool:
    """Return whether an answer redirects without naming the bucket's region."""
    is_redirect = HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST
    return is_redirect and "location" in headers and "x-amz-bucket-region" not in headers


def check_request(endpoints: Endpoints, url: str) -> None:
    """Check the addresses of a request's host.

    Raises:
        ConfigError: an address is not allowed.
        EndpointConnectionError: there are none; the SDK handles this error like a failed connection.
    """
    try:
        endpoints.check_addresses(url)
    except OSError as error:
        raise EndpointConnectionError(endpoint_url=url, error=error) from error


def _configured_endpoint(environment: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the variable that names the endpoint, and its value.

    None is returned when a profile names the endpoint, or nothing does.
    """
    places = ((name, each[name]) for each in (environment, os.environ) for name in ENDPOINT_VARIABLES if each.get(name))
    return next(places, None)


def _given(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments of a client that the variables give."""
    names = {
        "endpoint_url": ENDPOINT_VARIABLES,
        "region_name": ("AWS_REGION", "AWS_DEFAULT_REGION"),
        "aws_access_key_id": ("AWS_ACCESS_KEY_ID",),
        "aws_secret_access_key": ("AWS_SECRET_ACCESS_KEY",),
        "aws_session_token": ("AWS_SESSION_TOKEN",),
        "verify": ("AWS_CA_BUNDLE",),
    }
    found = {}
    for argument, variables in names.items():
        values = [environment[name] for name in variables if environment.get(name)]
        if values:
            found[argument] = values[0]
    return found


class _ServiceData(Loader):
    """Loader of the SDK's descriptions of services.

    The SDK's own looks into the folders of all services, some 400, to find that there is one of S3.
    """

    def list_available_services(self, type_name: str) -> list[str]:  # noqa: ARG002 - a folder that lacks it is reported later
        """Return the names of the services' folders."""
        names: set[str] = set()
        for folder in self.search_paths:
            with suppress(OSError):  # one of them is below a home, which may be another user's
                names.update(each.name for each in Path(folder).iterdir())
        return sorted(names)


def share_service_data(session: botocore.session.Session) -> None:
    """Let a session use the description of S3 that others have read.

    It is megabytes of JSON, which each session would otherwise parse again.
    """
    session.register_component("data_loader", _service_data(session.get_config_variable("data_path") or ""))


@functools.cache
def _service_data(places: str) -> Loader:
    """Return a loader that searches ``places`` first, as ``data_path`` sets."""
    return _ServiceData(create_loader(places or None).search_paths, include_default_search_paths=False)


def error_code(error: ClientError) -> str:
    """Return the code of a refusal, such as ``PreconditionFailed``.

    It is the HTTP status when the answer had no body.
    """
    return error.response.get("Error", {}).get("Code", "") or str(http_status(error))


def http_status(error: ClientError) -> int:
    """Return the HTTP status of a refusal, 0 when unknown."""
    return error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)


def is_absent(error: ClientError) -> bool:
    """Return whether an error means that the object does not exist."""
    return error_code(error) in _ABSENT


@contextmanager
def s3_errors(client: S3Client, url: str) -> Iterator[None]:
    """Turn errors of the SDK into errors that name ``url`` and endpoint.

    Raises:
        NotFoundError: the object does not exist.
        ConfigError: the bucket does not exist.
        AccessError: no credentials, or they are refused.
        StorageError: the endpoint cannot be reached or failed.
    """
    try:
        yield
    except ClientError as error:
        raise _refusal(error, url, client.meta.endpoint_url) from error
    except CREDENTIAL_ERRORS as error:
        raise AccessError(f"{url}: no usable S3 credentials ({error}); {_HOW_TO_ACCESS}") from error
    except TRANSPORT_ERRORS as error:
        if isinstance(error, SSLError) and "EOF occurred" not in str(error):  # else it broke off, as TLS reports it
            raise StorageError(
                f"{url}: no encrypted connection to {client.meta.endpoint_url} ({error}); name the file of a private "
                "certificate authority in AWS_CA_BUNDLE, and check that the server takes https"
            ) from error
        raise StorageError(
            f"{url}: the S3 endpoint {client.meta.endpoint_url} could not be reached or broke off ({error}); check "
            "AWS_ENDPOINT_URL and that the server runs"
        ) from error


@contextmanager
def version_errors(client: S3Client, url: str) -> Iterator[None]:
    """Turn errors as ``s3_errors`` while one version is read.

    Raises:
        StorageError: the object has another version now.
    """
    with s3_errors(client, url):
        try:
            yield
        except ClientError as error:
            if http_status(error) == HTTPStatus.PRECONDITION_FAILED:
                raise StorageError(f"{url} was changed while it was read; read it again") from error
            raise


def _refusal(error: ClientError, url: str, endpoint: str) -> PbgError:
    code, status = error_code(error), http_status(error)
    message = error.response.get("Error", {}).get("Message", "") or f"HTTP {status}"
    if code == "NoSuchBucket":
        return ConfigError(f"{url}: the bucket does not exist at {endpoint}; create it or correct the URL")
    if is_absent(error):
        return NotFoundError(f"{url} does not exist at {endpoint}")
    if str(status) in _REFUSED:
        return AccessError(f"{url}: {endpoint} refused access ({code}: {message}); {_how_to_mend(error)}")
    if status == HTTPStatus.NOT_IMPLEMENTED:
        return UnsupportedError(f"{url}: {endpoint} does not take such requests ({code}: {message})")
    ended = (
        "; keys of a session (AWS_SESSION_TOKEN) that have ended are refused so: start again with new ones, or with a "
        "profile or role that renews them"
    )
    # No AccessError: a further try may be started with new keys.
    return StorageError(f"{url}: {endpoint} answered {code}: {message}{ended if code in _ENDED else ''}")


def _how_to_mend(error: ClientError) -> str:
    """Return the way to mend a refusal: the clock, or other keys.

    Without a body, an answer has no reason in it.
    """
    headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    with suppress(ValueError, TypeError):  # the answer has no date, or none with a timezone
        ahead = (datetime.now(UTC) - parsedate_to_datetime(headers.get("date", ""))).total_seconds()
        if abs(ahead) > _WRONG_CLOCK_SECONDS:
            side = "ahead of" if ahead > 0 else "behind"
            return f"this machine's clock is {human_seconds(abs(ahead))} {side} the server's: set it"
    return _HOW_TO_ACCESS
