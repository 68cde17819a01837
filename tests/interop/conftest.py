from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.interop.installation import CACHE, UnavailableError, pbg_python
from tests.interop.oracle import Oracle

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def oracle(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Oracle]:
    """PBG 1.0.0 from PyPI, in an environment that is made once."""
    own = os.environ.get(CACHE)
    try:
        python = pbg_python(Path(own) if own else pytestconfig.cache.mkdir("torchbiggraph"))
    except UnavailableError as error:
        pytest.skip(str(error))
    with Oracle(python, tmp_path_factory.mktemp("oracle")) as started:
        yield started
