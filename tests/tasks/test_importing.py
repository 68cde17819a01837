"""Import and export of PBG's directories.

PBG's own defects have tests in ``tests/defects/test_import.py``. The file is longer than others: one way
from edge lists to text and back, with every mishap on it.
"""

from __future__ import annotations

import gzip
import json
import threading

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pbg_tasks.errors import ConfigError, ConflictError, FormatError, InputError, NotFoundError, PbgError
from pbg_tasks.formats.edges import EdgeList, count_edges, edge_file_name, read_edges, write_edges
from pbg_tasks.formats.embeddings import read_embeddings
from pbg_tasks.formats.entities import read_entity_names
from pbg_tasks.formats.optimizer import PLAIN_SUMS
from pbg_tasks.prepare import buckets
from pbg_tasks.prepare.ids import Minimum
from pbg_tasks.storage import LocalStore, open_store
from pbg_tasks.tasks.directory import importing
from pbg_tasks.tasks.directory.evaluate import evaluate_directory
from pbg_tasks.tasks.directory.importing import EdgeLists, import_edges
from pbg_tasks.tasks.exchange.export_tsv import export_directory
from pbg_tasks.tasks.files import UNFINISHED
from pbg_tasks.tasks.training.train import train_directory
from tests.defects.imports import TSV, Import, ring


@pytest.fixture
def work(tmp_path):
    return Import(tmp_path)


def test_each_list_goes_to_its_edge_path(work):
    config = work.config(1, paths=("train", "test"))
    result = import_edges(config, [work.write(ring(6)), work.write(ring(4, first=3), "test.tsv")], TSV)
    assert [listed["edges"] for listed in result["edge_paths"].values()] == [6, 4]
    assert result["entities"]["total"] == 7
    names = work.names(0)
    edges = read_edges(work.root / "test" / edge_file_name(0, 0))
    assert {(names[lhs], names[rhs]) for lhs, rhs in zip(edges.lhs, edges.rhs, strict=True)} == {
        (lhs, rhs) for lhs, _, rhs in ring(4, first=3)
    }
    with pytest.raises(ConfigError, match="the config has 2 and 1 edge lists were given"):
        import_edges(config, [work.write(ring(6))], TSV)


@pytest.mark.parametrize("weight", ["-1", "nan", "inf", "-inf", "1e39", "x", ""])
def test_weight_column_refuses_what_snapshots_refuse(work, weight):
    how = EdgeLists("tsv", "0", "2", "1", weight="3")
    rows = [(*row, "0.5") for row in ring(4)]
    rows[2] = (*rows[2][:3], weight)
    with pytest.raises(InputError, match=r"train\.tsv, line 3: weight that is not a finite number of at least 0"):
        import_edges(work.config(1), [work.write(rows)], how)
    assert not (work.root / "entities" / "entity_count_n_0.txt").exists()


@pytest.mark.parametrize("weight", [-0.5, np.nan, np.inf])
def test_plain_edge_file_with_bad_weight_is_named(work, weight):
    config = work.config(1, num_epochs=1)
    import_edges(config, [work.write([(*row, "0.5") for row in ring(6)])], EdgeLists("tsv", "0", "2", "1", weight="3"))
    work.forget_records("train")
    with h5py.File(work.root / "train" / edge_file_name(0, 0), "r+") as file:
        file["weight"][4] = weight
    with pytest.raises(FormatError, match=r"train/edges_0_0\.h5: row 4 of dataset 'weight'"):
        train_directory(config)
    assert not list((work.root / "model").glob("embeddings_*"))


@pytest.mark.parametrize("checksums", [False, True])
def test_checksums_are_written_by_the_config(work, checksums):
    config = work.config(2, checksums=checksums)
    import_edges(config, [work.write(ring(9))], TSV)
    train_directory(config)
    files = [*(work.root / "train").glob("edges_*.h5"), *(work.root / "model").glob("embeddings_*.h5")]
    for path in files:
        with h5py.File(path) as file:
            named = [file[name] for name in ("lhs", "rhs", "rel", "embeddings", PLAIN_SUMS) if name in file]
            assert {item.fletcher32 for item in named if item.size} <= {checksums}
            assert {item.chunks is None for item in named if item.size} <= {not checksums}
    assert len(files) > 4
    assert ("checksums" in config.model_dump()) == checksums


