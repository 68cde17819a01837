"""Names, places and edges looked up in the files of a night.

Entities of one night are also found in another.
"""

from __future__ import annotations

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pbg_tasks.errors import FormatError
from pbg_tasks.prepare.ids import write_known
from pbg_tasks.prepare.lookup import edge_hash, hashes_among, names_at, places_of, returned_pairs
from pbg_tasks.prepare.reassignment import Matching
from tests.prepare.differences import find, make_spec

ODD = "é\x1e'\x1f"  # a name may contain any text that separates names elsewhere


@pytest.fixture
def connection():
    with duckdb.connect(config={"threads": "1"}) as connection:
        yield connection


def ids(directory, **types):
    directory.mkdir()
    for entity, partitions in types.items():
        write_known(directory, entity, partitions, seen="d1")
    return directory


def test_names_and_places_lead_to_each_other(connection, tmp_path):
    known = ids(tmp_path / "ids", n=[["a", ODD], ["b"]])
    assert names_at(connection, known, "n", [(0, 1), (1, 0), (1, 7)]) == {(0, 1): ODD, (1, 0): "b"}
    assert places_of(connection, known, "n", ["b", ODD, "nobody"]) == {"b": (1, 0), ODD: (0, 1)}
    assert names_at(connection, known, "n", []) == {}
    with pytest.raises(FormatError, match="entity_ids_m"):
        names_at(connection, known, "m", [(0, 0)])


@pytest.mark.parametrize(
    ("columns", "row"),
    [
        ({}, ("a", "r", ODD, None, None)),
        ({"rel": None}, ("a", None, "b", None, None)),
        ({"lhs_type": "x", "rhs_type": "y"}, ("a", "r", "b", "n", "n")),
    ],
)
def test_edge_has_the_hash_of_its_snapshot(connection, tmp_path, columns, row):
    spec = make_spec(**columns)
    find([row], tmp_path, spec=spec)
    lhs, rel, rhs, *_ = row
    names = {"lhs": lhs, "rel": rel or "only", "rhs": rhs, "lhs_type": "n", "rhs_type": "n"}
    there, other = edge_hash(spec.columns, **names), edge_hash(spec.columns, **names | {"lhs": "z"})
    assert hashes_among(connection, tmp_path, [there, other]) == {there}
    assert hashes_among(connection, tmp_path, []) == set()


def test_entities_are_matched_by_name(connection, tmp_path):
    before = ids(tmp_path / "before", n=[["a", "gone"], [ODD, "b"]])
    after = ids(tmp_path / "after", n=[["b"], ["new"], [ODD, "a"]])
    matching = Matching(connection, "n", before, after)
    found = [matching.places(partition) for partition in range(2)]
    assert [places.partition.tolist() for places in found] == [[2, -1], [2, 0]]
    assert found[0].offset[0] == 1
    assert found[1].offset.tolist() == [0, 0]


def test_returned_pairs_get_the_ids_of_night(connection, tmp_path):
    directory = ids(tmp_path / "ids", user=[["u0"], ["u1", ODD]], item=[["i0", "i1"]], städte=[["köln", "ulm"]])
    bases = {"user": np.array([0, 1, 3]), "item": np.array([0, 2]), "städte": np.array([0, 2])}
    pairs = [
        ("item", "i1", "user", "u1"),
        ("user", ODD, "user", "u0"),
        ("user", "u0", "user", "unknown"),
        ("städte", "köln", "user", "u0"),
        ("x", "a", "x", "b"),
    ]
    path = tmp_path / "returned.parquet"
    columns = {
        "least_key": [f"{kind}\x1e{name}" for kind, name, _, _ in pairs],
        "greatest_key": [f"{kind}\x1e{name}" for _, _, kind, name in pairs],
    }
    pq.write_table(pa.table(columns), path)
    found = returned_pairs(connection, directory, path, bases)
    assert {types: numbers.tolist() for types, numbers in found.items() if len(numbers)} == {
        ("item", "user"): [[1, 1]],
        ("user", "user"): [[2, 0]],
        ("städte", "user"): [[0, 0]],
    }
    with pytest.raises(FormatError, match="nowhere"):
        returned_pairs(connection, directory, tmp_path / "nowhere.parquet", bases)
