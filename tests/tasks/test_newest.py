"""Keys of snapshots that have files."""

from __future__ import annotations

import pytest

from pbg_tasks.config import GraphSpec, Snapshots
from pbg_tasks.config.base import parse
from pbg_tasks.errors import InputError
from pbg_tasks.tasks.nightly.draft_source import find_snapshots
from pbg_tasks.tasks.nightly.newest import keys_with_files, newest_snapshot
from pbg_tasks.tasks.view.show import overview
from tests.tasks.conftest import MODEL


def test_folder_without_files_is_left_out(tmp_path):
    for key, files in {"d2": 1, "d9": 0, "d10": 1, "d11": 0}.items():
        (tmp_path / key).mkdir()
        for number in range(files):
            (tmp_path / key / f"part{number}.tsv").write_text("a\tb\n")
    snapshots = Snapshots(location=f"{tmp_path}/{{snapshot}}/*.tsv", format="tsv")
    assert keys_with_files(snapshots, 60) == ["d10", "d2"]
    assert keys_with_files(snapshots, 2) == ["d10", "d9", "d2"]  # beyond the two newest none is looked into


def test_only_newest_folder_may_still_be_filled(tmp_path, capsys):
    for key in ("d1", "d2", "d3"):
        (tmp_path / key).mkdir()
    (tmp_path / "d1" / "part.tsv").write_text("a\tb\n")
    source = {"location": f"{tmp_path}/{{snapshot}}/*.tsv", "format": "tsv"}
    graph = parse(GraphSpec, {"graph": "g", "store": "s", "snapshots": source, "model": MODEL}, source="spec")
    assert newest_snapshot(graph) == "d1"
    said = [line.partition(" ")[2] for line in capsys.readouterr().err.splitlines()]
    assert said == [
        "snapshot d3 is passed over: its folder has no files yet",
        "snapshot d2 is passed over: its folder has no files",
    ]


def test_snapshot_with_wildcard_in_name_is_newest(tmp_path):
    for name in ("d1/part.tsv", "d2/part[1].tsv"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("a\tb\n")
    source = {"location": f"{tmp_path}/{{snapshot}}/*.tsv", "format": "tsv"}
    graph = parse(GraphSpec, {"graph": "g", "store": "s", "snapshots": source, "model": MODEL}, source="spec")
    assert newest_snapshot(graph) == "d2"
    assert keys_with_files(graph.snapshots, 60) == ["d2", "d1"]


def test_draft_names_why_snapshot_is_passed_over(tmp_path, capsys):
    for name in ("d1/part.tsv", "d2/part[1].tsv"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("a\tb\n")
    location = f"{tmp_path}/{{snapshot}}/*.tsv"
    assert find_snapshots(location).key == "d1"
    assert f"warning: snapshot d2 is passed over: {tmp_path}/d2/part[1].tsv: the name holds" in capsys.readouterr().err
    (tmp_path / "d1" / "part.tsv").unlink()
    with pytest.raises(InputError, match=r"d2/part\[1\]\.tsv: the name holds"):
        find_snapshots(location)


def test_place_without_anything_is_named(tmp_path):
    with pytest.raises(InputError, match=f"{tmp_path}/nowhere: nothing is there; name a run's URL"):
        overview(f"{tmp_path}/nowhere")


@pytest.mark.parametrize(
    ("files", "place", "location"),
    [
        (["d1/part.0.csv", "d2/part.0.csv", "d1/part.1.csv"], "", "{snapshot}/*.csv"),  # as Dask names them
        (["d1/part.0.csv", "d1/part.1.csv"], "/d1", "{snapshot}/*.csv"),
        (["d1/part-0.c000.csv", "d1/part-0.c001.csv"], "/d1", "{snapshot}/*.csv"),
        (["d1/e.2026-11-20.csv"], "", "{snapshot}/*.csv"),
        (["e.2026-11-20.csv.gz", "e.2026-11-21.csv.gz"], "", "{snapshot}.csv.gz"),
        (["d1.edges.csv", "d1.nodes.csv"], "", "{snapshot}.edges.csv"),
    ],
)
def test_numbers_between_dots_end_no_location(tmp_path, files, place, location):
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("a,b\n")
    assert find_snapshots(f"{tmp_path}{place}").snapshots.location == f"{tmp_path}/{location}"