def test_empty_buckets_of_fine_grid_are_copies(work, monkeypatch):
    written = []
    writer = buckets.EdgeFileWriter
    monkeypatch.setattr(
        buckets, "EdgeFileWriter", lambda path, *rest, **how: written.append(path) or writer(path, *rest, **how)
    )
    import_edges(work.config(20), [work.write(ring(10))], TSV)
    files = list((work.root / "train").glob("edges_*.h5"))
    assert len(files) == 400
    assert len(written) <= 11
    empty = [path for path in files if not count_edges(path)]
    assert len(empty) >= 390
    assert len({path.read_bytes() for path in empty}) == 1
    assert len({path.stat().st_ino for path in empty}) == len(empty)  # an edge written into one file is in no other


def test_files_of_fine_grid_are_stored_together(work, monkeypatch):
    together = threading.Barrier(4, timeout=20)
    put = LocalStore.put

    def slow(store, key, source, **more):
        if key.startswith("edges_"):
            together.wait()
        return put(store, key, source, **more)

    monkeypatch.setattr(LocalStore, "put", slow)
    assert import_edges(work.config(2), [work.write(ring(10))], TSV)["edges"] == 10


def test_unknown_standard_relation_is_named_with_line(work):
    relations = [{"name": name, "lhs": "n", "rhs": "n"} for name in ("r1", "r0")]
    config = work.config(1, relations=relations, dynamic_relations=False)
    import_edges(config, [work.write(ring(4))], TSV)
    assert sorted(read_edges(work.root / "train" / edge_file_name(0, 0)).rel) == [0, 0, 1, 1]
    assert json.loads((work.root / "entities" / "dynamic_rel_names.json").read_text()) == ["r1", "r0"]
    assert not (work.root / "entities" / "dynamic_rel_count.txt").exists()
    with pytest.raises(InputError, match=r"other\.tsv, line 3: unknown relation 'r2'"):
        import_edges(config, [work.write([*ring(2), ("e0", "r2", "e1")], "other.tsv")], TSV)


@pytest.mark.parametrize(("header", "columns"), [(False, ("0", "2", "1")), (True, ("from", "to", "how"))])
@pytest.mark.parametrize(("written", "given"), [(" ", "\t"), (",", "\t"), (";", ","), ("|", " "), ("\t", ",")])
def test_wrong_delimiter_is_named_for_missing_column(work, header, columns, written, given):
    rows = [("from", "how", "to"), *ring(4)] if header else ring(4)
    path = work.root / "train.txt"
    path.write_text("".join(written.join(row) + "\n" for row in rows))
    how = EdgeLists("tsv", *columns, header=header, delimiter=given)
    with pytest.raises(InputError) as raised:
        import_edges(work.config(1), [str(path)], how)
    assert f"the delimiter, which is {given!r}: with {written!r} all columns are there" in str(raised.value)


def test_column_missing_with_every_delimiter_blames_none(work):
    with pytest.raises(InputError, match=r"no column 'column7' .*: column0, column1, column2$"):
        import_edges(work.config(1), [work.write(ring(4))], EdgeLists("tsv", "0", "2", "7"))


def test_ids_of_floats_are_reported_beside_whole_ones(work, capsys):
    for name, ids in (("a", [1, 2]), ("b", [1.0, 2.0])):
        columns = {"user": pa.array(ids), "kind": ["r", "r"], "item": ["x", "y"]}
        pq.write_table(pa.table(columns), work.root / f"{name}.parquet")
    config, how = work.config(1), EdgeLists("parquet", "user", "item", "kind")
    import_edges(config, [str(work.root / "a.parquet")], how)
    assert "warning" not in capsys.readouterr().err
    result = import_edges(config, [str(work.root / "b.parquet")], how)
    assert result["entities"]["new"] == 2
    assert "column 'user' is of type DOUBLE: 7 becomes the name '7.0'" in capsys.readouterr().err


def test_list_without_relation_column_has_one_relation(work):
    relations = [{"name": "only", "lhs": "n", "rhs": "n"}]
    config = work.config(1, relations=relations, dynamic_relations=False)
    import_edges(config, [work.write([("a", "b"), ("b", "c")])], EdgeLists("tsv", "0", "1"))
    assert read_edges(work.root / "train" / edge_file_name(0, 0)).rel.tolist() == [0, 0]


