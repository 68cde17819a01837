"""Logs of changes: folded up to a day, in order."""

from __future__ import annotations

import json
import os
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.local import LocalFileSystem
from s3fs.core import S3File

from pbg_tasks.config import Resources, Snapshots, load_graph_spec
from pbg_tasks.errors import ConfigError, InputError, MissingSnapshotError, OutOfTurnError, StorageError
from pbg_tasks.prepare.connection import connect
from pbg_tasks.prepare.sources import snapshot_keys, snapshot_source
from pbg_tasks.storage.columnar import filesystem_for
from pbg_tasks.tasks.nightly.chain import run_task
from pbg_tasks.tasks.nightly.newest import newest_snapshot
from pbg_tasks.tasks.nightly.plan import plan
from tests.tasks.conftest import ring

COLUMNS = ("lhs", "rel", "rhs")


class Log:
    """Log in a directory or in S3, a folder a day."""

    def __init__(self, root, **options):
        self.root, self.options = str(root), options
        self.filesystem = filesystem_for(self.root)

    def write(self, day, *rows, name="part-0", columns=("change", *COLUMNS), whole=True):
        """Write a file of a day."""
        folder = f"{self.root}/{day}"
        self.filesystem.makedirs(folder, exist_ok=True)
        cells = {column: [row[at] for row in rows] for at, column in enumerate(columns)}
        with self.filesystem.open(f"{folder}/{name}.parquet", "wb") as file:
            pq.write_table(pa.table({column: pa.array(values, pa.string()) for column, values in cells.items()}), file)
        if whole:
            self.filesystem.pipe_file(f"{folder}/_SUCCESS", b"")

    @property
    def location(self):
        return f"{self.root}/{{day}}@{{snapshot}}"

    @property
    def snapshots(self):
        return Snapshots(location=self.location, format="changes", options=self.options)

    def fold(self, day, scratch, columns=COLUMNS):
        """Return the rows that a task reads, and the file's bytes."""
        scratch.mkdir(exist_ok=True)
        source = snapshot_source(self.snapshots)
        (part,) = source.parts(self.snapshots.resolve(day))
        with connect(Resources(threads=2), scratch) as connection:
            place = source.open(connection, self.snapshots, [part], columns)[part.uri]
            table = pq.read_table(place, columns=list(columns))
            found = [tuple(row.values()) for row in table.to_pylist()], Path(place).read_bytes()
            source.close(connection, [part])
            assert not Path(place).exists()
        return found


@pytest.fixture
def log(tmp_path):
    return Log(tmp_path / "log")


def test_days_are_folded_up_to_the_key(log, tmp_path):
    log.write("2026-11-01", ("+", "a", "r", "b"), ("+", "b", "r", "c"))
    log.write("2026-11-02", ("-", "a", "r", "b"), ("+", "c", "r", "d"))
    log.write("2026-11-10", ("+", "a", "r", "b"), ("-", "c", "r", "d"))
    assert log.fold("2026-11-01", tmp_path)[0] == [("a", "r", "b"), ("b", "r", "c")]
    assert log.fold("2026-11-02", tmp_path)[0] == [("b", "r", "c"), ("c", "r", "d")]
    assert log.fold("2026-11-10", tmp_path)[0] == [("b", "r", "c"), ("a", "r", "b")]


def test_numbers_in_keys_are_ordered_by_value(log, tmp_path):
    log.write("d9", ("+", "a", "r", "b"))
    log.write("d10", ("-", "a", "r", "b"))
    assert log.fold("d10", tmp_path)[0] == []
    assert snapshot_keys(log.snapshots) == ["d9", "d10"]


def test_rows_of_a_day_follow_file_names(log, tmp_path):
    log.write("1", ("-", "a", "r", "b"), ("+", "c", "r", "d"), ("-", "c", "r", "d"), name="part-1")
    log.write("1", ("+", "a", "r", "b"), name="part-0")
    log.write("1", ("+", "c", "r", "d"), name="part-2")
    assert log.fold("1", tmp_path)[0] == [("c", "r", "d")]


def test_last_weight_counts_and_repeated_rows_are_one(tmp_path):
    log, columns = Log(tmp_path / "log", weight="w"), ("change", *COLUMNS, "w")
    log.write("1", ("+", "a", "r", "b", "1"), ("+", "a", "r", "b", "1"), ("+", "c", "r", "d", "3"), columns=columns)
    log.write("2", ("+", "a", "r", "b", "2"), ("-", "c", "r", "d", None), columns=columns)
    assert log.fold("1", tmp_path, (*COLUMNS, "w"))[0] == [("a", "r", "b", "1"), ("c", "r", "d", "3")]
    assert log.fold("2", tmp_path, (*COLUMNS, "w"))[0] == [("a", "r", "b", "2")]


