"""Pictures of README and docs: all are taken, and all are shown."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

from pbg_tasks.errors import QualityGateError
from pbg_tasks.tasks.nightly.chain import run_chain
from tests.pictures import IN_AIRFLOW, THEMES, WIDTH, Nights, error_of_plan, take_all
from tests.tasks.conftest import ring, workplace

ROOT = Path(__file__).parent.parent
PICTURES = ROOT / "docs" / "pictures"
NIGHTS = Nights("toy", ("/runs/d1-a", "/runs/d2-a"), "/runs/d3-a", ("d", ""), "e5", ("toy", "/runs/d2-a"))
TAKEN = [*NIGHTS.pictures(), NIGHTS.map()]
SCRIPTED = {"fleet.png"}
"""Picture of 200 graphs, by ``tests/fleet.py``."""


def names(taken):
    """Return the names of pictures' files in both themes."""
    return {f"{name}{suffix}.png" for name in taken for suffix in THEMES.values()}


def test_each_picture_of_docs_is_taken_and_shown():
    there = {path.name for path in PICTURES.iterdir()}
    assert there == names(picture.name for picture in TAKEN) | names(IN_AIRFLOW) | SCRIPTED
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    shown = {name for page in pages for name in re.findall(r"pictures/([\w-]+\.png)\)", page.read_text())}
    assert shown == there


@pytest.mark.browser
@pytest.mark.rotated(3)
def test_all_pictures_are_taken_in_both_themes(tmp_path):
    with workplace(tmp_path) as place:
        place.write_spec(model={"num_epochs": 1})
        for day, count in (("2026-11-18", 30), ("2026-11-19", 30), ("2026-11-20", 4)):
            place.snapshot(day, ring(count))
        runs = [run_chain(place.spec, day)["run"] for day in ("2026-11-18", "2026-11-19")]
        with pytest.raises(QualityGateError) as refused:
            run_chain(place.spec, "2026-11-20")
        run = re.search(r"\S*/runs/2026-11-20-[0-9a-f]{12}", str(refused.value))
        wrong = error_of_plan(place.spec, "2026/11/20")
        take_all(Nights("toy", runs, run[0], wrong, "e5", ("toy", runs[-1])), tmp_path / "pictures")
    taken = {path.name: path.read_bytes() for path in (tmp_path / "pictures").iterdir()}
    assert taken.keys() == names(picture.name for picture in TAKEN)
    heights = {f"{each.name}{suffix}.png": each.height for each in TAKEN for suffix in THEMES.values()}
    assert {name: struct.unpack("!II", data[16:24]) for name, data in taken.items()} == {
        name: (WIDTH, height) for name, height in heights.items()
    }
    assert all(taken[f"{each.name}.png"] != taken[f"{each.name}-dark.png"] for each in TAKEN)