def test_text_may_be_compressed_with_header_and_delimiter(work):
    path = work.root / "edges.csv.gz"
    with gzip.open(path, "wt") as file:
        file.write('to;kind;from\nb "quoted";r;a\nc;r;b "quoted"\n')
    how = EdgeLists("tsv", "from", "to", "kind", header=True, delimiter=";")
    import_edges(work.config(1), [str(path)], how)
    assert sorted(work.names(0)) == ["a", 'b "quoted"', "c"]
    with pytest.raises(ConfigError, match="--lhs-col 'from': without --header, columns are numbers from 0"):
        import_edges(work.config(1), [str(path)], EdgeLists("tsv", "from", "to", "kind"))


def test_rare_entities_are_left_out_and_counted(work):
    rows = [*ring(4), *ring(4), ("e0", "r0", "once"), ("e0", "rare", "e1")]
    minimum = Minimum(entity=2, relation=2)
    result = import_edges(work.config(1), [work.write(rows)], TSV, minimum=minimum)
    assert result["skipped"] == 2
    assert result["edges"] == 8
    assert sorted(work.names(0)) == ["e0", "e1", "e2", "e3"]
    assert json.loads((work.root / "entities" / "dynamic_rel_names.json").read_text()) == ["r0", "r1"]


def test_unpartitioned_type_spreads_over_the_buckets(work):
    config = work.config(
        entities={"n": {"num_partitions": 4}, "tag": {"num_partitions": 1}},
        relations=[{"name": "all", "lhs": "n", "rhs": "tag"}, {"name": "link", "lhs": "n", "rhs": "n"}],
        dynamic_relations=False,
    )
    rows = [(f"e{i}", "all", f"t{i % 3}") for i in range(400)] + [("e0", "link", "e1")]
    import_edges(config, [work.write(rows)], TSV)
    counts = [[count_edges(work.root / "train" / edge_file_name(i, j)) for j in range(4)] for i in range(4)]
    assert min(map(min, counts)) > 5
    assert sum(map(sum, counts)) == 401


FEATURIZED = {
    "entities": {"n": {"num_partitions": 2}, "bag": {"num_partitions": 1, "featurized": True}},
    "relations": [{"name": "has", "lhs": "n", "rhs": "bag"}, {"name": "link", "lhs": "n", "rhs": "n"}],
    "dynamic_relations": False,
}


def imported_edges(work, config):
    """Return all edges by names, and their weights.

    A featurized end is the set of its features.
    """
    names, features = [work.names(0), work.names(1)], read_entity_names(work.root / "entities", "bag", 0)
    found = []
    for lhs, rhs in ((i, j) for i in range(2) for j in range(2)):
        edges = read_edges(work.root / "train" / edge_file_name(lhs, rhs))
        bags = edges.rhs_features
        for number in range(len(edges)):
            listed = bags.data[bags.offsets[number] : bags.offsets[number + 1]]
            end = {features[row] for row in listed} if edges.rel[number] == 0 else names[rhs][edges.rhs[number]]
            assert (edges.rhs[number] == -1) == (len(listed) > 0) == (edges.rel[number] == 0)
            relation = config.relations[edges.rel[number]].name
            found.append((names[lhs][edges.lhs[number]], relation, end, float(edges.weight[number])))
    return found


def test_column_of_featurized_type_lists_features(work):
    config = work.config(**FEATURIZED)
    rows = [(f"e{i}", "has", f"f{i % 5};;f{i % 3}", i) for i in range(40)]
    rows += [(f"e{i}", "link", f"e{i + 1}", 0.5) for i in range(39)] + [("e0", "has", ";", 1)]
    how = EdgeLists("tsv", "0", "2", "1", "3", feature_separator=";")
    result = import_edges(config, [work.write(rows)], how)
    assert (result["types"]["bag"]["total"], result["types"]["n"]["total"], result["skipped"]) == (5, 40, 1)
    as_sets = [(lhs, rel, set(rhs.split(";")) - {""} if rel == "has" else rhs, w) for lhs, rel, rhs, w in rows[:-1]]
    assert sorted(imported_edges(work, config), key=str) == sorted(((*edge, float(w)) for *edge, w in as_sets), key=str)
    before = work.digests()
    assert import_edges(config, [work.write(rows)], how)["entities"]["new"] == 0
    assert work.digests() == before
    assert train_directory(config)["edges_trained"] == 79


def test_rare_feature_leaves_its_entities(work):
    config = work.config(**FEATURIZED)
    rows = [("e0", "has", "a,b", 1), ("e1", "has", "b,once", 1), ("e0", "has", "a", 1), ("e1", "has", "never", 1)]
    how = EdgeLists("tsv", "0", "2", "1", "3")
    result = import_edges(config, [work.write(rows)], how, minimum=Minimum(entity=2))
    assert (result["types"]["bag"]["total"], result["skipped"]) == (2, 1)
    assert sorted(sorted(end) for _, _, end, _ in imported_edges(work, config)) == [["a"], ["a", "b"], ["b"]]


