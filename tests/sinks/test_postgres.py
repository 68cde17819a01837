"""Errors of PostgreSQL, as a person reads them."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

from pbg_tasks.config.sinks import slug
from pbg_tasks.errors import AccessError, ConflictError, FormatError, StorageError
from pbg_tasks.publish.sinks import Rows, TableRecord, open_sink, postgres_silence, sink_options
from pbg_tasks.publish.sinks import postgres as sink
from tests.sink_story import postgres


@pytest.fixture(scope="module")
def place():
    with postgres() as url:
        yield url


def refusal(destination, kind=StorageError):
    with pytest.raises(kind) as refused, open_sink("pgvector", destination, sink_options("pgvector", {})):
        pass
    return str(refused.value)


def test_postgres_without_server_names_host_and_port(monkeypatch):
    monkeypatch.setenv("PGPASSWORD", "s3cret")
    monkeypatch.setenv("PGPORT", "5")
    check = "check them, and that PostgreSQL runs there and takes connections from here; then run the export again"
    refused = "no connection to host 127.0.0.1, port 9: Connection refused"
    assert refusal("postgresql://127.0.0.1:9/db") == f"postgresql://127.0.0.1:9/db: {refused}; {check}"
    unknown = refusal("postgresql://nowhere.invalid/db")
    assert unknown.startswith(
        "postgresql://nowhere.invalid/db: no connection to host nowhere.invalid, port 5: could not"
    )
    assert unknown.endswith(f"; {check}")
    assert refusal("postgresql:///db?host=/nowhere").startswith(
        "postgresql:///db?host=/nowhere: no connection to the socket in /nowhere, port 5: No such file or directory; "
    )


def test_postgres_refusing_user_names_variables(place, monkeypatch):
    monkeypatch.setenv("PGUSER", "nobody")
    monkeypatch.setenv("PGPASSWORD", "s3cret")
    folder = place.partition("host=")[2]
    assert refusal(place, AccessError) == (
        f'{place}: the socket in {folder}, port 5432 refused the connection: role "nobody" does not exist; check the '
        "database's name, PGUSER and PGPASSWORD, then run the export again"
    )


def test_postgres_statement_that_fails_takes_one_line(place):
    with (
        pytest.raises(StorageError) as refused,
        open_sink("pgvector", place, sink_options("pgvector", {})) as tables,
        tables._transaction() as cursor,
    ):
        cursor.execute("SELECT\n nothing\n FROM nowhere")
    assert str(refused.value) == (
        f'{place}: PostgreSQL failed (relation "nowhere" does not exist); run the export again, it '
        "goes on where it ended"
    )


@pytest.fixture(scope="module")
def latin(place):
    """A database of another encoding."""
    import psycopg2

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PGUSER", "postgres")
        with closing(psycopg2.connect(place)) as connection:
            connection.autocommit = True
            connection.cursor().execute(
                "CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
            )
    return place.replace("/postgres?", "/latin?")


def test_postgres_of_other_encodings_keeps_names(place, latin, monkeypatch):
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    assert [kept(place, "Zürich"), kept(latin, "Zürich")] == ["Zürich", "Zürich"]
    with pytest.raises(FormatError, match=r"cannot hold a name .*; use a database of the encoding UTF8"):
        kept(latin, "東京")


def kept(place, name):
    """Return a name as a table has it."""
    record = TableRecord(
        collection="c", entity="city", alias="c_city", number=1, source="here", rows=1, dimension=2, metric="l2"
    )
    with open_sink("pgvector", place, sink_options("pgvector", {})) as tables:
        tables.create("c_city_1", record)
        tables.add("c_city_1", 0, Rows([name], np.ones((1, 2), np.float32)))
        return tables.fetch("c_city_1", record, np.array([0])).names[0]


def test_longest_names_have_both_indexes(place):
    collection, entity = slug("product_recommendations_production"), "customer_shopping_session"
    alias = f"{collection}_{slug(entity)}"
    record = TableRecord(
        collection=collection, entity=entity, alias=alias, number=1, source="here", rows=1, dimension=2, metric="l2"
    )
    table = f"{alias}_{'0' * 12}"
    with open_sink("pgvector", place, sink_options("pgvector", {})) as tables:
        tables.create(table, record)
        tables.finish(table, record)
        with tables._transaction() as cursor:
            cursor.execute("SELECT indexdef FROM pg_indexes WHERE tablename = %s", (table,))
            found = sorted(definition.partition(" USING ")[2].partition(" ")[0] for (definition,) in cursor.fetchall())
    assert found == ["btree", "hash", "hnsw"]


def test_postgres_lock_of_another_session_ends_wait(place, monkeypatch):
    import psycopg2

    monkeypatch.setattr(sink, "_LOCK_SECONDS", 1)
    with closing(psycopg2.connect(place)) as other:
        other.cursor().execute("SELECT pg_advisory_xact_lock(%s)", (sink._LOCK,))
        assert refusal(place) == (
            f"{place}: another session has kept a lock for 1 s, perhaps that of an export whose machine is gone; find "
            "it in pg_stat_activity, end it, and run the export again"
        )


@contextmanager
def stopped(place):
    """Stop all processes of a server."""
    server = Path(place.partition("host=")[2], "postmaster.pid").read_text().split()[0]
    processes = [int(server), *map(int, Path(f"/proc/{server}/task/{server}/children").read_text().split())]
    try:
        for each in processes:
            os.kill(each, signal.SIGSTOP)
        yield
    finally:
        for each in processes:
            os.kill(each, signal.SIGCONT)


def test_stopped_server_ends_the_wait(place, monkeypatch):
    for name, value in (("LOOK_SECONDS", 0.1), ("ANSWER_SECONDS", 2), ("MISSED", 1)):
        monkeypatch.setattr(postgres_silence, name, value)
    opened = open_sink("pgvector", place, sink_options("pgvector", {}))
    missed = "the server has answered no new connection 1 times, so this one was ended"
    with pytest.raises(StorageError, match=missed), opened as tables, stopped(place):
        tables.records("stopped")
    with open_sink("pgvector", place, sink_options("pgvector", {})) as tables:
        assert tables.records("stopped") == {}


@pytest.mark.parametrize(
    ("reason", "answered"),
    [
        ("FATAL:  sorry, too many clients already", True),
        ("致命错误:  已有太多的客户", True),  # the same by lc_messages
        ("timeout expired", False),
        ("Connection refused\n\tIs the server running on that host and accepting TCP/IP connections?", False),
    ],
)
def test_refusal_in_any_language_is_an_answer(monkeypatch, reason, answered):
    """Otherwise a full server would be taken for a stopped one."""
    import psycopg2

    def connect(*args, **kwargs):
        raise psycopg2.OperationalError(f'connection to server at "127.0.0.1", port 5432 failed: {reason}\n')

    monkeypatch.setattr(psycopg2, "connect", connect)
    assert postgres_silence._answers(psycopg2, "postgresql://127.0.0.1/db") == answered


def test_table_that_two_exports_begin_is_a_conflict(place):
    import psycopg2

    record = TableRecord(
        collection="c", entity="town", alias="c_town", number=1, source="here", rows=1, dimension=2, metric="l2"
    )
    opened = open_sink("pgvector", place, sink_options("pgvector", {}))
    with closing(psycopg2.connect(place)) as other, opened as tables:
        other.cursor().execute("CREATE TABLE c_town_1 (row bigint)")
        ends = threading.Timer(0.5, other.commit)
        ends.start()
        with pytest.raises(ConflictError, match="another export writes into table c_town_1 too"):
            tables.create("c_town_1", record)
        ends.join()
