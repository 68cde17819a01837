"""Snapshot sources of other packages, in a night and with faults."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import Mock

import duckdb
import h5py
import pyarrow as pa
import pytest

from pbg_tasks.config import GraphSpec, SnapshotFile, Snapshots
from pbg_tasks.errors import AccessError, ConfigError, InputError, StorageError
from pbg_tasks.prepare import sources
from pbg_tasks.prepare.sources import Layout, delta, iceberg, snapshot_source
from pbg_tasks.tasks.nightly.chain import run_chain, run_task
from pbg_tasks.tasks.nightly.plan import plan
from tests.model.plugins import package_folder
from tests.tasks.conftest import ring

VERSIONS = """
import json
from pathlib import Path

import pyarrow as pa

from pbg_tasks.config import SnapshotFile
from pbg_tasks.errors import InputError
from pbg_tasks.prepare.sources import ArrowSource


class Versions(ArrowSource):
    '''Versions of a table: one JSON file holds the rows of each version.'''

    def parts(self, location, environment=None):
        table, _, version = location.removeprefix("table://").partition("@")
        if version not in self.rows(table):
            raise InputError(f"{location}: the table has no such version")
        return [SnapshotFile(uri=location, size=0, version=version)]

    def schema(self, file):
        return pa.schema([(name, pa.string()) for name in ("other", "lhs", "rel", "rhs")])

    def batches(self, file, columns):
        rows = self.rows(file.uri.removeprefix("table://").partition("@")[0])[file.version]
        half = len(rows) // 2
        for part in (rows[:half], rows[half:]):
            table = pa.Table.from_pylist([dict(zip(("lhs", "rel", "rhs"), row)) for row in part])
            yield from table.select(columns).to_batches()

    def where(self, snapshots, file, place, row):
        return f"{file.uri}, record {row}"

    def rows(self, table):
        return json.loads(Path(table).read_text())
