from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def buckets(tmp_path_factory):
    from tests.training.buckets import Buckets

    return Buckets(tmp_path_factory.mktemp("data") / "edges")
