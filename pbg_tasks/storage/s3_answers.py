"""Answers of an S3 server, with incomplete ones treated as lost.

A connection may break anywhere. Python's HTTP client takes the end of a stream for the end of the headers, and the SDK
does not compare a body with its announced length. Without this module an answer cut short would pass for a whole one:
with half a tag, without the write's id, or with no entries of a listing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from http.client import RemoteDisconnected
from typing import TYPE_CHECKING, Any, cast

from botocore.awsrequest import AWSHTTPConnection, AWSHTTPSConnection
from botocore.exceptions import BotoCoreError
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from pbg_tasks.storage.base import ObjectInfo

if TYPE_CHECKING:
    from collections.abc import Mapping
    from http.client import HTTPResponse
    from io import BufferedReader

    from mypy_boto3_s3 import S3Client

STAMP = "pbg-write"
"""Metadata name of the write id; callers never get it."""

_TAG = re.compile(r'(?:W/)?"([^"]+)"|(?!W/)([^"\s]+)')
"""A tag, opaque but for its quotes, which some servers leave out. Proxies that compress put ``W/`` before it."""


class LostAnswerError(BotoCoreError):
    """Answer that lacks something that every whole answer has."""

    fmt = "the answer was cut short or is not S3's: {what}"


@dataclass(frozen=True, slots=True)
class Found:
    """Object as the server has it, with the id of its write.

    Attributes:
        info: facts of the object.
        write_id: id of the write that made it; None for a write of another program.
    """

    info: ObjectInfo
    write_id: str | None


def found_object(key: str, answer: Mapping[str, Any]) -> Found:
    """Return an object's facts from the answer to a HEAD or GET.

    Raises:
        LostAnswerError: a fact is missing.
    """
    tag = tag_of(answer)
    try:
        metadata, size = dict(answer["Metadata"]), answer["ContentLength"]
        modified = answer["LastModified"].timestamp()
    except KeyError as error:
        raise LostAnswerError(what=f"it has no {error}") from error
    write_id = metadata.pop(STAMP, None)
    return Found(ObjectInfo(key, size, tag, metadata, modified), write_id)


def listed_object(key: str, entry: Mapping[str, Any]) -> ObjectInfo:
    """Return an object's facts from an entry of a listing.

    Raises:
        LostAnswerError: a fact is missing.
    """
    try:
        return ObjectInfo(key, entry["Size"], tag_of(entry), modified=entry["LastModified"].timestamp())
    except KeyError as error:
        raise LostAnswerError(what=f"an entry of a listing has no {error}") from error


def tag_of(answer: Mapping[str, Any]) -> str:
    """Return the tag in an answer or in a part of one.

    It is returned without its quotes.

    Raises:
        LostAnswerError: there is none, or it has lost a quote.
    """
    tag = answer.get("ETag", "")
    found = _TAG.fullmatch(tag)
    if found is None:
        raise LostAnswerError(what=f"its ETag is {tag!r}")
    return str(found[1] or found[2])


def demand_whole_answers(client: S3Client) -> None:
    """Make a client treat an answer that was cut short as lost.

    The SDK has no option for the class of its connections. It keeps the classes in this private attribute, also for
    proxies.
    """
    session = cast("Any", client)._endpoint.http_session  # noqa: SLF001
    session._pool_classes_by_scheme.update(http=_Pool, https=_TlsPool)  # noqa: SLF001
    client.meta.events.register("before-parse.s3", _compare_length)


def _compare_length(operation_model: Any, response_dict: dict[str, Any], **_: object) -> None:  # noqa: ANN401 - the SDK's
    """Turn an answer with a body shorter than announced into a failure.

    It then counts as the server's failure, as the SDK does with broken XML. The body of an object is compared by the
    SDK itself, as it is read.
    """
    if operation_model.http["method"] == "HEAD" or not isinstance(response_dict["body"], bytes):
        return
    announced = response_dict["headers"].get("Content-Length")
    if announced is not None and int(announced) != len(response_dict["body"]):
        response_dict["status_code"] = 500


class _WholeLines:
    """Stream of an answer, of which every line must be complete.

    The lines are the status, the headers, and the lengths of chunks; none of them ends where the stream ends.
    """

    def __init__(self, stream: BufferedReader) -> None:
        self._stream = stream

    def readline(self, limit: int = -1) -> bytes:
        line = self._stream.readline(limit)
        if not line.endswith(b"\n") and len(line) != limit:
            raise RemoteDisconnected("the server closed the connection inside the headers of its answer")
        return line

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the stream has
        return getattr(self._stream, name)


class _WholeAnswers:
    """Mixin of connections that accept whole answers only."""

    response_class: Any

    def getresponse(self) -> Any:  # noqa: ANN401 - urllib3's own response
        make = self.response_class  # the SDK has two classes and chooses one for each request

        def made(*given: Any, **named: Any) -> HTTPResponse:  # noqa: ANN401 - http.client's
            response: HTTPResponse = make(*given, **named)
            response.fp = cast("BufferedReader", _WholeLines(response.fp))
            return response

        self.response_class = made
        return super().getresponse()  # type: ignore[misc]


class _Connection(_WholeAnswers, AWSHTTPConnection):  # type: ignore[misc] # the SDK's bases differ in it
    pass


class _TlsConnection(_WholeAnswers, AWSHTTPSConnection):  # type: ignore[misc] # same
    pass


class _Pool(HTTPConnectionPool):
    ConnectionCls: Any = _Connection


class _TlsPool(HTTPSConnectionPool):
    ConnectionCls: Any = _TlsConnection