"""
NAMED = "snapshot source 'versions', entry point versions:Versions of the package versions 1.0, "


@pytest.fixture
def install(tmp_path):
    with package_folder(tmp_path / "site") as write:

        def installed(source=VERSIONS):
            write("versions", source, {"pbg_tasks.sources": {"versions": "versions:Versions"}})
            sources._installed.cache_clear()

        yield installed
    sources._installed.cache_clear()


def night(place, rows, *, options=None, **sections):
    """Write versions of a table, and a spec that reads them."""
    (place.root / "table.json").write_text(json.dumps(rows))
    where = {"location": f"table://{place.root}/table.json@{{snapshot}}", "format": "versions"}
    where |= {"options": options} if options else {}
    place.write_spec(snapshots=where, **sections)


def prepared(place, snapshot):
    """Prepare a night; return number of edges, names and buckets."""
    url = Path(plan(place.spec, snapshot)["run"])
    reports = [run_task(task, str(url)) for task in ("validate", "partition", "bucket")]
    names = {path.name: path.read_bytes() for path in sorted((url / "entities").glob("entity_*.json"))}
    edges = {}
    for path in sorted((url / "edges").rglob("*.h5")):
        with h5py.File(path) as file:
            edges[path.relative_to(url).as_posix()] = sorted(zip(file["lhs"], file["rel"], file["rhs"], strict=True))
    return reports[0]["edges"], names, edges


def test_night_of_versions_equals_night_of_files(place, install, tmp_path):
    install()
    edges = [[str(cell) for cell in row] for row in ring(40)]
    night(place, {"v1": edges, "v2": edges[:-1]})
    counted, names, buckets = prepared(place, "v1")
    (document,) = place.store.glob("runs/*/spec.json")
    (part,) = json.loads(document.read_text())["files"]
    assert (part["size"], part["version"]) == (0, "v1")
    place.snapshot("d1", edges)
    place.store = tmp_path / "other"
    place.write_spec()
    assert prepared(place, "d1") == (counted, names, buckets)
    assert (counted, len(names) > 0, len(buckets) > 0) == (len(edges), True, True)


def test_versions_are_trained_and_released(place, install):
    install()
    night(place, {"v1": ring(40)})
    run_chain(place.spec, "v1")
    assert (place.store / "channels" / "production" / "CURRENT.json").exists()


def test_bad_row_is_named_by_source(place, install):
    install()
    night(place, {"v1": [*ring(40)[:7], ["a", "r", ""], *ring(40)[7:]]})
    url = plan(place.spec, "v1")["run"]
    with pytest.raises(InputError, match=r"table\.json@v1, record 8: empty id in column rhs"):
        run_task("validate", url)


def test_missing_version_is_refused(place, install):
    install()
    night(place, {"v1": ring(40)})
    with pytest.raises(InputError, match=r"table\.json@v2: the table has no such version"):
        plan(place.spec, "v2")


def test_version_that_changed_is_refused(place, install):
    install()
    night(place, {"v1": ring(40)})
    url = plan(place.spec, "v1")["run"]
    night(place, {"v3": ring(40)})
    with pytest.raises(InputError, match="the table has no such version"):
        run_task("validate", url)


@pytest.mark.parametrize("kind", ["pa.list_(pa.float16())", "pa.dense_union([pa.field('x', pa.int8())])"])
def test_type_unknown_to_duckdb_concerns_its_column(place, install, kind):
    others = 'return pa.schema([(name, pa.string()) for name in ("other", "lhs", "rel", "rhs")])'
    odd = f'return pa.schema([("other", {kind}), *((name, pa.string()) for name in ("lhs", "rel", "rhs"))])'
    install(VERSIONS.replace(others, odd))
    night(place, {"v1": ring(40)})
    assert run_task("validate", plan(place.spec, "v1")["run"])["edges"] == 120


def test_unknown_type_has_name_of_arrow():
    """Else its names would be read as missing ones."""
    source, odd = sources.ArrowSource(), pa.dense_union([pa.field("x", pa.int8())])
    source.schema = lambda _: pa.schema([("rel", pa.string()), ("lhs", odd)])
    layout = source.describe(duckdb.connect(), None, SnapshotFile(uri="x", size=0, version=""), "")
    assert layout.types == ("VARCHAR", str(odd))


def test_known_types_are_described_at_once():
    """One by one, columns of wide tables take long."""
    source, connection = sources.ArrowSource(), Mock(wraps=duckdb.connect())
    source.schema = lambda _: pa.schema([(f"c{number}", pa.string()) for number in range(50)])
    layout = source.describe(connection, None, SnapshotFile(uri="x", size=0, version=""), "")
    assert (len(layout.columns), connection.from_arrow.call_count) == (50, 1)


def test_missing_column_is_named(place, install):
    install(VERSIONS.replace('"lhs", "rel", "rhs")]', '"lhs", "rel", "to")]'))
    night(place, {"v1": ring(40)})
    with pytest.raises(InputError, match=r"no column 'rhs' \(columns.rhs\); its columns are: other, lhs, rel, to"):
        plan(place.spec, "v1")


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("import json\n", "import gone\n", "failed: ModuleNotFoundError: No module named 'gone'"),
        ("ArrowSource)", "object)", "is <class 'versions.Versions'>, not a subclass or an instance of "),
        ("return pa.schema(", "return list(", "is wrong: schema returns list, not a pyarrow.Schema"),
        (".select(columns)", "", "is wrong: a batch of "),
        ("half = ", "1 / 0 #", "failed: ZeroDivisionError: division by zero"),
    ],
)
def test_fault_of_package_is_named(place, install, old, new, problem):
    source = VERSIONS if old != ".select(columns)" else VERSIONS.replace('"rhs"), row)', '"rhs"), map(len, row))')
    install(source.replace(old, new))
    night(place, {"v1": [list(map(str, row)) for row in ring(40)]})
    with pytest.raises(ConfigError) as error:
        plan(place.spec, "v1")
    assert str(error.value).startswith(NAMED + problem)


@pytest.mark.parametrize("line", ["        return pa.schema(", "        half = "])
@pytest.mark.parametrize(
    ("cause", "error", "problem"),
    [
        ("PermissionError(13, 'Access Denied')", AccessError, r"reading is refused \(\[Errno 13\] Access Denied\)"),
        ("ConnectionError('reset')", StorageError, r"cannot be read \(reset\)"),
    ],
)
def test_failed_read_names_the_source(place, install, line, cause, error, problem):
    install(VERSIONS.replace(line, f"        raise {cause}\n{line}"))
    night(place, {"v1": [list(map(str, row)) for row in ring(40)]})
    with pytest.raises(error, match=rf"^table://.*table\.json@v1: {problem}"):
        plan(place.spec, "v1")


def test_broken_package_leaves_other_sources(place, install):
    install("import gone")
    place.snapshot("d1", ring(40))
    assert plan(place.spec, "d1")["files"] == 1


def test_unknown_source_lists_installed_ones(install):
    install("import gone")
    assert Snapshots(location="{snapshot}", format="versions").format == "versions"
    known = "parquet, csv, tsv, iceberg, delta, changes, versions, and"
    with pytest.raises(ValueError, match=f"no snapshot source is named 'orc'; known: {known}"):
        Snapshots(location="{snapshot}", format="orc")


FIRST = VERSIONS.replace(
    "class Versions(ArrowSource):", "class First(Options):\n    first: int\n\n\nclass Versions(ArrowSource):"
)
FIRST = FIRST.replace("import ArrowSource", "import ArrowSource, Options").replace(
    "    def parts(", "    read_options = First\n\n    def parts("
)
FIRST = FIRST.replace("[file.version]\n", "[file.version][: self.options.first]\n")


def test_options_of_spec_reach_source(place, install):
    install(FIRST)
    night(place, {"v1": ring(40)}, options={"first": 90})
    assert prepared(place, "v1")[0] == 90
    with pytest.raises(
        ConfigError, match=r"snapshots\.options of format versions: .*unknown key 'frist'; did you mean"
    ):
        plan(place.spec, "v1", overrides=['snapshots.options={"frist": 90}'])
    with pytest.raises(ConfigError, match=r"snapshots\.options of format versions: key 'first' is missing"):
        plan(place.spec, "v1", overrides=["snapshots.options={}"])


def test_options_stay_out_of_specs_without_any():
    assert "options" not in Snapshots(location="{snapshot}").model_dump(mode="json")
    with pytest.raises(ValueError, match="format parquet has no option 'first'"):
        Snapshots(location="{snapshot}", options={"first": 1})


def test_watch_of_versions_is_refused(place, install):
    install()
    night(place, {"v1": ring(40)}, nights={"watch": {"complete": "settled"}})
    with pytest.raises(ConfigError, match=r"nights\.watch lists snapshots, which format \w+ does not"):
        plan(place.spec, "v1")


@pytest.mark.parametrize("source", [delta, iceberg])
def test_lack_of_memory_is_no_stores_fault(source):
    with pytest.raises(MemoryError, match="malloc"), source._errors("s3://lake/edges@1"):
        raise MemoryError("malloc")


def test_built_in_scans_are_as_before():
    """The speed and the bytes of imports depend on these queries."""
    snapshots = Snapshots(location="{snapshot}", format="tsv")
    layout = Layout(("lhs", "rhs"), ("VARCHAR", "VARCHAR"))
    parquet = snapshot_source(Snapshots(location="{snapshot}"))
    expected = "read_parquet(['/a''b', '/c'], hive_partitioning=false)"
    assert parquet.scan(snapshots, ["/a'b", "/c"], layout) == expected
    assert snapshot_source(snapshots).scan(snapshots, ["/a"], layout) == (
        "read_csv(['/a'], columns={column0: 'VARCHAR', column1: 'VARCHAR'}, auto_detect=false, header=true, "
        "delim='\t', quote='\"', escape='\"', compression='none', max_line_size=1048576, strict_mode=true)"
    )
    file = SnapshotFile(uri="/a", size=1, version="1")
    assert parquet.where(snapshots, file, "/a", 3) == "/a, row 3"
    assert GraphSpec.model_fields["snapshots"].annotation is Snapshots
