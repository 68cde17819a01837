"""Endpoint and credentials of S3, for S3 clients of other libraries."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pbg_tasks.errors import AccessError
from pbg_tasks.storage.endpoint import ENDPOINT_VARIABLES, Endpoints

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class S3Settings:
    """Settings of S3 at this moment.

    Attributes:
        endpoint: URL; None for Amazon's.
        region: of the buckets.
        key: access key.
        secret: of the key.
        token: of a session; None for a permanent key.
    """

    endpoint: str | None
    region: str
    key: str
    secret: str
    token: str | None

    @property
    def unencrypted(self) -> bool:
        """Whether the endpoint is reached by plain HTTP."""
        return self.endpoint is not None and self.endpoint.lower().startswith("http://")


def s3_settings(environment: Mapping[str, str] = os.environ) -> S3Settings:
    """Return the settings that a store's client has.

    Credentials of a session are those of now: a process that goes on after their end has to start again.

    Raises:
        ConfigError: the endpoint or profile is malformed, or the endpoint is not allowed.
        AccessError: there are no credentials.
    """
    import botocore.session

    from pbg_tasks.storage.s3_client import connect

    with closing(connect(environment)) as client:
        endpoint, region = client.meta.endpoint_url, client.meta.region_name
        own = any(environment.get(name) for name in ENDPOINT_VARIABLES) or "amazonaws.com" not in endpoint
        if own:
            Endpoints(environment).check_addresses(endpoint)
    key, secret = (environment.get(name) for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"))
    token = environment.get("AWS_SESSION_TOKEN")
    if not (key and secret):
        found = botocore.session.Session(profile=environment.get("AWS_PROFILE")).get_credentials()
        if found is None:
            raise AccessError("no credentials for S3: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE")
        frozen = found.get_frozen_credentials()
        key, secret = frozen.access_key or "", frozen.secret_key or ""
        token = frozen.token
    return S3Settings(endpoint if own else None, region or "us-east-1", key, secret, token)
