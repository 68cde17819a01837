"""Credentials in URLs.

Real commands refuse them by name, and neither print nor store them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import yaml

from pbg_tasks.cli import _check_arguments
from pbg_tasks.config.base import parse
from pbg_tasks.config.graph import GraphSpec
from pbg_tasks.errors import ConfigError, InputError, PbgError
from pbg_tasks.progress import say
from pbg_tasks.redaction import credentials_in, redacted
from tests import commands
from tests.operators.specs import small_spec
from tests.tasks.conftest import MODEL

USER, SECRET = "CANARYUSER", "CANARY/Se+cret"
AT = f"{USER}:{SECRET}@"
SIGNED = f"https://bucket.s3.amazonaws.com/a?X-Amz-Credential={USER}%2Fx&X-Amz-Signature={SECRET}"
TEXTS = [
    f"s3://{AT}bucket/graphs/g",
    f"s3://{USER}@bucket/g",
    f"s3:/{AT}bucket/graph.yaml",
    f"S3://{AT}bucket/{{snapshot}}/*.parquet",
    f"s3:///{AT}bucket",
    f"http://{AT}host:9000",
    f"https://{USER}:p%40{SECRET}%40host/x",
    f"the store 's3://{AT}bucket' and {SIGNED}; both",
    SIGNED,
    f"https://h/a?AWSAccessKeyId={USER}&Signature={SECRET}&Expires=1",
    f"https://h/a?sp=r&sig={SECRET}",
    f"-p storage_options.secret={SECRET}",
    f"{{'aws_access_key_id': '{USER}', 'aws_secret_access_key': '{SECRET}'}}",
    f'{{"session_token": "{SECRET}"}}',
    f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={SECRET};EndpointSuffix=core.windows.net",
    f"{{'adls.connection-string': 'AccountName={USER};AccountKey={SECRET}'}}",
]
PLAIN = [
    "s3://bucket/users@2026/a",
    "s3://bucket/a:b@c",
    "http://127.0.0.1:9000/bucket/a",
    "/data/token=abc/x.parquet",
    "s3://bucket/token=abc/part-?.parquet",
    "s3://b/{snapshot}/*.parquet",
    "file:///home/a@b/x",
    "12:30:00 plan: 3 files; run /data/g/runs/d-0123456789ab",
]


def hidden(text):
    return USER not in text and SECRET not in text and "CANARY" not in text


@pytest.mark.parametrize("text", TEXTS)
def test_message_with_credentials_shows_none(text, capsys):
    for error in (ConfigError(text), InputError(f"{text!r}: no such thing"), PbgError(text)):
        assert hidden(str(error) + repr(error))
    say(text)
    shown = capsys.readouterr().err
    assert hidden(shown + redacted(text))
    assert redacted(redacted(text)) == redacted(text)


@pytest.mark.parametrize("text", PLAIN)
def test_message_without_credentials_stays(text):
    kept = text if not text.startswith("file:") else redacted(text)
    assert redacted(text) == kept
    assert credentials_in(text) is None


def pbg(*arguments, home, **environment):
    """Run a command in ``home``."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "PBG_"))}
    kept |= {"PBG_SCRATCH": str(home / "scratch"), "AWS_REGION": "us-east-1", "COLUMNS": "500"}
    return commands.pbg(*arguments, environment=kept | environment, folder=home)


def config(place):
    paths = {"entity_path": f"{place}/e", "edge_paths": [f"{place}/train"], "checkpoint_path": f"{place}/m"}
    return {**MODEL, **paths}


def changed(spec, key, value):
    """Return a document with one key changed, given by its path."""
    if not key:
        return value
    first, _, rest = key.partition(".")
    if isinstance(spec, list):
        return [changed(each, rest, value) if str(at) == first else each for at, each in enumerate(spec)]
    return {**spec, first: changed(spec.get(first, {}), rest, value)}


def documents(home):
    """Write specs and configs with credentials at one place each.

    Returns the commands that read them.
    """
    bad = f"s3://{AT}bucket/x"
    spec = small_spec(home, "g") | {"exports": [{"format": "tsv", "destination": "exports/{run}"}]}
    kubernetes = {"image": f"i@sha256:{'0' * 64}", "resources": {"cpu": "1", "memory": "1Gi"}}
    environment = {"environment": {"AWS_ENDPOINT_URL": f"http://{AT}host:9000"}}
    for key, value in {
        "store": bad,
        "snapshots.location": f"{bad}/{{snapshot}}/*.parquet",
        "exports.0.destination": f"{bad}/{{run}}",
        "model.init_path": bad,
        "launch.kubernetes": kubernetes | environment,
        "nights.notify": [{"use": "a.b", "arguments": {"url": f"https://{AT}hooks"}}],
        "storage_options": {"key": USER, "secret": SECRET, "endpoint": f"http://{AT}host"},
    }.items():
        path = home / f"spec-{key}.yaml"
        path.write_text(yaml.safe_dump(changed(spec, key, value)))
        yield key.partition(".")[0], ["plan", path, "--snapshot", "d1"]
    broken = home / "broken.yaml"
    broken.write_text(f"graph: g\nstore: s3://{USER}{'x' * 200}:{SECRET}@bucket/x {{ : ]\nmodel: [1\n")
    yield "not valid YAML", ["plan", broken, "--snapshot", "d1"]
    for key in ("entity_path", "edge_paths.0", "checkpoint_path", "init_path"):
        path = home / f"config-{key}.json"
        path.write_text(json.dumps(changed(config(home), key, bad)))
        yield key, ["train", path]
        yield key, ["config", path]


