"""The look-up without torch, compared with ``Model.neighbors``."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from pbg_tasks.api import Model
from pbg_tasks.checkpoint import ObjectRecord, VerifiedFiles
from pbg_tasks.errors import InputError, ResourceError
from pbg_tasks.report.neighbours import Neighbourhood
from pbg_tasks.storage import LocalStore
from pbg_tasks.storage.staging import sha256_file, sweep
from tests.report.conftest import DAYS, HOSTILE


@pytest.fixture
def release(nights, tmp_path):
    """Return a copy of a release in both forms.

    As a plain directory and as files with their hashes.
    """

    def make(**changes):
        directory = tmp_path / "release"
        shutil.copytree(Path(nights.run(DAYS[1]).url) / "release", directory)
        (directory / "manifest.json").unlink()
        config = json.loads((directory / "config.json").read_text())
        (directory / "config.json").write_text(json.dumps(config | changes))
        paths = [path for path in directory.iterdir() if path.is_file()]
        records = {path.name: ObjectRecord(sha256=sha256_file(path), size=path.stat().st_size) for path in paths}
        return directory, VerifiedFiles(LocalStore(directory), "", 1, records)

    return make


@pytest.mark.parametrize("comparator", ["dot", "cos", "l2", "squared_l2"])
@pytest.mark.parametrize("bias", [False, True])
def test_lookup_equals_that_of_the_model(release, comparator, bias):
    directory, files = release(comparator=comparator, bias=bias)
    here = Neighbourhood(files, limit=1 << 20)
    with Model.open(directory) as model:
        for name in ("e0", "e77", HOSTILE):
            expected = model.neighbors(name, k=7)
            found = here.nearest(name, 7)
            assert [each.name for each in found] == [each.name for each in expected]
            np.testing.assert_allclose([each.score for each in found], [each.score for each in expected], rtol=1e-4)


def test_too_large_number_returns_all_others(release):
    here = Neighbourhood(release()[1], "n", limit=1 << 20)
    found = here.nearest("e5", 100_000)
    assert len(found) == len({each.name for each in found}) == 124
    assert "e5" not in {each.name for each in found}


def test_invalid_questions_are_refused(release):
    _, files = release()
    with pytest.raises(InputError, match="no entity of type 'n' is named 'nobody'"):
        Neighbourhood(files, limit=1 << 20).nearest("nobody", 3)
    with pytest.raises(InputError, match="no entity type is named 'm'; the model has 'n'"):
        Neighbourhood(files, "m", limit=1 << 20)
    with pytest.raises(ResourceError, match="look-ups take"):
        Neighbourhood(files, limit=100)


def test_copy_of_killed_server_is_removed(release, tmp_path, monkeypatch):
    monkeypatch.setenv("PBG_SCRATCH", str(tmp_path / "scratch"))
    _, files = release()
    if (child := os.fork()) == 0:
        try:
            here = Neighbourhood(files, limit=1 << 20)
        finally:
            os._exit(0)  # as a kill does, it leaves what `here` has copied
    os.waitpid(child, 0)
    (left,) = (tmp_path / "scratch").iterdir()
    here = Neighbourhood(files, limit=1 << 20)
    (copy,) = (tmp_path / "scratch").iterdir()
    assert copy != left
    assert sweep(tmp_path / "scratch") == []
    del here
    assert not copy.exists()
