"""The `pbg` command for people and schedulers.

Output, exit status, one line an error.

The file is longer than others: output, errors and exit status of all commands are tested in one way.
"""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import subprocess
import sys
from contextlib import suppress

import pytest
import typer.main
import yaml
from typer.testing import CliRunner

from pbg_tasks.advice import UNNAMED, name_spec
from pbg_tasks.cli import app, main
from pbg_tasks.cli.common import finite, number, show_result
from pbg_tasks.cli.guide import GROUPS, called
from pbg_tasks.errors import BY_EXIT_CODE, ERROR_FILE, ConfigError, InputError, PbgError
from pbg_tasks.progress import say
from pbg_tasks.publish import Channel
from pbg_tasks.storage import LocalStore
from pbg_tasks.tasks.context import RunContext
from pbg_tasks.tasks.failure import keeping_plan_failure
from tests import commands
from tests.tasks.conftest import Workplace, ring


def pbg(*arguments, **environment):
    return commands.pbg(*arguments, environment=os.environ | environment)


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


def test_newest_snapshot_needs_no_name(place):
    place.snapshot("d10", ring(40))
    place.snapshot("d9", ring(40))
    (place.root / "edges" / "d11.tsv").mkdir()  # a folder whose files are still on their way
    done = pbg("run", place.spec)
    assert done.returncode == 0, done.stderr
    assert "snapshot d11 is passed over: its folder has no files yet" in done.stderr
    assert "plan: 1 file, " in done.stderr
    assert "d10 is the newest snapshot" in done.stderr
    lines = done.stdout.splitlines()
    assert lines[2].split(maxsplit=1) == ["verdict", "release 1 of production"]
    run = lines[-1].removeprefix("run of d10: ")
    assert pbg("show", run).stdout.startswith(lines[0])
    logged = pbg("show", run, "--log", "--json")
    assert json.loads(logged.stdout)["run"] == run
    assert "release 1 of production" in logged.stderr
    for target in (place.spec, place.store):
        shown = json.loads(pbg("show", target, "--json").stdout)
        assert [row["snapshot"] for row in shown["channels"]["production"]] == ["d10"]
        assert shown["newest"]["run"] == run
    assert f"channel production of {place.store}" in pbg("show", place.store).stdout


@pytest.mark.parametrize("key", [[""], ["--snapshot", ""]])
def test_empty_key_is_no_newest_snapshot(place, key):
    """A variable of a shell may be empty."""
    done = pbg("plan", place.spec, *key)
    assert done.returncode == 2, done.stderr
    assert "snapshot" in done.stderr
    assert "is the newest snapshot" not in done.stderr


@pytest.mark.parametrize("change", ["--epochs=1", "-pmodel.lr=0.5", "-ptrain={seed: 3}", "-psplit.test=0.2"])
def test_changed_training_publishes_on_request_only(place, change):
    done = pbg("plan", place.spec, "d1", change, "--json")
    assert done.returncode == 0, done.stderr
    assert "it becomes no release without --publish" in done.stderr
    asked = pbg("plan", place.spec, "d1", change, "--publish", "--json")
    plain = pbg("plan", place.spec, "d1", "--json")
    runs = [RunContext.open(json.loads(each.stdout)["run"]) for each in (done, asked, plain)]
    assert [run.spec.publish for run in runs] == [False, True, True]


@pytest.mark.parametrize("name", ["gate", "datasets", "import"])
def test_called_program_has_one_command(name):
    alone = called(app, name)
    assert [*typer.main.get_command(alone).commands] == [name]
    helps = [CliRunner().invoke(each, [name, "--help"]).output for each in (app, alone)]
    assert helps[0] == helps[1]


@pytest.mark.parametrize("name", ["", "--help", "gates", "import tsv"])
def test_called_program_without_command_is_whole(name):
    assert [*typer.main.get_command(called(app, name)).commands] == [*typer.main.get_command(app).commands]


def test_every_command_has_group():
    commands = typer.main.get_command(app).commands
    assert {name for group in GROUPS.values() for name in group} == set(commands)
    for group, names in GROUPS.items():
        assert {commands[name].rich_help_panel for name in names} == {group}


def leaves(command, *path):
    """Yield commands that hold no others, with the words that call them."""
    below = getattr(command, "commands", {})
    if not below:
        yield path, command
    for name, each in below.items():
        yield from leaves(each, *path, name)