def arguments(home):
    """Return commands with credentials in an argument."""
    bad = f"s3://{AT}bucket/x"
    spec, local = home / "spec.yaml", home / "config.json"
    spec.write_text(yaml.safe_dump(small_spec(home, "g")))
    local.write_text(json.dumps(config(home)))
    yield from (
        ["plan", f"{bad}/graph.yaml", "--snapshot", "d1"],
        ["plan", spec, "--snapshot", bad],
        ["plan", spec, "--snapshot", "d1", "-p", f"store={bad}"],
        ["plan", spec, "--snapshot", "d1", "-p", bad],
        ["plan", spec, "--snapshot", "d1", f"--accept-data=see {SIGNED}"],
        ["train", f"{bad}/runs/d1-0123456789ab"],
        ["train", f"{bad}/config.json"],
        ["train", local, "-p", f"checkpoint_path={bad}"],
        ["show", f"{bad}/runs/d1-0123456789ab"],
        ["gc", bad],
        ["export", "parquet", bad, f"{home}/out"],
        ["import", "tsv", f"{bad}/config.json", f"{bad}/train.tsv"],
        ["info", bad],
        ["nonsense", bad],
        ["train", f"--nonsense={bad}"],
        ["train", SIGNED],
    )


def test_credentials_in_argument_name_its_option():
    bad = f"s3://{AT}bucket"
    for words, said in ((["--store", bad], "2 of pbg (--store)"), ([f"--store={bad}"], "1 of pbg (--store)")):
        with pytest.raises(ConfigError, match=re.escape(f"argument {said} holds")):
            _check_arguments(words)
    with pytest.raises(ConfigError, match="argument 2 of pbg holds"):
        _check_arguments(["gc", bad])


def test_commands_refuse_and_show_no_credentials(tmp_path):
    calls = [*documents(tmp_path), *(("argument", words) for words in arguments(tmp_path))]
    before = set(tmp_path.rglob("*"))
    with ThreadPoolExecutor(2) as threads:
        results = list(threads.map(lambda call: pbg(*call[1], home=tmp_path), calls))
    for (name, words), done in zip(calls, results, strict=True):
        assert done.returncode == 2, (words, done.stderr)
        assert name in done.stderr.splitlines()[-1], (words, done.stderr)
        assert "Traceback" not in done.stderr, words
        assert hidden(done.stdout + done.stderr), (words, done.stderr)
    assert set(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_command_refuses_endpoint_with_credentials(tmp_path, variable):
    store, snapshots = tmp_path / "store.yaml", tmp_path / "snapshots.yaml"
    store.write_text(yaml.safe_dump(small_spec(tmp_path, "g") | {"store": "s3://bucket/g"}))
    remote = {"snapshots": {"location": "s3://bucket/{snapshot}/*.parquet"}}
    snapshots.write_text(yaml.safe_dump(small_spec(tmp_path, "g") | remote))
    for spec in (store, snapshots):
        for endpoint in (f"http://{AT}127.0.0.1:9", f"{AT}127.0.0.1:9", f"http://127.0.0.1:9/?sig={SECRET}"):
            done = pbg("plan", spec, "--snapshot", "d1", home=tmp_path, **{variable: endpoint})
            assert (done.returncode, done.stdout) == (2, ""), done.stderr
            assert f"error: config: {variable} " in done.stderr
            assert hidden(done.stderr), done.stderr
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert all(b"CANARY" not in path.read_bytes() for path in files)


def test_traceback_of_a_bug_shows_no_credentials(tmp_path):
    code = f"import pbg_tasks.tasks.view.info as task; task.info = lambda *_: {{}}['s3://{AT}bucket']; "
    code += "from pbg_tasks.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "info"], capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path
    )
    assert done.returncode == 70, done.stderr
    assert "Traceback" in done.stderr
    assert hidden(done.stderr), done.stderr


def test_every_key_with_credentials_is_named():
    spec = small_spec(f"s3://{AT}bucket", "g")
    with pytest.raises(ConfigError, match=r"^f: store holds .*; snapshots\.location holds ") as caught:
        parse(GraphSpec, spec, source="f")
    assert hidden(str(caught.value))
