from __future__ import annotations

import random

import pytest

from pbg_tasks.config import GraphSpec, SnapshotFile
from pbg_tasks.config.base import parse
from pbg_tasks.errors import InputError
from pbg_tasks.prepare.connection import connect
from pbg_tasks.prepare.counting import count_snapshot
from pbg_tasks.storage.columnar import list_files


def counted(tmp_path, text, model, columns=None, memory_gb=1.0):
    path = tmp_path / "d1.tsv"
    path.write_text(text)
    fields = {
        "graph": "g",
        "store": str(tmp_path / "store"),
        "snapshots": {"location": f"{tmp_path}/{{snapshot}}.tsv", "format": "tsv"},
        "columns": columns or {},
        "model": {"dimension": 4, "global_emb": False, **model},
        "resources": {"memory_gb": memory_gb, "threads": 1},
    }
    graph = parse(GraphSpec, fields, source="graph")
    files = [SnapshotFile(uri=uri, size=size, version=version) for uri, size, version in list_files(str(path))]
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with connect(graph.resources, scratch) as connection:
        return count_snapshot(connection, graph, files)


def test_one_type_and_relations_from_the_data(tmp_path):
    model = {
        "entities": {"n": {"num_partitions": "auto"}},
        "relations": [{"name": "all", "lhs": "n", "rhs": "n"}],
        "dynamic_relations": True,
    }
    found = counted(tmp_path, "lhs\trel\trhs\na\tr\tb\na\ts\ta\nb\tr\tc\na\tr\tb\n", model)
    assert (found.entities, found.relations, found.edges) == ({"n": 3}, 2, 4)


def test_name_counts_once_for_each_of_its_types(tmp_path):
    model = {
        "entities": {"user": {"num_partitions": 1}, "item": {"num_partitions": 1}, "city": {"num_partitions": 1}},
        "relations": [
            {"name": "buys", "lhs": "user", "rhs": "item"},
            {"name": "knows", "lhs": "user", "rhs": "user"},
        ],
    }
    rows = "1\tbuys\t1\n1\tknows\t2\n3\tbuys\t1\n9\tunheard of\t9\n"
    found = counted(tmp_path, f"lhs\trel\trhs\n{rows}", model)
    assert found.entities == {"user": 3, "item": 1, "city": 0}
    assert (found.relations, found.edges) == (2, 3)  # `validate` reports rows that no relation fits


def test_types_by_column(tmp_path):
    model = {
        "entities": {"user": {"num_partitions": 1}, "item": {"num_partitions": 1}},
        "relations": [
            {"name": "to", "lhs": "user", "rhs": "item"},
            {"name": "to", "lhs": "item", "rhs": "user"},
        ],
    }
    columns = {"lhs_type": "from_type", "rhs_type": "to_type"}
    text = "lhs\trel\trhs\tfrom_type\tto_type\n1\tto\t2\tuser\titem\n2\tto\t3\titem\tuser\n"
    assert counted(tmp_path, text, model, columns).entities == {"user": 2, "item": 1}


def test_many_names_are_counted_exactly(tmp_path):
    rng = random.Random(1)
    pairs = [(rng.randrange(40_000), rng.randrange(40_000)) for _ in range(50_000)]
    text = "lhs\trel\trhs\n" + "".join(f"e{a}\tr\te{b}\n" for a, b in pairs)
    model = {
        "entities": {"n": {"num_partitions": "auto"}},
        "relations": [{"name": "r", "lhs": "n", "rhs": "n"}],
    }
    found = counted(tmp_path, text, model)
    assert found.entities == {"n": len({end for pair in pairs for end in pair})}
    assert found.edges == 50_000


def test_a_damaged_file_is_an_input_error(tmp_path):
    model = {"entities": {"n": {"num_partitions": 1}}, "relations": [{"name": "r", "lhs": "n", "rhs": "n"}]}
    with pytest.raises(InputError, match=r"d1\.tsv"):
        counted(tmp_path, 'lhs\trel\trhs\na\tr\t"b\n', model)