LEAVES = {" ".join(path): command for path, command in leaves(typer.main.get_command(app))}


@pytest.mark.parametrize("path", LEAVES)
def test_example_of_command_is_accepted(path):
    example = LEAVES[path].epilog.removeprefix("Example: ")
    words = shlex.split(example.partition(" > ")[0])
    called = ["pbg", *path.split()]
    assert words[: len(called)] == called
    LEAVES[path].make_context(path, words[len(called) :])


def test_few_commands_need_an_option():
    needed = {path: [each.opts[0] for each in command.params if is_needed(each)] for path, command in LEAVES.items()}
    assert {path: options for path, options in needed.items() if options} == {
        "approve": ["--reason"],
        "reject": ["--reason"],
        "import tsv": ["--lhs-col", "--rhs-col"],  # two columns in a row could be taken for each other
        "import parquet": ["--lhs-col", "--rhs-col"],
        "partition-server": ["--rank"],  # as PBG's
    }


def test_help_shows_no_default_that_is_blank():
    shown = [(path, each) for path, command in LEAVES.items() for each in command.params if each.show_default]
    assert [(path, each.name) for path, each in shown if isinstance(each.default, str) and each.default.isspace()] == []


@pytest.mark.parametrize("path", LEAVES)
def test_help_shows_all_of_its_text(path):
    """Words in square brackets would be a style of the terminal."""
    texts = [LEAVES[path].help, *(getattr(each, "help", None) for each in LEAVES[path].params)]
    assert [text for text in texts if text and re.search(r"\[[a-z]", text)] == []


def is_needed(parameter):
    return parameter.param_type_name == "option" and parameter.required


def test_relative_store_is_reported_with_its_place(place, monkeypatch):
    monkeypatch.chdir(place.root)
    place.store = "store"
    place.write_spec()
    for command in (
        ["plan", place.spec, "d1"],
        ["releases", place.spec],
        ["rollback", place.spec],
        ["show", place.spec],
    ):
        done = CliRunner().invoke(app, list(map(str, command)))
        assert f"store store is relative to the working directory: {place.root / 'store'}\n" in done.stderr


def test_notes_of_failed_run_are_printed_once(place, monkeypatch):
    monkeypatch.chdir(place.root)
    place.store = "store"
    place.write_spec(model={"verbose": 3})
    failed = CliRunner().invoke(app, ["run", str(place.spec), "missing"])
    assert failed.exception is not None
    assert failed.stderr.count("store store is relative to the working directory") == 1
    assert failed.stderr.count("verbose: 3 has no effect") == 1


def test_results_for_people_have_no_braces(capsys):
    result = {"task": "t", "entities": {"total": 123456, "by": {"n": 2}}, "ok": True, "files": ["a", "b"], "none": {}}
    check = {"name": "min_edges", "passed": True, "warned": False, "sentence": "3 edges, at least 1 asked", "value": 3}
    gate = {"since": None, "checks": [check, check | {"passed": False}]}
    show_result(result | {"rows": [{"x": 1}], "gate": gate}, as_json=False)
    assert capsys.readouterr().out.splitlines() == [
        "task:     t",
        "ok:       yes",
        "files:    a, b",
        "none:     -",
        "entities:",
        "  total: 123,456",
        "  by:",
        "    n: 2",
        "rows:",
        "  x 1",
        "gate:",
        "  checks:",
        "    passed: 3 edges, at least 1 asked (min_edges)",
        "    not passed: 3 edges, at least 1 asked (min_edges)",
    ]