def test_features_of_several_partitions_are_refused(work):
    entities = {"n": {"num_partitions": 2}, "bag": {"num_partitions": 2, "featurized": True}}
    with pytest.raises(ConfigError, match=r"entities\.bag: is featurized and has num_partitions = 2"):
        import_edges(work.config(**FEATURIZED | {"entities": entities}), [work.write(ring(3))], TSV)


def test_entity_types_may_have_any_name(work):
    """Wildcards in a type's name must not read another type's ids."""
    entities = {name: {"num_partitions": 1} for name in ("a*b", "a?b", "a[b]", "m.0 x'")}
    relations = [{"name": f"to {name}", "lhs": "a?b", "rhs": name} for name in entities]
    config = work.config(entities=entities, relations=relations, dynamic_relations=False)
    rows = [(f"e{i}", f"to {name}", f"{name}{i}") for i in range(5) for name in entities]
    result = import_edges(config, [work.write(rows)], TSV)
    totals = {name: figures["total"] for name, figures in result["types"].items()}
    assert totals == {"a*b": 5, "a?b": 10, "a[b]": 5, "m.0 x'": 5}
    assert import_edges(config, [work.write(rows)], TSV)["entities"]["kept"] == 25
    assert train_directory(config)["edges_trained"] == 20


def test_edge_list_without_rows_is_named(work):
    lists = [work.write(ring(6)), work.write([], "valid.tsv")]
    with pytest.raises(
        InputError, match=r"^\S+valid\.tsv: this edge list has no edges; leave it out, with its edge path"
    ):
        import_edges(work.config(1, paths=("train", "valid")), lists, TSV)


def test_bad_row_is_named_and_nothing_changes(work):
    import_edges(work.config(), [work.write(ring(9))], TSV)
    before = work.digests()
    with pytest.raises(InputError, match=r"bad\.tsv, line 2: empty id in column rhs"):
        import_edges(work.config(), [work.write([("a", "r0", "b"), ("a", "r0", "")], "bad.tsv")], TSV)
    with pytest.raises(InputError, match=r"nothing\.tsv"):
        import_edges(work.config(), [str(work.root / "nothing.tsv")], TSV)
    assert work.digests() == before
    assert not (work.root / "entities" / UNFINISHED).exists()


def test_other_number_of_partitions_is_refused(work):
    import_edges(work.config(4), [work.write(ring(9))], TSV)
    for partitions in (2, 5):
        with pytest.raises(ConfigError, match="ids cannot be kept"):
            import_edges(work.config(partitions), [work.write(ring(9))], TSV)
    (work.root / "entities" / "entity_names_n_1.json").unlink()
    with pytest.raises(ConfigError, match=r"entity_names_n_1\.json: missing, so the ids"):
        import_edges(work.config(4), [work.write(ring(9))], TSV)


