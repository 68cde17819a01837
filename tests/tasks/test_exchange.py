"""Exports: read by their tools, complete or absent, from any source.

Longer than other files: every format goes through the same sources, destinations and mishaps.
"""

from __future__ import annotations

import hashlib
import json
import re

import duckdb
import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from pbg_tasks.cli import app
from pbg_tasks.config.exports import FORMATS, ExportOptions
from pbg_tasks.errors import (
    ConfigError,
    ConflictError,
    FormatError,
    InputError,
    NotFoundError,
    QualityGateError,
    ResourceError,
)
from pbg_tasks.formats.angel import LocalFolder, layout, open_matrix, read_line, read_mapping
from pbg_tasks.publish.exchange import ReadOptions, angel
from pbg_tasks.publish.exchange.manifest import MANIFEST
from pbg_tasks.publish.exchange.registry import READERS
from pbg_tasks.storage import open_store
from pbg_tasks.tasks.exchange.export import export
from pbg_tasks.tasks.exchange.import_vectors import import_embeddings
from pbg_tasks.tasks.nightly.chain import run_chain
from tests.tasks.conftest import Workplace, ring
from tests.tasks.exchanges import files, imported, model, rename


@pytest.fixture
def place(tmp_path, scratch):
    return tmp_path


@pytest.fixture
def data(place):
    return model(place / "data")


def exported(data, exchange, out, **options):
    return export(exchange, str(data.checkpoint), str(out), options=ExportOptions(**options))


PLAIN = [name for name in FORMATS if name != "faiss"]
LOOP = [{"name": "r", "lhs": "n", "rhs": "n", "operator": "none"}]
# Characters that names may not have in the formats where names share a text with other values.
UNSAFE = {
    "word2vec": r"\s",
    "word2vec-bin": r"\s",
    "tsv": r"[\t\n\r\ufeff]",
    "projector": r"[\t\n\r\ufeff]",
    "angel": r"[\n\r]",
    "angel-line": r"[\n\r]",
}


