"""Filesystem and HTTP session by which snapshots are read from S3.

The session follows the rules for endpoints and redirects of the other client (``s3_client``).
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from aiobotocore.httpsession import AIOHTTPSession
from aiohttp import ClientError
from botocore.exceptions import ClientError as Refusal
from botocore.exceptions import ConnectionError as NoConnectionError
from botocore.exceptions import ReadTimeoutError
from s3fs import S3FileSystem
from s3fs.core import set_custom_error_handler

from pbg_tasks.storage.columnar import no_omission
from pbg_tasks.storage.s3_client import check_request, leads_elsewhere
from pbg_tasks.storage.s3_patience import is_busy

if TYPE_CHECKING:
    from aiobotocore.awsrequest import AioAWSResponse
    from aiohttp import ClientResponse, ClientSession
    from botocore.awsrequest import AWSPreparedRequest

    from pbg_tasks.storage.endpoint import Endpoints


# Of the answers of a busy server, s3fs knows only those with "SlowDown" in the body, and many have none.
set_custom_error_handler(lambda error: isinstance(error, Refusal) and is_busy(error))


class SilentServerError(NoConnectionError):
    """Silence of a server, which the SDK tries once more.

    s3fs repeats a ``ReadTimeoutError`` 25 times, each with the SDK's tries: 50 minutes.
    """

    fmt = "no answer for a minute from {endpoint_url}"


class WholeListings(S3FileSystem):  # type: ignore[misc] # s3fs has no types
    """Filesystem that leaves out no folder that cannot be listed."""

    # The method is not public, but it is the one that fsspec calls for each folder of a glob.
    async def _ls(self, path: str, *given: Any, **named: Any) -> list[Any]:  # noqa: ANN401 - s3fs' arguments
        with no_omission(f"s3://{path}"):
            listed: list[Any] = await super()._ls(path, *given, **named)
            return listed


class _NoRedirects:
    """HTTP session of aiohttp that follows no redirect.

    A redirect that names the region of the bucket is returned, and the SDK sends its request to that region's endpoint.
    After any other redirect the SDK would request the region, and be redirected again, without end; so it is an error.
    """

    def __init__(self, session: ClientSession) -> None:
        self._session = session

    async def request(self, method: str, **options: Any) -> ClientResponse:  # noqa: ANN401 - aiohttp's options
        response = await self._session.request(method, allow_redirects=False, **options)
        if leads_elsewhere(response.status, response.headers):
            response.close()
            raise ClientError("it redirects to another place, which is not followed")
        if response.status == HTTPStatus.MULTIPLE_CHOICES:  # S3 never sends it; s3fs expects an error document
            response.close()
            raise ClientError(f"it answered {response.status:d}, as no S3 server does")
        return response


def session_class(endpoints: Endpoints) -> type[AIOHTTPSession]:
    """Return a class of sessions that use only allowed endpoints."""

    class GuardedSession(AIOHTTPSession):  # type: ignore[misc] # aiobotocore has no types
        async def send(self, request: AWSPreparedRequest) -> AioAWSResponse:
            await asyncio.to_thread(check_request, endpoints, request.url)
            try:
                return await super().send(request)
            except ReadTimeoutError as error:
                raise SilentServerError(endpoint_url=request.url, error=error) from error

        # The method is not public, but it is the one place where the SDK can be kept from following redirects to any
        # host.
        async def _get_session(self, proxy_url: str | None) -> _NoRedirects:
            return _NoRedirects(await super()._get_session(proxy_url))

    return GuardedSession
