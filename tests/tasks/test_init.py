"""``pbg init``: a config for edge lists, a graph spec for snapshots.

The file is longer than others: both are written from the same few lists, in one way.
"""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pbg_tasks.config import load_graph_spec
from pbg_tasks.config.presets import of_size
from pbg_tasks.errors import ConfigError, InputError
from pbg_tasks.storage import open_store
from pbg_tasks.tasks.directory.configs import load_config_from
from pbg_tasks.tasks.directory.evaluate import evaluate_directory
from pbg_tasks.tasks.directory.importing import EdgeLists, import_edges
from pbg_tasks.tasks.directory.init import write_config
from pbg_tasks.tasks.nightly.chain import run_chain
from pbg_tasks.tasks.nightly.draft import draft_spec
from pbg_tasks.tasks.nightly.draft_source import find_snapshots
from pbg_tasks.tasks.nightly.newest import newest_snapshot
from pbg_tasks.tasks.training.train import train_directory

TRIPLES = EdgeLists("tsv", "0", "2", "1", delimiter="\t")


@pytest.fixture
def lists(tmp_path, monkeypatch):
    """Two edge lists of a ring, the second one compressed."""
    monkeypatch.chdir(tmp_path)
    lines = [f"e{number}\t{relation}\te{(number + step) % 40}\n" for number in range(40) for relation, step in STEPS]
    (tmp_path / "train.tsv").write_text("".join(lines[:-8]))
    with gzip.open(tmp_path / "test.tsv.gz", "wt") as file:
        file.writelines(lines[-8:])
    return ["train.tsv", "test.tsv.gz"]


STEPS = (("next", 1), ("after_next", 2), ("previous", -1))


def test_config_describes_the_lists(lists):
    told = write_config(url := "configs-\udce9/ring.yaml", lists, TRIPLES)  # a name that is not UTF-8
    assert {key: told[key] for key in ("entities", "relations", "edges")} == {
        "entities": 40,
        "relations": 3,
        "edges": 112,
    }
    with open(url, encoding="utf-8") as file:  # noqa: PTH123
        assert file.readline() == "# For 40 entities, 3 relations, 112 edges: a start, not tuned.\n"
        assert file.readline().startswith(r"# Train on the first list only: pbg train 'configs-\udce9/ring.yaml' -p ")


def test_config_trains_and_ranks_unchanged(lists):
    write_config("ring.yaml", lists, TRIPLES)
    config = load_config_from("ring.yaml", ["workers=1"], choose=lambda _, auto: dict.fromkeys(auto, 1))
    assert config.self_negatives
    assert config.edge_paths == ("data/ring/train", "data/ring/test")
    import_edges(config, lists, TRIPLES)
    assert not list(Path().rglob(".pbg"))
    config = load_config_from("ring.yaml", ["workers=1", "edge_paths=data/ring/train", "dimension=20"])
    train_directory(config, seed=0)
    config = load_config_from("ring.yaml", ["edge_paths=data/ring/test", "dimension=20"])
    found = evaluate_directory(config, known=["data/ring/train"], filtered=True)
    assert found["filtered"]["mrr"] > 0.5  # by chance it is 0.1


def test_one_relation_has_no_operator(lists):
    write_config("plain.yaml", lists, EdgeLists("tsv", "0", "2", delimiter="\t"))
    config = load_config_from("plain.yaml", choose=lambda _, auto: dict.fromkeys(auto, 1))
    assert config.relations[0].operator == "none"
    assert (config.self_negatives, config.dynamic_relations) == (False, False)
    assert Path("plain.yaml").read_text().startswith("# For 40 entities, 1 relation, 112 edges: a start, not tuned.\n")


def test_existing_config_stays(lists):
    write_config("ring.yaml", lists, TRIPLES)
    with open("ring.yaml", "a", encoding="utf-8") as file:  # noqa: PTH123
        file.write("# mine\n")
    with pytest.raises(ConfigError, match=r"^ring\.yaml: there is a config already; remove it or name another file$"):
        write_config("ring.yaml", lists, TRIPLES)
    with open("ring.yaml", encoding="utf-8") as file:  # noqa: PTH123
        assert file.read().endswith("# mine\n")


@pytest.mark.parametrize("name", ["ring.py", "ring.json", "ring"])
def test_config_of_other_suffix_is_refused(lists, name):
    with pytest.raises(ConfigError, match=f"^{name}: the config is written as YAML; name it ring.yaml$"):
        write_config(name, lists, TRIPLES)


