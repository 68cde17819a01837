from __future__ import annotations

import json

import pytest
import yaml

from pbg_tasks.config import ConfigSchema, GraphSpec, RunSpec, SnapshotFile, load_graph_spec
from pbg_tasks.config.base import parse
from pbg_tasks.config.loading import load_config
from pbg_tasks.errors import ConfigError
from tests.config.specs import MODEL, SPEC


def write(tmp_path, spec, text=None):
    path = tmp_path / "graph.yaml"
    path.write_text(text or yaml.safe_dump(spec))
    return path


def broken(tmp_path, change):
    spec = json.loads(json.dumps(SPEC))
    change(spec)
    with pytest.raises(ConfigError) as caught:
        load_graph_spec(write(tmp_path, spec))
    return str(caught.value)


def test_pbg_defaults_are_kept(tmp_path):
    model = load_graph_spec(write(tmp_path, SPEC)).model
    assert (model.comparator, model.loss_fn, model.margin, model.lr) == ("cos", "ranking", 0.1, 0.01)
    assert (model.batch_size, model.num_batch_negs, model.num_uniform_negs) == (1000, 50, 50)
    assert (model.init_scale, model.global_emb, model.bucket_order) == (1e-3, True, "inside_out")


def test_config_json_has_pbgs_keys_and_no_others():
    config = ConfigSchema(**MODEL, entity_path="e", edge_paths=("a",), checkpoint_path="c").to_pbg()
    assert set(config) == {
        "entities", "relations", "dimension", "init_scale", "max_norm", "global_emb", "comparator", "bias", "loss_fn",
        "margin", "regularization_coef", "regularizer", "entity_path", "edge_paths", "checkpoint_path", "init_path",
        "checkpoint_preservation_interval", "num_epochs", "num_edge_chunks", "max_edges_per_chunk", "bucket_order",
        "workers", "batch_size", "num_batch_negs", "num_uniform_negs", "disable_lhs_negs", "disable_rhs_negs", "lr",
        "relation_lr", "eval_fraction", "eval_num_batch_negs", "eval_num_uniform_negs", "background_io", "verbose",
        "hogwild_delay", "dynamic_relations", "num_machines", "num_partition_servers", "distributed_init_method",
        "distributed_tree_init_order", "num_gpus", "num_groups_for_partition_server",
        "num_groups_per_sharded_partition_server", "partition_shard_size", "half_precision",
    }  # fmt: skip
    assert config["entities"]["user"] == {"num_partitions": 4, "featurized": False, "dimension": None}
    assert set(config["relations"][0]) == {"name", "lhs", "rhs", "weight", "operator", "all_negs"}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda s: s["model"].update(dimenson=8), "unknown key 'model.dimenson'; did you mean 'dimension'?"),
        (lambda s: s["model"]["entities"].update({"..": {"parts": 1}}), "unknown key \"model.entities.'..'.parts\""),
        (lambda s: s.update(gate={}), "unknown key 'gate'; did you mean 'gates'?"),
        (lambda s: s.update(lr=0.1), "unknown key 'lr'; did you mean 'model.lr'?"),
        (lambda s: s.update(gradient="sampled"), "unknown key 'gradient'; did you mean 'model.gradient'?"),
        (lambda s: s.update(gates={"min_edges": 5}), "'gates.min_edges'; did you mean 'gates.data.min_edges'?"),
        (lambda s: s["model"].update(split={}), "'model.split'; did you mean 'split', beside the other sections?"),
        (
            lambda s: s["model"]["relations"][1].update(opertor="none"),
            "'model.relations.1.opertor'; did you mean 'operator'?",
        ),
        (lambda s: s["model"]["entities"]["user"].update(parts=2), "unknown key 'model.entities.user.parts'"),
        (
            lambda s: s["model"].update(dimensoin=s["model"].pop("dimension")),
            "graph.yaml: unknown key 'model.dimensoin'; did you mean 'dimension'?",
        ),
        (lambda s: s["model"].pop("dimension"), "key 'model.dimension' is missing"),
        (lambda s: s["snapshots"].update(location="s3://b/e.csv"), "location must contain {snapshot}"),
        (
            lambda s: s["model"]["relations"][0].update(lhs="usr"),
            "relations.0: entity type 'usr' is not one of entities (item, user)",
        ),
        (lambda s: s["model"].update(num_batch_negs=7), "batch_size (1000) must be a multiple of num_batch_negs (7)"),
        (lambda s: s["model"].update(num_batch_negs=0, num_uniform_negs=0), "cannot both be 0"),
        (
            lambda s: s["model"].update(disable_lhs_negs=True, disable_rhs_negs=True),
            "disable_lhs_negs and disable_rhs_negs",
        ),
        (
            lambda s: s["model"].update(dynamic_relations=True, global_emb=True),
            "global_emb cannot be used with dynamic_relations",
        ),
        (lambda s: s["model"]["entities"].update(item={"num_partitions": 1, "dimension": 8}), "differ in dimension"),
        (
            lambda s: s["model"].update(dimension=15) or s["model"]["relations"][0].update(operator="complex_diagonal"),
            "needs an even dimension",
        ),
        (
            lambda s: s["model"].update(checkpoint_preservation_interval=0),
            "checkpoint_preservation_interval: Input should be greater than 0",
        ),
        (lambda s: s["model"].update(lr=float("nan")), "model.lr"),
        (lambda s: s["model"].update(eval_fraction=1.0), "model.eval_fraction"),
        (lambda s: s.update(columns={"rel": None}), "columns.rel is null, yet model.relations has several entries"),
        (lambda s: s.update(columns={"lhs": "a", "rhs": "a"}), "two of the columns have the same name"),
        (lambda s: s.update(columns={"lhs_type": "t"}), "lhs_type and rhs_type must be given together"),
        (lambda s: s["model"]["relations"][1].update(name="buys"), "relation names repeat"),
        (lambda s: s.update(split={"valid": 0.02, "test": 0}), "eval.split is test, yet split.test is 0"),
        (
            lambda s: s.update(split={"valid": 0, "test": 0.02}, eval={"split": "valid"}),
            "eval.split is valid, yet split.valid is 0",
        ),
        (
            lambda s: s.update(resources={"memory_gb": 8e9}),
            "resources.memory_gb is 8e+09, which no machine has: it counts",
        ),
        (lambda s: s.update(graph="a/b"), "graph"),
        (
            lambda s: s["model"]["relations"][1].update(name=True),
            "model.relations.1.name: Input should be a valid string; write words such as on, and numbers, in quotes",
        ),
        (
            lambda s: s.update(gates={"relations": {"*": {"min_mrr": 0.1}, "by": {"min_mrr": 0.2}}}),
            "gates.relations names 'by'; relations of the model: buys, knows",
        ),
        (lambda s: s.update(gates={"relations": {"buys": {"min_mr": 0.2}}}), "did you mean 'min_mrr'?"),
        (
            lambda s: s.update(gates={"data": {"entities": {"usr": {"max_gone_entities": {}}}}}),
            "gates.data.entities names 'usr'; entity types of the model: item, user",
        ),
        (
            lambda s: (
                s["model"].update(dynamic_relations=True)
                or s["model"].update(relations=s["model"]["relations"][:1])
                or s.update(gates={"data": {"entities": {"usr": {}}}})
            ),
            "gates.data.entities names 'usr'",
        ),
        (
            lambda s: s.update(gates={"drift": {"min_cosine": {"warn": 0.5, "block": 0.9}}}),
            "gates.drift.min_cosine: warn 0.5 would never warn",
        ),
        (
            lambda s: s["model"].update(num_gpus=2) or s.update(launch={"ranks": 2}),
            "model.num_gpus is 2, for one process, yet launch.ranks is 2",
        ),
        (
            lambda s: s["model"].update(embedding_precision="bf16") or s.update(train={"device": "cuda"}),
            "bf16 is for one process on the CPU, yet train.device is cuda",
        ),
    ],
)
def test_each_mistake_is_named_with_its_key(tmp_path, change, expected):
    message = broken(tmp_path, change)
    assert expected in message
    assert "graph.yaml" in message


