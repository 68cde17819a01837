"""Map of an embedding, and its place on the page."""

from __future__ import annotations

import json

import numpy as np
import pytest

from pbg_tasks.api import Model
from pbg_tasks.errors import FormatError
from pbg_tasks.report.embedding_map import map_document
from pbg_tasks.report.pages import Links, render
from pbg_tasks.report.run import run_document
from pbg_tasks.tasks.context import RunContext
from pbg_tasks.tasks.nightly.chain import run_chain
from pbg_tasks.tasks.view.embedding_map import MAP, read_map, write_map
from pbg_tasks.tasks.view.report import read_run
from tests.report.conftest import DAYS, HOSTILE
from tests.report.document import check_page
from tests.tasks.conftest import ring, workplace


def sample(rows, before=None):
    names = [f"e{place}" for place in range(len(rows))]
    return {"names": names, "rows": np.asarray(rows, np.float32), "before": before, "entities": len(rows)}


def test_axes_are_those_of_most_variance():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(200, 5)) * [0.01, 3.0, 0.02, 9.0, 0.01]
    found = map_document({"n": sample(rows)}, normalized=False, release=None)
    places = np.array([point["at"] for point in found["types"]["n"]])
    assert abs(np.corrcoef(places[:, 0], rows[:, 3])[0, 1]) > 0.99
    assert abs(np.corrcoef(places[:, 1], rows[:, 1])[0, 1]) > 0.99
    assert found["shown"] > 0.999


def test_places_before_are_on_the_same_axes():
    rows = np.random.default_rng(1).normal(size=(50, 4)).astype(np.float32)
    before = rows.copy()
    before[7] = np.nan  # new tonight
    found = map_document({"n": sample(rows, before)}, normalized=False, release=3)
    assert found["release"] == 3
    assert [point["before"] for point in found["types"]["n"]] == [
        None if place == 7 else point["at"] for place, point in enumerate(found["types"]["n"])
    ]


@pytest.mark.parametrize("rows", [np.zeros((3, 4)), np.ones((1, 4)), np.ones((5, 1))])
def test_degenerate_vectors_have_a_map(rows):
    found = map_document({"n": sample(rows)}, normalized=True, release=None)
    assert np.isfinite([point["at"] for point in found["types"]["n"]]).all()
    assert json.loads(json.dumps(found, allow_nan=False)) == json.loads(json.dumps(found))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_vectors_without_a_place_are_refused(value):
    rows = np.ones((3, 4))
    rows[1, 2] = value
    with pytest.raises(FormatError, match="vectors of n are not finite"):
        map_document({"n": sample(rows)}, normalized=True, release=None)


def test_map_leaves_out_what_a_release_hides(tmp_path):
    """It shows neither expired entities nor places in another space."""
    with workplace(tmp_path) as place:
        place.write_spec(
            model={"num_epochs": 1, "entities": {"n": {"num_partitions": 1}}},
            vanished={"rule": "expire", "nights": 1},
            train={"warm_start": False},
        )
        place.snapshot("d1", ring(40) + ring(9, first=100))
        first = read_map(RunContext.open(run_chain(place.spec, "d1")["run"]))
        place.snapshot("d2", ring(40))
        second = read_map(RunContext.open(run_chain(place.spec, "d2")["run"]))
    stayed, gone = ({f"e{number}" for number in numbers} for numbers in (range(40), range(100, 109)))
    assert {point["name"] for point in first["types"]["n"]} == stayed | gone
    assert {point["name"] for point in second["types"]["n"]} == stayed
    assert second["entities"] == {"n": 40}
    assert second["release"] is None
    assert not any(point["before"] for point in second["types"]["n"])


