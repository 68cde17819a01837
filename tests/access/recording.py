"""A proxy before a real S3 server that records each request's permissions."""

from __future__ import annotations

from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote, urlsplit

from tests.storage.fault_proxy import FaultProxy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from http.server import BaseHTTPRequestHandler

_OF_OBJECTS = {"GET": "s3:GetObject", "HEAD": "s3:GetObject", "DELETE": "s3:DeleteObject"}
_OF_UPLOADS = {"GET": "s3:ListMultipartUploadParts", "DELETE": "s3:AbortMultipartUpload"}


@dataclass(frozen=True, slots=True)
class Permission:
    """One permission that a request takes.

    Attributes:
        action: by IAM's name, such as ``s3:PutObject``.
        resource: ``bucket`` or ``bucket/key``.
        conditions: condition keys that the request sets, by IAM's names.
    """

    action: str
    resource: str
    conditions: Mapping[str, str] = field(default_factory=dict)


class RecordingProxy(FaultProxy):
    """A proxy that forwards everything and lists the permissions it took.

    Attributes:
        taken: permissions with the status that the server answered the request with, in order.
    """

    def __init__(self, upstream: str) -> None:
        super().__init__(upstream)
        self.taken: list[tuple[Permission, int]] = []

    def _forward(self, request: BaseHTTPRequestHandler, body: bytes) -> bytes:
        answer = super()._forward(request, body)
        status = int(answer.split(maxsplit=2)[1])
        self.taken += [(each, status) for each in permissions(request.command, request.path, request.headers, status)]
        return answer


def permissions(method: str, path: str, headers: Mapping[str, str], status: int) -> Iterator[Permission]:
    """Return the permissions of a path-style request, by Amazon's service authorization reference.

    Args:
        method: of the request.
        path: with its query.
        headers: of the request.
        status: of the answer: to learn that an object is absent takes the permission to list.

    Raises:
        ValueError: the request is unknown: this package sends no such request.
    """
    parts = urlsplit(path)
    query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
    bucket, _, key = unquote(parts.path).removeprefix("/").partition("/")
    if not key:
        yield _of_bucket(method, bucket, query)
        return
    resource = f"{bucket}/{key}"
    if method == "PUT" or (method == "POST" and not {"uploads", "uploadId"}.isdisjoint(query)):
        creates = "uploads" not in query and "partNumber" not in query
        conditions = {"s3:ObjectCreationOperation": str(creates).lower()}
        conditions |= {f"s3:{name}": headers[name] for name in ("if-match", "if-none-match") if headers.get(name)}
        if source := headers.get("x-amz-copy-source"):
            conditions["s3:x-amz-copy-source"] = unquote(source).removeprefix("/")
            yield Permission("s3:GetObject", conditions["s3:x-amz-copy-source"])
        yield Permission("s3:PutObject", resource, conditions)
        return
    of_method = _OF_UPLOADS if "uploadId" in query else _OF_OBJECTS
    if method not in of_method or query.keys() - {"uploadId", "x-id", "max-parts"}:
        raise ValueError(f"{method} {path}: which permission it takes is not known here")
    yield Permission(of_method[method], resource)
    if method in {"GET", "HEAD"} and status == HTTPStatus.NOT_FOUND:
        yield Permission("s3:ListBucket", bucket)


def _of_bucket(method: str, bucket: str, query: Mapping[str, str]) -> Permission:
    if method == "GET" and "uploads" in query:
        return Permission("s3:ListBucketMultipartUploads", bucket)
    if method == "HEAD" or (method == "GET" and "list-type" in query):
        conditions = {"s3:prefix": query["prefix"]} if "prefix" in query else {}
        return Permission("s3:ListBucket", bucket, conditions)
    raise ValueError(f"{method} of bucket {bucket} with {sorted(query)}: which permission it takes is not known here")