def test_interrupted_import_is_refused_then_repeated(work, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("cut off")

    with monkeypatch.context() as patch:
        patch.setattr(importing, "_store_buckets", broken)
        with pytest.raises(RuntimeError, match="cut off"):
            import_edges(work.config(), [work.write(ring(9))], TSV)
    with pytest.raises(ConfigError, match="an import is running or was cut off"):
        train_directory(work.config())
    import_edges(work.config(), [work.write(ring(9))], TSV)
    assert train_directory(work.config())["edges_trained"] == 9


@pytest.mark.parametrize("global_emb", [False, True])
def test_export_writes_names_and_numbers(work, global_emb):
    config = work.config(
        dynamic_relations=False,
        relations=[{"name": name, "lhs": "n", "rhs": "n", "operator": "affine"} for name in ("r0", "r1")],
        global_emb=global_emb,
        lr=0.1,
    )
    import_edges(config, [work.write(ring(9))], TSV)
    train_directory(config)
    outputs = {
        "entities_output": str(work.root / "entities.tsv"),
        "relation_types_output": str(work.root / "relations.tsv"),
    }
    result = export_directory(config, **outputs)
    assert (result["entities"], result["relation_parameters"]) == (9, 4)
    lines = [line.split("\t") for line in (work.root / "entities.tsv").read_text().splitlines()]
    exported = {name: np.array(numbers, float) for name, *numbers in lines}
    from pbg_tasks.formats.model import read_model

    params = read_model(work.root / "model" / "model.v1.h5").params
    added = params["entities/n/global_embedding"] if global_emb else 0
    assert not global_emb or np.abs(added).max() > 0
    for partition in range(2):
        stored, _ = read_embeddings(work.root / "model" / f"embeddings_n_{partition}.v1.h5")
        for name, row in zip(work.names(partition), stored + added, strict=True):
            assert exported[name] == pytest.approx(row, abs=1e-9)
    first, *_ = (work.root / "relations.tsv").read_text().splitlines()
    assert first.split("\t")[:5] == ["r0", "rhs", "affine", "linear_transformation", "4x4"]
    matrix = np.array(first.split("\t")[5:], float).reshape(4, 4)
    assert matrix == pytest.approx(params["relations/0/operator/rhs/linear_transformation"], abs=1e-9)
    with pytest.raises(ConflictError, match=r"entities\.tsv: exists"):
        export_directory(config, **outputs)
    export_directory(config, **outputs, overwrite=True)
    assert not (work.root / ".pbg").exists()


def test_export_refuses_names_that_no_line_can_hold(work):
    config = work.config(1)
    import_edges(config, [work.write(ring(3))], TSV)
    train_directory(config)
    work.forget_records("entities")
    path = work.root / "entities" / "entity_names_n_0.json"
    path.write_text(json.dumps(["e0", "e\t1", "e2"]))
    outputs = {
        "entities_output": str(work.root / "entities.tsv"),
        "relation_types_output": str(work.root / "relations.tsv"),
    }
    with pytest.raises(FormatError, match=r"name 'e\\t1' holds '\\t', which format tsv"):
        export_directory(config, **outputs)
    assert not (work.root / "entities.tsv").exists()
    path.unlink()
    with pytest.raises(NotFoundError, match=r"entities: file 'entity_names_n_0\.json' is missing"):
        export_directory(config, **outputs)


@pytest.mark.s3
def test_store_gets_the_same_import_and_export(work, s3_bucket):
    local = work.config()
    lists = [work.write(ring(50))]
    import_edges(local, lists, TSV)
    remote = local.model_copy(
        update={
            "entity_path": f"{s3_bucket}/entities",
            "edge_paths": (f"{s3_bucket}/train",),
            "checkpoint_path": f"{s3_bucket}/model",
        }
    )
    import_edges(remote, lists, TSV)
    import_edges(remote, lists, TSV)
    for folder in ("entities", "train"):
        store = open_store(f"{s3_bucket}/{folder}")
        for path in sorted((work.root / folder).glob("[a-z]*.*")):
            assert store.get(path.name).data == path.read_bytes()
    for config, place in ((local, str(work.root)), (remote, s3_bucket)):
        train_directory(config)
        export_directory(config, entities_output=f"{place}/e.tsv", relation_types_output=f"{place}/r.tsv")
    assert open_store(s3_bucket).get("e.tsv").data == (work.root / "e.tsv").read_bytes()


def test_import_or_evaluation_of_nothing_raises(work):
    config = work.config(1)
    with pytest.raises(InputError, match="nothing is left to import"):
        import_edges(config, [work.write(ring(3))], TSV, minimum=Minimum(entity=9))
    assert not (work.root / "train").exists() or not list((work.root / "train").glob("*.h5"))
    import_edges(config, [work.write(ring(3))], TSV)
    train_directory(config)
    work.forget_records("train")
    nothing = np.empty(0, np.int64)
    write_edges(work.root / "train" / edge_file_name(0, 0), EdgeList(nothing, nothing, nothing))
    for negatives in ("all", "config"):
        with pytest.raises(InputError, match="hold no edges"):
            evaluate_directory(config, negatives=negatives)


def test_failed_export_leaves_nothing(work):
    config = work.config(1)
    import_edges(config, [work.write(ring(3))], TSV)
    train_directory(config)
    (work.root / "file").write_text("")
    with pytest.raises(PbgError):
        export_directory(
            config,
            entities_output=str(work.root / "entities.tsv"),
            relation_types_output=str(work.root / "file" / "relations.tsv"),
        )
    assert not (work.root / "entities.tsv").exists()
    with pytest.raises(ConfigError, match="need a file each"):
        export_directory(
            config, entities_output=f"{work.root}/same.tsv", relation_types_output=f"{work.root}/./same.tsv"
        )
