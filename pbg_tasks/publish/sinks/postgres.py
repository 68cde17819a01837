"""PostgreSQL with pgvector: a table a release, behind a view.

Records of tables and the tables behind views are rows of two tables of this sink, so every step is one transaction: of
two exports that fill one table, the second one fails at the primary key, and all views of a collection move at once.
"""

from __future__ import annotations

import json
import os
import re
import struct
from contextlib import contextmanager
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

from pbg_tasks.checkpoint.manifest import decode, encode
from pbg_tasks.config.sinks import PgvectorOptions
from pbg_tasks.errors import AccessError, ConfigError, ConflictError, FormatError, PbgError, StorageError
from pbg_tasks.publish.sinks.base import Rows, Sink, TableRecord
from pbg_tasks.publish.sinks.postgres_silence import ended_in_silence
from pbg_tasks.publish.sinks.registry import library
from pbg_tasks.redaction import credentials_in, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import ModuleType

_OPERATORS = {"l2": ("<->", "vector_l2_ops"), "cosine": ("<=>", "vector_cosine_ops"), "dot": ("<#>", "vector_ip_ops")}
_INDEXED_DIMENSIONS = 2000  # most that pgvector's indexes take
_ATTEMPT = re.compile(r"^connection to server .*? failed: (?!$)")
"""Words of the client before the reason, which is the server's or the system's."""
_FATAL = re.compile(r"FATAL: +")
_LASTING = re.compile(
    r"authentication failed|no pg_hba\.conf entry|not permitted to log in|permission denied"
    r"|(role|database) .* does not exist"
)
"""Texts of refusals that a retry meets again; others pass, as of a server that starts."""
_COPY_HEADER = b"PGCOPY\n\xff\r\n\0" + struct.pack("!ii", 0, 0)
_COPY_END = struct.pack("!h", -1)
_MOST_CANDIDATES = 1000  # of a search, for pgvector
_LOCK = 0x706267  # of the advisory lock under which the sink's own tables are made
_LOCK_SECONDS = 300  # longest wait for a lock; an export whose machine is gone keeps its locks for hours
_KEEPALIVES = {"keepalives_idle": 60, "keepalives_interval": 10, "keepalives_count": 6, "tcp_user_timeout": 120_000}
"""A server that is gone is noticed in two minutes; by the system's own settings in two hours."""
_SET_UP = """
CREATE TABLE IF NOT EXISTS pbg_tables (name text PRIMARY KEY, collection text NOT NULL, record jsonb NOT NULL);
CREATE TABLE IF NOT EXISTS pbg_served (alias text PRIMARY KEY, collection text NOT NULL, name text NOT NULL);
"""


class PostgresSink(Sink):
    """Sink ``pgvector``."""

    sink_options = PgvectorOptions

    @contextmanager
    def connect(self, destination: str, options: PgvectorOptions) -> Iterator[PostgresTables]:
        """Open a connection to a database, with the extension in it."""
        if not destination.startswith(("postgresql://", "postgres://")):
            raise ConfigError(f"{shown(destination)}: pgvector takes postgresql://host/database")
        if found := credentials_in(destination):
            raise ConfigError(
                f"{shown(destination)} holds {found}: write the place alone; the client takes PGUSER, PGPASSWORD and "
                "PGPASSFILE"
            )
        psycopg2 = library("psycopg2", sink="sink pgvector", extra="pgvector")
        with _errors(psycopg2, destination):
            connection = _connected(psycopg2, destination)
            try:
                with ended_in_silence(psycopg2, destination, connection):
                    tables = PostgresTables(psycopg2, connection, destination, options)
                    tables.set_up()
                    yield tables
            finally:
                connection.close()


def _connected(psycopg2: ModuleType, destination: str) -> Any:  # noqa: ANN401 - untyped
    """Open a connection.

    Raises:
        AccessError: the server does not know the user, the password or the database.
        ConfigError: the URL has an option that PostgreSQL's clients do not know.
        StorageError: there is no server, or it takes no connection now.
    """
    try:
        # Names are copied in UTF-8, whatever the database's encoding and PGCLIENTENCODING are.
        return psycopg2.connect(
            destination, connect_timeout=10, application_name="pbg", client_encoding="UTF8", **_KEEPALIVES
        )
    except psycopg2.ProgrammingError as error:
        raise ConfigError(f"{destination}: {_reason(error)}; write postgresql://host:port/database") from error
    except psycopg2.OperationalError as error:
        reason = "; ".join(dict.fromkeys(_ATTEMPT.sub("", line) for line in _lines(error)))
        place, refused = _server(psycopg2.extensions.parse_dsn(destination)), _FATAL.match(reason)
        if refused:
            kind = AccessError if _LASTING.search(reason) else StorageError
            raise kind(
                f"{destination}: {place} refused the connection: {reason[refused.end() :]}; check the database's name, "
                "PGUSER and PGPASSWORD, then run the export again"
            ) from error
        raise StorageError(
            f"{destination}: no connection to {place}: {reason}; check them, and that PostgreSQL runs there and takes "
            "connections from here; then run the export again"
        ) from error