def test_missing_list_is_named_and_nothing_written(lists, tmp_path):
    with pytest.raises(InputError, match=r"^valid\.tsv: no such edge list"):
        write_config("ring.yaml", [*lists, "valid.tsv"], TRIPLES)
    assert not (tmp_path / "ring.yaml").exists()


def test_list_without_edges_gets_no_config(lists, tmp_path):
    Path("empty.tsv").touch()
    with pytest.raises(InputError, match=r"^empty\.tsv: this edge list has no edges, so there is nothing to train on$"):
        write_config("ring.yaml", ["empty.tsv", *lists], TRIPLES)
    assert not (tmp_path / "ring.yaml").exists()


def test_lists_of_one_name_get_own_paths(lists, tmp_path):
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "train.tsv").write_text("a\tnext\tb\n")
    write_config("ring.yaml", ["train.tsv", "more/train.tsv"], TRIPLES)
    config = load_config_from("ring.yaml", choose=lambda _, auto: dict.fromkeys(auto, 1))
    assert config.edge_paths == ("data/ring/train_0", "data/ring/train_1")


@pytest.mark.parametrize(
    ("edges", "epochs", "batch"), [(0, 60, 100), (5_000, 60, 100), (300_000, 10, 100), (50_000_000, 5, 1000)]
)
def test_small_graphs_get_more_epochs_and_small_batches(edges, epochs, batch):
    assert of_size(edges) == {"num_epochs": epochs, "batch_size": batch}


def drafted(tmp_path, location, **options):
    """Draft a spec, write it into a file and read it."""
    path = tmp_path / "graph.yaml"
    path.write_text(draft_spec(str(location), str(tmp_path / "store"), memory_gb=1, **options))
    return load_graph_spec(path)


def test_draft_for_store_of_no_scheme_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no store has the scheme gs://"):
        draft_spec(str(tmp_path), "gs://bucket/graph")


def test_draft_for_table_names_the_way(tmp_path):
    with pytest.raises(
        ConfigError, match=r"^iceberg://lake/shop.edges: `pbg init` reads files, .* \(docs/sources.md\)$"
    ):
        draft_spec("iceberg://lake/shop.edges", str(tmp_path))


@pytest.mark.parametrize("below", ["", "/edges", "/edges/data", "/{snapshot}"])
def test_init_names_form_of_iceberg_table(tmp_path, below):
    for name in ("metadata/00000-1f.metadata.json", "data/00000-0-1f.parquet"):
        (tmp_path / "shop" / "edges" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "shop" / "edges" / name).write_bytes(b"x")
    with pytest.raises(ConfigError) as refused:
        draft_spec(f"{tmp_path}/shop{below}", str(tmp_path / "store"))
    assert str(refused.value) == (
        f"{tmp_path}/shop/edges: an Iceberg table, not files of a snapshot; give `pbg init` a day of it as Parquet, "
        "then change the spec: snapshots: {location: 'iceberg://CATALOG/NAMESPACE.TABLE/{snapshot}', format: iceberg} "
        "(docs/sources.md)"
    )


@pytest.mark.parametrize("below", ["", "/edges", "/edges/day=1"])
def test_init_names_form_of_delta_table(tmp_path, below):
    table = tmp_path / "shop" / "edges"
    (table / "_delta_log").mkdir(parents=True)
    (table / "_delta_log" / "00000000000000000000.json").write_text("{}")
    (table / "day=1").mkdir()
    pq.write_table(pa.table({"lhs": ["a"], "rhs": ["b"]}), table / "day=1" / "part-00000-1f-c000.snappy.parquet")
    with pytest.raises(ConfigError) as refused:
        draft_spec(f"{tmp_path}/shop{below}", str(tmp_path / "store"))
    assert str(refused.value) == (
        f"{table}: a Delta table, not files of a snapshot; give `pbg init` a day of it as Parquet, then "
        f"change the spec: snapshots: {{location: '{table}@{{snapshot}}', format: delta}} (docs/sources.md)"
    )


def test_init_names_delta_table_in_s3(s3_bucket, tmp_path):
    open_store(s3_bucket).put_new("edges/_delta_log/00000000000000000000.json", b"{}")
    open_store(s3_bucket).put_new("edges/part-00000-1f-c000.snappy.parquet", b"x")
    with pytest.raises(ConfigError, match=r"^s3://[a-z0-9/-]+/edges: a Delta table"):
        draft_spec(f"{s3_bucket}/edges", str(tmp_path / "store"))


