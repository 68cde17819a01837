from __future__ import annotations

import shutil
import subprocess
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from benchmarks.quality.plot import log_ticks
from benchmarks.speed import report
from benchmarks.speed.__main__ import DOCUMENT, GROWTH, HOSTS, LATEST, RATIOS
from benchmarks.speed.catalogue import BENCHMARKS
from benchmarks.speed.environment import environment, revision
from benchmarks.speed.measurement import Measurement, Round
from benchmarks.speed.results import Results
from pbg_tasks.errors import FormatError

GIT = shutil.which("git") or ""
COMMON = {"rerun": "make bench", "revision": "abc", "environment": environment() | {"load": 0.1}}


def compared(name):
    return Measurement.rate(name, "edges/cpu-s", [Round(30, 1, 1, 0)], [Round(10, 1, 1, 0)], target=2, note="a note")


def grown():
    return Measurement("growth of an epoch with edges", "exponent", 1.0, points=((10, 1), (100, 10), (1000, 100)))


def test_results_are_read_as_written(tmp_path):
    results = Results()
    results.replace("steps", [compared("FB <step>")], **COMMON)
    results.write(tmp_path / "new" / "latest.json")
    assert Results.read(tmp_path / "new" / "latest.json") == results
    assert Results.read(tmp_path / "none.json") == Results()


def test_foreign_results_are_refused(tmp_path):
    path = tmp_path / "latest.json"
    for text in ("{", "{}", "[1]", '[{"name": "x"}]'):
        path.write_text(text)
        with pytest.raises(FormatError, match=r"latest\.json.*start over"):
            Results.read(path)


def test_benchmark_replaces_its_older_run():
    results = Results()
    results.replace("steps", [compared("one"), compared("two")], **COMMON)
    results.replace("export", [compared("three")], **COMMON)
    results.replace("steps", [compared("four")], **COMMON | {"revision": "def"})
    assert [entry["name"] for entry in results.entries] == ["four", "three"]
    here = COMMON["environment"]
    assert results.has("steps", "def", here)
    assert not results.has("steps", "abc", here)
    assert not results.has("none", "abc", here)
    assert not results.has("steps", None, here)


@pytest.mark.parametrize("other", [{"cpu": "another"}, {"features": "none"}, {"cores": 96}, {"load": 8.0}])
def test_figures_of_other_machine_do_not_count(other):
    here = {"cpu": "this", "features": "avx2", "cores": 2, "load": 30.0}
    results = Results()
    results.replace("steps", [compared("one")], rerun="make bench", revision="abc", environment=here | {"load": 2.1})
    results.replace("export", [compared("two")], rerun="make bench", revision="abc", environment=here | other)
    assert results.has("steps", "abc", here)
    assert not results.has("export", "abc", here)


