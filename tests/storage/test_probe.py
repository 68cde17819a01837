from __future__ import annotations

from types import SimpleNamespace

import pytest
from botocore.exceptions import ClientError

from pbg_tasks.errors import ConfigError
from pbg_tasks.storage import LocalStore
from pbg_tasks.storage.probe import probe
from pbg_tasks.storage.s3_client import s3_errors
from pbg_tasks.storage.s3_patience import is_busy


class IgnoresNew(LocalStore):
    def put_new(self, key, source, *, metadata=None):
        return self.put(key, source, metadata=metadata)


class IgnoresMatch(LocalStore):
    def swap(self, key, source, *, expected, metadata=None):
        if expected is None:
            return super().swap(key, source, expected=None, metadata=metadata)
        return self.put(key, source, metadata=metadata)


@pytest.mark.parametrize(("broken", "condition"), [(IgnoresNew, "If-None-Match"), (IgnoresMatch, "If-Match")])
def test_store_that_ignores_conditions_is_refused(tmp_path, broken, condition):
    store = broken(tmp_path)
    with pytest.raises(ConfigError, match=rf"ignores conditional writes \({condition}\)"):
        probe(store)
    assert list(store.list()) == []


class RefusesConditions(LocalStore):
    """Store that answers as S3 servers without conditional writes do."""

    def put_new(self, key, source, *, metadata=None):  # noqa: ARG002 - the store's
        answer = {
            "Error": {"Code": "NotImplemented", "Message": "A header is not implemented"},
            "ResponseMetadata": {"HTTPStatusCode": 501},
        }
        error = ClientError(answer, "PutObject")
        assert not is_busy(error)
        with s3_errors(SimpleNamespace(meta=SimpleNamespace(endpoint_url="https://s3.example")), f"{self.url}/{key}"):
            raise error


class RefusesAll(RefusesConditions):
    """Store that answers so to each write, as for the SDK's checksums."""

    put = RefusesConditions.put_new


def test_store_that_refuses_conditions_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"NotImplemented: .* refuses conditional writes \(If-None-Match, If-Match\)"):
        probe(RefusesConditions(tmp_path))


def test_store_that_refuses_all_writes_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"NotImplemented: .* too; .* AWS_REQUEST_CHECKSUM_CALCULATION=when_required"):
        probe(RefusesAll(tmp_path))