def test_draft_names_limits_for_days_of_new_events(tmp_path):
    (tmp_path / "edges" / "d1").mkdir(parents=True)
    (tmp_path / "edges" / "d1" / "edges.csv").write_text("lhs,rel,rhs\n" + "".join(f"a{n},r,b{n}\n" for n in range(9)))
    drafted(tmp_path, tmp_path / "edges")
    path = tmp_path / "graph.yaml"
    note = "Where each snapshot is a day of new events, add to data:\n# "
    (named,) = (part.partition("\n")[0] for part in path.read_text().split(note)[1:])
    path.write_text(path.read_text().replace("  data:\n", f"  data:\n    {named.replace(', ', f'{chr(10)}    ')}\n"))
    data = load_graph_spec(path).gates.data
    assert [data.max_removed_edges.asked, data.max_gone_entities.asked] == [False, False]


@pytest.mark.parametrize(("times", "asked"), [(1, True), (2, False)])
def test_rows_that_are_events_pass_gate_on_duplicates(tmp_path, times, asked):
    (tmp_path / "d1.csv").write_text("user,movie\n" + "".join(f"u{n},m{n % 3}\n" for n in range(20)) * times)
    limit = drafted(tmp_path, tmp_path / "d1.csv", columns={"lhs": "user", "rhs": "movie"}).gates.data.max_duplicates
    assert limit.asked == asked
    assert ("# 50% of the edges repeat another one: " in (tmp_path / "graph.yaml").read_text()) != asked


@pytest.mark.parametrize(
    ("edges", "share", "comment"),
    [
        (40, 0.2, "here about 8, too few, but a share above 0.2 leaves too little to train with"),
        (500, 0.2, "here about 100, for which test is 0.2 instead of 0.05"),
        (1000, 0.15, "here about 150, for which test is 0.15 instead of 0.05"),
        (3000, 0.05, "here about 150, enough"),
    ],
)
def test_small_graph_holds_out_larger_share(tmp_path, edges, share, comment):
    (tmp_path / "d1.csv").write_text("lhs,rel,rhs\n" + "".join(f"e{n},next,e{n + 1}\n" for n in range(edges)))
    split = drafted(tmp_path, tmp_path / "d1.csv").split
    assert (split.valid, split.test) == (0.05, share)
    assert f"if they are gates.min_common_edges (100) or more: {comment}\n" in (tmp_path / "graph.yaml").read_text()


@pytest.mark.parametrize("typed", [False, True])
def test_held_out_edges_are_counted_by_pairs(tmp_path, typed):
    """Of all edges of a pair one is ranked."""
    names = [(f"e{n}", f"e{n + 1}") for n in range(600)]
    rows = [f"{x},r{k % 2},{y}{',t,t' * typed}\n" for a, b in names for k in range(4) for x, y in ((a, b), (b, a))]
    (tmp_path / "d1.csv").write_text(f"lhs,rel,rhs{',lhs_type,rhs_type' * typed}\n" + "".join(rows))
    assert drafted(tmp_path, tmp_path / "d1.csv").split.test == 0.2
    text = (tmp_path / "graph.yaml").read_text()
    assert "here about 120 (one for each pair of entities), for which test is 0.2 instead of 0.05\n" in text


def test_drafted_spec_runs_unchanged(tmp_path):
    lines = [f"e{n},{name},e{(n + step) % 40}\n" for n in range(40) for name, step in STEPS]
    for day in ("2026-11-9", "2026-11-20"):
        (tmp_path / "edges" / day).mkdir(parents=True)
        (tmp_path / "edges" / day / "part-0.csv").write_text("Head,Relation,Tail\n" + "".join(lines))
    (tmp_path / "edges" / "2026-11-21").mkdir()  # without files yet
    spec = drafted(tmp_path, tmp_path / "edges")
    assert spec.graph == "store"
    assert spec.snapshots.location == f"{tmp_path}/edges/{{snapshot}}/*.csv"
    assert (spec.columns.lhs, spec.columns.rel, spec.columns.rhs) == ("Head", "Relation", "Tail")
    assert spec.model.dynamic_relations
    assert spec.model.self_negatives
    assert spec.gates.data.min_edges.block == 60
    text = (tmp_path / "graph.yaml").read_text()
    assert "# {snapshot} stands for the key of a night: 2 found, the newest is 2026-11-20\n" in text
    assert newest_snapshot(spec) == "2026-11-20"
    gates = ["gates.min_common_edges=1", "gates.min_over_popularity={}", "gates.min_over_start={}"]
    run = run_chain(tmp_path / "graph.yaml", "2026-11-20", overrides=["model.dimension=8", *gates], epochs=1)
    assert "eval" in run["finished"]