def test_results_for_people_have_tables(capsys):
    figures, random = {"count": 12800, "hits": 1.0, "mrr": 0.184336}, {"count": None, "hits": 0.01, "mrr": 0.1}
    rows = {f"r{number}": {"raw": figures} for number in range(30)}
    health = {"rows": 3, "zero": 0, "problems": []}
    parts = {"relations": rows, "health": {"a": health, "b": health}, "odd": {"a": health, "b": {"word": "w", "n": 1}}}
    show_result({"filtered": figures, "random": random, "raw": figures} | parts, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == [
        "          count   hits  mrr",
        "filtered  12,800  1     0.1843",
        "random    -       0.01  0.1",
        "raw       12,800  1     0.1843",
    ]
    at = lines.index("relations:")
    assert lines[at + 1 : at + 3] == ["           count   hits  mrr", "  r0 raw   12,800  1     0.1843"]
    assert lines[at + 21 : at + 23] == ["  r19 raw  12,800  1     0.1843", "  and 10 more, all of which --json prints"]
    at = lines.index("health:")
    assert lines[at + 1 : at + 4] == ["     rows  zero", "  a  3     0", "  b  3     0"]
    assert lines[lines.index("odd:") + 1 :] == [
        "  a:",
        "    rows: 3",
        "    zero: 0",
        "  b:",
        "    word: w",
        "    n:    1",
    ]


def test_results_for_people_give_long_texts_lines(capsys):
    pages = [f"s3://bucket/graphs/shop/runs/2026-11-2{day}-0a1b2c3d4e5f/report/index.html" for day in range(3)]
    show_result({"graph": "shop", "pages": pages}, as_json=False)
    assert capsys.readouterr().out.splitlines() == ["graph: shop", "pages:", *(f"  {page}" for page in pages)]


def test_results_for_people_shorten_long_lists(capsys):
    show_result({"task": "t", "curve": [*range(60)], "names": ["n"] * 13}, as_json=False)
    shown = dict(line.split(":") for line in capsys.readouterr().out.splitlines())
    assert shown["curve"].strip() == "0, 1, 2, ..., 57, 58, 59, 60 in all"
    assert shown["names"].count("n") == 13


def test_terminal_gets_bars_and_logs_get_lines():
    code = (
        "from pbg_tasks.progress import Progress, say\n"
        "with Progress('sort', 100, interval=0) as progress:\n"
        "    progress.advance(50, recent_loss=0.25)\n"
        "    say('a line meanwhile')\n"
        "    progress.advance(50)\n"
    )
    plain, shown = in_log_and_on_terminal(code)
    assert "sort: 50 of 100 edges (50%)" in plain
    assert "recent loss 0.25" in plain
    assert "\x1b" not in plain
    assert "\x1b[" in shown
    assert "a line meanwhile" in shown
    assert "sort: done, 100 edges" in shown
    assert "sort: 50 of 100" not in shown


def test_terminal_gets_one_bar_for_all_epochs():
    code = (
        "from pbg_tasks.progress import _BARS, Progress\n"
        "with Progress('train', 400, begun=100, interval=3600, ends=False) as whole:\n"
        "    for epoch in (2, 3, 4):\n"
        "        part = Progress(f'epoch {epoch}/4', 100, interval=0, whole=whole)\n"
        "        part.advance(100, recent_loss=0.25)\n"
        "        _BARS._shown is None or _BARS._shown.refresh()\n"
        "        whole.note(f'epoch {epoch}/4 committed')\n"
    )
    plain, shown = in_log_and_on_terminal(code)
    assert re.findall(r"epoch ./4 committed", plain) == ["epoch 2/4 committed", "epoch 4/4 committed"]
    assert "epoch 2/4: 100 of 100 edges (100%)" in plain
    assert "train" not in plain
    assert "recent loss 0.25  epoch 4/4" in shown
    assert re.findall(r"train .*?(\d+)%", shown) == ["25", "50", "75", "100"]  # of all, with what was done before
    assert re.findall(r"epoch ./4 committed", shown) == ["epoch 4/4 committed"]


def in_log_and_on_terminal(code):
    """Return stderr of a program as a file, and on a terminal."""
    plain = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen([sys.executable, "-c", code], stderr=theirs, env=environment) as run:
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # the terminal's end
            while part := os.read(ours, 4096):
                shown += part
    os.close(ours)
    assert run.returncode == 0
    return plain.stderr, shown.decode()


def test_progress_goes_to_stderr(place):
    done = pbg("run", place.spec, "--snapshot", "d1", "--json")
    (epoch,) = [line for line in done.stderr.splitlines() if "epoch 3/3" in line]
    assert (epoch.count("committed"), epoch.count("loss")) == (1, 1)
    assert "read text" not in done.stderr  # of a second; the tasks that read it report their ends
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
            "2 GPUs cannot train at once",
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
        (["eval", "a.yaml", "--negatives", "config", "--device", "cuda"], "--device: only with --negatives all"),
        (["init", "a.yaml", "a", "-l", "x", "-r", "y", "--parquet", "--header"], "--header: only for text, without"),
        (["info", "-p", "lr=1"], "--param: only with a CONFIG"),
        (["init", "edges"], "give --store for a graph spec of snapshots; a CONFIG takes edge lists"),
    ],
)
def test_no_option_is_ignored(arguments, message):
    done = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"}).invoke(app, arguments)
    assert done.exit_code == 2
    assert message in " ".join(done.output.replace("│", " ").split())


