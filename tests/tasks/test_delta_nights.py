"""Nights that train new edges and a sample of the others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pbg_tasks.cli import app
from pbg_tasks.config.run import DELTA, RunLayout
from pbg_tasks.errors import ConfigError
from pbg_tasks.formats.edges import edge_file_name, read_edges
from pbg_tasks.formats.entities import read_entity_names, read_relation_names
from pbg_tasks.tasks.nightly.chain import run_chain, run_task
from pbg_tasks.tasks.nightly.plan import plan
from pbg_tasks.tasks.release.adopt import adopt
from pbg_tasks.tasks.view.show import show
from tests.tasks.conftest import ring

OLD = ring(60)
NEW = [("e0", "next", "e30"), ("e1", "skip", "e31"), *ring(5, first=100)]


def edges(run, split):
    """Read the edges of a run's folder, by names."""
    entities = Path(run) / RunLayout.entities
    names = [read_entity_names(entities, "n", part) for part in (0, 1)]
    relations = read_relation_names(entities)
    found = []
    for i in (0, 1):
        for j in (0, 1):
            read = read_edges(Path(run) / RunLayout.edges / split / edge_file_name(i, j))
            columns = (read.lhs.tolist(), read.rel.tolist(), read.rhs.tolist())
            found += [(names[i][lhs], relations[rel], names[j][rhs]) for lhs, rel, rhs in zip(*columns, strict=True)]
    return sorted(found)


def bucketed(place, **delta):
    """Release a first night, and prepare a second one."""
    place.write_spec(train={"delta": delta})
    place.snapshot("d1", OLD)
    place.snapshot("d2", OLD + NEW)
    first = run_chain(place.spec, "d1")
    assert (
        first["edges"]["train"] * 3
        == json.loads((Path(first["run"]) / "results/train.json").read_text())["edges_trained"]
    )
    run = plan(place.spec, "d2")["run"]
    for task in ("validate", "partition", "bucket"):
        found = run_task(task, run)
    return first["run"], run, found


def test_without_sample_new_edges_are_trained(place):
    first, run, found = bucketed(place, sample=0)
    trained_before = set(edges(first, "train"))
    fresh = [edge for edge in edges(run, "train") if edge not in trained_before]
    assert edges(run, DELTA) == fresh
    assert set(fresh) & set(NEW)
    assert found["delta"] == {"new": len(fresh), "touching": 0, "sampled": 0}
    trained = run_task("train", run)
    assert trained["edges_trained"] == 3 * len(fresh)
    assert trained["warm_start"] is True


def test_sample_of_all_trains_every_edge_once(place):
    _, run, found = bucketed(place, sample=1)
    assert edges(run, DELTA) == edges(run, "train")
    assert found["delta"]["sampled"] > 0


def test_sample_is_a_share_of_the_others(place):
    _, run, found = bucketed(place, sample=0.5)
    others = len(edges(run, "train")) - found["delta"]["new"]
    assert 0.3 * others < found["delta"]["sampled"] < 0.7 * others
    assert set(edges(run, DELTA)) < set(edges(run, "train"))


def test_edges_of_changed_entities_are_trained(place):
    first, run, found = bucketed(place, sample=0, touching=0.1)
    trained_before, whole = set(edges(first, "train")), edges(run, "train")
    changed = set()
    for name in {edge[side] for edge in whole for side in (0, 2)}:
        ends = [edge for edge in whole for side in (0, 2) if edge[side] == name]
        if sum(edge not in trained_before for edge in ends) >= 0.1 * len(ends):
            changed.add(name)
    assert edges(run, DELTA) == [edge for edge in whole if edge[0] in changed or edge[2] in changed]
    assert found["delta"]["touching"] > 0


def test_delta_night_is_published(place):
    bucketed(place, sample=0.2)
    second = run_chain(place.spec, "d2")
    assert second["release"]["release"] == 2
    assert (
        second["edges"]["train"]
        > json.loads((Path(second["run"]) / "results/train.json").read_text())["edges_trained"] / 3
    )


def test_summary_names_edges_of_delta_epochs(place):
    _, second, found = bucketed(place, sample=0.2)
    trained = show(second)["delta_edges"]
    assert trained == sum(found["delta"].values()) < found["edges"]["train"]
    assert f"edges of a delta epoch {trained}" in " ".join(CliRunner().invoke(app, ["show", second]).stdout.split())


def test_summary_of_whole_epochs_has_no_delta(place):
    first, _, _ = bucketed(place)
    assert show(first)["delta_edges"] is None
    assert "delta" not in CliRunner().invoke(app, ["show", first]).stdout


def test_first_night_has_no_delta_folder(place):
    first, _, _ = bucketed(place)
    assert not (Path(first) / RunLayout.edges / DELTA).exists()


def test_night_after_adoption_trains_all_edges(place):
    """The adopted release has no hashes of edges."""
    day = place.snapshot("d1", OLD)
    first = run_chain(place.spec, "d1")["run"]
    place.write_spec(store=str(place.root / "nights"), train={"delta": {"sample": 0}})
    adopt(f"{first}/checkpoint", f"{first}/entities", place.spec)
    day.unlink()
    place.snapshot("d2", OLD + NEW)
    run = plan(place.spec, "d2")["run"]
    for task in ("validate", "partition", "bucket"):
        found = run_task(task, run)
    assert edges(run, DELTA) == edges(run, "train")
    assert found["delta"] == {"new": found["edges"]["train"], "touching": 0, "sampled": 0}


@pytest.mark.parametrize(
    ("train", "sentence"),
    [
        ({"delta": {}, "warm_start": False}, "delta is of warm starts"),
        ({"delta": {}, "shrink": {}}, "delta trains only some"),
        ({"delta": {"sample": 1.5}}, "less than or equal to 1"),
        ({"delta": {"touching": 0}}, "greater than 0"),
    ],
)
def test_meaningless_delta_is_refused(place, train, sentence):
    place.write_spec(train=train)
    place.snapshot("d1", OLD)
    with pytest.raises(ConfigError, match=sentence):
        plan(place.spec, "d1")


def test_delta_between_independent_nights_is_refused(place):
    place.write_spec(train={"delta": {}}, nights={"walk": "independent"})
    place.snapshot("d1", OLD)
    with pytest.raises(ConfigError, match="delta is of warm starts, which nights"):
        plan(place.spec, "d1")