def test_draft_passes_over_damaged_newest_snapshots(tmp_path, capsys):
    for day, edges in (("2026-11-20", 40), ("2026-11-21", 60), ("2026-11-22", 80)):
        ends = [f"e{number}" for number in range(edges)]
        pq.write_table(pa.table({"lhs": ends, "rhs": ends[::-1]}), tmp_path / f"{day}.parquet")
    for day in ("2026-11-21", "2026-11-22"):
        os.truncate(tmp_path / f"{day}.parquet", 300)
    spec = drafted(tmp_path, tmp_path / "{snapshot}.parquet")
    assert spec.gates.data.min_edges.block == 20
    warnings = [line for line in capsys.readouterr().err.splitlines() if "is passed over" in line]
    for day, line in zip(("2026-11-22", "2026-11-21"), warnings, strict=True):
        assert f"warning: snapshot {day} is passed over: {tmp_path}/{day}.parquet: cannot be read: " in line
    os.truncate(tmp_path / "2026-11-20.parquet", 300)
    with pytest.raises(InputError, match=r"2026-11-22\.parquet: cannot be read"):
        draft_spec(f"{tmp_path}/{{snapshot}}.parquet", str(tmp_path / "store"))


@pytest.mark.parametrize(("suffix", "header"), [("parquet", ""), ("csv", "lhs,rhs\n"), ("tsv", "")])
def test_draft_passes_over_snapshots_without_edges(tmp_path, capsys, suffix, header):
    for day, edges in (("2026-11-20", range(40)), ("2026-11-21", ()), ("2026-11-22", ())):
        path, ends = tmp_path / f"{day}.{suffix}", pa.array([f"e{number}" for number in edges], pa.string())
        path.write_text(header + "".join(f"{end},{end}\n" for end in ends))
        if suffix == "parquet":
            pq.write_table(pa.table({"lhs": ends, "rhs": ends}), path)
    assert drafted(tmp_path, tmp_path).gates.data.min_edges.block == 20
    warnings = [line for line in capsys.readouterr().err.splitlines() if "is passed over" in line]
    for day, line in zip(("2026-11-22", "2026-11-21"), warnings, strict=True):
        assert f"warning: snapshot {day} is passed over: {tmp_path}/{day}.{suffix}: the snapshot has no edges" in line
    (tmp_path / f"2026-11-20.{suffix}").unlink()
    with pytest.raises(InputError, match=rf"2026-11-22\.{suffix}: the snapshot has no edges"):
        draft_spec(str(tmp_path), str(tmp_path / "store"))


def test_draft_reads_columns_of_first_filled_part(tmp_path):
    (tmp_path / "d1").mkdir()
    (tmp_path / "d1" / "part-0.tsv").touch()
    (tmp_path / "d1" / "part-1.tsv").write_text("a1\tb1\na2\tb2\n")
    assert drafted(tmp_path, tmp_path / "{snapshot}").gates.data.min_edges.block == 1


def test_columns_of_types_give_relations_between_them(tmp_path):
    rows = {
        "src": ["ada", "ada", "bob"],
        "src_type": ["user", "user", "user"],
        "edge_type": ["buys", "buys", "knows"],
        "dst": ["tea", "pen", "ada"],
        "dst_type": ["item", "item", "user"],
        "w": [1.0, 2.0, 1.0],
    }
    pq.write_table(pa.table(rows), tmp_path / "2026-11-20.parquet")
    spec = drafted(tmp_path, tmp_path / "2026-11-20.parquet", graph="shop")
    assert spec.graph == "shop"
    assert spec.snapshots.location == f"{tmp_path}/{{snapshot}}.parquet"
    assert sorted(spec.model.entities) == ["item", "user"]
    assert [(each.name, each.lhs, each.rhs) for each in spec.model.relations] == [
        ("buys", "user", "item"),
        ("knows", "user", "user"),
    ]
    assert spec.columns.weight == "w"


