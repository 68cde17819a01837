"""Traces that a stack leaves behind: processes, files, objects, rows, pages."""

from __future__ import annotations

import json
import os
import sqlite3
import urllib.request
from base64 import b64encode
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from examples.stack import processes
from pbg_tasks.storage import open_store
from tests.stack.conftest import BUCKET, GRAPH

DAG = f"reembed_{GRAPH}"


def commands(stack, name):
    """Return the running ``pbg`` commands of that name."""
    found = []
    for process in processes.members(stack.directory):
        try:
            words = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
        except OSError:  # it has ended meanwhile
            continue
        if words[2:5] == [b"-m", b"pbg_tasks", name.encode()]:
            found.append(process)
    return found


def writers_below(directory):
    """Return the processes whose output goes below a directory.

    They are found without the help of the code under test.
    """
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                outputs = [(entry / "fd" / number).readlink() for number in ("1", "2")]
            except OSError:
                continue
            if any(output.is_relative_to(directory) for output in outputs):
                found.append(int(entry.name))
    return found


def forms_of(key):
    """Return the forms a key may be written in, as bytes.

    As it is, in a URL, in JSON, in base64.
    """
    text = key.encode()
    return {text, quote(key, safe="").encode(), json.dumps(key)[1:-1].encode(), b64encode(text).rstrip(b"=")[:-1]}


def writings_of(stack, api, cluster):
    """Return everything written, by kind and place.

    Settings and the store's own files are left out.
    """
    airflow = stack.directory / "airflow"
    logs = [path for folder in (airflow / "logs", stack.directory / "logs") for path in folder.rglob("*")]
    with closing(sqlite3.connect(f"file:{airflow}/airflow.db?mode=ro", uri=True)) as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        rows = {name: repr(database.execute(f'SELECT * FROM "{name}"').fetchall()).encode() for name in tables}
    assert {"xcom", "rendered_task_instance_fields", "serialized_dag", "log"} <= set(tables)
    environment = stack.store.environment() | {"PBG_SCRATCH": str(stack.directory / "scratch")}
    store = open_store(f"s3://{BUCKET}", environment=environment)
    runs = [run["dag_run_id"] for run in api.runs(DAG) if run["state"] == "success"]
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    pages = {}
    for path in ("", "/neighbours?entity=node7", *(f"/runs/{quote(run)}" for run in runs)):
        headers = {"Authorization": f"Bearer {api._token}"}
        address = f"{stack.login()['url']}/pbg/dags/{DAG}{path}"
        with opener.open(urllib.request.Request(address, headers=headers)) as answer:  # noqa: S310 - our own server's
            pages[path] = answer.read()
    return {
        "logs": {str(path): path.read_bytes() for path in logs if path.is_file()},
        "database": rows,
        "objects": {stored.key: store.get(stored.key).data for stored in store.list("")},
        "jobs": {str(at): repr(job).encode() for at, job in enumerate(cluster.objects.everything("jobs"))},
        "pages": pages,
    }
