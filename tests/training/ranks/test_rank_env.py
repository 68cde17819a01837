from __future__ import annotations

import pytest

from pbg_tasks.config import ModelConfig
from pbg_tasks.errors import ConfigError
from pbg_tasks.training.ranks.group.rank_env import RankEnv

VARIABLES = ("RANK", "WORLD_SIZE", "JOB_COMPLETION_INDEX", "MASTER_ADDR", "MASTER_PORT")
MASTER = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
TCP = "tcp://10.0.0.1:29500"


def config(**keys):
    entities = {"e": {"num_partitions": 4}}
    relations = [{"name": "r", "lhs": "e", "rhs": "e", "operator": "none"}]
    return ModelConfig.model_validate({"entities": entities, "relations": relations, "dimension": 4, **keys})


@pytest.fixture
def find(monkeypatch):
    def from_environment(keys=None, rank=None, *, alone=False, **environment):
        for name in VARIABLES:
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        return RankEnv.from_environment(config(**(keys or {})), rank=rank, alone=alone)

    return from_environment


FOUR = {"num_machines": 4, "distributed_init_method": TCP}


@pytest.mark.parametrize(
    ("keys", "rank", "environment", "env"),
    [
        ({}, None, {}, None),
        ({}, None, {"JOB_COMPLETION_INDEX": "0"}, None),
        ({}, 0, {}, None),
        ({}, None, {"RANK": "0", "WORLD_SIZE": "1"}, None),
        ({}, None, {"RANK": "2", "WORLD_SIZE": "4", **MASTER}, (2, 4, 0, "env://")),
        ({}, 2, {"RANK": "2", "WORLD_SIZE": "4", **MASTER}, (2, 4, 0, "env://")),
        ({}, None, {"RANK": "1", "JOB_COMPLETION_INDEX": "9", "WORLD_SIZE": "4", **MASTER}, (1, 4, 0, "env://")),
        ({}, None, {"JOB_COMPLETION_INDEX": "3", "WORLD_SIZE": "4", **MASTER}, (3, 4, 0, "env://")),
        (FOUR, None, {"JOB_COMPLETION_INDEX": "3"}, (3, 4, 0, TCP)),
        (FOUR, None, {"JOB_COMPLETION_INDEX": "3", **MASTER}, (3, 4, 0, "env://")),
        (FOUR, 3, {}, (3, 4, 0, TCP)),
        (FOUR, 3, MASTER, (3, 4, 0, TCP)),
        (FOUR, None, {"RANK": "3", "WORLD_SIZE": "4"}, (3, 4, 0, TCP)),
        ({**FOUR, "distributed_init_method": "env://"}, 3, MASTER, (3, 4, 0, "env://")),
        ({**FOUR, "distributed_init_method": "file:///shared/meet"}, 0, {}, (0, 4, 0, "file:///shared/meet")),
        ({**FOUR, "num_partition_servers": 2}, 5, {}, (5, 4, 2, TCP)),
        ({**FOUR, "num_partition_servers": 2}, None, {"RANK": "3", "WORLD_SIZE": "6", **MASTER}, (3, 4, 2, "env://")),
    ],
)
def test_rank_finds_its_place(find, capsys, keys, rank, environment, env):
    assert find(keys, rank, **environment) == env
    assert not capsys.readouterr().err


def test_process_without_rank_may_train_alone(find, capsys):
    assert find(FOUR, alone=True) is None
    assert "num_machines is 4, all tasks are done here: this process trains alone" in capsys.readouterr().err
    assert find(FOUR, 3, alone=True) == (3, 4, 0, TCP)
    assert find({}, None, alone=True, RANK="2", WORLD_SIZE="4", **MASTER) == (2, 4, 0, "env://")