@pytest.mark.parametrize("exchange", PLAIN)
def test_manifest_lists_everything_written(data, place, exchange, capsys):
    options = {"escape": True} if exchange in {"word2vec", "word2vec-bin", "projector", "tsv"} else {}
    result = exported(data, exchange, place / "out", **options)
    manifest = json.loads((place / "out" / MANIFEST).read_text())
    assert files(place / "out") == sorted([*manifest["objects"], MANIFEST])
    for name, record in manifest["objects"].items():
        content = (place / "out" / name).read_bytes()
        assert record == {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
    types = {name: (record["rows"], record["dimension"]) for name, record in manifest["types"].items()}
    assert types == {"user": (61, 8), "item": (40, 8)}
    assert (manifest["exchange"], manifest["comparator"], manifest["relations"]) == (exchange, "dot", 2)
    contract = {
        "space": None,  # PBG's files do not name it
        "dimensions": {"item": 8, "user": 8},
        "comparator": "dot",
        "operators": ["complex_diagonal", "translation"],
    }
    assert manifest["source"] == {
        "url": str(data.checkpoint),
        "version": 3,
        "manifest_sha256": None,
        "channel": None,
        "contract": contract,
    }
    assert result["types"]["user"] == {"rows": 61, "dimension": 8}
    assert f"export {exchange}: done, 101 rows" in capsys.readouterr().err
    assert not list((place / "scratch").iterdir())


def test_parquet_is_read_by_duckdb(data, place):
    exported(data, "parquet", place / "out")
    rows = duckdb.sql(f"SELECT id, embedding, type FROM '{place}/out/*.parquet' ORDER BY type DESC, id").fetchall()
    assert {name for name, _, kind in rows if kind == "item"} == set(data.names["item"])
    stored = {(kind, name): vector for name, vector, kind in rows}
    for entity in ("user", "item"):
        back = np.array([stored[entity, name] for name in data.names[entity]], np.float32)
        np.testing.assert_array_equal(back, data.vectors[entity])
    (kind,) = duckdb.sql(f"SELECT DISTINCT typeof(embedding) FROM '{place}/out/user.parquet'").fetchall()
    assert kind == ("FLOAT[]",)
    parameters = duckdb.sql(
        f"SELECT side, parameter, shape, values FROM '{place}/out/_relations/parameters.parquet' "
        "WHERE relation = 'likes' ORDER BY parameter"
    ).fetchall()
    assert [row[:3] for row in parameters] == [("rhs", "imag", [4]), ("rhs", "real", [4])]
    np.testing.assert_array_equal(np.float32(parameters[1][3]), data.params["relations/0/operator/rhs/real"])


def test_parquet_is_read_by_pandas(data, place):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    exported(data, "parquet", place / "out")
    frame = pandas.read_parquet(place / "out" / "user.parquet")
    assert list(frame["id"]) == data.names["user"]
    np.testing.assert_array_equal(np.stack(frame["embedding"]), data.vectors["user"])
    whole = pandas.read_parquet([place / "out" / "user.parquet", place / "out" / "item.parquet"])
    assert len(whole) == 101


def test_parquet_has_lists_of_the_dimension(data, place):
    exported(data, "parquet", place / "out")
    schema = pq.read_schema(place / "out" / "item.parquet")
    assert str(schema.field("embedding").type) == "fixed_size_list<element: float>[8]"


def test_npy_is_mapped_by_numpy(data, place):
    exported(data, "npy", place / "out")
    vectors = np.load(place / "out" / "user.npy", mmap_mode="r")
    np.testing.assert_array_equal(vectors, data.vectors["user"])
    assert json.loads((place / "out" / "item.json").read_text(encoding="utf-8")) == data.names["item"]
    relations = json.loads((place / "out" / "_relations" / "relations.json").read_text())
    assert relations[1] == {
        "name": "knows", "lhs": "user", "rhs": "user", "operator": "translation", "index": 1, "row": None
    }  # fmt: skip
    np.testing.assert_array_equal(
        np.load(place / "out" / "_relations" / "relations.1.rhs.translation.npy"),
        data.params["relations/1/operator/rhs/translation"],
    )


@pytest.mark.parametrize(("exchange", "binary", "suffix"), [("word2vec", False, "txt"), ("word2vec-bin", True, "bin")])
def test_word2vec_is_loaded_by_gensim(data, place, exchange, binary, suffix):
    gensim = pytest.importorskip("gensim.models", reason="gensim is not installed")
    exported(data, exchange, place / "out", types=("user",))
    vectors = gensim.KeyedVectors.load_word2vec_format(place / "out" / f"user.{suffix}", binary=binary)
    assert vectors.index_to_key == data.names["user"]
    np.testing.assert_array_equal(vectors.vectors, data.vectors["user"])


def test_word2vec_has_the_bytes_of_its_formats(data, place):
    rename(data, "item", [f"n{i}" for i in range(40)])
    exported(data, "word2vec", place / "text", types=("item",))
    first, second = (place / "text" / "item.txt").read_text().splitlines()[:2]
    assert first == "40 8"
    assert second == " ".join(["n0", *map(str, data.vectors["item"][0])])
    exported(data, "word2vec-bin", place / "binary", types=("item",))
    start = b"40 8\nn0 " + data.vectors["item"][0].tobytes() + b"n1 "
    assert (place / "binary" / "item.bin").read_bytes().startswith(start)


def test_safetensors_is_loaded_by_its_library(data, place):
    safetensors = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    exported(data, "safetensors", place / "out")
    tensors = safetensors.load_file(place / "out" / "embeddings.safetensors")
    assert set(tensors) == {
        "entities.user.0", "entities.user.1", "entities.item.0",
        "relations.0.rhs.real", "relations.0.rhs.imag", "relations.1.rhs.translation",
    }  # fmt: skip
    users = np.concatenate([tensors["entities.user.0"], tensors["entities.user.1"]])
    np.testing.assert_array_equal(users, data.vectors["user"])
    np.testing.assert_array_equal(tensors["relations.0.rhs.imag"], data.params["relations/0/operator/rhs/imag"])
    assert json.loads((place / "out" / "user.json").read_text()) == data.names["user"]


def test_safetensors_has_the_bytes_of_the_format(data, place):
    exported(data, "safetensors", place / "out", types=("item",))
    content = (place / "out" / "embeddings.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    start, stop = header["entities.item.0"]["data_offsets"]
    assert length % 8 == 0
    assert content[8 + length + start : 8 + length + stop] == data.vectors["item"].tobytes()
    assert len(content) == 8 + length + max(
        entry["data_offsets"][1] for name, entry in header.items() if name[0] != "_"
    )


def test_projector_gets_points_labels_and_their_config(data, place):
    exported(data, "projector", place / "out", limit=25)
    points = np.loadtxt(place / "out" / "user" / "tensors.tsv", delimiter="\t", dtype=np.float32)
    labels = (place / "out" / "user" / "metadata.tsv").read_text(encoding="utf-8").splitlines()
    np.testing.assert_array_equal(points, data.vectors["user"][::3])
    assert labels == data.names["user"][::3]
    config = (place / "out" / "projector_config.pbtxt").read_text()
    assert 'tensor_path: "user/tensors.tsv"' in config
    assert "tensor_shape: 21\n  tensor_shape: 8" in config
    assert json.loads((place / "out" / MANIFEST).read_text())["measured"] == {"sampled_from": {"user": 61, "item": 40}}


def test_tsv_equals_that_of_pbg(data, place):
    exported(data, "tsv", place / "out")
    lines = (place / "out" / "entity_embeddings.tsv").read_text(encoding="utf-8").splitlines()
    assert [line.split("\t")[0] for line in lines] == [*data.names["user"], *data.names["item"]]
    assert lines[0].split("\t")[1:] == [f"{number:.9f}" for number in data.vectors["user"][0]]
    relations = (place / "out" / "relation_types_parameters.tsv").read_text().splitlines()
    assert [line.split("\t")[:5] for line in relations] == [
        ["likes", "rhs", "complex_diagonal", "real", "4"],
        ["likes", "rhs", "complex_diagonal", "imag", "4"],
        ["knows", "rhs", "translation", "translation", "8"],
    ]


@pytest.mark.parametrize("layout", ["BinaryColumn", "TextColumn"])
def test_angel_gets_matrix_by_type_and_mapping(data, place, layout):
    exported(data, "angel", place / "out", layout=layout)
    for entity in ("user", "item"):
        blocks = list(open_matrix(LocalFolder(place / "out" / f"{entity}_embedding")).vectors())
        np.testing.assert_array_equal(np.concatenate([vectors for _, vectors in blocks]), data.vectors[entity])
        mapping = dict(read_mapping(LocalFolder(place / "out" / "mapping" / entity)))
        numbers = np.concatenate([numbers for numbers, _ in blocks]).tolist()
        assert [mapping[number] for number in numbers] == data.names[entity]
    matrix = open_matrix(LocalFolder(place / "out" / "relations.0.rhs.real"))
    ((_, vectors),) = matrix.vectors("rows")
    np.testing.assert_array_equal(vectors[0], data.params["relations/0/operator/rhs/real"])


def test_angel_line_gets_lines_and_a_mapping(data, place):
    exported(data, "angel-line", place / "out")
    ((numbers, vectors),) = read_line(LocalFolder(place / "out" / "user" / "CP_1" / "embedding"))
    np.testing.assert_array_equal(vectors, data.vectors["user"])
    mapping = dict(read_mapping(LocalFolder(place / "out" / "user" / "mapping")))
    assert [mapping[number] for number in numbers.tolist()] == data.names["user"]


@pytest.mark.parametrize(("listed", "ends"), [(200_000, [100, 200, 300]), (16, [150, 300])])
def test_angel_gets_fewer_partitions_of_many_rows(place, monkeypatch, listed, ends):
    data = model(place / "data", sizes={"user": 30, "item": 300})
    monkeypatch.setattr(angel, "_LISTED_ROWS", listed)
    monkeypatch.setattr(layout, "PARTITION_NUMBERS", 800)
    exported(data, "angel", place / "out", types=("item",))
    matrix = open_matrix(LocalFolder(place / "out" / "item_embedding"))
    assert [part.end_col for part in matrix.meta.part_metas.values()] == ends
    np.testing.assert_array_equal(np.concatenate([block for _, block in matrix.vectors()]), data.vectors["item"])


def test_angel_line_takes_other_separators(data, place):
    words = {"key_separator": "tab", "feature_separator": ";"}
    exported(data, "angel-line", place / "out", types=("item",), **words)
    first = (place / "out" / "item" / "CP_1" / "embedding" / "0").read_text().splitlines()[0]
    assert re.fullmatch(r"0\t[^;\t ]+(;[^;\t ]+){7}", first)
    import_embeddings("angel-line", str(place / "out"), str(place / "back"), options=ReadOptions(None, **words))
    np.testing.assert_array_equal(imported(place / "back", "item")[1], data.vectors["item"])
    with pytest.raises(ConfigError, match="separator bar: Angel writes it as"):
        exported(data, "angel-line", place / "bar", feature_separator="bar")


@pytest.mark.parametrize("comparator", ["dot", "cos", "l2"])
@pytest.mark.parametrize("index", ["Flat", "HNSW16", "IVF4,Flat"])
def test_faiss_index_finds_the_models_neighbours(place, comparator, index):
    faiss = pytest.importorskip("faiss", reason="faiss-cpu is not installed")
    data = model(place / "data", comparator=comparator, sizes={"user": 80, "item": 40})
    parameters = "nprobe=4" if index.startswith("IVF") else ""
    result = exported(data, "faiss", place / "out", types=("user",), index=index, parameters=parameters, neighbors=5)
    assert result["measured"]["recall"]["user"]["recall"] >= 0.9
    found = faiss.read_index(str(place / "out" / "user.faiss"))
    names = json.loads((place / "out" / "user.json").read_text())
    vectors = data.vectors["user"]
    if comparator == "cos":
        vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    _, numbers = found.search(vectors[7:8], 2)
    scores = -np.square(vectors - vectors[7]).sum(axis=1) if comparator == "l2" else vectors @ vectors[7]
    expected = [data.names["user"][i] for i in np.argsort(-scores)[:2]]
    assert [names[number] for number in numbers[0]] == expected


def test_faiss_index_below_floor_is_not_exported(place):
    pytest.importorskip("faiss", reason="faiss-cpu is not installed")
    data = model(place / "data", sizes={"user": 400, "item": 40})
    with pytest.raises(QualityGateError, match=r"index 'IVF64,Flat' of user finds 0\.[0-8]"):
        exported(
            data, "faiss", place / "out", types=("user",), index="IVF64,Flat", parameters="nprobe=1", min_recall=0.95
        )
    assert not (place / "out").exists()


@pytest.mark.parametrize(("index", "parameters"), [("Nonsense7", ""), ("HNSW32", "sense=1")])
def test_index_unknown_to_faiss_is_refused(data, place, index, parameters):
    pytest.importorskip("faiss", reason="faiss-cpu is not installed")
    with pytest.raises(ConfigError, match="FAISS refuses"):
        exported(data, "faiss", place / "out", index=index, parameters=parameters)


def test_global_embedding_is_part_of_every_embedding(place):
    data = model(place / "data", global_emb=True)
    exported(data, "npy", place / "out")
    added = data.params["entities/item/global_embedding"]
    np.testing.assert_array_equal(np.load(place / "out" / "item.npy"), data.vectors["item"] + added)


def test_dynamic_relations_have_their_rows(place):
    relations = [{"name": "all", "lhs": "n", "rhs": "n", "operator": "translation"}]
    names = ["r1", "r2", "r3"]
    data = model(
        place / "data",
        entities={"n": {"num_partitions": 1}},
        relations=relations,
        relation_names=names,
        dynamic_relations=True,
    )
    exported(data, "parquet", place / "out")
    rows = pq.read_table(place / "out" / "_relations" / "parameters.parquet").to_pylist()
    assert [(row["relation"], row["side"]) for row in rows] == [
        (name, side) for name in names for side in ("lhs", "rhs")
    ]
    stacked = data.params["relations/0/operator/rhs/translations"]
    np.testing.assert_array_equal(np.float32(rows[3]["values"]), stacked[1])


@pytest.mark.parametrize("name", ["two words", "a\ttab", "a\nbreak", "a\rreturn", "\ufeffmark", ""])
@pytest.mark.parametrize("exchange", PLAIN)
def test_odd_names_return_or_are_refused(data, place, exchange, name):
    rename(data, "item", [name, *data.names["item"][1:]])
    unsafe = UNSAFE.get(exchange)
    if unsafe is not None and (not name or re.search(unsafe, name)):
        with pytest.raises(FormatError, match=f"which format {exchange} cannot hold"):
            exported(data, exchange, place / "out", types=("item",))
        assert not (place / "out").exists()
        return
    exported(data, exchange, place / "out", types=("item",))
    if exchange in READERS:
        import_embeddings(exchange, str(place / "out"), str(place / "back"))
        assert imported(place / "back", "item")[0] == data.names["item"]


@pytest.mark.parametrize("exchange", PLAIN)
@pytest.mark.parametrize("count", [0, 1])
def test_type_may_have_one_entity_or_none(place, exchange, count):
    data = model(place / "data", entities={"n": {"num_partitions": 1}}, sizes={"n": count}, relations=LOOP)
    result = exported(data, exchange, place / "out")
    assert result["types"] == {"n": {"rows": count, "dimension": 8}}
    if exchange in READERS and (
        count or exchange not in {"tsv", "angel-line"}
    ):  # these formats do not contain the dimension
        import_embeddings(exchange, str(place / "out"), str(place / "back"))
        np.testing.assert_allclose(imported(place / "back", "n")[1], data.vectors["n"], atol=6e-10, rtol=0)


@pytest.mark.parametrize("exchange", ["word2vec", "tsv", "angel", "angel-line"])
def test_escaped_names_return_unchanged(data, place, exchange):
    names = ["\ufeffmark", "two words", "a\ttab", "a\nbreak", "\u2028", "100%", "%41", *data.names["item"][7:]]
    rename(data, "item", names)
    exported(data, exchange, place / "out", types=("item",), escape=True)
    assert json.loads((place / "out" / MANIFEST).read_text())["names"] == "percent-encoded"
    import_embeddings(exchange, str(place / "out"), str(place / "back"))
    assert imported(place / "back", "item")[0] == names


@pytest.mark.parametrize("exchange", PLAIN)
def test_half_characters_are_refused_everywhere(data, place, exchange):
    rename(data, "item", ["half \ud83d", *data.names["item"][1:]])
    with pytest.raises(FormatError, match="half a character"):
        exported(data, exchange, place / "out", **({"escape": True} if exchange in {"word2vec", "tsv"} else {}))
    assert not (place / "out").exists()


def test_infinite_embeddings_are_refused(data, place):
    vectors = data.vectors["item"].copy()
    vectors[3, 2] = np.inf
    data.rewrite("item", 0, vectors)
    with pytest.raises(FormatError, match=r"embeddings_item_0\.v3\.h5: holds embeddings that are not finite"):
        exported(data, "npy", place / "out")
    assert not (place / "out").exists()


def test_destination_with_other_files_is_left_alone(data, place):
    (place / "out").mkdir()
    (place / "out" / "mine.txt").write_text("mine")
    with pytest.raises(ConflictError, match=r"is not empty \(it holds mine\.txt\)"):
        exported(data, "npy", place / "out")
    assert files(place / "out") == ["mine.txt"]


def test_overwriting_leaves_nothing_of_previous_export(data, place):
    exported(data, "npy", place / "out")
    (place / "out" / "mine.txt").write_text("mine")
    options = ExportOptions(types=("item",))
    export("parquet", str(data.checkpoint), str(place / "out"), options=options, overwrite=True)
    assert files(place / "out") == [
        "_manifest.json", "_relations/parameters.parquet", "_relations/relations.json", "item.parquet", "mine.txt"
    ]  # fmt: skip


def test_full_disk_leaves_no_partial_export(place, small_disk):
    data = model(place / "data", sizes={"user": 40_000, "item": 40})
    with pytest.raises(ResourceError, match="the disk or its quota is full"):
        exported(data, "word2vec", small_disk / "out", types=("user",))
    assert not files(small_disk / "out")


@pytest.mark.parametrize(
    ("exchange", "options", "message"),
    [
        ("glove", {}, "no exchange format is named 'glove'; there are angel, "),
        ("glove", {}, "; sinks are lancedb, milvus, pgvector, qdrant"),
        ("parquet", {"escape": True}, "format parquet has no option 'escape'"),
        ("npy", {"index": "Flat"}, "format npy has no option 'index'"),
        ("npy", {"limit": 3}, "format npy has no option 'limit'"),
        ("npy", {"types": ("user", "thing")}, "has no entity type 'thing'; there are user, item"),
    ],
)
def test_contradictory_options_are_refused(data, place, exchange, options, message):
    with pytest.raises(ConfigError, match=message):
        exported(data, exchange, place / "out", **options)
    assert not (place / "out").exists()


def test_source_without_model_is_refused(place):
    with pytest.raises(NotFoundError, match="no checkpoint here"):
        export("npy", str(place / "nothing"), str(place / "out"))


def test_config_names_the_checkpoint(data, place):
    export("npy", data.config, str(place / "out"))
    np.testing.assert_array_equal(np.load(place / "out" / "item.npy"), data.vectors["item"])
    with pytest.raises(ConfigError, match="channel"):
        export("npy", data.config, str(place / "other"), channel="production")


def test_runs_releases_and_channels_are_sources(place):
    toy = Workplace(place)
    toy.snapshot("d1", ring(40))
    with pytest.raises(InputError, match="no release yet"):
        export("npy", str(toy.store), str(place / "early"), channel="production")
    summary = run_chain(toy.spec, "d1")
    sources = [(summary["run"], None), (summary["release"]["directory"], None), (str(toy.store), None)]
    manifests = []
    for number, (source, channel) in enumerate(sources):
        export("npy", source, str(place / f"out{number}"), channel=channel)
        manifests.append(json.loads((place / f"out{number}" / MANIFEST).read_text()))
    assert manifests[0]["objects"] == manifests[1]["objects"] == manifests[2]["objects"]
    assert manifests[2]["source"]["channel"] == "production"
    release = (toy.store / summary["release"]["directory"].removeprefix(f"{toy.store}/") / "manifest.json").read_bytes()
    assert {manifest["source"]["manifest_sha256"] for manifest in manifests} == {hashlib.sha256(release).hexdigest()}


@pytest.mark.s3
def test_errors_name_the_file_in_its_store(data, place, s3_bucket):
    model_url, names_url = f"{s3_bucket}/model", f"{s3_bucket}/names"
    for folder, url in ((data.checkpoint, model_url), (data.root / "entities", names_url)):
        for path in folder.iterdir():
            open_store(url).put_new(path.name, path)
    open_store(names_url).put("entity_names_item_0.json", b'["one"]')
    with pytest.raises(FormatError, match=f"{names_url}/entity_names_item_0.json: holds 1 names"):
        export("npy", model_url, str(place / "out"), entity_path=names_url)


@pytest.mark.s3
@pytest.mark.parametrize("exchange", ["parquet", "angel"])
def test_export_from_store_to_store(data, place, s3_bucket, exchange):
    store = open_store(f"{s3_bucket}/model")
    for folder in (data.checkpoint, data.root / "entities"):
        for path in folder.iterdir():
            store.put_new(path.name, path)
    source = f"{s3_bucket}/model"
    export(exchange, source, f"{s3_bucket}/out", entity_path=source)
    export(exchange, str(data.checkpoint), str(place / "out"))
    there = {info.key: info.size for info in open_store(f"{s3_bucket}/out").list()}
    assert sorted(there) == files(place / "out")
    remote = json.loads(open_store(f"{s3_bucket}/out").get(MANIFEST).data)
    local = json.loads((place / "out" / MANIFEST).read_text())
    assert remote["objects"] == local["objects"]
    assert remote["source"]["url"] == source


def pbg(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_command_exports_directories_and_configs(data, place):
    config = place / "model.json"
    config.write_text(json.dumps(data.config.to_pbg()))
    done = pbg("export", "npy", data.checkpoint, place / "a", "--type", "item", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["types"] == {"item": {"rows": 40, "dimension": 8}}
    moved = place / "moved"
    data.checkpoint.rename(moved)
    done = pbg("export", "npy", config, place / "b", "-p", f"checkpoint_path={moved}", "--json")
    assert done.exit_code == 0, done.output
    assert (place / "b" / "item.npy").read_bytes() == (place / "a" / "item.npy").read_bytes()


def test_tsv_of_config_equals_pbgs_own_command(data, place):
    config = place / "model.json"
    config.write_text(json.dumps(data.config.to_pbg()))
    outputs = [f"--entities-output={place}/e.tsv", f"--relation-types-output={place}/r.tsv"]
    assert pbg("export", "tsv", config, *outputs).exit_code == 0
    assert pbg("export", "tsv", config, place / "out").exit_code == 0
    assert (place / "e.tsv").read_bytes() == (place / "out" / "entity_embeddings.tsv").read_bytes()
    assert (place / "r.tsv").read_bytes() == (place / "out" / "relation_types_parameters.tsv").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["npy", "SOURCE"], "DEST is missing"),
        (["SOURCE", "DEST"], "the format comes first, then SOURCE and DEST"),
        (["tsv", "SOURCE"], "DEST is missing"),
        (["npy", "SOURCE", "DEST", "--entities-output", "x"], "only for tsv without DEST"),
        (["npy", "SOURCE", "DEST", "-p", "dimension=3"], "only for a PBG config"),
    ],
)
def test_meaningless_arguments_are_refused(data, place, arguments, message):
    known = {"SOURCE": data.checkpoint, "DEST": place / "out"}
    done = pbg("export", *[known.get(argument, argument) for argument in arguments])
    assert done.exit_code == 2
    assert message in " ".join(done.output.replace("│", " ").split())
    assert not (place / "out").exists()
