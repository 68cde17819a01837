"""Names of entity types.

An accepted one passes every task and export, a refused one is refused at load.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pbg_tasks.api.training import train
from pbg_tasks.config.exports import FORMATS
from pbg_tasks.config.loading import load_config, load_graph_spec
from pbg_tasks.config.names import check_entity_name, unsafe_name
from pbg_tasks.errors import ConfigError
from pbg_tasks.formats.embeddings import embeddings_file_name
from pbg_tasks.formats.entities import entity_count_file_name, entity_names_file_name
from pbg_tasks.prepare.ids import entity_ids_file_name
from pbg_tasks.publish.exchange import Outbox
from pbg_tasks.storage.names import check_key, is_hidden
from pbg_tasks.tasks.exchange.export import export
from pbg_tasks.tasks.nightly.chain import run_chain
from pbg_tasks.tasks.release.adopt import adopt
from tests.tasks.conftest import Workplace, ring, workplace
from tests.tasks.exchanges import model

ODD = st.sampled_from([*"._-*?[]{}<>|\"'%#/\\: ~&;$!@+,=()^`\n\t\0é日\u0301\u202e\ud800", "..", ".pbg", "a", "Z", "0"])
NAMES = st.lists(ODD, max_size=8).map("".join) | st.text(max_size=12) | st.text("xé日", min_size=60, max_size=210)
REFUSED = ["..", ".", ".pbg", ".a", "_x", "*", "<img>", "", "a/b", "a\\b", "a?b", "a[b]", "{run}", "%41", "a#b"]
REFUSED += ["x" * 201]
KEPT = ["user_1", "WHATEVER", "a.b", "Ünïcode", "with space", "wd:Q5", "-", "x" * 200, "日本語", "e\u0301"]
PLAIN = [name for name in FORMATS if name != "faiss"]


def accepted(name):
    try:
        return unsafe_name(check_entity_name(name)) is None
    except ValueError:
        return False


def spec_of(place, name, **sections):
    relations = [{"name": "/people/person/place_of_birth", "lhs": name, "rhs": name, "operator": "translation"}]
    entities = {name: {"num_partitions": 2}}
    place.write_spec(model={"entities": entities, "relations": relations, "dynamic_relations": False}, **sections)


def config_of(name):
    relations = [{"name": "r", "lhs": name, "rhs": name}]
    paths = {"entity_path": "e", "edge_paths": ["d"], "checkpoint_path": "c"}
    entities = {name: {"num_partitions": 1}}
    return json.dumps(
        {"entities": entities, "relations": relations, "dimension": 4, "global_emb": False, **paths}
    ).encode()


@settings(max_examples=1000, deadline=None)
@given(name=NAMES)
def test_accepted_name_stays_below_root(name):
    if not accepted(name):
        return
    root = Path("/root-of-a-store")
    files = [
        embeddings_file_name(name, 999_999, 10**9),
        entity_count_file_name(name, 999_999),
        entity_names_file_name(name, 999_999),
        entity_ids_file_name(name),
        *(f"{name}{suffix}" for suffix in (".npy", ".json", ".parquet", ".faiss", ".txt", ".bin")),
        *(f"{name}/{file}" for file in ("tensors.tsv", "metadata.tsv", "CP_1/embedding/0", "mapping")),
        f"{name}_embedding/meta",
        f"mapping/{name}",
    ]
    for file in files:
        assert check_key(f"runs/r/release/{file}")
        assert (root / file).resolve().is_relative_to(root)
        assert not is_hidden(file)


@pytest.fixture(scope="module")
def spec_place(tmp_path_factory):
    with workplace(tmp_path_factory.mktemp("names")) as place:
        yield place


@settings(max_examples=300, deadline=None)
@given(name=NAMES)
@example(name="0E0")
def test_refused_name_is_named_at_load(spec_place, name):
    text = name.encode("utf-8", "replace").decode()  # a file cannot contain a lone surrogate
    spec_of(spec_place, text)
    if accepted(text):
        assert list(load_graph_spec(spec_place.spec).model.entities) == [text]
        return
    with pytest.raises(ConfigError, match="cannot name an entity type") as error:
        load_graph_spec(spec_place.spec)
    assert str(error.value).startswith(str(spec_place.spec))
    assert "entities" in str(error.value)


@pytest.mark.parametrize("name", REFUSED)
def test_unsafe_name_is_refused_wherever_models_begin(place, name):
    assert not accepted(name)
    spec_of(place, name)
    with pytest.raises(ConfigError, match=r"graph\.yaml: model.*entities.*cannot name an entity type"):
        load_graph_spec(place.spec)
    if name != "_x":
        with pytest.raises(ConfigError, match=r"c\.json: .*entities.*cannot name an entity type"):
            load_config(config_of(name), source="c.json")
    with pytest.raises(ConfigError, match="cannot name an entity type"):
        train(ring(9), dimension=4, entity_types={name: {}}, relations=[{"name": "next", "lhs": name, "rhs": name}])


def test_underscore_in_front_trains_as_in_pbg(capsys):
    assert list(load_config(config_of("_x"), source="c.json").entities) == ["_x"]
    assert "readers that skip files with an underscore in front" in capsys.readouterr().err


@pytest.mark.parametrize("name", KEPT)
def test_name_in_use_is_kept(name):
    assert accepted(name)
    assert list(load_config(config_of(name), source="c.json").entities) == [name]


@settings(max_examples=25, deadline=None)
@given(name=NAMES.filter(accepted))
def test_accepted_name_goes_through_every_export(spec_place, name):
    root = spec_place.root / "exports"
    shutil.rmtree(root, ignore_errors=True)
    loop = [{"name": "r", "lhs": name, "rhs": name, "operator": "none"}]
    data = model(root / "data", entities={name: {"num_partitions": 1}}, relations=loop, sizes={name: 4})
    data.rename(name, 0, ["a", "b", "c", "d"])
    for exchange in PLAIN:
        assert list(export(exchange, str(data.checkpoint), str(root / exchange))["types"]) == [name]
    assert {path.name for path in root.iterdir()} == {"data", *PLAIN}


@pytest.mark.s3
@pytest.mark.parametrize("name", ["Ünïcode", "with space", "wd:Q5", "a.b", "e\u0301", "日" * 66])
def test_accepted_name_goes_to_object_store(place, s3_bucket, name):
    loop = [{"name": "r", "lhs": name, "rhs": name, "operator": "none"}]
    data = model(place.root / "data", entities={name: {"num_partitions": 1}}, relations=loop, sizes={name: 4})
    data.rename(name, 0, ["a", "b", "c", "d"])
    for exchange in PLAIN:
        export(exchange, str(data.checkpoint), f"{s3_bucket}/{exchange}")
    again = export("npy", str(data.checkpoint), f"{s3_bucket}/npy", overwrite=True)
    assert list(again["types"]) == [name]


@pytest.mark.parametrize("name", ["wd:Q5 é.b", "x" * 200])
def test_accepted_name_goes_through_a_night(place, name):
    spec_of(place, name, exports=[{"format": exchange} for exchange in PLAIN], train={"warm_epochs": 1})
    for day, count in (("d1", 30), ("d2", 32)):
        place.snapshot(day, [(lhs, "/people/person/place_of_birth", rhs) for lhs, _, rhs in ring(count)])
        summary = run_chain(place.spec, day, epochs=1)
        assert len(summary["exports"]) == len(PLAIN)
    assert summary["warm_start"]


def test_no_export_leaves_its_folder(tmp_path):
    outbox = Outbox(tmp_path / "outbox")
    for name in ("../tensors.tsv", ".pbg/x", "a/../../x"):
        with pytest.raises(ConfigError, match="no valid object key"):
            outbox.path(name)
    assert not list(tmp_path.iterdir())


def test_renamed_type_keeps_its_vectors(place, tmp_path, monkeypatch):
    """Follow the documentation for a type whose name is refused now.

    A copy of the checkpoint is renamed and adopted.
    """
    monkeypatch.setattr("pbg_tasks.config.loading.check_entity_names", lambda *_, **__: None)  # as older versions
    spec_of(place, "<img>")
    place.snapshot("d1", [(lhs, "/people/person/place_of_birth", rhs) for lhs, _, rhs in ring(30)])
    release = Path(run_chain(place.spec, "d1", epochs=1)["release"]["directory"])
    monkeypatch.undo()
    copy = tmp_path / "renamed"
    copy.mkdir()
    for path in release.iterdir():
        if path.name != "manifest.json":
            data = path.read_bytes()
            data = data.replace(b'"<img>"', b'"image"') if path.name == "config.json" else data
            (copy / path.name.replace("_<img>_", "_image_")).write_bytes(data)

    monkeypatch.setenv("PBG_SCRATCH", str(tmp_path / "scratch"))
    again = Workplace(place.root)
    spec_of(again, "image", channel="renamed", train={"warm_epochs": 1})
    assert adopt(str(copy), str(copy), again.spec, snapshot="d1")["entities"] == {"image": 30}
    again.snapshot("d2", [(lhs, "/people/person/place_of_birth", rhs) for lhs, _, rhs in ring(32)])
    summary = run_chain(again.spec, "d2", epochs=1)
    assert summary["warm_start"]
    assert (summary["entities"]["kept"], summary["entities"]["new"]) == (30, 2)
    assert summary["drift"]["cosine"] > 0.5
