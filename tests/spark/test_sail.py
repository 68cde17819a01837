"""Sail in an environment that cannot serve it."""

from __future__ import annotations

import pytest

from pbg_tasks.errors import ConfigError
from tests.spark import sail


@pytest.mark.parametrize(
    ("found", "named"), [(None, "takes pysail and a client"), (True, "clients of Spark after 4.1")]
)
def test_environment_that_sail_refuses_is_named(monkeypatch, tmp_path, spark, found, named):
    monkeypatch.setattr(sail, "find_spec", lambda _: found)
    with pytest.raises(ConfigError, match=rf"{named}.*`make test-sail` makes"), sail.served(tmp_path / "log"):
        pytest.fail("served")
