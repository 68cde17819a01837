"""Nights whose tables are several files."""

from __future__ import annotations

import json
import re

from pbg_tasks.formats import names, tables
from pbg_tasks.formats.embeddings import read_embeddings
from pbg_tasks.tasks.nightly.chain import run_chain
from pbg_tasks.tasks.release.redo import redo
from pbg_tasks.tasks.release.repartition import repartition
from pbg_tasks.tasks.release.replay import replay_release
from tests.tasks.conftest import Workplace, ring

TABLES = (names.EDGE_HASHES, "entity_ids_n.parquet")
TASKS = ("validate", "partition", "bucket", "eval", "drift", "gate")
OF_THE_RUN = {"run", "seconds", "usage", "manifest_sha256"}


def spec(place, partitions):
    place.write_spec(
        {"entities": {"n": {"num_partitions": partitions}}, "num_epochs": 1},
        train={"delta": {"sample": 0.3}},
        vanished={"rule": "expire", "nights": 1},
    )


def story(root):
    """Release nights of all kinds; return the place."""
    root.mkdir()
    place = Workplace(root)
    spec(place, 2)
    place.snapshot("d1", ring(60))
    run_chain(place.spec, "d1")
    place.snapshot("d2", ring(65, first=5))
    run_chain(place.spec, "d2")
    place.snapshot("d2", ring(62, first=8))
    redo(place.spec, "d2")
    assert replay_release(place.spec, 3)["equal"]
    spec(place, 3)
    repartition(place.spec)
    place.snapshot("d3", ring(75, first=2))
    run_chain(place.spec, "d3")
    spec(place, 1)  # its ids begin anew, and entities are matched by name
    place.snapshot("d4", ring(68, first=4))
    run_chain(place.spec, "d4")
    return place


def figures(value):
    """Return results without what is a run's own."""
    if isinstance(value, dict):
        return {key: figures(each) for key, each in value.items() if key not in OF_THE_RUN}
    if isinstance(value, str):
        return re.sub(r"\b(d\d)-[0-9a-f]{12}\b", r"\1", value)
    return [figures(each) for each in value] if isinstance(value, list) else value


def released(place):
    """Yield results, files and names of the tables' files of each release."""
    for release in place.channel().releases():
        directory = place.store / release.directory
        results = [directory.parent / "results" / f"{task}.json" for task in TASKS]
        found = {path.name: path for path in directory.iterdir()}
        files = [tables.present_files(table, found) for table in TABLES]
        left_out = {name for listed in files for name in listed} | {"manifest.json"}
        data = {name: contents(path) for name, path in found.items() if name not in left_out}
        yield [figures(json.loads(path.read_text())) for path in results if path.exists()], data, files


def contents(path):
    if path.name.startswith("embeddings"):  # a file of HDF5 has the run's paths, too
        return [each.tobytes() for each in read_embeddings(path)]
    return None if path.suffix == ".h5" else path.read_bytes()


def test_nights_are_those_of_one_file(tmp_path, scratch, monkeypatch):
    monkeypatch.setattr(names, "INDEXED_FROM", 20)
    one = story(tmp_path / "one")
    monkeypatch.setattr(tables, "ROWS_OF_A_FILE", 7)
    several = [*released(story(tmp_path / "several"))]
    assert len(several) == 6
    assert [len(results) for results, *_ in several] == [6, 6, 6, 0, 6, 6]
    for expected, found in zip(released(one), several, strict=True):
        assert found[:2] == expected[:2]
        assert expected[2] == [[table] for table in TABLES]
        assert min(len(files) for files in found[2]) > 8
