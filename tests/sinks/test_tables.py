"""One contract for the tables of all sinks, against real stores.

Qdrant and Milvus are the exceptions: Qdrant's local mode and Milvus Lite stand for servers. The file is longer
than others, as all sinks share its stores.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from pbg_tasks.config.exports import Export, ExportOptions
from pbg_tasks.config.sinks import MilvusOptions, QdrantOptions, collection_of
from pbg_tasks.errors import ConfigError, ConflictError, FormatError, QualityGateError, StorageError
from pbg_tasks.publish.sinks import Rows, TableRecord, open_sink, qdrant, sink_options
from pbg_tasks.publish.sinks.milvus import MilvusTables
from pbg_tasks.publish.sinks.postgres import PostgresTables
from pbg_tasks.tasks.exchange import fill as filling
from pbg_tasks.tasks.exchange import serving
from pbg_tasks.tasks.exchange.export import export
from pbg_tasks.tasks.exchange.fill import complete_tables, retire
from tests.sink_story import postgres
from tests.tasks.exchanges import model

SINKS = ("lancedb", "milvus", "pgvector", "qdrant")
ROWS, DIMENSION = 50, 5
VECTORS = np.random.default_rng(0).normal(size=(ROWS, DIMENSION)).astype(np.float32)
SHA256 = "0" * 64
NAMES = ["", "'; DROP TABLE x; --", "日本語", *(f"e{i}" for i in range(3, ROWS))]


@pytest.fixture(scope="module")
def destinations(tmp_path_factory):
    """URL of each store."""
    folder = tmp_path_factory.mktemp("stores")
    with postgres() as url:
        yield {"pgvector": url} | {name: str(folder / name) for name in ("lancedb", "milvus", "qdrant")}


@pytest.fixture(params=SINKS)
def sink(request):
    return request.param


@pytest.fixture
def opened(sink, destinations):
    """Open a store as often as it is called."""
    return lambda: open_sink(sink, destinations[sink], sink_options(sink, {}))


@pytest.fixture
def collection(request):
    """Name of a collection that no other test has."""
    return f"t{abs(hash(request.node.name)) % 10**9}"


@pytest.fixture
def release(tmp_path, monkeypatch, scratch):
    """Model whose tables are found again, as a release's."""
    real = filling.describe
    monkeypatch.setattr(filling, "describe", lambda found: real(found).model_copy(update={"manifest_sha256": SHA256}))
    return model(tmp_path / "data", comparator="cos")


def record(collection, number=1, **changes):
    keys = {"entity": "n", "alias": f"{collection}_n", "source": "/model", "metric": "l2", "dimension": DIMENSION}
    return TableRecord(collection=collection, number=number, rows=ROWS, **keys | changes)


def rows(start=0, stop=ROWS):
    return Rows(NAMES[start:stop], VECTORS[start:stop])


def filled(tables, table, made):
    """Fill a table, and complete it."""
    tables.create(table, made)
    tables.add(table, 0, rows())
    done = tables.finish(table, made).model_copy(update={"complete": True, "recall": 1.0})
    tables.complete(table, done)
    return done


def test_rows_come_back_as_they_were_written(opened, collection):
    with opened() as tables:
        tables.create(f"{collection}_a", record(collection))
        assert tables.count(f"{collection}_a", record(collection)) == 0
        tables.add(f"{collection}_a", 0, rows(0, 20))
    with opened() as tables:  # of another process
        assert tables.records(collection) == {f"{collection}_a": record(collection)}
        assert tables.count(f"{collection}_a", record(collection)) == 20
        tables.add(f"{collection}_a", 20, rows(20))
        found = tables.fetch(f"{collection}_a", record(collection), np.array([0, 1, 2, 30, ROWS + 5]))
        assert list(found.names) == [*NAMES[:3], "e30"]
        assert np.array_equal(found.vectors, VECTORS[[0, 1, 2, 30]])


@pytest.mark.parametrize("metric", ["l2", "cosine", "dot"])
def test_search_finds_what_metric_orders(opened, collection, metric):
    with opened() as tables:
        done = filled(tables, f"{collection}_a", record(collection, metric=metric))
        found = tables.search(f"{collection}_a", done, VECTORS[:7], ROWS + 3)
    exact = VECTORS[:7] @ VECTORS.T
    if metric == "cosine":
        exact /= np.linalg.norm(VECTORS, axis=1)
    if metric == "l2":
        exact = -np.linalg.norm(VECTORS[:7, None] - VECTORS[None], axis=2)
    assert np.array_equal(found[:, :ROWS], np.argsort(-exact, axis=1))
    assert (found[:, ROWS:] == -1).all()


