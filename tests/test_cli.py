"""The `pbg` command for people and schedulers.

Output, exit status, one line an error.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from pbg_tasks.cli import app, main
from pbg_tasks.errors import BY_EXIT_CODE, PbgError
from tests.tasks.conftest import Workplace, ring


def pbg(*arguments, **environment):
    import os

    return subprocess.run(
        [sys.executable, "-m", "pbg_tasks", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **environment},
    )


@pytest.fixture
def place(tmp_path):
    place = Workplace(tmp_path)
    place.snapshot("d1", ring(40))
    return place


def test_run_prints_one_json_object_and_nothing_else(place):
    done = pbg("run", place.spec, "--snapshot", "d1", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["release"]["published"] is True
    assert set(summary["metrics"]) >= {"raw", "filtered", "random"}
    assert pbg("run", place.spec, "--snapshot", "d1", "--json").stdout == done.stdout
    assert "MRR filtered" in pbg("show", summary["run"]).stdout
    assert [r["snapshot"] for r in json.loads(pbg("releases", place.spec, "--json").stdout)] == ["d1"]


def test_progress_goes_to_stderr(place):
    done = pbg("run", place.spec, "--snapshot", "d1", "--json")
    assert "epoch 3/3 committed" in done.stderr
    assert "edges/s" in done.stderr
    assert "ETA" in done.stderr


@pytest.mark.parametrize(
    ("change", "arguments", "status", "message"),
    [
        (None, ["plan", "SPEC", "--snapshot", "nope"], 3, "error: input: "),
        (None, ["plan", "SPEC", "--snapshot", "../d1"], 2, "error: config: snapshot '../d1'"),
        (None, ["plan", "nofile.yaml", "--snapshot", "d1"], 2, "error: config: nofile.yaml: cannot be read"),
        (None, ["train", "/nowhere/runs/x"], 2, "error: config: /nowhere/runs/x: no such run"),
        (None, ["rollback", "SPEC"], 3, "error: input: channel 'production'"),
        ({"model": {"dimenson": 3}}, ["plan", "SPEC", "--snapshot", "d1"], 2, "did you mean 'dimension'?"),
        (
            {"model": {"num_gpus": 2}},
            ["plan", "SPEC", "--snapshot", "d1"],
            2,
            "not supported by this version: num_gpus",
        ),
        (
            {"gates": {"data": {"min_edges": {"block": 10**6}}}},
            ["run", "SPEC", "--snapshot", "d1"],
            8,
            "error: quality_gate: snapshot 'd1'",
        ),
    ],
)
def test_failures_are_one_line_and_their_category(place, change, arguments, status, message):
    if change:
        place.write_spec(**change)
    done = pbg(*(place.spec if argument == "SPEC" else argument for argument in arguments))
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == status, done.stderr
    assert message in last
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "RUN", "--seed", "0"], "--seed: only for a PBG config; RUN is a run, planned with its spec"),
        (["train", "RUN", "--device", "cpu", "--engine", "auto"], "--engine, --device: only for a PBG config"),
        (["train", "RUN", "--ranks", "2", "-p", "lr=1"], "--param: only for a PBG config"),
        (["train", "RUN", "--ranks", "2", "--rank", "0"], "--rank: not with --ranks"),
        (["eval", "RUN", "--negatives", "all"], "--negatives: only for a PBG config"),
        (["eval", "RUN", "--max-candidates", "9", "--memory-gb", "4"], "--max-candidates, --memory-gb: only for a"),
        (["info", "-p", "lr=1"], "--param: only with a CONFIG"),
    ],
)
def test_no_option_is_ignored(arguments, message):
    done = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"}).invoke(app, arguments)
    assert done.exit_code == 2
    assert message in " ".join(done.output.replace("│", " ").split())


def test_unreachable_store_fails_soon_and_is_retryable(place):
    place.store = "s3://bucket/prefix"
    place.write_spec()
    done = pbg(
        *("plan", place.spec, "--snapshot", "d1"),
        AWS_ENDPOINT_URL="http://127.0.0.1:9",
        AWS_ACCESS_KEY_ID="key",
        AWS_SECRET_ACCESS_KEY="canary-secret",  # noqa: S106 - no real one
        AWS_DEFAULT_REGION="us-east-1",
    )
    assert done.returncode == 6
    assert BY_EXIT_CODE[6].retryable
    assert "http://127.0.0.1:9" in done.stderr
    assert "canary-secret" not in done.stderr


def test_full_scratch_disk_leaves_no_partial_file(place, small_disk):
    place.snapshot("d1", ring(60_000))
    run = json.loads(pbg("plan", place.spec, "--snapshot", "d1", "--json").stdout)["run"]
    for task in ("validate", "partition"):
        assert pbg(task, run).returncode == 0
    full = pbg("bucket", run, PBG_SCRATCH=str(small_disk))
    assert full.returncode == 7
    assert full.stderr.strip().splitlines()[-1].startswith("error: resource: ")
    assert not list(small_disk.iterdir())
    assert not (place.store / run.rpartition("/store/")[2] / "edges").exists()
    assert pbg("bucket", run).returncode == 0


def after(code, *arguments):
    """Run ``pbg`` in a process that executes ``code`` first."""
    return subprocess.run(
        [sys.executable, "-c", f"{code}; from pbg_tasks.cli import main; main()", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_missing_torch_is_reported_with_its_extra(place):
    done = after("import sys; sys.modules['torch'] = None", "run", place.spec, "--snapshot", "d1")
    assert done.returncode == 2, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("error: config: ")
    assert "pip install 'pbg-tasks[train]'" in last
    assert "Traceback" not in done.stderr


def test_bug_prints_traceback_and_one_line():
    code = "import pbg_tasks.tasks.view.info as task; task.info = lambda *_: {}['first\\nsecond']"
    done = after(code, "info")
    assert done.returncode == 70, done.stderr
    assert done.stderr.startswith("Traceback (most recent call last):")
    assert done.stderr.count("error: ") == 1
    assert done.stderr.splitlines()[-1] == r"error: internal: KeyError: 'first\nsecond'"
    assert done.stdout == ""


@pytest.mark.parametrize("name", ["torch.nothing", "nothing"])
def test_only_a_missing_torch_is_expected(name):
    done = after(f"import pbg_tasks.tasks.view.info as task; task.info = lambda *_: __import__({name!r})", "info")
    assert done.returncode == 70, done.stderr
    assert done.stderr.splitlines()[-1] == f"error: internal: ModuleNotFoundError: No module named {name!r}"


@pytest.mark.parametrize(
    ("raised", "status", "said"),
    [
        (MemoryError(), 7, "error: resource: out of memory; lower resources.memory_gb"),
        (RuntimeError("can't allocate memory"), 7, "error: resource: out of memory; lower dimension"),
        (OSError(28, "No space left on device", "/a/file"), 7, "error: resource: no room left on the disk of /a"),
        (OSError(24, "Too many open files", "/a/file"), 7, "error: resource: /a/file: cannot be opened"),
        (PermissionError(13, "Permission denied", "/a/file"), 70, "error: internal: PermissionError: [Errno 13]"),
        (RuntimeError("a\nb"), 70, "error: internal: RuntimeError: a b"),
    ],
)
def test_errors_of_python_get_their_category(monkeypatch, capsys, raised, status, said):
    def fail(arguments):
        raise raised

    monkeypatch.setattr("pbg_tasks.cli.app", fail)
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr().err
    assert ended.value.code == status
    assert printed.splitlines()[-1].startswith(said)
    assert ("Traceback" in printed) == (status == 70)


def test_interrupt_is_no_bug(monkeypatch):
    def fail(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("pbg_tasks.cli.app", fail)
    with pytest.raises(KeyboardInterrupt):
        main()


def test_every_category_has_its_own_status():
    def below(error):
        return {error} | {sub for child in error.__subclasses__() for sub in below(child)}

    assert {error.exit_code for error in below(PbgError)} == set(BY_EXIT_CODE)
    assert len({error.kind for error in below(PbgError)}) == len(BY_EXIT_CODE)


def test_schema_and_version_are_printed():
    assert json.loads(pbg("schema").stdout)["title"] == "GraphSpec"
    assert pbg("--version").stdout.startswith("pbg ")


def test_light_commands_import_nothing_heavy():
    heavy = ("torch", "duckdb", "h5py", "boto3", "numpy")
    code = f"import sys, pbg_tasks.cli; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
