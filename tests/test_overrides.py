"""Several overrides after one ``-p``, as scripts for PBG write them."""

from __future__ import annotations

import json
import sys

import pytest

from pbg_tasks.cli import main
from pbg_tasks.cli.common import spread_overrides


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("train c.py -p lr=1 num_epochs=2", "train c.py -p lr=1 -p num_epochs=2"),
        ("train -p lr=1 c.py", "train -p lr=1 c.py"),
        ("train --param lr=1 bias=true --json", "train --param lr=1 -p bias=true --json"),
        ("train c.py -plr=1 bias=true", "train c.py -plr=1 -p bias=true"),
        ("train c.py --param=lr=1 bias=true", "train c.py --param=lr=1 -p bias=true"),
        ("train c.py -p lr=1 -p bias=true", "train c.py -p lr=1 -p bias=true"),
        ("eval c.py -p lr=1 entities.n.num_partitions=2", "eval c.py -p lr=1 -p entities.n.num_partitions=2"),
        ("eval c.py -p lr=1 numEpochs=2", "eval c.py -p lr=1 -p numEpochs=2"),
        ("train c.py -p lr=1 num_epoch=2", "train c.py -p lr=1 -p num_epoch=2"),
        ("plan g.yaml -p train.epochs=2 gates.data=null", "plan g.yaml -p train.epochs=2 -p gates.data=null"),
        ("config c.py -p lr=0.2 lr", "config c.py -p lr=0.2 lr"),
        ("import tsv c.py -p lr=1 day=2/edges.tsv", "import tsv c.py -p lr=1 day=2/edges.tsv"),
        ("train c.py -p lr=1 -- bias=true", "train c.py -p lr=1 -- bias=true"),
        ("train c.py -p lr=1 --seed bias=true", "train c.py -p lr=1 --seed bias=true"),
        ("train lr=1.py", "train lr=1.py"),
        ("train c.py -p", "train c.py -p"),
        ("", ""),
    ],
)
def test_overrides_after_one_flag_are_spread(written, meant):
    assert spread_overrides(written.split()) == meant.split()


def test_list_in_working_directory_is_no_override(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "day=2.tsv").touch()
    written = ["import", "tsv", "c.py", "-p", "lr=1", "day=2.tsv", "day=*.tsv"]
    assert spread_overrides(written) == written


def test_command_takes_several_overrides_after_one_flag(tmp_path, monkeypatch, capsys):
    config = tmp_path / "config.json"
    entity = {"entities": {"n": {"num_partitions": 1}}, "relations": [{"name": "r", "lhs": "n", "rhs": "n"}]}
    places = {"entity_path": "e", "edge_paths": ["t"], "checkpoint_path": "m"}
    config.write_text(json.dumps(entity | places | {"dimension": 4}))
    arguments = ["config", str(config), "-p", "lr=0.5", "entities.n.num_partitions=3", "edge_paths=a,b", "--json"]
    monkeypatch.setattr(sys, "argv", ["pbg", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    shown = json.loads(capsys.readouterr().out)
    assert (shown["lr"], shown["entities"]["n"]["num_partitions"], shown["edge_paths"]) == (0.5, 3, ["a", "b"])
