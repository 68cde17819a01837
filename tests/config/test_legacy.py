"""Keys of PBG's former mixedCase spelling."""

from __future__ import annotations

import json
import re

import pytest

from pbg_tasks.config import ConfigSchema, GraphSpec
from pbg_tasks.config.legacy import modernize
from pbg_tasks.config.loading import load_config
from pbg_tasks.errors import ConfigError, FormatError
from pbg_tasks.formats.directory import config_bytes, read_config
from tests.config.examples import FB15K

OLD = {
    "entityPath": "e",
    "edgePaths": ["d"],
    "checkpointPath": "c",
    "entities": {"userId": {"numPartitions": 2}, "numPartitions": {"num_partitions": 2}},
    "relations": [{"name": "likedBy", "lhs": "userId", "rhs": "numPartitions", "allNegs": True}],
    "dimension": 8,
    "numUniformNegs": 10,
    "bucketOrder": "AFFINITY",
}


def mixed(key):
    return re.sub("_([a-z])", lambda letter: letter[1].upper(), key)


def load(document, *overrides):
    return load_config(json.dumps(document).encode(), source="old.json", overrides=overrides)


def test_keys_are_renamed_and_names_are_not():
    config = load(OLD)
    assert list(config.entities) == ["userId", "numPartitions"]
    assert config.entities["userId"].num_partitions == 2
    assert (config.relations[0].name, config.relations[0].all_negs) == ("likedBy", True)
    assert (config.edge_paths, config.num_uniform_negs, config.bucket_order) == (("d",), 10, "affinity")


def test_every_key_has_its_old_spelling():
    new = json.loads(load_config(FB15K.encode(), source="a.py").model_dump_json())
    assert modernize({mixed(key): value for key, value in new.items()}, ConfigSchema, source="old.json") == new


def test_overrides_may_have_the_old_spelling():
    config = load(OLD, "numEpochs=3", "entities.userId.numPartitions=4", "entities.numPartitions.num_partitions=4")
    assert config.num_epochs == 3
    assert {entity.num_partitions for entity in config.entities.values()} == {4}


@pytest.mark.parametrize(
    ("change", "both"),
    [
        ({"num_uniform_negs": 10}, "'numUniformNegs' and 'num_uniform_negs'"),
        (
            {"entities": {"userId": {"num_partitions": 1, "numPartitions": 1}}},
            "'num_partitions' and 'numPartitions'",
        ),
    ],
)
def test_both_spellings_at_once_are_refused(change, both):
    with pytest.raises(ConfigError) as caught:
        load(OLD | change)
    assert f"old.json: {both} are two spellings of one key" in str(caught.value)


def test_key_that_never_existed_stays_unknown():
    with pytest.raises(ConfigError, match="unknown key 'numEpoch'"):
        load(OLD | {"numEpoch": 1})


def test_only_pbgs_keys_had_another_spelling():
    spec = {"maxEdges": 1, "model": {"numEpochs": 1}}
    assert modernize(spec, GraphSpec, source="a.yaml") == {"maxEdges": 1, "model": {"num_epochs": 1}}


def test_config_of_old_checkpoint_is_read():
    assert read_config(json.dumps(OLD).encode(), source="config.json") == load(OLD)
    assert read_config(config_bytes(load(OLD)), source="config.json") == load(OLD)
    with pytest.raises(FormatError, match="two spellings"):
        read_config(json.dumps(OLD | {"num_uniform_negs": 1}).encode(), source="config.json")