def test_dynamic_relations_leave_global_embeddings_out(tmp_path):
    spec = json.loads(json.dumps(SPEC))
    spec["model"]["dynamic_relations"] = True
    assert load_graph_spec(write(tmp_path, spec)).model.global_emb is False


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("{snapshot}", 'snapshots.location: braces at the beginning are a mapping in YAML: write it in quotes, "{sn'),
        ("{snapshot}/edges.csv", "; quote a value that begins with a brace"),
    ],
)
def test_unquoted_snapshot_is_explained(tmp_path, location, expected):
    text = yaml.safe_dump(SPEC).replace(SPEC["snapshots"]["location"], location)
    with pytest.raises(ConfigError) as caught:
        load_graph_spec(write(tmp_path, None, text))
    assert expected in str(caught.value)


@pytest.mark.parametrize("location", ["s3://b/edges/{snapshot}/*.parquet", "edges-{snapshot}.csv, format: csv"])
def test_unquoted_snapshot_within_braces_is_explained(tmp_path, location):
    text = yaml.safe_dump(SPEC | {"snapshots": "HERE"}).replace("HERE", f"{{location: {location}}}")
    with pytest.raises(ConfigError, match=r"not valid YAML: [^;]*; quote a value that has braces in it$"):
        load_graph_spec(write(tmp_path, None, text))