def test_aliases_move_together_and_back(opened, collection):
    one, other = f"{collection}_a", f"{collection}_b"
    with opened() as tables:
        first = filled(tables, one, record(collection))
        second = filled(tables, other, record(collection, number=2))
        assert tables.served(collection) == {}
        aliases = (f"{collection}_n", f"{collection}_m")
        tables.switch(collection, dict.fromkeys(aliases, (one, first)))
        assert tables.served(collection) == dict.fromkeys(aliases, one)
        tables.switch(collection, {aliases[0]: (other, second)})
        assert tables.served(collection) == {aliases[0]: other, aliases[1]: one}
        tables.switch(collection, {aliases[0]: (one, first)})
    with opened() as tables:
        assert tables.served(collection) == dict.fromkeys(aliases, one)


@pytest.mark.parametrize("sink", ["milvus", "pgvector", "qdrant"])
def test_alias_of_another_collection_stays(opened, collection):
    one, other = f"{collection}_a", f"{collection}_b_c"
    with opened() as tables:
        first = filled(tables, one, record(collection, alias=f"{collection}_b_n"))
        second = filled(tables, other, record(f"{collection}_b"))
        tables.switch(collection, {first.alias: (one, first)})
        with pytest.raises(ConflictError, match=f"{first.alias} .*collection {collection}.* another option collection"):
            tables.switch(second.collection, {second.alias: (other, second)})
        assert tables.served(collection) == {first.alias: one}


@pytest.mark.parametrize("sink", ["milvus", "pgvector", "qdrant"])
def test_taken_alias_ends_export_before_filling(opened, collection):
    alias = f"{collection}_b_n"
    with opened() as tables:
        tables.switch(collection, {alias: (f"{collection}_a", filled(tables, f"{collection}_a", record(collection)))})
        for taken in ({"alias": alias}, {"together": (f"{collection}_b_m", alias)}):
            with pytest.raises(ConflictError, match=f"{alias} .*collection {collection}.* another option collection"):
                tables.create(f"{collection}_b_c", record(f"{collection}_b", **{"alias": f"{collection}_b_m"} | taken))
            assert tables.count(f"{collection}_b_c", record(f"{collection}_b")) == 0


def test_view_that_no_export_made_stays(destinations):
    import psycopg2

    with open_sink("pgvector", destinations["pgvector"], sink_options("pgvector", {})) as tables:
        done = filled(tables, "own_n_1", record("own"))
        with psycopg2.connect(destinations["pgvector"]) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE VIEW own_n AS SELECT 7 AS mine")
        with pytest.raises(ConflictError, match="there is a relation own_n that no export made"):
            tables.switch("own", {"own_n": ("own_n_1", done)})
        with connection, connection.cursor() as cursor:
            cursor.execute("SELECT mine FROM own_n")
            assert cursor.fetchone() == (7,)
        connection.close()


def test_search_for_many_neighbors_is_answered(destinations):
    with open_sink("pgvector", destinations["pgvector"], sink_options("pgvector", {})) as tables:
        done = filled(tables, "many_n_1", record("many"))
        assert (tables.search("many_n_1", done, VECTORS[:1], 2000)[0, :ROWS] >= 0).all()


def test_dropped_table_is_gone_with_its_record(opened, collection):
    with opened() as tables:
        done = filled(tables, f"{collection}_a", record(collection))
        tables.drop(f"{collection}_a", done)
        tables.drop(f"{collection}_a", done)
        assert tables.records(collection) == {}
        assert tables.count(f"{collection}_a", record(collection)) == 0


def test_rows_written_twice_do_not_pass(sink, opened, collection):
    with opened() as tables:
        tables.create(f"{collection}_a", record(collection))
        tables.add(f"{collection}_a", 0, rows(0, 20))
        if sink in {"milvus", "qdrant"}:  # a row that is written again is the same row
            tables.add(f"{collection}_a", 0, rows(0, 20))
            assert tables.count(f"{collection}_a", record(collection)) == 20
            return
        with pytest.raises(ConflictError, match="another export writes into"):
            tables.add(f"{collection}_a", 0, rows(0, 20))
        if sink == "pgvector":  # its transaction left nothing
            assert tables.count(f"{collection}_a", record(collection)) == 20


def test_gap_among_first_rows_is_refused(opened, collection):
    with opened() as tables:
        tables.create(f"{collection}_a", record(collection))
        try:
            tables.add(f"{collection}_a", 10, rows(10, 20))
        except ConflictError:
            return
        with pytest.raises(ConflictError, match="fills it anew"):
            tables.count(f"{collection}_a", record(collection))