@pytest.mark.parametrize(
    ("kinds", "types", "reason"),
    [
        (None, ("user", "item"), "without a column of relations"),
        (201, ("user", "item"), "more than 200 combinations"),
        (2, ("gene/protein", "item"), "cannot name an entity type"),
        (2, ("gene|protein", "item"), "cannot name an entity type"),
    ],
)
def test_types_that_no_spec_takes_are_left_out(tmp_path, capsys, kinds, types, reason):
    rows = {
        "head": [f"e{number}" for number in range(402)],
        "tail": [f"e{number + 1}" for number in range(402)],
        "head_type": [types[number % 2] for number in range(402)],
        "tail_type": ["item"] * 402,
    }
    rows |= {} if kinds is None else {"relation": [f"r{number // 2 % kinds}" for number in range(402)]}
    pq.write_table(pa.table(rows), tmp_path / "d1.parquet")
    spec = drafted(tmp_path, tmp_path / "d1.parquet")
    assert spec.columns.lhs_type is None
    assert list(spec.model.entities) == ["entity"]
    warned = capsys.readouterr().err
    assert "the columns of entity types are left out: " in warned
    assert reason in warned
    assert "columns that are not read: head_type, tail_type" in warned


def test_columns_without_names_are_recognised_by_place(tmp_path):
    (tmp_path / "d1.tsv").write_text("".join(f"e{n}\tnext\te{n + 1}\n" for n in range(20)))
    spec = drafted(tmp_path, tmp_path / "{snapshot}.tsv")
    assert not spec.snapshots.header
    assert (spec.columns.lhs, spec.columns.rel, spec.columns.rhs) == ("column0", "column1", "column2")


def test_relation_chosen_by_its_values_is_reported(tmp_path, capsys):
    rows = "".join(f"u{n},s{n % 3},{1000 + n}\n" for n in range(20))
    (tmp_path / "d1.csv").write_text(f"listener,song,played_at\n{rows}")
    choice = "listener counts as the left end, song as the relation, because it has the fewest values, played_at as the"
    assert drafted(tmp_path, tmp_path / "d1.csv").columns.rel == "song"
    assert f"{choice} right end; if that is wrong, name the ends with --lhs-col" in capsys.readouterr().err
    assert choice in (tmp_path / "graph.yaml").read_text()
    assert drafted(tmp_path, tmp_path / "d1.csv", columns={"lhs": "listener", "rhs": "song"}).columns.rel is None
    assert "counts as" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("first", "header"),
    [("customer,action,product", True), ("e0,next,e9", False), ("ada,begins,eve", True), ("ada,next,eve", False)],
)
def test_first_line_that_never_recurs_names_columns(tmp_path, first, header):
    (tmp_path / "d1.csv").write_text(f"{first}\n" + "".join(f"e{n},next,e{n + 1}\n" for n in range(20)))
    spec = drafted(tmp_path, tmp_path / "d1.csv")
    names = first.split(",") if header else ["column0", "column1", "column2"]
    assert spec.snapshots.header is header
    assert [spec.columns.lhs, spec.columns.rel, spec.columns.rhs] == names
    assert ("set header: false" in (tmp_path / "graph.yaml").read_text()) is header


@pytest.mark.parametrize(("rest", "header"), [("u{0},m{1}", True), ("u{0},mia", False)])
def test_two_names_are_header_above_numbered_names(tmp_path, rest, header):
    (tmp_path / "d1.csv").write_text("who,what\n" + "".join(f"{rest}\n".format(n, n % 3) for n in range(20)))
    assert drafted(tmp_path, tmp_path / "d1.csv").snapshots.header is header


def test_columns_without_role_are_reported(tmp_path, capsys):
    (tmp_path / "d1.csv").write_text("from,deed,to,at\n" + "".join(f"e{n},next,e{n + 1},9\n" for n in range(20)))
    assert drafted(tmp_path, tmp_path / "d1.csv").columns.rel is None
    warning = "warning: columns that are not read: deed, at; one that is the relation is named by --rel-col"
    assert warning in capsys.readouterr().err
    assert "# the columns of an edge\n# not read: deed, at\n" in (tmp_path / "graph.yaml").read_text()
    assert drafted(tmp_path, tmp_path / "d1.csv", columns={"rel": "deed"}).model.dynamic_relations
    assert "warning: columns that are not read: at\n" in capsys.readouterr().err