@pytest.mark.parametrize(
    ("form", "location"),
    [("changes", "s3://lake/log/{day}/*.parquet@{snapshot}"), ("delta", "s3://lake/shop.edges@{snapshot}")],
)
def test_watch_of_table_needs_no_folder(form, location):
    """A listed version is whole, whatever sign files have."""
    document = {**SPEC, "snapshots": {"location": location, "format": form}, "nights": {"watch": {}}}
    assert parse(GraphSpec, document, source="graph.yaml").nights.watch
    document["snapshots"] = {"location": "s3://lake/{snapshot}.parquet"}
    with pytest.raises(ConfigError, match="use complete: settled"):
        parse(GraphSpec, document, source="graph.yaml")


def test_document_of_other_kind_names_its_command(tmp_path):
    spec = write(tmp_path, SPEC)
    expected = r"graph\.yaml: a graph spec, not a PBG config; `pbg run .*graph\.yaml` trains it, and `pbg show .*, s3://bucket/shop"
    with pytest.raises(ConfigError, match=expected):
        load_config(spec.read_bytes(), source=str(spec))
    with pytest.raises(ConfigError, match=r"graph\.yaml: a PBG config, not a graph spec; `pbg train .*graph\.yaml`"):
        load_graph_spec(write(tmp_path, MODEL))


def test_unknown_operators_are_the_only_complaint(tmp_path):
    message = broken(tmp_path, lambda spec: [each.update(operator="complx") for each in spec["model"]["relations"]])
    assert message.count("no operator is named 'complx'") == message.count("; model.") + 1 == 2


def test_list_of_refused_entries_is_not_called_short(tmp_path):
    message = broken(tmp_path, lambda spec: [each.update(lhs="a/b") for each in spec["model"]["relations"]])
    assert "model.relations.0.lhs: 'a/b' cannot name an entity type" in message
    assert "at least 1 item" not in message
    message = broken(tmp_path, lambda spec: spec["model"].update(relations=[]))
    assert "model.relations: Tuple should have at least 1 item" in message


@pytest.mark.parametrize(
    ("how", "ask_hours", "grace_hours", "fits"),
    [("ask", 71.5, None, True), ("ask", 72, None, False), ("ask", 24, 20, False), ("fail", 24, 20, True)],
)
def test_night_awaiting_answer_outlives_collection_grace(tmp_path, how, ask_hours, grace_hours, fits):
    collect = {} if grace_hours is None else {"grace_hours": grace_hours}
    gates = {"on_failure": how, "ask_hours": ask_hours}
    spec = write(tmp_path, {**SPEC, "gates": gates, "nights": {"collect": collect}})
    if fits:
        assert load_graph_spec(spec).gates.ask_hours == ask_hours
        return
    said = rf"gates\.ask_hours is {ask_hours:g} and nights\.collect\.grace_hours {grace_hours or 72:g}: a night"
    with pytest.raises(ConfigError, match=said):
        load_graph_spec(spec)


def test_several_partition_counts_on_one_side_are_refused(tmp_path):
    def change(spec):
        spec["model"]["entities"]["page"] = {"num_partitions": 3}
        spec["model"]["relations"].append({"name": "cites", "lhs": "page", "rhs": "user"})

    assert "lhs need the same num_partitions, got page=3, user=4" in broken(tmp_path, change)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("graph: [1", "not valid YAML"),
        ("graph: a\ngraph: b\n", "key 'graph' appears twice"),
        ("- a\n- b\n", "expected a mapping"),
        ("graph: !!python/object/apply:os.system ['true']\n", "not valid YAML"),
    ],
)
def test_files_without_spec_are_refused(tmp_path, text, expected):
    with pytest.raises(ConfigError, match=r"graph\.yaml") as caught:
        load_graph_spec(write(tmp_path, None, text))
    assert expected in str(caught.value)


