from __future__ import annotations

import pytest

from pbg_tasks.errors import ConfigError
from pbg_tasks.storage import LocalStore
from pbg_tasks.storage.probe import probe


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
