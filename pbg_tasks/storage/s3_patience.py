"""Retries of requests to a busy S3 server.

The SDK tries each request three times within a few seconds. A server that turns every tenth request away ("slow down")
refuses one request in a thousand three times in a row, and a large file alone takes a thousand requests.
"""

from __future__ import annotations

import random
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from botocore.exceptions import ClientError
from botocore.exceptions import ConnectionError as NoConnectionError

from pbg_tasks.storage.s3_client import CREDENTIAL_ERRORS, TRANSPORT_ERRORS, error_code, http_status

if TYPE_CHECKING:
    from collections.abc import Callable

ATTEMPTS = 6
"""Number of attempts; in each of them the SDK sends the request up to three times."""
_PATIENCE_SECONDS = 150.0
"""Time after which there is no further attempt. Two answers may be silent for 60 s; the SDK waited for a third already.
"""

Given = ParamSpec("Given")
Answer = TypeVar("Answer")


def persistently(ask: Callable[Given, Answer], *given: Given.args, **named: Given.kwargs) -> Answer:
    """Send a request to S3, again while the server is busy.

    It is also repeated where answers break off. A host that cannot be reached and missing credentials are errors at
    once.

    Args:
        ask: a read, a deletion, a part of an upload: any request that may be sent twice.
        given: arguments of ``ask``.
        named: same, by name.
    """
    began = time.monotonic()
    for attempt in range(1, ATTEMPTS):
        try:
            return ask(*given, **named)
        except (ClientError, *TRANSPORT_ERRORS) as error:
            if not _may_pass(error) or time.monotonic() - began > _PATIENCE_SECONDS:
                raise
        pause(attempt)
    return ask(*given, **named)


def is_busy(error: ClientError) -> bool:
    """Return whether the server failed or turned a request away for now.

    A later request may then succeed, but none of a kind that the server does not know.
    """
    status = http_status(error)
    failed = status >= HTTPStatus.INTERNAL_SERVER_ERROR and status != HTTPStatus.NOT_IMPLEMENTED
    return failed or status == HTTPStatus.TOO_MANY_REQUESTS


def is_refusal(error: Exception) -> bool:
    """Return whether a write certainly did not take place.

    That is so where the server refused it, and the SDK had not sent it before.
    """
    if not isinstance(error, ClientError) or is_busy(error):
        return False
    return not error.response.get("ResponseMetadata", {}).get("RetryAttempts", 0)


def leaves_open(error: ClientError) -> bool:
    """Return whether a refused write may have taken place, or may still.

    Then the caller must look at the object. A condition may have failed on the write's own first attempt (412, and 404
    for a vanished object or upload); writers in a race get the request to try again (409); a server that failed (5xx)
    may have done so after the write, and one that turns a request away (429) may have carried out an earlier attempt of
    it.
    """
    status = http_status(error)
    if status == HTTPStatus.NOT_FOUND:
        return error_code(error) != "NoSuchBucket"
    undecided = {HTTPStatus.CONFLICT, HTTPStatus.PRECONDITION_FAILED}
    return status in undecided or is_busy(error)


def pause(attempt: int) -> None:
    """Wait after a failed attempt, the first being 1.

    The pauses before the sixth attempt are some three seconds together.
    """
    time.sleep(random.uniform(0, 0.05 * 2**attempt))  # noqa: S311 (those turned away together must not return in step)


def _may_pass(error: Exception) -> bool:
    if isinstance(error, ClientError):
        return is_busy(error)
    return not isinstance(error, (NoConnectionError, *CREDENTIAL_ERRORS))