@pytest.mark.parametrize("removed", [[("-", "x", "r", "y")], [("-", "a", "r", "b"), ("-", "a", "r", "b")]])
def test_unknown_removal_is_refused_or_counted(log, tmp_path, capsys, removed):
    log.write("1", ("+", "a", "r", "b"), ("+", "c", "r", "d"))
    log.write("2", *removed)
    with pytest.raises(InputError, match=rf"/2/part-0\.parquet, row {len(removed)}: removes an edge .* first of 1: "):
        log.fold("2", tmp_path)
    log.options["unknown"] = "ignore"
    assert ("c", "r", "d") in log.fold("2", tmp_path)[0]
    assert "1 rows remove edges that are not there" in capsys.readouterr().err


@pytest.mark.parametrize("change", ["x", "", None, " +"])
def test_unknown_change_names_file_and_row(log, tmp_path, change):
    log.write("1", ("+", "a", "r", "b"))
    log.write("2", ("+", "c", "r", "d"), (change, "c", "r", "e"))
    with pytest.raises(InputError, match=r"/2/part-0\.parquet, row 2: column 'change' has .*; a change is \+ or -"):
        log.fold("2", tmp_path)


def test_missing_column_and_damaged_file_are_named(log, tmp_path):
    log.write("1", ("+", "a", "r"), columns=("change", "lhs", "rel"))
    with pytest.raises(InputError, match=r"/1/part-0\.parquet: no column 'rhs', or several; its columns are: change, "):
        log.fold("1", tmp_path)
    log.filesystem.pipe_file(f"{log.root}/1/part-0.parquet", b"PAR1 no PAR1")
    with pytest.raises(InputError, match=r"/1/part-0\.parquet: cannot be read"):
        log.fold("1", tmp_path)


@pytest.mark.parametrize("column", ["lhs", "w"])
@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (pa.array([10**50 + 1, 10**50 + 2], pa.decimal256(60, 0)), r"DECIMAL\(60,0\)"),
        (pa.array([b"\xff", b"a"]), "BLOB"),
        (pa.array([["a"], ["b"]]), r"VARCHAR\[\]"),
    ],
)
def test_columns_of_no_text_are_refused(tmp_path, values, kind, column):
    log, day = Log(tmp_path / "log", weight="w"), tmp_path / "log" / "2026-11-01"
    day.mkdir(parents=True)
    (day / "_SUCCESS").touch()
    plain = {"change": ["+", "+"], "lhs": ["a", "b"], "rel": ["r", "r"], "rhs": ["c", "d"], "w": [1, 2]}
    pq.write_table(pa.table(plain | {column: values}), day / "part-0.parquet")
    columns = (*COLUMNS, "w")
    if column == "w" and "DECIMAL" in kind:  # a weight is rounded in any case
        assert [row[0] for row in log.fold("2026-11-01", tmp_path / "scratch", columns)[0]] == ["a", "b"]
        return
    with pytest.raises(InputError, match=rf"part-0\.parquet: column '{column}' is of type {kind}, which stands"):
        log.fold("2026-11-01", tmp_path / "scratch", columns)


def test_day_without_sign_is_not_whole(log, tmp_path):
    log.write("1", ("+", "a", "r", "b"))
    log.write("2", ("+", "c", "r", "d"), whole=False)
    log.write("3", ("+", "e", "r", "f"))
    assert snapshot_keys(log.snapshots) == ["1"]
    with pytest.raises(MissingSnapshotError, match="day 2 is not whole: it has no _SUCCESS, which its producer"):
        log.fold("3", tmp_path)
    log.options["complete"] = None
    assert snapshot_keys(log.snapshots) == ["1", "2", "3"]
    with pytest.raises(MissingSnapshotError, match=r"the log has no day '4'; its last one before is 3"):
        log.fold("4", tmp_path)


def test_sign_that_cannot_be_read_is_an_error(tmp_path, monkeypatch):
    log = Log(tmp_path / "log")
    for day in "12":
        log.write(day, ("+", "a", "r", "b"))
    known = LocalFileSystem.info

    def info(filesystem, path, **named):
        if str(path).endswith("1/_SUCCESS"):
            raise OSError(5, "Input/output error")
        return known(filesystem, path, **named)

    monkeypatch.setattr(LocalFileSystem, "info", info)
    with pytest.raises(StorageError, match="log/1: cannot be listed"):
        snapshot_keys(log.snapshots)


