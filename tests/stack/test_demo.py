"""End of the demo: its table, links and last line."""

from __future__ import annotations

import json
import subprocess

import pytest

from examples.stack import __main__ as command
from examples.stack.demo import DemoError, demo_graphs, farewell, headline, run_demo
from examples.stack.object_store import ObjectStore
from examples.stack.stack import Stack

PLACE = "s3://pbg-demo/graphs/wordnet"


def night(snapshot, release):
    return {
        "snapshot": snapshot,
        "run": f"{PLACE}/runs/{snapshot}-0a1b2c3d4e5f",
        "release": {
            "channel": "production",
            "release": release,
            "directory": f"{PLACE}/releases/production/{release:06}",
            "published": True,
            "rolled_back": False,
        },
        "edges": {"train": 318004, "test": 1},
        "entities": {"total": 117659, "new": 117659, "kept": 0},
        "metrics": {"filtered": {"mrr": 0.13123456789012345, "hits10": 0.20123456789012345, "n": 1}, "raw": {}},
        "gate": {"passed": True, "checks": [{}] * 100},
        "curve": [0.1] * 100,
    }


RESULT = {
    "nights": [night("wordnet-3.0", 1), night("wordnet-3.1", 2)],
    "runs": ["manual__a", "manual__2026-11-20T02:00:00+00:00"],
    "ui": {"url": "http://127.0.0.1:8080", "username": "admin", "password": "p"},
    "seconds": 100.0,
    "ok": True,
}


def run(command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def test_demo_lists_only_the_graph_with_data(tmp_path):
    assert [path.name for path in demo_graphs(tmp_path).iterdir()] == ["wordnet.yaml"]


def test_shell_gets_keys_of_the_store(tmp_path, monkeypatch):
    stack, keys = Stack(tmp_path, graphs=tmp_path), {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_REGION": "a b"}
    for name, answer in {"start": None, "create_bucket": "", "environment": keys}.items():
        monkeypatch.setattr(ObjectStore, name, lambda *_, answer=answer: answer)
    assert stack.start_store("bucket") == keys
    command = ["sh", "-c", '. "$0" && exec env', str(stack.shell)]
    assert {f"{name}={value}" for name, value in keys.items()} <= {*run(command)}
    assert stack.shell.stat().st_mode & 0o077 == 0


def test_demo_leaves_data_of_other_graphs(tmp_path, monkeypatch):
    for name in ("stop", "start_store", "start_airflow", "login"):
        monkeypatch.setattr(Stack, name, lambda *_: {})
    own = Stack(tmp_path, graphs=demo_graphs(tmp_path))
    command.up(own)
    assert not own.mark.exists()
    command.up(Stack(tmp_path, graphs=tmp_path / "mine"))
    (tmp_path / "s3").mkdir()
    with pytest.raises(DemoError, match=r"has the data of the graphs in .*/mine, which a demo would remove; name"):
        run_demo(own)
    assert (tmp_path / "s3").is_dir()


def test_last_line_is_short_and_names_the_file(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "run_demo", lambda _: RESULT)
    assert command.demo(Stack(tmp_path, graphs=tmp_path)) == 0
    word, _, text = capsys.readouterr().out.splitlines()[-1].partition(" ")
    told = json.loads(text)
    assert word == "RESULT"
    assert len(text) < 560
    assert json.loads((tmp_path / "result.json").read_text()) == RESULT
    assert told["file"] == str(tmp_path / "result.json")
    assert (told["ok"], [each["release"]["release"] for each in told["nights"]]) == (True, [1, 2])
    assert told["nights"][0]["metrics"]["filtered"] == {"mrr": 0.1312, "hits10": 0.2012}
    assert told == headline(RESULT) | {"file": told["file"]}


def test_farewell_has_five_links_and_the_login():
    lines = farewell(RESULT)
    links = [line.split()[0] for line in lines if "http" in line]
    assert len(links) == 5
    assert links[2].endswith("/runs/manual__2026-11-20T02%3A00%3A00%2B00%3A00/plugin/pbg-run")
    assert "user admin, password p" in lines[-1]