def test_export_is_filled_checked_and_served(sink, destinations, tmp_path, scratch):
    data = model(tmp_path / "data", comparator="cos")
    options = ExportOptions(options={"collection": "shop"})
    measured = export(sink, str(data.checkpoint), destinations[sink], options=options)["measured"]
    assert {found["recall"] for found in measured["tables"].values()} == {1.0}
    with open_sink(sink, destinations[sink], sink_options(sink, {})) as tables:
        assert tables.served("shop") == {
            f"shop_{entity}": found["table"] for entity, found in measured["tables"].items()
        }


def fill(data, destinations, *, collection, **more):
    """Export by hand to PostgreSQL; return what was measured."""
    options = ExportOptions(options={"collection": collection}, **more)
    return export("pgvector", str(data.checkpoint), destinations["pgvector"], options=options)["measured"]


def test_table_served_meanwhile_is_left_alone(release, destinations, monkeypatch):
    real, others = PostgresTables.add, []

    def add(self, table, start, rows):
        if not others:
            others.append(None)
            others.append(fill(release, destinations, collection="meanwhile", types=["item"]))
        real(self, table, start, rows)

    monkeypatch.setattr(PostgresTables, "add", add)
    measured = fill(release, destinations, collection="meanwhile")
    assert measured["written_rows"] == len(release.names["user"])
    assert measured["tables"]["item"] == others[1]["tables"]["item"]


def test_served_table_that_lost_rows_is_not_emptied(release, destinations):
    import psycopg2

    before = fill(release, destinations, collection="lost")["tables"]
    with psycopg2.connect(destinations["pgvector"]) as connection, connection.cursor() as cursor:
        cursor.execute("DELETE FROM lost_item WHERE row = 3")
    connection.close()
    after = fill(release, destinations, collection="lost")
    assert (after["written_rows"], after["tables"]["user"]) == (len(release.names["item"]), before["user"])
    assert after["tables"]["item"]["table"] != before["item"]["table"]
    assert fill(release, destinations, collection="lost")["written_rows"] == 0


def test_recall_is_measured_again_for_other_neighbors(release, destinations, monkeypatch):
    found = []
    fill(release, destinations, collection="again", types=["item"])
    monkeypatch.setattr(PostgresTables, "search", lambda *asked: found.append(asked[-1]) or np.full((40, 21), -1))
    with pytest.raises(QualityGateError, match=r"finds 0\.0000 of the 20 nearest"):
        fill(release, destinations, collection="again", types=["item"], neighbors=20)
    assert found == [21]


def test_release_with_an_unfinished_table_is_not_complete(destinations):
    with open_sink("pgvector", destinations["pgvector"], sink_options("pgvector", {})) as tables:
        both = {"together": ("h_n", "h_m"), "manifest_sha256": SHA256}
        filled(tables, "h_n_1", record("h", **both))
        tables.create("h_m_1", other := record("h", alias="h_m", **both))
        filled(tables, "h_o_1", record("h", alias="h_o", **both | {"together": ("h_o",)}))  # of another export
        assert complete_tables(tables, "h", SHA256).keys() == {"h_o_1"}
        tables.complete("h_m_1", other.model_copy(update={"complete": True}))
        assert complete_tables(tables, "h", SHA256).keys() == {"h_n_1", "h_m_1", "h_o_1"}


def test_tables_of_other_types_answer_for_no_export(tmp_path, monkeypatch):
    """Two exports may fill types of one collection."""
    release, place = SimpleNamespace(manifest_sha256=SHA256), str(tmp_path / "lance")
    channel = SimpleNamespace(current=lambda: SimpleNamespace(release=release))
    monkeypatch.setattr(serving, "Channel", lambda *_: channel)
    model = SimpleNamespace(entities=("n", "m"))
    graph = SimpleNamespace(collection="g_c", channel="c", store=str(tmp_path / "store"), model=model)
    with open_sink("lancedb", place, sink_options("lancedb", {})) as tables:
        filled(tables, "g_c_n_1", record("g_c", manifest_sha256=SHA256))
    followed = [
        serving.follow(graph, Export(format="lancedb", destination=place, types=types)) for types in ((), ["n"], ["m"])
    ]
    assert followed == [release, release, None]


def test_failed_index_of_milvus_ends_wait():
    answers = iter([{"pending_index_rows": 7, "state": "Failed"}])
    client = SimpleNamespace(flush=lambda _: None, describe_index=lambda *_: next(answers))
    tables = MilvusTables(sys, client, "https://host:19530", MilvusOptions())
    with pytest.raises(StorageError, match="the index of collection m_n_1 failed; see the server's log"):
        tables.finish("m_n_1", record("m"))