def test_late_file_of_an_old_day_is_noticed(log):
    log.write("1", ("+", "a", "r", "b"))
    log.write("2", ("+", "c", "r", "d"))
    source = snapshot_source(log.snapshots)
    (part,) = source.parts(log.snapshots.resolve("2"))
    log.write("3", ("+", "e", "r", "f"))
    source.check(part)
    log.write("1", ("+", "x", "r", "y"), name="part-9")
    with pytest.raises(InputError, match="changed since the run was planned"):
        source.check(part)


def test_random_log_is_folded_as_by_hand(log, tmp_path):
    rng, there, days = random.Random(1), {}, {}
    for day in range(1, 5):
        for file in range(2):
            rows = []
            for _ in range(300):
                edge = (f"e{rng.randrange(30)}", "r", f"e{rng.randrange(30)}")
                change = "-" if edge in there and rng.random() < 0.6 else "+"
                there.pop(edge, None)
                if change == "+":
                    there[edge] = None
                rows.append((change, *edge))
            log.write(str(day), *rows, name=f"part-{file}")
        days[str(day)] = list(there)
    assert log.fold("2", tmp_path)[0] == days["2"]
    folded = [log.fold("4", tmp_path / name) for name in "ab"]
    assert folded[0] == folded[1]
    assert folded[0][0] == days["4"]


def test_fold_keeps_within_memory(log, tmp_path):
    count = 300_000
    table = pa.table(
        {
            "change": pa.array(["+"] * count),
            "lhs": pa.array([f"a-name-of-some-length-{number}" for number in range(count)]),
            "rel": pa.array(["r"] * count),
            "rhs": pa.array([f"another-name-of-some-length-{number}" for number in range(count)]),
        }
    )
    log.write("1")
    pq.write_table(table, f"{log.root}/1/part-0.parquet")
    with connect(Resources(threads=2), tmp_path) as connection:
        connection.execute("SET memory_limit = '64MB'")
        source = snapshot_source(log.snapshots)
        (part,) = source.parts(log.snapshots.resolve("1"))
        place = source.open(connection, log.snapshots, [part], COLUMNS)[part.uri]
        assert pq.ParquetFile(place).metadata.num_rows == count


def test_nan_in_a_log_is_missing(log, tmp_path, capsys):
    """The numbers with a fraction beside it are warned of, once."""
    log.write("1")
    rows = {"change": ["+", "+"], "lhs": [1.0, float("nan")], "rel": ["r", "r"], "rhs": ["b", "c"]}
    pq.write_table(pa.table(rows), f"{log.root}/1/part-0.parquet")
    log.write("2", ("+", "d", "r", "e"))
    log.filesystem.copy(f"{log.root}/1/part-0.parquet", f"{log.root}/2/part-1.parquet")
    assert log.fold("2", tmp_path)[0] == [("d", "r", "e"), ("1.0", "r", "b"), (None, "r", "c")]
    warned = [line for line in capsys.readouterr().err.splitlines() if "becomes the name" in line]
    assert len(warned) == 1
    assert f"warning: {log.root}/1/part-0.parquet: column 'lhs' is of type DOUBLE: 7 becomes the name" in warned[0]


def test_weights_of_log_are_no_names(tmp_path, capsys):
    log = Log(tmp_path / "log", weight="w")
    log.write("1")
    rows = {"change": ["+"], "lhs": ["a"], "rel": ["r"], "rhs": ["b"], "w": [0.5]}
    pq.write_table(pa.table(rows), f"{log.root}/1/part-0.parquet")
    assert log.fold("1", tmp_path, (*COLUMNS, "w"))[0] == [("a", "r", "b", "0.5")]
    assert "becomes the name" not in capsys.readouterr().err


def test_text_files_are_read(tmp_path):
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "1.tsv").write_text("change\tlhs\trel\trhs\n+\ta\tr\tb\n+\tc\tr\td\n")
    (tmp_path / "log" / "2.tsv").write_text("change\tlhs\trel\trhs\n-\ta\tr\tb\n")
    snapshots = Snapshots(
        location=f"{tmp_path}/log/{{day}}.tsv@{{snapshot}}", format="changes", options={"files": "tsv"}
    )
    source = snapshot_source(snapshots)
    (part,) = source.parts(snapshots.resolve("2"))
    with connect(Resources(threads=2), tmp_path) as connection:
        place = source.open(connection, snapshots, [part], COLUMNS)[part.uri]
        assert duckdb.sql(f"SELECT lhs, rhs FROM '{place}'").fetchall() == [("c", "d")]
    assert source.keys(snapshots.location) == ["1", "2"]  # a file a day is whole


def prepared(place, snapshot):
    """Prepare a night; return the bytes of its buckets."""
    url = Path(plan(place.spec, snapshot)["run"])
    for task in ("validate", "partition", "bucket"):
        run_task(task, str(url))
    return {path.relative_to(url).as_posix(): path.read_bytes() for path in sorted((url / "edges").rglob("*.h5"))}