def _server(dsn: Mapping[str, str]) -> str:
    """Return host and port of a server, or its socket."""
    host, port = dsn.get("host") or os.environ.get("PGHOST", ""), dsn.get("port") or os.environ.get("PGPORT", "5432")
    if host and not host.startswith("/"):
        return f"host {host}, port {port}"
    return f"the socket in {host}, port {port}" if host else f"this machine's socket, port {port}"


def _lines(error: Exception) -> list[str]:
    """Return the lines of a client's message, without indented questions."""
    return [" ".join(line.split()) for line in str(error).splitlines() if line.strip() and not line.startswith("\t")]


def _reason(error: Any) -> str:  # noqa: ANN401 - untyped
    """Return the message of an error on one line, without the statement."""
    found = error.diag.message_primary or next(iter(_lines(error)), type(error).__name__)
    return f"{found}: {error.diag.message_detail}" if error.diag.message_detail else str(found)


@contextmanager
def _errors(psycopg2: ModuleType, destination: str) -> Iterator[None]:
    """Turn errors of the database into errors of this package.

    Raises:
        AccessError: the role may not do it.
        FormatError: the database's encoding lacks a character of a name.
        StorageError: the database failed, cannot be reached, or another session keeps a lock.
    """
    try:
        yield
    except PbgError:
        raise
    except psycopg2.errors.InsufficientPrivilege as error:
        raise AccessError(f"{destination}: refused ({_reason(error)}); give the role the right to it") from error
    except psycopg2.errors.LockNotAvailable as error:
        raise StorageError(
            f"{destination}: another session has kept a lock for {_LOCK_SECONDS} s, perhaps that of an export whose "
            "machine is gone; find it in pg_stat_activity, end it, and run the export again"
        ) from error
    except psycopg2.errors.UntranslatableCharacter as error:
        raise FormatError(
            f"{destination}: the database cannot hold a name ({_reason(error)}); use a database of the encoding UTF8"
        ) from error
    except psycopg2.Error as error:
        raise StorageError(
            f"{destination}: PostgreSQL failed ({_reason(error)}); run the export again, it goes on where it ended"
        ) from error


