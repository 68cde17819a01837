"""Keys of snapshots that have files."""

from __future__ import annotations

import pytest

from pbg_tasks.config import Snapshots
from pbg_tasks.errors import InputError
from pbg_tasks.tasks.nightly.newest import keys_with_files
from pbg_tasks.tasks.view.show import overview


def test_folder_without_files_is_left_out(tmp_path):
    for key, files in {"d2": 1, "d9": 0, "d10": 1, "d11": 0}.items():
        (tmp_path / key).mkdir()
        for number in range(files):
            (tmp_path / key / f"part{number}.tsv").write_text("a\tb\n")
    snapshots = Snapshots(location=f"{tmp_path}/{{snapshot}}/*.tsv", format="tsv")
    assert keys_with_files(snapshots, 60) == ["d10", "d2"]
    assert keys_with_files(snapshots, 2) == ["d10", "d9", "d2"]  # beyond the two newest none is looked into


def test_place_without_anything_is_named(tmp_path):
    with pytest.raises(InputError, match=f"{tmp_path}/nowhere: nothing is there; name a run's URL"):
        overview(f"{tmp_path}/nowhere")