def test_requests_of_milvus_count_their_names():
    sent = []
    client = SimpleNamespace(upsert=lambda _, data: sent.append([row["row"] for row in data]))
    names = ["é" * 30_000] * 300  # 18 MB
    MilvusTables(sys, client, "https://host:19530", MilvusOptions()).add("m_n_1", 7, Rows(names, np.zeros((300, 4))))
    assert max(map(len, sent)) == (8 << 20) // (60_000 + 16)
    assert [row for rows in sent for row in rows] == list(range(7, 307))


def test_requests_of_qdrant_count_vectors_and_names():
    sent = []
    client = SimpleNamespace(upsert=lambda _, points, wait: sent.append(points.ids if wait else []))
    tables = qdrant.QdrantTables(SimpleNamespace(Batch=SimpleNamespace), client, "https://host:6333", QdrantOptions())
    tables.add("q_n_1", 7, Rows(["é" * 500] * 200, np.zeros((200, 4096))))  # 500 of them are 49 MB
    assert max(map(len, sent)) == (8 << 20) // (24 * 4096 + 1000)
    assert [row for rows in sent for row in rows] == list(range(7, 207))


def test_restarted_qdrant_builds_its_index_again(monkeypatch):
    from qdrant_client import models

    statuses, updates = iter(map(models.CollectionStatus, ("yellow", "grey", "green"))), []
    client = SimpleNamespace(
        update_collection=lambda table, **_: updates.append(table),
        get_collection=lambda _: SimpleNamespace(status=next(statuses)),
    )
    monkeypatch.setattr(qdrant, "_LOOKS_SECONDS", 0)
    qdrant.QdrantTables(models, client, "https://host:6333", QdrantOptions()).finish("q_n_1", record("q"))
    assert updates == ["q_n_1", "q_n_1"]


def test_failed_nights_displace_no_release(destinations):
    with open_sink("pgvector", destinations["pgvector"], sink_options("pgvector", {})) as tables:
        for number in range(1, 4):
            filled(tables, f"k_n_{number}", record("k", number))
        for number in range(4, 8):
            tables.create(f"k_n_{number}", record("k", number))
        assert retire(tables, "k", ["k_m"], keep=1, needed=()) == []  # of an export of another type
        assert retire(tables, "k", ["k_n"], keep=2, needed=()) == ["k_n_1", "k_n_4", "k_n_5"]


@pytest.fixture
def three(tmp_path):
    """Three tables of a collection, of which the last one is served."""
    with open_sink("lancedb", str(tmp_path / "lance"), sink_options("lancedb", {})) as tables:
        made = [filled(tables, f"k_n_{number}", record("k", number)) for number in range(1, 4)]
        tables.switch("k", {"k_n": ("k_n_3", made[2])})
        yield tables, made


def test_table_rolled_back_to_meanwhile_stays(three, monkeypatch):
    tables, made = three
    real = tables.records

    def records(collection):
        found = real(collection)
        tables.switch("k", {"k_n": ("k_n_1", made[0])})
        return found

    monkeypatch.setattr(tables, "records", records)
    assert retire(tables, "k", ["k_n"], keep=1, needed=()) == []
    assert tables.served("k") == {"k_n": "k_n_1"}
    assert real("k")["k_n_1"] == made[0]
    assert tables.count("k_n_1", made[0]) == ROWS


def test_roll_back_sees_table_that_is_dropped(three, monkeypatch):
    tables, made = three
    release = SimpleNamespace(manifest_sha256=SHA256)
    channel, real = SimpleNamespace(current=lambda: SimpleNamespace(release=release)), tables.switch
    first = made[0].model_copy(update={"manifest_sha256": SHA256})
    tables.complete("k_n_1", first)

    def switch(collection, wanted):
        tables.complete("k_n_1", first.model_copy(update={"complete": False}))  # as an export that drops it does
        real(collection, wanted)

    monkeypatch.setattr(tables, "switch", switch)
    assert (serving._follow(tables, "k", channel, ["n"]), tables.served("k")) == (None, {"k_n": "k_n_3"})


def test_collections_of_different_channels_differ():
    assert collection_of("a_b", "c") == "a_b_c" != collection_of("a", "b_c")
    assert collection_of("my-shop", "production") == "my_shop_productio_72c009"  # of docs/sinks.md