def test_map_names_types_too_large_for_it(tmp_path, monkeypatch, capsys):
    entities = {"large": {"num_partitions": 1}, "small": {"num_partitions": 1}}
    relations = [{"name": name, "lhs": "large", "rhs": "small"} for name in ("next", "skip", "far")]
    with workplace(tmp_path) as place:
        place.write_spec(model={"entities": entities, "relations": relations, "dynamic_relations": False})
        place.snapshot("d1", [(f"l{edge % 100}", "next", f"s{edge % 3}") for edge in range(300)])
        run = RunContext.open(run_chain(place.spec, "d1")["run"])
        for most, drawn in ((1, []), (14_000, ["small"]), (18_000, ["large"])):
            monkeypatch.setattr("pbg_tasks.tasks.view.embedding_map.BYTES", most)
            write_map(run)
            found = read_map(run)
            assert [*found["types"]] == drawn
            assert found["left_out"] == [kind for kind in entities if kind not in drawn]
            assert f"map: {found['left_out'][-1]} is left out: its partition 0 takes " in capsys.readouterr().err
            page = check_page(render(run_document(read_run(run)), Links(assets="a")))
            assert f"Left out: {', '.join(found['left_out'])}. A map reads at most 134 MB, and no room" in page.text()
            assert ("Names that begin with" in page.text()) is bool(drawn)


def test_map_has_the_vectors_that_readers_get(tmp_path):
    """Global embeddings are added, of the night before, too."""
    model = {
        "dynamic_relations": False,
        "global_emb": True,
        "entities": {"n": {"num_partitions": 1}},
        "relations": [
            {"name": name, "lhs": "n", "rhs": "n", "operator": "translation"} for name in ("next", "skip", "far")
        ],
        "comparator": "cos",
    }
    with workplace(tmp_path) as place:
        place.write_spec(model=model)
        place.snapshot("d1", ring(40))
        first = run_chain(place.spec, "d1")["run"]
        place.snapshot("d2", ring(40))
        second = run_chain(place.spec, "d2")["run"]
        found = read_map(RunContext.open(second))
        with Model.open(first) as then, Model.open(second) as now:
            sample_now = sample(now.embedding(now.entities()), then.embedding(now.entities()))
    expected = map_document({"n": sample_now}, normalized=True, release=1)
    for point, wanted in zip(found["types"]["n"], expected["types"]["n"], strict=True):
        assert point["at"] == pytest.approx(wanted["at"], abs=1e-3)
        assert point["before"] == pytest.approx(wanted["before"], abs=1e-3)


def test_map_leaves_the_bias_out(tmp_path):
    """It measures how often an entity has edges, and not its likeness."""
    with workplace(tmp_path) as place:
        place.write_spec(model={"comparator": "dot", "bias": True, "init_scale": 0.1})
        urls = []
        for day in ("d1", "d2"):
            place.snapshot(day, ring(40))
            urls.append(run_chain(place.spec, day)["run"])
        found = read_map(RunContext.open(urls[1]))
        with Model.open(urls[0]) as then, Model.open(urls[1]) as now:
            names = [point["name"] for point in found["types"]["n"]]
            vectors = [model.embedding(names)[:, 1:] for model in (now, then)]
            shown = now.map(names).table
    expected = map_document({"n": sample(*vectors)}, normalized=False, release=1)["types"]["n"]
    for point, wanted in zip(found["types"]["n"], expected, strict=True):
        assert point["at"] == pytest.approx(wanted["at"], abs=1e-3)
        assert point["before"] == pytest.approx(wanted["before"], abs=1e-3)
    assert shown["x"].to_pylist() == pytest.approx([point["at"][0] for point in expected], abs=1e-3)


def test_report_stores_map_and_page_shows_it(nights):
    run = nights.run(DAYS[1])
    found = read_map(run)
    assert found["release"] == 1
    points = found["types"]["n"]
    assert len(points) <= 125
    assert HOSTILE in {point["name"] for point in points} or len(points) < 125
    assert all(point["before"] for point in points if point["name"] in {"e1", "e2"})
    assert read_map(nights.run(DAYS[2])) is None
    page = check_page(render(run_document(read_run(run)), Links(assets="a")))
    assert page.text().count("Names that begin with") == 1


PARTS = [
    json.dumps({"format": 1, "types": types, "shown": 0.5, "release": None}).encode()
    for types in (3, {"n": 3}, {"n": [3]}, {"n": [{"name": "a"}]}, {"n": [{"name": "a", "at": [0, 0]}]})
]


def test_damaged_map_is_no_map(nights):
    run = nights.run(DAYS[0])
    before = run.store.get(run.key(MAP)).data
    try:
        for data in (b"", b"[]", b"{}", b'{"format": 2}', *PARTS):
            run.store.put(run.key(MAP), data)
            assert read_map(run) is None
    finally:
        run.store.put(run.key(MAP), before)