def spec(place, log, **sections):
    where = {"location": log.location, "format": "changes", "options": log.options}
    place.write_spec(snapshots=where, **sections)


def test_night_of_changes_equals_night_of_files(place, log, tmp_path):
    edges = [tuple(map(str, row)) for row in ring(40)]
    log.write("d1", *(("+", *row) for row in edges), ("+", "x", "r", "y"))
    log.write("d2", ("-", "x", "r", "y"))
    spec(place, log)
    assert newest_snapshot(load_graph_spec(place.spec)) == "d2"
    found = prepared(place, "d2")
    (document,) = place.store.glob("runs/*/spec.json")
    (part,) = json.loads(document.read_text())["files"]
    assert part["uri"].endswith("/{day}@d2")
    place.snapshot("d2", edges)
    place.store = tmp_path / "other"
    place.write_spec()
    assert prepared(place, "d2") == found != {}


def test_day_that_is_due_is_waited_for(place, log):
    now = datetime.now(UTC)
    due, log_of_day = now - timedelta(hours=2), [("+", *map(str, row)) for row in ring(40)]
    log.write("d1", *log_of_day)
    for whole, reason in ((None, "the log has no day 'd2'"), (False, "day d2 is not whole")):
        if whole is not None:
            log.write("d2", ("+", "x", "r", "y"), whole=whole)
        spec(place, log)
        with pytest.raises(OutOfTurnError, match=f"'d2' has not come yet: .*{reason}"):
            plan(place.spec, "d2", due=due)
        with pytest.raises(InputError, match=reason):
            plan(place.spec, "d2")
        spec(place, log, nights={"deadline": {"at": f"{now - timedelta(hours=1):%H:%M}"}})
        with pytest.raises(InputError, match=rf"{reason}.* \(nights.deadline\)"):
            plan(place.spec, "d2", due=due)
    log.write("d2", ("+", "x", "r", "y"))
    assert plan(place.spec, "d2", due=due)["snapshot"] == "d2"


def test_bad_row_is_named_in_the_log(place, log):
    log.write("d1", *(("+", *map(str, row)) for row in ring(40)))
    log.write("d2", ("-", *map(str, ring(40)[0])), ("+", "a", str(ring(40)[0][1]), ""))
    spec(place, log)
    url = plan(place.spec, "d2")["run"]
    with pytest.raises(InputError, match=r"/d2/part-0\.parquet, row 2: empty id in column rhs"):
        run_task("validate", url)


def test_weights_have_to_be_named_in_both(place, log):
    log.write("d1", ("+", "a", "r", "b"))
    spec(place, log, columns={"weight": "w"})
    with pytest.raises(ConfigError, match=r"snapshots\.options\.weight and columns\.weight differ"):
        plan(place.spec, "d1")


@pytest.mark.parametrize("location", ["log/{day}", "log@{snapshot}", "{day}/{day}@{snapshot}", "{day}@{snapshot}/x"])
def test_location_of_another_form_is_refused(location):
    with pytest.raises(ValueError, match=r"format changes takes the location the files' with \{day\}|must contain"):
        Snapshots(location=location, format="changes")


def test_log_in_s3_is_folded(s3_bucket, tmp_path):
    log = Log(f"{s3_bucket}/log")
    log.write("1", ("+", "a", "r", "b"), ("+", "b", "r", "c"))
    log.write("2", ("-", "a", "r", "b"))
    assert snapshot_keys(log.snapshots) == ["1", "2"]
    assert log.fold("2", tmp_path)[0] == [("b", "r", "c")]


def test_store_that_fails_while_read_is_retryable(s3_bucket, tmp_path, monkeypatch):
    log = Log(f"{s3_bucket}/log")
    log.write("1", ("+", "a", "r", "b"))

    def fetch(*_):
        raise OSError("Connection reset by peer")

    monkeypatch.setattr(S3File, "_fetch_range", fetch)
    with pytest.raises(StorageError, match=r"/1/part-0\.parquet: the store failed .*: Connection reset by peer"):
        log.fold("1", tmp_path)


def test_one_file_days_are_listed_with_given_keys(s3_bucket, monkeypatch):
    files, location = filesystem_for(s3_bucket), f"{s3_bucket}/{{day}}.parquet@{{snapshot}}"
    files.pipe_file(f"{s3_bucket}/1.parquet", b"")
    environment = dict(os.environ)
    for name in [name for name in environment if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    source = snapshot_source(Snapshots(location=location, format="changes"))
    assert source.keys(location, environment) == ["1"]
