"""Ids, split and buckets compared with a plain Python implementation.

The input are two successive random snapshots.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from itertools import pairwise

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pbg_tasks.config import GraphSpec, SnapshotFile
from pbg_tasks.config.base import parse
from pbg_tasks.config.gates import DataGates
from pbg_tasks.formats.edges import count_edges, read_edges
from pbg_tasks.formats.entities import read_entity_count, read_entity_names, read_relation_names
from pbg_tasks.prepare.buckets import write_buckets
from pbg_tasks.prepare.connection import connect
from pbg_tasks.prepare.data_gate import judge_entities
from pbg_tasks.prepare.ids import assign_ids, entity_ids_file_name, partition_of
from pbg_tasks.storage.columnar import list_files

RELATIONS = {"likes": ("user", "item"), "knows": ("user", "user"), "near": ("item", "item")}
SPLITS = ("train", "valid", "test")

names = st.integers(0, 9).map(lambda i: f"n{i}é\t'\"" if i == 3 else f"n{i}")
edges = st.lists(st.tuples(names, st.sampled_from(sorted(RELATIONS)), names), min_size=1, max_size=60)


def make_spec(root, users, items, relations=RELATIONS):
    model = {
        "entities": {"user": {"num_partitions": users}, "item": {"num_partitions": items}},
        "relations": [{"name": name, "lhs": lhs, "rhs": rhs} for name, (lhs, rhs) in sorted(relations.items())],
        "dimension": 4,
    }
    split = {"valid": 0.15, "test": 0.25, "salt": "s"}
    snapshots = {"location": f"{root}/{{snapshot}}"}
    return parse(
        GraphSpec, {"graph": "g", "store": "s", "snapshots": snapshots, "model": model, "split": split}, source="t"
    )


class Night:
    """Results of `partition` and `bucket`, read back as names."""

    def __init__(self, spec, root, day, rows, previous=None, files=1):
        import pyarrow as pa

        folder = root / day
        folder.mkdir()
        for part in range(files):
            lhs, rel, rhs = zip(*rows[part::files], strict=True) if rows[part::files] else ((), (), ())
            columns = {
                name: pa.array(values, pa.string()) for name, values in (("lhs", lhs), ("rel", rel), ("rhs", rhs))
            }
            pq.write_table(pa.table(columns), folder / f"{part}.parquet")
        self.entities, self.edges = root / f"{day}-entities", root / f"{day}-edges"
        scratch = root / f"{day}-scratch"
        for directory in (self.entities, self.edges, scratch):
            directory.mkdir()
        listed = list_files(spec.snapshots.resolve(day))
        found = tuple(SnapshotFile(uri=u, size=s, version=v) for u, s, v in listed)
        with connect(spec.resources, scratch) as connection:
            self.report = assign_ids(
                connection,
                spec,
                found,
                snapshot=day,
                previous=previous.entities if previous else None,
                out=self.entities,
            )
            self.buckets = write_buckets(
                connection,
                spec,
                found,
                entities=self.entities,
                returned_previous=previous.edges / "returned.parquet" if previous else None,
                out=self.edges,
            )
        self.names = {
            (entity, p): read_entity_names(self.entities, entity, p, count=read_entity_count(self.entities, entity, p))
            for entity, schema in spec.model.entities.items()
            for p in range(schema.num_partitions)
        }
        self.grid = spec.model.partitions("lhs"), spec.model.partitions("rhs")
        self.spec = spec

    def split(self, name):
        """Return a split's edges as (lhs, rel, rhs) names.

        Checks that each end is in the partition of its bucket.
        """
        relations, found = read_relation_names(self.entities), Counter()
        for i in range(self.grid[0]):
            for j in range(self.grid[1]):
                listed = read_edges(self.edges / name / f"edges_{i}_{j}.h5")
                for lhs, rel, rhs in zip(listed.lhs, listed.rel, listed.rhs, strict=True):
                    kinds = RELATIONS[relations[rel]]
                    places = [
                        p if self.spec.model.entities[k].num_partitions > 1 else 0
                        for k, p in zip(kinds, (i, j), strict=True)
                    ]
                    found[
                        self.names[kinds[0], places[0]][lhs], relations[rel], self.names[kinds[1], places[1]][rhs]
                    ] += 1
        return found

    def returned(self):
        table = pq.read_table(self.edges / "returned.parquet").to_pydict()
        return set(zip(table["least_key"], table["greatest_key"], strict=True))


def ends(edge):
    lhs, rel, rhs = edge
    kinds = RELATIONS[rel]
    return f"{kinds[0]}\x1e{lhs}", f"{kinds[1]}\x1e{rhs}"


def pair(edge):
    return tuple(sorted(ends(edge), key=str.encode))


def drawn(edge):
    least, greatest = pair(edge)
    digest = hashlib.md5(f"s\x1f{least}\x1f{greatest}".encode()).digest()
    share = int.from_bytes(digest[8:], "little") / 2**64
    return "test" if share < 0.25 else "valid" if share < 0.4 else "train"


def oracle(rows, returned_before):
    """Split edges by the rules of the docs, one by one."""
    trained = {end for row in rows if drawn(row) == "train" and len(set(ends(row))) == 2 for end in ends(row)}
    candidates = {pair(row): drawn(row) for row in rows if drawn(row) != "train"}
    returned = {p for p in candidates if p in returned_before or not set(p) <= trained}
    result, held_out = {name: Counter() for name in SPLITS}, defaultdict(list)
    for row in rows:
        if pair(row) in candidates and pair(row) not in returned:
            held_out[pair(row)].append(row)
        else:
            result["train"][row] += 1
    for key, group in held_out.items():
        chosen = min(group, key=lambda row: (row[1].encode(), *(end.encode() for end in ends(row))))
        result[candidates[key]][chosen] += 1
    return result, returned | returned_before


@pytest.mark.rotated(3)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=edges, second=edges, users=st.integers(1, 3), items=st.sampled_from([1, 3]))
def test_two_nights_follow_the_rules(tmp_path_factory, first, second, users, items):
    if users > 1:
        users = 3 if items == 3 else users  # the types of one side share their number of partitions
    items = items if users > 1 else 1
    root = tmp_path_factory.mktemp("nights")
    spec = make_spec(root, users, items)
    one = Night(spec, root, "d1", first)
    two = Night(spec, root, "d2", second, previous=one, files=2)

    returned = set()
    for night, rows in ((one, first), (two, second)):
        expected, returned = oracle(rows, returned)
        assert {name: night.split(name) for name in SPLITS} == expected
        assert night.returned() == returned
        assert night.buckets.edges["total"] == len(rows)
        assert sum(night.buckets.edges[name] for name in (*SPLITS, "dropped")) == len(rows)

    for key, listed in one.names.items():
        assert two.names[key][: len(listed)] == listed  # nothing ever moves
    for (entity, partition), listed in two.names.items():
        count = spec.model.entities[entity].num_partitions
        assert all(partition_of(name, count) == partition for name in listed)
        assert len(set(listed)) == len(listed)
    everyone = {end for row in first for end in ends(row)}
    today = {end for row in second for end in ends(row)}
    assert two.report.entities == {
        "total": len(everyone | today),
        "new": len(today - everyone),
        "kept": len(today & everyone),
        "gone": len(everyone - today),
        "returned": 0,
        "absent": 0,
    }


def test_nights_with_tenth_new_lose_a_tenth_only(tmp_path):
    def chained(names):
        return [(one, "knows", other) for one, other in pairwise(names)]

    spec = make_spec(tmp_path, 3, 1)
    night, nights = None, 15
    for number in range(nights):
        rows = chained([f"n{each}" for each in range(2 * number, 2 * number + 20)])
        night = Night(spec, tmp_path, f"d{number}", rows, previous=night)
        found = night.report.entities
        if number:
            assert (found["new"], found["kept"], found["gone"], found["returned"]) == (2, 18, 2, 0)
            assert found["absent"] == 2 * (number - 1)
            assert judge_entities(DataGates(), night.report.types, since=f"d{number - 1}").passed
    assert found["absent"] > found["kept"]

    # One night contains entities that were absent for long, and most of yesterday's are gone: only these count.
    mixed = chained(["n0", "n1", "n2", *(f"n{each}" for each in range(28, 33))])
    back = Night(spec, tmp_path, "back", mixed, previous=night).report
    assert back.entities == {"total": 48, "new": 0, "kept": 5, "gone": 15, "returned": 3, "absent": 25}
    assert sum(back.types["user"].values()) == sum(back.entities.values()) == 2 * 48
    assert not judge_entities(DataGates(), back.types, since="d14").passed


def test_rows_in_other_files_give_equal_bytes(tmp_path):
    rows = [(f"n{i % 17}", sorted(RELATIONS)[i % 3], f"n{i * i % 13}") for i in range(300)]
    found = []
    for number, (order, files) in enumerate(((rows, 1), (rows[::-1], 3))):
        root = tmp_path / str(number)
        root.mkdir()
        night = Night(make_spec(root, 3, 3), root, "d", order, files=files)
        found.append(
            {
                path.relative_to(root): hashlib.sha256(path.read_bytes()).hexdigest()
                for directory in (night.entities, night.edges)
                for path in sorted(directory.rglob("*"))
                if path.is_file()
            }
        )
    assert found[0] == found[1]


def test_every_bucket_has_a_file_of_its_size(tmp_path):
    night = Night(make_spec(tmp_path, 4, 1), tmp_path, "d", [("a", "knows", "b")])
    files = sorted((night.edges / "train").glob("*.h5"))
    assert len(files) == 16
    assert sum(count_edges(path) for path in files) == 1
    assert max(path.stat().st_size for path in files) < 16_384


def test_unpartitioned_type_is_spread_over_all_buckets(tmp_path):
    rows = [(f"n{i}", "likes", "hub") for i in range(4000)]
    matrix = Night(make_spec(tmp_path, 4, 1), tmp_path, "d", rows).buckets.matrix
    counts = [count for row in matrix for count in row]
    assert min(counts) > 0.6 * sum(counts) / len(counts)


def test_seen_and_gone_are_kept_with_their_day(tmp_path):
    spec = make_spec(tmp_path, 1, 1)
    one = Night(spec, tmp_path, "d1", [("a", "knows", "b")])
    two = Night(spec, tmp_path, "d2", [("a", "knows", "c")], previous=one)
    rows = pq.read_table(two.entities / entity_ids_file_name("user")).to_pylist()
    assert [(r["name"], r["offset"], r["first_seen"], r["last_seen"]) for r in rows] == [
        ("a", 0, "d1", "d2"),
        ("b", 1, "d1", "d1"),
        ("c", 2, "d2", "d2"),
    ]


@pytest.mark.parametrize("partitions", [1, 2, 12, 20, 24, 50, 100])
def test_partition_counts_refused_by_pbg_are_refused(tmp_path, partitions):
    rows = [(f"n{i}", "likes", "one item") for i in range(109)]
    likes = {"likes": RELATIONS["likes"]}  # with users on one side only: a square of 100 would be 30 000 files
    report = Night(make_spec(tmp_path, partitions, 1, likes), tmp_path, "d", rows).report
    assert sum(report.counts["user"]) == 109
    assert len(report.counts["user"]) == partitions