def test_view_keeps_privileges_until_dimension_changes(destinations):
    import psycopg2

    with open_sink("pgvector", destinations["pgvector"], sink_options("pgvector", {})) as tables:
        first, second = (filled(tables, f"v_{name}", record("v", number)) for number, name in enumerate("ab", start=1))
        wide = record("v", 3, dimension=DIMENSION + 1)
        tables.create("v_c", wide)
        tables.switch("v", {"v_n": ("v_a", first)})
        with psycopg2.connect(destinations["pgvector"]) as connection, connection.cursor() as cursor:
            cursor.execute("GRANT SELECT ON v_n TO pg_monitor")
            granted = "SELECT has_table_privilege('pg_monitor', 'v_n', 'SELECT')"
            connection.commit()
            for table, made, kept in (("v_b", second, True), ("v_c", wide, False)):
                tables.switch("v", {"v_n": (table, made)})
                cursor.execute(granted)
                assert cursor.fetchone() == (kept,)
                connection.commit()
        connection.close()


def test_name_that_store_cannot_hold_is_refused(destinations):
    with open_sink("pgvector", destinations["pgvector"], sink_options("pgvector", {})) as tables:
        tables.create("z_a", record("z"))
        with pytest.raises(FormatError, match=r"no zero byte in texts, as in the name 'a\\x00b'"):
            tables.add("z_a", 0, Rows(["a\0b"], VECTORS[:1]))


@pytest.mark.parametrize(
    ("sink", "destination", "error", "message"),
    [
        ("pgvector", "mysql://host/db", ConfigError, "pgvector takes postgresql://host/database"),
        ("pgvector", "postgresql://me:secret@host/db", ConfigError, "write the place alone; the client takes PGUSER"),
        ("pgvector", "postgresql://127.0.0.1:9/db", StorageError, "no connection to host 127.0.0.1, port 9: "),
        ("pgvector", "postgresql://host/db?sslmod=on", ConfigError, 'invalid URI query parameter: "sslmod"'),
        ("milvus", "tcp://host", ConfigError, "milvus takes https://host:19530 or a directory"),
        ("qdrant", "grpc://host", ConfigError, "qdrant takes https://host:6333"),
        ("qdrant", "http://169.254.169.254/", ConfigError, "metadata service"),
        ("qdrant", "http://127.0.0.1:9", StorageError, "Qdrant failed"),
        ("lancedb", "gs://bucket/a", ConfigError, "lancedb takes a directory or s3://bucket/prefix"),
        ("lancedb", __file__, ConfigError, "is a file; lancedb takes a directory"),
    ],
)
def test_place_that_sink_cannot_open_is_refused(sink, destination, error, message):
    with pytest.raises(error, match=message), open_sink(sink, destination, sink_options(sink, {})) as tables:
        tables.records("t")


@pytest.mark.parametrize(
    ("sink", "module"), [("milvus", "pymilvus"), ("pgvector", "psycopg2"), ("qdrant", "qdrant_client")]
)
def test_missing_library_names_the_extra(sink, module, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    place = "postgresql://host/db" if sink == "pgvector" else "https://host:6333"
    with (
        pytest.raises(ConfigError, match=rf"sink {sink} needs the package {module} .*'pbg-tasks\[{sink}\]'"),
        open_sink(sink, place, sink_options(sink, {})),
    ):
        pass


def test_sink_without_place_in_store_needs_a_destination():
    with pytest.raises(ValueError, match="the destination is missing: sink qdrant has no place of its own"):
        Export.model_validate({"format": "qdrant"})


@pytest.mark.parametrize(
    ("sink", "destination"), [("pgvector", "/data/x"), ("qdrant", "grpc://host"), ("lancedb", "gs://bucket/a")]
)
def test_wrong_destination_is_refused_with_spec(sink, destination):
    with pytest.raises(ValueError, match=f"the destination of sink {sink} is .*, not '{destination}'"):
        Export.model_validate({"format": sink, "destination": destination})


@pytest.mark.parametrize(
    ("more", "shared"),
    [
        ({}, True),
        ({"types": ["item"]}, True),
        ({"types": ["user"]}, False),
        ({"options": {"collection": "b"}}, False),
        ({"options": {"collection": "g_production"}}, True),  # as the first has without the option
    ],
)
def test_exports_that_share_aliases_are_reported(more, shared):
    first = Export.model_validate({"format": "lancedb", "name": "a", "destination": "/v/", "types": ["item"]})
    other = Export.model_validate({"format": "lancedb", "name": "b", "destination": "/v", **more})
    pairs = (first, other), (other, first)
    assert {one.shares_aliases(two, "/store", "g_production") for one, two in pairs} == {shared}
