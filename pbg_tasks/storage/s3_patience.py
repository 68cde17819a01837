"""How often a busy S3 server is asked again.

The SDK tries each request three times within a few seconds. A server that turns every tenth request away ("slow
down") refuses one in a thousand that often, and a large file alone is a thousand requests.
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
"""How often something is asked for; each time the SDK asks thrice."""
_PATIENCE_SECONDS = 150.0
"""After so long nothing is asked again: two answers may fall silent for 60 s; the SDK waited for a third already."""

Given = ParamSpec("Given")
Answer = TypeVar("Answer")


def persistently(ask: Callable[Given, Answer], *given: Given.args, **named: Given.kwargs) -> Answer:
    """Ask S3, and again while the server is busy or its answers break off.

    A host that cannot be reached and credentials that are missing are given up at once.

    Args:
        ask: a read, a deletion, a part of an upload: whatever may be done twice.
        given: to ``ask``.
        named: same.
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
    """Say whether the server failed or turned the request away for now, so that a later one may be answered."""
    status = http_status(error)
    return status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR


def is_refusal(error: Exception) -> bool:
    """Say whether a write did not take place: the server refused it, and the SDK had not sent it before."""
    if not isinstance(error, ClientError) or is_busy(error):
        return False
    return not error.response.get("ResponseMetadata", {}).get("RetryAttempts", 0)


def leaves_open(error: ClientError) -> bool:
    """Say whether after this answer the write may have taken place, or may still: the object must be looked at.

    A condition may have failed on the write's own first attempt (412, and 404 for a vanished object or upload); racers
    are told to try again (409); a server that failed (5xx) may have done so after the write, and one that turns a
    request away (429) after an attempt of it that it let pass.
    """
    status = http_status(error)
    if status == HTTPStatus.NOT_FOUND:
        return error_code(error) != "NoSuchBucket"
    undecided = {HTTPStatus.CONFLICT, HTTPStatus.PRECONDITION_FAILED}
    return status in undecided or is_busy(error)


def pause(attempt: int) -> None:
    """Wait after an attempt that failed, the first being 1; some three seconds in all before the sixth."""
    time.sleep(random.uniform(0, 0.05 * 2**attempt))  # noqa: S311 (those turned away together must not return in step)


def _may_pass(error: Exception) -> bool:
    if isinstance(error, ClientError):
        return is_busy(error)
    return not isinstance(error, (NoConnectionError, *CREDENTIAL_ERRORS))
