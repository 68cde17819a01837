"""Feast's definition beside a Parquet export: valid, exact and safely quoted."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from datetime import UTC, datetime

import pyarrow.parquet as pq
import pytest

from pbg_tasks.config.exports import Export, ExportOptions
from pbg_tasks.errors import ConfigError
from pbg_tasks.publish.exchange.manifest import MANIFEST
from pbg_tasks.publish.exchange.parquet import TIME
from pbg_tasks.tasks.exchange.export import export
from pbg_tasks.tasks.exchange.feature_view import DEFINITION
from pbg_tasks.tasks.exchange.import_vectors import import_embeddings
from pbg_tasks.tasks.nightly.chain import run_chain
from tests.tasks.conftest import Workplace, ring
from tests.tasks.exchanges import files, imported, model

FEAST = ExportOptions(feast="shop")
EVIL = 'a"; import os  # \'\'\'\n"""\u202e日本\\'


@pytest.fixture
def place(tmp_path, scratch):
    return tmp_path


def calls(text, function):
    """Return the keyword arguments of calls: literals, or source text."""

    def value(node):
        try:
            return ast.literal_eval(node)
        except ValueError:
            return ast.unparse(node)

    found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    return [
        {word.arg: value(word.value) for word in node.keywords} for node in found if ast.unparse(node.func) == function
    ]


def test_definition_has_the_facts_of_each_type(place):
    data, out = model(place / "data"), place / "out"
    export("parquet", str(data.checkpoint), str(out), options=FEAST, tags={"release": "7"})
    text = (out / DEFINITION).read_text()
    sources = calls(text, "FileSource")
    assert [(each["path"], each["timestamp_field"]) for each in sources] == [
        (f"{out}/{name}.parquet", TIME) for name in ("user", "item")
    ]
    assert [(each["name"], each["join_keys"]) for each in calls(text, "Entity")] == [
        (f"shop_{name}", ["id"]) for name in ("user", "item")
    ]
    views = calls(text, "FeatureView")
    assert [view["name"] for view in views] == ["shop_user_embeddings", "shop_item_embeddings"]
    assert views[1]["tags"] == {
        "entity_type": "item",
        "dimension": "8",
        "comparator": "dot",
        "source": str(data.checkpoint),
        "version": "3",
        "release": "7",
    }
    fields = [each for each in calls(text, "Field") if each["name"] == "embedding"]
    assert fields[0] == {
        "name": "embedding",
        "dtype": "Array(Float32)",
        "vector_index": True,
        "vector_length": 8,
        "vector_search_metric": "IP",
    }


def test_option_adds_nothing_but_time_and_definition(place):
    data = model(place / "data")
    export("parquet", str(data.checkpoint), str(place / "plain"))
    export("parquet", str(data.checkpoint), str(place / "feast"), options=FEAST)
    assert set(files(place / "feast")) - set(files(place / "plain")) == {DEFINITION}
    plain, timed = (pq.read_table(place / name / "user.parquet") for name in ("plain", "feast"))
    assert timed.drop_columns([TIME]).equals(plain)
    stored = (data.checkpoint / "model.v3.h5").stat().st_mtime
    assert set(timed[TIME].to_pylist()) == {datetime.fromtimestamp(stored, UTC)}
    import_embeddings("parquet", str(place / "feast"), str(place / "back"))
    assert imported(place / "back", "user")[0] == plain["id"].to_pylist()


def test_type_named_as_another_view_keeps_both(place):
    sizes = {"user": 5, "user_embeddings": 5}
    data = model(
        place / "data",
        entities={name: {"num_partitions": 1} for name in sizes},
        relations=[{"name": "r", "lhs": "user", "rhs": "user_embeddings", "operator": "none"}],
        sizes=sizes,
    )
    export("parquet", str(data.checkpoint), str(place / "out"), options=FEAST)
    assigned = [
        node for node in ast.walk(ast.parse((place / "out" / DEFINITION).read_text())) if isinstance(node, ast.Assign)
    ]
    assert len({node.targets[0].id for node in assigned}) == len(assigned) == 4