@pytest.mark.skipif(not GIT, reason="git is not installed")
def test_revision_follows_the_code_only(tmp_path):
    def git(*arguments):
        identity = ["-c", "user.name=n", "-c", "user.email=e"]
        subprocess.run([GIT, *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    (tmp_path / "pbg_tasks").mkdir()
    code = tmp_path / "pbg_tasks" / "code.py"
    code.write_text("1")
    git("add", ".")
    git("commit", "-m", "first")
    first = revision(tmp_path)
    (tmp_path / "README").write_text("words")
    git("add", ".")
    git("commit", "-m", "words")
    assert revision(tmp_path) == first
    code.write_text("2")
    changed = revision(tmp_path)
    code.write_text("3")
    assert len({first, changed, revision(tmp_path)}) == 3
    assert changed.startswith(f"{first}+")
    found = set()
    for text in ("1", "2"):
        (tmp_path / "pbg_tasks" / "new.py").write_text(text)
        found.add(revision(tmp_path))
    assert len(found - {first, changed}) == 2
    assert revision(tmp_path / "nowhere") is None


def test_document_lists_measured_and_missing_benchmarks(tmp_path):
    results = Results()
    results.replace("steps", [compared("FB <step>"), compared("LJ step")], **COMMON)
    results.replace("growth", [grown()], **COMMON)
    paths = [tmp_path / name for name in ("p.md", "ratios.svg", "growth.svg")]
    report.write(results, {}, *paths)
    text = paths[0].read_text()
    assert "| edges/cpu-s | ours | theirs | ratio (min - max) |" in text
    assert "| FB <step> | 30 | 10 | 3 (3 - 3) |" in text
    assert "\n1. a note (all).\n" in text
    assert text.count("`: not measured yet.") == len(BENCHMARKS) - 2
    assert '`make bench ARGS="steps --again"`' in text
    drawn = [{part.text for part in ET.parse(path).iter() if part.text} for path in paths[1:]]  # noqa: S314 - ours
    assert "FB <step>" in drawn[0]
    assert "slope 1.00" in drawn[1]


def test_document_shows_other_hosts(tmp_path):
    results, amx, avx2 = Results(), Results(), Results()
    results.replace("steps", [compared("FB step"), compared("LJ step"), compared("import")], **COMMON)
    amx.replace("steps", [replace(compared("FB step"), ours=20.0, ratios=(2.0,)), compared("other")], **COMMON)
    avx2.replace("steps", [replace(compared("LJ step"), ours=10.0, ratios=(1.0,))], **COMMON)
    document = tmp_path / "p.md"
    report.write(results, {"amx": amx, "avx2": avx2}, document, tmp_path / "r.svg", tmp_path / "g.svg")
    text = document.read_text()
    assert "| ours | times better | ours, amx | times better, amx | ours, avx2 | times better, avx2 |" in text
    assert "| FB step | edges/cpu-s | 30 | 3 (3 - 3) | 20 | 2 (2 - 2) |  |  |" in text
    assert "| LJ step | edges/cpu-s | 30 | 3 (3 - 3) |  |  | 10 | 1 (1 - 1) |" in text
    assert text.count("measures it.") == 2
    assert "| other |" not in text
    assert "| import | edges/cpu-s | 30 | 3 (3 - 3) | " not in text


def test_figure_is_in_column_of_its_cpu(tmp_path):
    """Another host's figure is none of the first column."""
    results, amx, avx2 = Results(), Results(), Results()
    of_avx2 = {"rerun": 'make bench-quick ARGS="x --again"', "revision": "def"}
    of_avx2["environment"] = COMMON["environment"] | {"features": "avx2 alone", "load": 1.5}
    busy = of_avx2 | {"revision": "xyz", "environment": of_avx2["environment"] | {"load": 9.0}}
    results.replace("steps", [compared("FB step"), compared("LJ step")], **COMMON)
    results.replace("growth", [compared("growth")], **busy)
    another = replace(compared("growth"), ours=20.0, ratios=(2.0,), note="a note; of 5 epochs")
    amx.replace("growth", [another], **COMMON)
    amx.replace("steps", [compared("FB step")], **COMMON | {"revision": "ghi"})
    avx2.replace("steps", [compared("LJ step")], **of_avx2)
    document = tmp_path / "p.md"
    report.write(results, {"amx": amx, "avx2": avx2}, document, tmp_path / "r.svg", tmp_path / "g.svg")
    text = document.read_text()
    assert "| growth | edges/cpu-s |  |  | 20 | 2 (2 - 2) | 30 | 3 (3 - 3) |" in text
    assert "\n* growth: *amx*: of 5 epochs.\n" in text
    assert 'load 0.1; code abc, ghi. `make bench ARGS="growth steps --again --host amx"` measures it.' in text
    assert 'load 1.5 to 9; code def, xyz. `make bench-quick ARGS="steps growth --again --host avx2"` measures' in text


def test_page_is_made_of_the_results(tmp_path):
    elsewhere = {path.stem: Results.read(path) for path in sorted(HOSTS.glob("*.json"))}
    page = tmp_path / DOCUMENT.name
    report.write(Results.read(LATEST), elsewhere, page, tmp_path / RATIOS.name, tmp_path / GROWTH.name)
    assert page.read_text(encoding="utf-8") == DOCUMENT.read_text(encoding="utf-8")


def test_page_shows_race_of_ours_alone(tmp_path):
    """PBG's side may be run another day."""
    results = Results()
    results.replace("race", [Measurement("FB15k from TSV to filtered MRR 0.79", "s", 200.0)], **COMMON)
    report.write(results, {}, tmp_path / "p.md", tmp_path / "r.svg", tmp_path / "g.svg")
    assert "(#the-race-to-a-filtered-mrr-of-079-on-fb15k) | 200 |  | s |  |\n" in (tmp_path / "p.md").read_text()


def test_plot_of_ratios_has_pbg_only(tmp_path):
    results = Results()
    for benchmark in ("steps", "staging", "pykeen"):
        results.replace(benchmark, [compared(f"of {benchmark}")], **COMMON)
    paths = [tmp_path / name for name in ("p.md", "ratios.svg", "growth.svg")]
    report.write(results, {}, *paths)
    drawn = {part.text for part in ET.parse(paths[1]).iter() if part.text}  # noqa: S314 - ours
    assert {text for text in drawn if text.startswith("of ")} == {"of steps"}
    assert "| of staging |" in paths[0].read_text()


@pytest.mark.parametrize(("reach", "expected"), [((3, 900), [1, 10, 100, 1000]), ((3, 9), [2, 4, 8, 16])])
def test_logarithmic_axes_have_powers_as_marks(reach, expected):
    assert log_ticks(*reach) == expected


def test_fitted_line_is_straight_on_logarithmic_axes(tmp_path):
    results = Results()
    results.replace("growth", [grown()], **COMMON)
    report.write(results, {}, tmp_path / "p.md", tmp_path / "r.svg", tmp_path / "g.svg")
    root = ET.parse(tmp_path / "g.svg").getroot()  # noqa: S314 - ours
    measured, fitted = (
        [tuple(map(float, place.split(","))) for place in line.get("points").split()]
        for line in root.iter("{http://www.w3.org/2000/svg}polyline")
    )
    assert fitted[0] == pytest.approx(measured[0], abs=0.2)
    assert fitted[1] == pytest.approx(measured[2], abs=0.2)
    assert not (tmp_path / "r.svg").exists()


def test_document_puts_figures_beside_their_row(tmp_path):
    results = Results()
    names = ("FB step", "FB step, against PBG with huge pages")
    results.replace("steps", [compared(name) for name in names], **COMMON)
    nights = [
        Measurement(f"{which} night, plan{place}", "cpu-s", 1.5) for which in ("cold", "warm") for place in ("", ", S3")
    ]
    results.replace("night", nights, **COMMON)
    report.write(results, {}, tmp_path / "p.md", tmp_path / "r.svg", tmp_path / "g.svg")
    text = (tmp_path / "p.md").read_text()
    assert "| FB step | 30 | 10 | edges/cpu-s | 3 (3 - 3) | 3 |" in text
    assert "*huge pages*: a note.\n" in text
    assert "| cpu-s | cold night | cold night, S3 | warm night | warm night, S3 |" in text
    assert "| plan | 1.5 | 1.5 | 1.5 | 1.5 |" in text


def test_document_names_missed_targets_only(tmp_path):
    results = Results()
    missed = Measurement("LJ step", "edges/cpu-s", 5.0, target=9)
    results.replace("steps", [compared("FB step"), missed], **COMMON)
    report.write(results, {}, tmp_path / "p.md", tmp_path / "r.svg", tmp_path / "g.svg")
    assert "\nTargets missed: LJ step (9).\n" in (tmp_path / "p.md").read_text()