class PostgresTables:
    """Tables of one database.

    Args:
        psycopg2: the library.
        connection: to the database.
        destination: its URL, for messages.
        options: of the sink.
    """

    def __init__(self, psycopg2: ModuleType, connection: Any, destination: str, options: PgvectorOptions) -> None:  # noqa: ANN401 - untyped
        self._psycopg2, self._connection = psycopg2, connection
        self._destination = destination
        self._options = options
        self._sql: Any = library("psycopg2.sql", sink="sink pgvector", extra="pgvector")

    def set_up(self) -> None:
        """Make the extension and the sink's own tables, where they are missing.

        Raises:
            ConfigError: the server has no pgvector.
        """
        with self._transaction() as cursor:
            cursor.execute("SET lock_timeout = %s", (f"{_LOCK_SECONDS}s",))
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
            cursor.execute("SELECT count(*) FROM pg_available_extensions WHERE name = 'vector'")
            if not cursor.fetchone()[0]:
                raise ConfigError(f"{self._destination}: the server has no extension pgvector; install it there")
            cursor.execute("CREATE EXTENSION IF NOT EXISTS vector")
            cursor.execute(_SET_UP)

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        with self._connection, self._connection.cursor() as cursor:
            yield cursor

    @contextmanager
    def _alone(self, table: str) -> Iterator[Any]:
        """Open a transaction that writes a table.

        Raises:
            ConflictError: another export writes it, too.
        """
        try:
            with self._transaction() as cursor:
                yield cursor
        except (self._psycopg2.errors.UniqueViolation, self._psycopg2.errors.DuplicateTable):
            raise ConflictError(
                f"{self._destination}: another export writes into table {table} too; wait for it, or end it, and run "
                "this one again"
            ) from None

    def _execute(self, cursor: Any, text: str, *names: str, values: tuple[Any, ...] = ()) -> None:  # noqa: ANN401 - untyped
        """Execute a statement with quoted names in the place of ``{}``."""
        cursor.execute(self._sql.SQL(text).format(*map(self._sql.Identifier, names)), values)

    def records(self, collection: str) -> dict[str, TableRecord]:
        """Read the records of a collection's tables."""
        with self._transaction() as cursor:
            cursor.execute("SELECT name, record::text FROM pbg_tables WHERE collection = %s", (collection,))
            return {
                name: decode(TableRecord, text.encode(), source=f"{self._destination}, table pbg_tables, {name}")
                for name, text in cursor.fetchall()
            }

    def create(self, table: str, record: TableRecord) -> None:
        """Make a table of the columns ``row``, ``id`` and ``embedding``.

        Raises:
            ConflictError: its view, or one that moves with it, could not be made in the end; or another export makes
                it now.
        """
        columns = f"row bigint PRIMARY KEY, id text NOT NULL, embedding vector({record.dimension}) NOT NULL"
        with self._alone(table) as cursor:
            for alias in (record.alias, *record.together):
                self._refuse_taken(cursor, record.collection, alias)
            self._execute(cursor, "DROP TABLE IF EXISTS {}", table)
            self._execute(cursor, f"CREATE TABLE {{}} ({columns})", table)
            self._save(cursor, table, record)

    def _save(self, cursor: Any, table: str, record: TableRecord) -> None:  # noqa: ANN401 - untyped
        text = encode(record).decode()
        cursor.execute(
            "INSERT INTO pbg_tables VALUES (%s, %s, %s) ON CONFLICT (name) DO UPDATE SET record = excluded.record",
            (table, record.collection, text),
        )

    def count(self, table: str, record: TableRecord) -> int:
        """Count the rows, whose numbers the primary key keeps apart."""
        del record
        with self._transaction() as cursor:
            cursor.execute("SELECT to_regclass(%s) IS NOT NULL", (table,))
            if not cursor.fetchone()[0]:
                return 0
            self._execute(cursor, "SELECT count(*), coalesce(max(row), -1) + 1, coalesce(min(row), 0) FROM {}", table)
            found, after, first = map(int, cursor.fetchone())
        if found != after or first:
            raise ConflictError(
                f"{self._destination}: table {table} lacks some of its first {after} rows; the export fills it anew"
            )
        return found

    def add(self, table: str, start: int, rows: Rows) -> None:
        """Copy rows, all of them or none."""
        data = BytesIO(_copied(start, rows, table))
        statement = self._sql.SQL("COPY {} (row, id, embedding) FROM STDIN (FORMAT binary)")
        with self._alone(table) as cursor:
            cursor.copy_expert(statement.format(self._sql.Identifier(table)), data)

    def finish(self, table: str, record: TableRecord) -> TableRecord:
        """Build the indexes of vectors and names.

        Their names have a letter more than the longest table, 62: PostgreSQL cuts at 63, without an error.
        """
        options = self._options
        with self._transaction() as cursor:
            self._execute(cursor, "CREATE INDEX IF NOT EXISTS {} ON {} USING hash (id)", f"{table}i", table)
            if options.index == "hnsw" and record.dimension <= _INDEXED_DIMENSIONS:
                kind = f"hnsw (embedding {_OPERATORS[record.metric][1]})"
                more = f"WITH (m = {options.m}, ef_construction = {options.ef_construction})"
                cursor.execute(f"SET LOCAL maintenance_work_mem = '{options.build_memory_mb}MB'")
                statement = f"CREATE INDEX IF NOT EXISTS {{}} ON {{}} USING {kind} {more}"
                self._execute(cursor, statement, f"{table}v", table)
            self._execute(cursor, "ANALYZE {}", table)
        return record

    def fetch(self, table: str, record: TableRecord, numbers_S: np.ndarray) -> Rows:
        """Read rows by their numbers."""
        text = "SELECT id, embedding::text FROM {} WHERE row = ANY(%s) ORDER BY row"
        with self._transaction() as cursor:
            self._execute(cursor, text, table, values=(numbers_S.tolist(),))
            found = cursor.fetchall()
        vectors = np.array([json.loads(vector) for _, vector in found], np.float64).reshape(-1, record.dimension)
        return Rows([name for name, _ in found], vectors.astype(np.float32))

    def search(self, table: str, record: TableRecord, queries_SD: np.ndarray, count: int) -> np.ndarray:
        """Search with the option ``ef_search``."""
        nearest_SK = np.full((len(queries_SD), count), -1, np.int64)
        text = f"SELECT row FROM {{}} ORDER BY embedding {_OPERATORS[record.metric][0]} %s::vector LIMIT %s"  # noqa: S608
        with self._transaction() as cursor:
            cursor.execute(
                "SET LOCAL hnsw.ef_search = %s", (min(max(self._options.ef_search, count), _MOST_CANDIDATES),)
            )
            for number, query in enumerate(queries_SD.astype(np.float64).tolist()):
                self._execute(cursor, text, table, values=(json.dumps(query), count))
                found = [row for (row,) in cursor.fetchall()]
                nearest_SK[number, : len(found)] = found
        return nearest_SK

    def complete(self, table: str, record: TableRecord) -> None:
        """Replace the record of a table."""
        with self._transaction() as cursor:
            self._save(cursor, table, record)

    def served(self, collection: str) -> dict[str, str]:
        """Return the table behind each view."""
        with self._transaction() as cursor:
            cursor.execute("SELECT alias, name FROM pbg_served WHERE collection = %s", (collection,))
            return dict(cursor.fetchall())

    def _refuse_taken(self, cursor: Any, collection: str, alias: str) -> None:  # noqa: ANN401 - untyped
        """Refuse to make or replace a view that is not the collection's.

        Raises:
            ConflictError: something else of that name is there.
        """
        cursor.execute(
            "SELECT to_regclass(quote_ident(%s)), (SELECT collection FROM pbg_served WHERE alias = %s)", (alias, alias)
        )
        other, owner = cursor.fetchone()
        if owner != collection and (other is not None or owner is not None):
            whose = f"of collection {owner}" if owner is not None else "that no export made"
            raise ConflictError(
                f"{self._destination}: there is a relation {alias} {whose}; give the export another option "
                "collection, or rename that relation"
            )

    def switch(self, collection: str, tables: Mapping[str, tuple[str, TableRecord]]) -> None:
        """Replace the views of a collection in one transaction.

        A view keeps its privileges, unless the vectors have another dimension: then it is made anew.

        Raises:
            ConflictError: something else of that name is there, such as the view of another collection.
        """
        with self._transaction() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
            for alias, (table, record) in tables.items():
                self._refuse_taken(cursor, collection, alias)
                cursor.execute(
                    "SELECT record->>'dimension' FROM pbg_served JOIN pbg_tables USING (name) WHERE alias = %s",
                    (alias,),
                )
                there = cursor.fetchone()
                if there is None or int(there[0]) != record.dimension:
                    self._execute(cursor, "DROP VIEW IF EXISTS {}", alias)
                self._execute(cursor, "CREATE OR REPLACE VIEW {} AS SELECT row, id, embedding FROM {}", alias, table)
                cursor.execute(
                    "INSERT INTO pbg_served VALUES (%s, %s, %s) ON CONFLICT (alias) DO UPDATE SET name = excluded.name",
                    (alias, collection, table),
                )

    def drop(self, table: str, record: TableRecord) -> None:
        """Remove a table and its record in one transaction."""
        del record
        with self._transaction() as cursor:
            self._execute(cursor, "DROP TABLE IF EXISTS {}", table)
            cursor.execute("DELETE FROM pbg_tables WHERE name = %s", (table,))


def _copied(start: int, rows: Rows, table: str) -> bytes:
    """Return rows in the binary format of COPY.

    Raises:
        FormatError: PostgreSQL's texts cannot hold a name.
    """
    dimension = rows.vectors.shape[1]
    size = 4 + 4 * dimension
    head = struct.pack("!hhh", 0, dimension, 0)[2:]
    values = rows.vectors.astype(">f4").tobytes()
    parts = [_COPY_HEADER]
    for place, name in enumerate(rows.names):
        text = name.encode()
        if b"\0" in text:
            raise FormatError(f"table {table}: PostgreSQL has no zero byte in texts, as in the name {name!r:.60}")
        parts += [
            struct.pack("!hiqi", 3, 8, start + place, len(text)),
            text,
            struct.pack("!i", size),
            head,
            values[4 * dimension * place : 4 * dimension * (place + 1)],
        ]
    return b"".join([*parts, _COPY_END])