def test_broken_yaml_is_described_by_line(tmp_path):
    """Without the name that PyYAML gives a text."""
    text = "graph: g\nsnapshots:\n  location: {snapshot}/x.csv\n"
    with pytest.raises(ConfigError) as caught:
        load_graph_spec(write(tmp_path, None, text))
    assert str(caught.value).endswith(
        "graph.yaml: not valid YAML: line 3, column 23: expected <block end>, but found '<scalar>' while parsing a "
        "block mapping; quote a value that begins with a brace"
    )


def test_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: cannot be read: No such file or directory$"):
        load_graph_spec(tmp_path / "nowhere.yaml")


def test_store_in_place_of_a_spec_is_explained(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot be read: Is a directory; name a graph spec, a YAML file$"):
        load_graph_spec(tmp_path)


def test_overrides_change_the_spec(tmp_path):
    spec = load_graph_spec(
        write(tmp_path, SPEC),
        [
            "model.max_norm=1.5",
            "model.relations.0.operator=none",
            "snapshots.location=/x/{snapshot}?a=b",
            "train.warm_epochs=null",
        ],
    )
    assert spec.model.max_norm == 1.5
    assert spec.model.relations[0].operator == "none"
    assert spec.snapshots.location == "/x/{snapshot}?a=b"
    assert spec.train.warm_epochs is None
    for bad in ("model.max_norm", "model.relations.9.operator=none"):
        with pytest.raises(ConfigError):
            load_graph_spec(write(tmp_path, SPEC), [bad])


def test_run_spec_is_a_value():
    graph = parse(GraphSpec, SPEC, source="spec")
    files = (SnapshotFile(uri="s3://bucket/edges/d1/a.csv.gz", size=3, version="x"),)
    run = RunSpec(graph=graph, snapshot="2026-11-20", files=files)
    again = parse(RunSpec, json.loads(run.to_bytes()), source="stored")
    assert again == run
    assert again.run_id == run.run_id
    assert run.run_id.startswith("2026-11-20-")
    changed = run.model_copy(update={"publish": False})
    assert changed.run_id != run.run_id


def test_stored_run_of_samples_keeps_its_variance():
    """A run that was planned with the earlier default has no key."""
    graph = parse(GraphSpec, SPEC | {"model": SPEC["model"] | {"gradient": "sampled"}}, source="spec")
    stored = json.loads(RunSpec(graph=graph, snapshot="d1", files=()).to_bytes())
    assert parse(RunSpec, stored, source="stored").graph == graph
    assert stored["graph"]["model"].pop("gradient_variance") == 0.1
    assert parse(RunSpec, stored, source="stored").graph.model.gradient_variance == 1.0


def test_run_with_default_trend_keeps_its_id():
    """A spec of an earlier version has no such keys."""
    graph = parse(GraphSpec, SPEC, source="spec")
    assert not {"max_trend_drop", "trend_nights"} & graph.model_dump(mode="json")["gates"].keys()
    off = parse(GraphSpec, {**SPEC, "gates": {"trend_nights": None, "max_trend_drop": {"warn": 0.3}}}, source="spec")
    dumped = off.model_dump(mode="json")
    assert (dumped["gates"]["trend_nights"], dumped["gates"]["max_trend_drop"]) == (None, {"warn": 0.3, "block": None})
    assert parse(GraphSpec, dumped, source="stored") == off
    with pytest.raises(ConfigError, match=r"gates\.trend_nights"):
        parse(GraphSpec, {**SPEC, "gates": {"trend_nights": -1}}, source="spec")


@pytest.mark.parametrize("key", ["../x", "a/b", ".hidden", "", "x" * 65, "a b"])
def test_snapshot_key_cannot_leave_its_folder(key):
    graph = parse(GraphSpec, SPEC, source="spec")
    with pytest.raises(ConfigError, match="snapshot"):
        parse(
            RunSpec, {"graph": graph, "snapshot": key, "files": [{"uri": "a", "size": 1, "version": "1"}]}, source="run"
        )