def test_partition_server_takes_seed_of_its_gang(monkeypatch, tmp_path):
    """Ranks refuse one that has another."""
    keys = {"entities": {"n": {"num_partitions": 4}}, "relations": [{"name": "r", "lhs": "n", "rhs": "n"}]}
    places = {"entity_path": "e", "edge_paths": ["t"], "checkpoint_path": "m", "dimension": 4}
    gang = {"num_machines": 2, "num_partition_servers": 1, "distributed_init_method": "tcp://10.0.0.1:29500"}
    (tmp_path / "config.json").write_text(json.dumps(keys | places | gang))
    asked = []
    monkeypatch.setattr("pbg_tasks.tasks.training.train.train_directory", lambda _, **given: asked.append(given) or {})
    arguments = ["partition-server", str(tmp_path / "config.json"), "--rank", "0", "--seed", "7"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert [(given["seed"], given["rank"]) for given in asked] == [(7, 2)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["eval", "a.yaml", "--memory-gb", "inf"], "inf is no finite number"),
        (["init", "a.yaml", "a.tsv", "-l", "0", "-r", "1", "--memory-gb", "inf"], "inf is no finite number"),
        (["import", "tsv", "a.yaml", "a.tsv", "-l", "0", "-r", "1", "--memory-gb", "inf"], "inf is no finite number"),
    ],
)
def test_numbers_without_end_are_refused(arguments, message):
    done = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"}).invoke(app, arguments)
    assert (done.exit_code, message in done.output) == (2, True)


@pytest.mark.parametrize("check", [finite, number])
def test_nan_is_refused_with_any_typer(check):
    with pytest.raises(typer.BadParameter, match="nan is no number"):
        check(float("nan"))
    assert [check(None), check(0.5)] == [None, 0.5]


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

    monkeypatch.setattr("pbg_tasks.cli.called", lambda *_: fail)
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr().err
    assert ended.value.code == status
    assert printed.splitlines()[-1].startswith(said)
    assert ("Traceback" in printed) == (status == 70)