def test_export_twice_writes_equal_bytes(place):
    data = model(place / "data")
    export("parquet", str(data.checkpoint), str(place / "out"), options=FEAST)
    first = {name: (place / "out" / name).read_bytes() for name in files(place / "out")}
    export("parquet", str(data.checkpoint), str(place / "out"), options=FEAST, overwrite=True)
    assert {name: (place / "out" / name).read_bytes() for name in first} == first
    assert MANIFEST in first


def test_outside_text_stays_within_its_literal(place):
    entity, out = re.sub(r"[\n\\/\u202e]", "", EVIL), place / "o\"ut\n'''日本"
    data = model(
        place / EVIL,
        entities={entity: {"num_partitions": 1}},
        relations=[{"name": "r", "lhs": entity, "rhs": entity, "operator": "none"}],
        sizes={entity: 5},
    )
    export("parquet", str(data.checkpoint), str(out), options=FEAST, tags={"channel": EVIL})
    text = (out / DEFINITION).read_text()
    assert text.isascii()
    (view,) = calls(text, "FeatureView")
    assert (view["tags"]["entity_type"], view["tags"]["channel"]) == (entity, EVIL)
    assert view["tags"]["source"] == str(data.checkpoint)
    assert calls(text, "FileSource")[0]["path"] == f"{out}/{entity}.parquet"
    assert view["name"].isidentifier()
    imports = [ast.unparse(node) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert [line.split()[1] for line in imports] == ["datetime", "feast", "feast.types"]


@pytest.mark.parametrize(
    ("keys", "metric"), [({"comparator": "cos"}, "COSINE"), ({"comparator": "l2"}, "L2"), ({"bias": True}, None)]
)
def test_search_metric_is_of_the_comparator(place, keys, metric):
    data = model(place / "data", **keys)
    export("parquet", str(data.checkpoint), str(place / "out"), options=FEAST)
    fields = [each for each in calls((place / "out" / DEFINITION).read_text(), "Field") if each["name"] == "embedding"]
    assert [each.get("vector_search_metric") for each in fields] == [metric, metric]


@pytest.mark.parametrize("prefix", ["Shop", "9a", 'a"b', "a\n", "a" * 41])
def test_prefix_of_other_characters_is_refused(prefix):
    with pytest.raises(ValueError, match="feast"):
        ExportOptions(feast=prefix)


def test_option_of_other_format_is_refused(place):
    data = model(place / "data")
    with pytest.raises(ConfigError, match="format npy has no option 'feast'"):
        export("npy", str(data.checkpoint), str(place / "out"), options=FEAST)
    assert "feast" not in Export(format="parquet").model_dump()


def test_night_tags_the_view_with_its_release(place):
    night = Workplace(place)
    night.snapshot("d1", ring(40))
    night.write_spec(exports=[{"format": "parquet", "feast": "shop"}])
    run_id = run_chain(night.spec, "d1")["run"].rpartition("/")[2]
    (view,) = calls((night.store / "exports/parquet" / run_id / DEFINITION).read_text(), "FeatureView")
    assert (view["tags"]["release"], view["tags"]["space"]) == ("1", run_id)


def test_feast_applies_and_reads_the_export(place):
    feast = pytest.importorskip("feast", reason="feast is not installed")
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    data = model(place / "data")
    export("parquet", str(data.checkpoint), str(place / "repo"), options=FEAST)
    (place / "repo/feature_store.yaml").write_text(
        "project: shop\nregistry: registry.db\nprovider: local\n"
        "online_store: {type: sqlite, path: online.db}\nentity_key_serialization_version: 3\n"
    )
    subprocess.run([sys.executable, "-m", "feast.cli.cli", "apply"], cwd=place / "repo", check=True)
    store = feast.FeatureStore(str(place / "repo"))
    names = data.names["item"][:3]
    asked = pd.DataFrame({"id": names, "event_timestamp": [datetime.now(UTC)] * 3})
    found = store.get_historical_features(asked, ["shop_item_embeddings:embedding"]).to_df().set_index("id")
    table = pq.read_table(place / "repo/item.parquet").to_pydict()
    expected = dict(zip(table["id"], table["embedding"], strict=True))
    assert {name: list(found.embedding[name]) for name in names} == {name: expected[name] for name in names}