def test_place_has_rank_and_world(find):
    server = find({**FOUR, "num_partition_servers": 2}, 4)
    assert (server.size, server.role, server.master) == (6, "partition-server", ("10.0.0.1", 29500))
    trainer = find({}, None, RANK="1", WORLD_SIZE="2", **MASTER)
    assert (trainer.size, trainer.role, trainer.master) == (2, "trainer", ("127.0.0.1", 29500))
    assert trainer.meeting_point == "127.0.0.1:29500"
    filed = find({**FOUR, "distributed_init_method": "file:///shared/meet"}, 0)
    assert (filed.master, filed.meeting_point) == (None, "file:///shared/meet")


def test_other_number_of_processes_is_reported_once(find, capsys):
    assert find(FOUR, None, RANK="0", WORLD_SIZE="2", **MASTER) == (0, 2, 0, "env://")
    assert "num_machines is 4; 2 processes make 2 trainers" in capsys.readouterr().err
    find(FOUR, None, RANK="1", WORLD_SIZE="2", **MASTER)
    assert not capsys.readouterr().err
    assert find(FOUR, None, RANK="0", WORLD_SIZE="1") is None
    assert "trains alone" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("keys", "rank", "environment", "text"),
    [
        ({}, None, {"RANK": "0"}, "RANK is set and WORLD_SIZE is not"),
        ({}, None, {"WORLD_SIZE": "2", **MASTER}, "WORLD_SIZE is 2, and nothing says which"),
        (FOUR, None, {}, "num_machines is 4, and nothing says which"),
        ({}, None, {"RANK": "4", "WORLD_SIZE": "4", **MASTER}, "RANK is 4, which is none of the 4 processes"),
        ({}, None, {"RANK": "1", "WORLD_SIZE": "1"}, "RANK is 1, which is none of the 1 processes"),
        ({}, 1, {}, "--rank is 1, which is none of the 1 processes"),
        (FOUR, -1, {}, "--rank is -1"),
        (FOUR, 1, {"RANK": "2", "WORLD_SIZE": "4", **MASTER}, "--rank is 1 and RANK is 2"),
        (FOUR, None, {"JOB_COMPLETION_INDEX": "7"}, "JOB_COMPLETION_INDEX is 7"),
        ({}, None, {"RANK": "a", "WORLD_SIZE": "4"}, "RANK is 'a' instead of a number"),
        ({}, None, {"RANK": "-1", "WORLD_SIZE": "4"}, "RANK is '-1' instead of a number"),
        ({}, None, {"RANK": "0", "WORLD_SIZE": "4"}, "MASTER_ADDR and MASTER_PORT: not set"),
        ({}, None, {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "a"}, "MASTER_PORT: not set"),
        (
            {},
            None,
            {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "70000"},
            "MASTER_PORT is 70000",
        ),
        ({}, None, {"RANK": "0", "WORLD_SIZE": "4", **MASTER, "MASTER_ADDR": "a..b"}, "MASTER_ADDR: 'a..b' is no name"),
        ({**FOUR, "distributed_init_method": "tcp://a..b:1"}, 0, {}, "distributed_init_method: 'a..b' is no name"),
        ({**FOUR, "distributed_init_method": "tcp://host"}, 0, {}, "neither env:// nor tcp://HOST:PORT"),
        ({**FOUR, "distributed_init_method": "tcp://host:x"}, 0, {}, "neither env:// nor tcp://HOST:PORT"),
        ({**FOUR, "distributed_init_method": "zeus://host:1"}, 0, {}, "neither env:// nor tcp://HOST:PORT"),
        ({**FOUR, "distributed_init_method": "file://"}, 0, {}, "neither env:// nor tcp://HOST:PORT"),
        (
            {**FOUR, "num_partition_servers": 2},
            None,
            {"RANK": "0", "WORLD_SIZE": "2", **MASTER},
            "WORLD_SIZE is 2, and num_partition_servers: 2 leaves no trainer",
        ),
    ],
)
def test_missing_or_contradictory_variables_are_refused(find, keys, rank, environment, text):
    with pytest.raises(ConfigError) as refusal:
        find(keys, rank, **environment)
    assert text in str(refusal.value)