def test_names_are_printed_in_every_locale(tmp_path):
    relation, paths = "{name: \u6771, lhs: n, rhs: n}", "entity_path: e, edge_paths: [d], checkpoint_path: m"
    (tmp_path / "a.yaml").write_text(
        f"{{entities: {{n: {{num_partitions: 1}}}}, relations: [{relation}], dimension: 4, {paths}}}", encoding="utf-8"
    )
    command = [sys.executable, "-m", "pbg_tasks", "config", str(tmp_path / "a.yaml"), "relations.0.name"]
    environment = os.environ | {"PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stdout.decode()) == (0, "\u6771\n")


def test_file_of_error_gets_last_line(monkeypatch, capsys, tmp_path):
    def fail(arguments):
        raise ConfigError("a: wrong")

    monkeypatch.setattr("pbg_tasks.cli.called", lambda *_: fail)
    for place in (tmp_path / "note", tmp_path / "missing" / "note"):  # the second one cannot be written
        monkeypatch.setenv(ERROR_FILE, str(place))
        with pytest.raises(SystemExit) as ended:
            main()
        assert (ended.value.code, capsys.readouterr().err) == (2, "error: config: a: wrong\n")
    assert (tmp_path / "note").read_text() == "error: config: a: wrong\n"


def test_init_takes_columns_of_types_by_name(tmp_path):
    (tmp_path / "d1.csv").write_text("who,kind,what,sort\n" + "".join(f"u{n},user,i{n % 3},item\n" for n in range(9)))
    arguments = ["init", str(tmp_path / "d1.csv"), "--store", str(tmp_path / "shop"), "-l", "who", "-r", "what"]
    arguments += ["--lhs-type-col", "kind"]
    assert "name both columns of types" in CliRunner().invoke(app, arguments).output
    drafted = yaml.safe_load(CliRunner().invoke(app, [*arguments, "--rhs-type-col", "sort"]).stdout)
    named = {role: name for role, name in drafted["columns"].items() if name is not None}
    assert named == {"lhs": "who", "rhs": "what", "lhs_type": "kind", "rhs_type": "sort"}
    assert drafted["model"]["entities"].keys() == {"item", "user"}


@pytest.mark.parametrize(("asked", "hint"), [("model.dimensn", "did you mean 'model.dimension'?"), ("x", "`pbg keys`")])
def test_unknown_key_of_spec_names_nearest(asked, hint):
    done = CliRunner().invoke(app, ["keys", asked])
    assert done.exit_code == 2
    assert f"{asked}: a graph spec has no such key; {hint}" in " ".join(done.output.replace("│", " ").split())


def test_advised_commands_name_the_given_spec(monkeypatch, capsys, place):
    store = LocalStore(str(place.store))
    failed = InputError("no column 'rhs'; `pbg skip SPEC d1` or `pbg promote SPEC --to SPEC`")
    with pytest.raises(InputError), keeping_plan_failure(Channel(store, "production"), "toy", "d1"):
        raise failed
    spec = place.spec.rename(place.root / "a graph.yaml")
    told = f"`pbg skip '{spec}' d1` or `pbg promote '{spec}' --to SPEC`"
    assert told in CliRunner().invoke(app, ["show", str(spec)]).stdout
    (night,) = json.loads(CliRunner().invoke(app, ["show", str(spec), "--json"]).stdout)["failed"]["production"]
    assert told in night["failed"]["reason"]
    name_spec(UNNAMED)  # as in a process of its own
    shown = CliRunner().invoke(app, ["show", str(place.store)]).stdout
    assert f"`pbg skip {UNNAMED} d1`" in shown
    assert shown.endswith(f"\n\n{UNNAMED} stands for the graph's spec, a YAML file\n")
    name_spec(spec)
    say("`pbg skip SPEC d1`")
    assert capsys.readouterr().err.endswith(f" `pbg skip '{spec}' d1`\n")

    monkeypatch.setattr("pbg_tasks.tasks.nightly.plan.plan", raising(failed))
    monkeypatch.setattr(sys, "argv", ["pbg", "plan", str(spec), "d1"])
    with pytest.raises(SystemExit):
        main()
    assert told in capsys.readouterr().err.splitlines()[-1]


def raising(error):
    def fail(*_, **__):
        raise error

    return fail


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["train", "c.yaml", "--sede", "1"], "error: config: No such option: --sede"),
        (["train", "RUN", "--seed", "0"], "error: config: Invalid value: --seed: only for a PBG config"),
        (["skip", "g.yaml"], "error: config: Missing argument"),
    ],
)
def test_wrong_use_ends_in_one_line(monkeypatch, capsys, tmp_path, arguments, told):
    monkeypatch.setenv(ERROR_FILE, str(tmp_path / "error"))
    monkeypatch.setattr(sys, "argv", ["pbg", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(told)
    assert (tmp_path / "error").read_text().startswith(told)


def test_help_ends_in_no_error(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["pbg", "import"])
    with pytest.raises(SystemExit):
        main()
    assert "error: " not in capsys.readouterr().err


def test_interrupt_is_no_bug(monkeypatch):
    def fail(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("pbg_tasks.cli.called", lambda *_: fail)
    with pytest.raises(KeyboardInterrupt):
        main()


def test_every_category_has_its_own_status():
    def below(error):
        return {error} | {sub for child in error.__subclasses__() for sub in below(child)}

    assert {error.exit_code for error in below(PbgError)} == set(BY_EXIT_CODE)
    assert len({error.kind for error in below(PbgError)}) == len(BY_EXIT_CODE)


def test_schema_and_version_are_printed():
    """Start Python anew; other commands here are forks of a process."""
    schema, version = (
        subprocess.check_output([sys.executable, "-m", "pbg_tasks", word], text=True, timeout=120)
        for word in ("schema", "--version")
    )
    assert json.loads(schema)["title"] == "GraphSpec"
    assert version.startswith("pbg ")


def test_light_commands_import_nothing_heavy():
    heavy = ("torch", "duckdb", "h5py", "boto3", "numpy")
    code = f"import sys, pbg_tasks.cli; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="takes two CPUs: with one, OpenBLAS has no threads")
def test_idle_threads_take_no_cpu_time():
    code = """
import contextlib, sys, time
from pbg_tasks.cli import main
with contextlib.suppress(SystemExit):
    main()
import numpy
time.sleep(0.3)
print("others", time.process_time() - time.thread_time())
"""
    environment = {name: value for name, value in os.environ.items() if not name.endswith(("_NUM_THREADS", "_TIMEOUT"))}
    command = [sys.executable, "-c", code, "--version"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    assert float(done.stdout.split("others")[1]) < 0.005