def test_ends_without_common_names_are_two_types(tmp_path):
    (tmp_path / "d1.csv").write_text("user,movie\n" + "".join(f"u{n},m{n % 3}\n" for n in range(20)))
    spec = drafted(tmp_path, tmp_path / "d1.csv", columns={"lhs": "user", "rhs": "movie"})
    assert sorted(spec.model.entities) == ["movie", "user"]
    assert (spec.columns.rel, len(spec.model.relations)) == (None, 1)
    text = (tmp_path / "graph.yaml").read_text()
    assert "# 20 edges, one relation:\n# two entity types, because no name is on both sides; one relation\n" in text


def test_ends_of_several_relations_are_two_types(tmp_path):
    rows = [f"u{n},{deed},m{n % 3}\n" for n in range(20) for deed in ("saw", "liked")]
    (tmp_path / "d1.csv").write_text("user,deed,movie\n" + "".join(rows))
    model = drafted(tmp_path, tmp_path / "d1.csv", columns={"lhs": "user", "rhs": "movie", "rel": "deed"}).model
    assert [(each.name, each.lhs, each.rhs) for each in model.relations] == [("all", "user", "movie")]
    assert (model.dynamic_relations, model.self_negatives) == (True, False)


def test_one_type_is_drafted_with_way_to_two(tmp_path):
    """A user and a movie may have the same number."""
    (tmp_path / "d1.csv").write_text("user,movie\n" + "".join(f"{n},{n % 3}\n" for n in range(20)))
    spec = drafted(tmp_path, tmp_path / "d1.csv", columns={"lhs": "user", "rhs": "movie"})
    assert [*spec.model.entities] == ["entity"]
    text = (tmp_path / "graph.yaml").read_text()
    assert "# 3 edges begin at a name that is a right end, too. Where the sides are different\n# things" in text


@pytest.mark.parametrize(
    ("files", "location", "key"),
    [
        (["edges/day=2026-11-20/a.parquet"], "edges/day={snapshot}/*.parquet", "2026-11-20"),
        (["edges/2026-11-20/part-00000-of-00002.csv.gz"], "edges/{snapshot}/*.csv.gz", "2026-11-20"),
        (["edges/2026-11-20.csv", "edges/2026-11-21.csv"], "edges/{snapshot}.csv", "2026-11-21"),
        (["edges/d1/a/x.tsv.zstd", "edges/d1/b/x.tsv.gz"], "edges/{snapshot}", "d1"),
    ],
)
def test_snapshots_are_found_in_usual_layouts(tmp_path, files, location, key):
    for name in files:
        open_store(tmp_path).put_new(name, b"x")
    (tmp_path / "edges" / "latest").symlink_to(Path(files[-1]).parts[1])
    found = find_snapshots(str(tmp_path / "edges"))
    assert (found.snapshots.location, found.key) == (f"{tmp_path}/{location}", key)


def test_folder_of_parts_is_one_snapshot(tmp_path):
    (tmp_path / "edges" / "2026-11-20").mkdir(parents=True)
    for number in range(2):
        (tmp_path / "edges" / "2026-11-20" / f"part-{number}.csv").write_text("a,b\n")
    found = find_snapshots(str(tmp_path / "edges" / "2026-11-20"))
    assert (found.snapshots.location, found.key) == (f"{tmp_path}/edges/{{snapshot}}/*.csv", "2026-11-20")


def test_folder_with_braces_in_its_name_is_read(tmp_path):
    (tmp_path / "{day}").mkdir()
    (tmp_path / "{day}" / "d1.csv").write_text("lhs,rhs\na,b\n")
    assert find_snapshots(f"{tmp_path}/{{day}}/{{snapshot}}.csv").key == "d1"


def test_unclear_columns_and_places_are_refused(tmp_path):
    (tmp_path / "d1.csv").write_text("a,b,c,d\n1,2,3,4\n")
    with pytest.raises(ConfigError, match=r"which of the columns column0, .* name them with --lhs-col and --rhs-col"):
        drafted(tmp_path, tmp_path / "d1.csv")
    with pytest.raises(ConfigError, match=r"d1\.csv: no column 'x'; its columns are: column0"):
        drafted(tmp_path, tmp_path / "d1.csv", columns={"lhs": "x"})
    with pytest.raises(ConfigError, match=r"write \{snapshot\} at the place of a snapshot's key"):
        drafted(tmp_path, tmp_path / "*.csv")
    with pytest.raises(InputError, match="no snapshot there"):
        drafted(tmp_path, tmp_path / "nowhere")
