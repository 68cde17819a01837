from __future__ import annotations

import json
import re
import time
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from aiobotocore.httpsession import AIOHTTPSession
from botocore.exceptions import ReadTimeoutError, SSLError
from fsspec.implementations.local import LocalFileSystem
from s3fs.core import S3File

from pbg_tasks.errors import AccessError, ConfigError, InputError, StorageError
from pbg_tasks.storage import columnar, open_store
from pbg_tasks.storage.columnar import describe_once, filesystem_for, list_files, list_keys, newest_file, read_errors
from pbg_tasks.storage.s3_async import SilentServerError
from pbg_tasks.storage.s3_client import connect
from tests.clocks import HOUR, clock_wrong_by
from tests.storage.fault_proxy import Fault

KEYS = ["a.csv", "b.csv", "sub/c.csv", "_SUCCESS", ".hidden", "_temporary/d.csv", "sub/.e.csv", "other.txt"]


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.s3)])
def folder(request, tmp_path):
    """URL of a folder that contains KEYS.

    The name of its parent begins with an underscore, which must not hide the files.
    """
    url = f"{tmp_path}/_root" if request.param == "local" else f"{request.getfixturevalue('s3_bucket')}/_root"
    store = open_store(url)
    for number, key in enumerate(KEYS, start=1):
        store.put_new(key, b"x" * number)
    return url


def names(found: list[tuple[str, int, str]], folder: str) -> list[str]:
    return [uri.removeprefix(f"{folder}/") for uri, _, _ in found]


def test_folder_lists_files_that_are_not_hidden(folder):
    found = list_files(folder)
    assert names(found, folder) == ["a.csv", "b.csv", "other.txt", "sub/c.csv"]
    assert [size for _, size, _ in found] == [1, 2, 8, 3]
    assert list_files(f"{folder}/") == found


def test_file_lists_itself_even_when_hidden(folder):
    assert names(list_files(f"{folder}/a.csv"), folder) == ["a.csv"]
    assert names(list_files(f"{folder}/.hidden"), folder) == [".hidden"]


def test_glob_lists_its_matches(folder):
    assert names(list_files(f"{folder}/*.csv"), folder) == ["a.csv", "b.csv"]
    assert names(list_files(f"{folder}/**/*.csv"), folder) == ["a.csv", "b.csv", "sub/c.csv"]
    assert names(list_files(f"{folder}/[ab].csv"), folder) == ["a.csv", "b.csv"]


@pytest.mark.parametrize("name", ["part[1].csv", "part*.csv", "part?.csv", "a[1]/part.csv"])
def test_file_with_wildcard_is_named(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("x")
    with pytest.raises(InputError, match=re.escape(f"/{name}: the name holds *, ? or [")):
        list_files(str(tmp_path))


def test_links_are_followed(tmp_path):
    for key in ("edges/a.csv", "elsewhere/b.csv", "folder/c.csv"):
        open_store(tmp_path).put_new(key, b"x")
    edges = tmp_path / "edges"
    (edges / "b.csv").symlink_to(tmp_path / "elsewhere" / "b.csv")
    (edges / "sub").symlink_to(tmp_path / "folder", target_is_directory=True)
    (edges / ".lock").symlink_to("nowhere")
    found = list_files(str(edges))
    assert names(found, str(edges)) == ["a.csv", "b.csv", "sub/c.csv"]
    assert list_files(f"{edges}/**/*.csv") == found
    assert [list_files(uri) for uri, _, _ in found] == [[each] for each in found]


def test_hidden_links_are_not_followed(tmp_path):
    """Two that lead back would be followed for ever."""
    (tmp_path / "a.csv").write_text("x")
    for name in ("_latest", "_previous"):
        (tmp_path / name).symlink_to(".")
    assert names(list_files(str(tmp_path)), str(tmp_path)) == ["a.csv"]


LEADS = "is a link that leads"


@pytest.mark.parametrize(
    ("target", "fault"),
    [*((target, LEADS) for target in ("nowhere", "b.csv", "a.csv/x", ".", "..")), ("a.csv", "is .*/a.csv by a")],
)
def test_misleading_link_is_named(tmp_path, target, fault):
    (tmp_path / "a.csv").write_text("x")
    (tmp_path / "b.csv").symlink_to(target)
    with pytest.raises(InputError, match=f"/b.csv: {fault}"):
        list_files(str(tmp_path))


def test_folder_of_many_files_is_resolved_once(tmp_path, monkeypatch):
    asked, resolve = [], Path.resolve
    monkeypatch.setattr(Path, "resolve", lambda path: (asked.append(path), resolve(path))[1])
    for number in range(5):
        (tmp_path / f"{number}.csv").write_text("x")
    assert len(list_files(str(tmp_path))) == 5
    assert asked == [tmp_path]


@pytest.mark.parametrize("location", ["absent", "absent/*.csv", "*.parquet", "_temporary/absent.csv"])
def test_missing_source_is_named(folder, location):
    with pytest.raises(InputError, match="no snapshot there") as caught:
        list_files(f"{folder}/{location}")
    assert f"{folder}/{location}" in str(caught.value)


SNAPSHOTS = [
    "edges/2026-01-01/a",
    "edges/2026-01-01/deep/b",
    "edges/2026-01-02/a",
    "edges/_part/a",
    f"edges/{'2026' * 17}/a",  # longer than a key may be
    "day-3.gz",
    "day-4.gz",
]


@pytest.mark.parametrize(
    ("template", "keys"),
    [
        ("edges/{snapshot}/*.parquet", ["2026-01-01", "2026-01-02"]),
        ("edges/{snapshot}", ["2026-01-01", "2026-01-02"]),
        ("day-{snapshot}.gz", ["3", "4"]),
        ("nowhere/{snapshot}/x", []),
    ],
)
def test_keys_of_snapshots(folder, template, keys):
    store = open_store(f"{folder}/keys")
    for name in SNAPSHOTS:
        store.put_new(name, b"1")
    assert list_keys(f"{store.url}/{template}") == keys


@pytest.mark.parametrize("names", [("a.tsv", "a.tsv.zst"), ("a.tsv.bz2", "a.tsv.GZ")])
def test_text_beside_compressed_copy_is_refused(tmp_path, names):
    for name in (*names, "b.tsv.gz"):
        (tmp_path / name).write_text("x")
    with pytest.raises(InputError, match=r"a\.tsv\.\w+: is named as a copy of .*a\.tsv.* twice; remove one$"):
        list_files(str(tmp_path))
    assert len(list_files(str(tmp_path), distinct=False)) == 3
    assert len(list_files(f"{tmp_path}/*.gz")) == 1


def test_link_to_newest_snapshot_is_no_key(tmp_path):
    """It would be the newest for good."""
    for name in ("2026-11-20/a.csv", "2026-11-21/a.csv", "wordnet/a.csv"):
        open_store(tmp_path / "edges").put_new(name, b"x")
    for link, target in {"latest": "2026-11-21", "2026-11-22": "2026-11-21", "apart": "../other"}.items():
        (tmp_path / "edges" / link).symlink_to(target)
    days = ["2026-11-20", "2026-11-21", "2026-11-22"]
    assert list_keys(f"{tmp_path}/edges/{{snapshot}}/*.csv") == [*days, "apart", "wordnet"]


def test_a_changed_file_has_another_version(folder):
    before = list_files(f"{folder}/a.csv")
    open_store(folder).put("a.csv", b"y")
    after = list_files(f"{folder}/a.csv")
    assert before[0][:2] == after[0][:2]
    assert before[0][2] != after[0][2]
    assert list_files(f"{folder}/a.csv") == after


def test_a_new_file_is_seen_at_once(folder):
    list_files(folder)
    open_store(folder).put_new("new.csv", b"1")
    assert "new.csv" in names(list_files(folder), folder)


def test_duckdb_reads_through_it(folder, tmp_path):
    pq.write_table(pa.table({"lhs": ["a", "b"], "n": [1, 2]}), tmp_path / "t.parquet")
    open_store(folder).put_new("t.parquet", tmp_path / "t.parquet")
    connection = duckdb.connect()
    if folder.startswith("s3://"):
        connection.register_filesystem(filesystem_for(folder))
    assert connection.read_parquet(f"{folder}/t.parquet").fetchall() == [("a", 1), ("b", 2)]


@pytest.mark.s3
def test_objects_of_folders_are_no_files(s3_bucket):
    bucket, _, prefix = s3_bucket.removeprefix("s3://").partition("/")
    for key in ("d1/", "d1/rel=a/", "d2/"):
        connect().put_object(Bucket=bucket, Key=f"{prefix}/{key}", Body=b"")
    open_store(s3_bucket).put_new("d1/rel=a/0.csv", b"x")
    assert names(list_files(f"{s3_bucket}/d1"), s3_bucket) == ["d1/rel=a/0.csv"]
    with pytest.raises(InputError, match="d2: no snapshot there"):
        list_files(f"{s3_bucket}/d2")


@pytest.mark.s3
@pytest.mark.parametrize("location", ["d1", "d1/*.csv", "d1/a.csv"])
def test_objects_age_by_the_stores_clock(s3_bucket, location):
    for key in ("d1/a.csv", "d1/_b.csv"):
        open_store(s3_bucket).put(key, b"x")
    for wrong in (HOUR, -HOUR):
        with clock_wrong_by(wrong):
            name, age = newest_file(f"{s3_bucket}/{location}")
        assert name == f"{s3_bucket}/d1/a.csv"
        assert abs(age) < 60


@pytest.mark.s3
def test_object_that_is_removed_meanwhile_has_age(s3_bucket, monkeypatch):
    """It shows that the snapshot changes."""
    store, listed = open_store(s3_bucket), columnar._listed
    store.put("d1/a.csv", b"x")

    def renamed(*given):
        found = listed(*given)
        store.delete("d1/a.csv")
        return found

    monkeypatch.setattr(columnar, "_listed", renamed)
    name, age = newest_file(f"{s3_bucket}/d1")
    assert (name, abs(age) < 60) == (f"{s3_bucket}/d1/a.csv", True)


@pytest.mark.parametrize("link", ["a.csv", "part"])
def test_link_is_as_young_as_itself(tmp_path, link):
    """A producer fills a day with links to files or folders."""
    there = Path(json.__file__)
    (tmp_path / link).symlink_to(there if link == "a.csv" else there.parent)
    name, age = newest_file(str(tmp_path))
    assert name.startswith(str(tmp_path / link))
    assert age < (time.time() - there.stat().st_ctime) / 2


def test_link_above_all_snapshots_dates_none(tmp_path):
    """A pod makes it at its start."""
    there = Path(json.__file__).parent
    (tmp_path / "edges").symlink_to(there.parent)
    location = f"{tmp_path}/edges/{there.name}"
    _, age = newest_file(location, f"{tmp_path}/edges")
    assert age > newest_file(location)[1] + 1


@pytest.mark.s3
def test_held_object_is_described_once(s3_bucket, monkeypatch):
    uri = f"{s3_bucket}/day/a.csv"
    open_store(s3_bucket).put("day/a.csv", b"x")
    filesystem = describe_once([uri])
    asked = []
    monkeypatch.setattr(type(filesystem), "_call_s3", lambda _, method, *__, **___: asked.append(method))
    assert filesystem.info(uri)["size"] == 1
    assert filesystem.exists(uri)
    assert filesystem.glob(uri) == [uri.removeprefix("s3://")]
    assert filesystem.modified(uri).year > 2000
    assert not asked


@pytest.mark.s3
def test_scan_of_one_column_fetches_no_other(s3_bucket, tmp_path, monkeypatch):
    rows, uri = 400_000, f"{s3_bucket}/t.parquet"
    long = [f"{number:064}" for number in range(rows)]
    table = pa.table({"before": long, "n": np.arange(rows, dtype=np.int16), "after": long})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=rows // 4, compression="none", use_dictionary=False)
    open_store(s3_bucket).put("t.parquet", tmp_path / "t.parquet")
    sizes, fetch = [], S3File._fetch_range
    monkeypatch.setattr(S3File, "_fetch_range", lambda *of: (sizes.append(of[2] - of[1]), fetch(*of))[1])
    connection = duckdb.connect()
    connection.register_filesystem(describe_once([uri]))
    assert connection.execute(f"SELECT sum(n) FROM '{uri}'").fetchall() == [(table["n"].to_numpy().sum(),)]
    assert 0 < sum(sizes) < table["n"].nbytes + (1 << 20)


@pytest.mark.s3
@pytest.mark.parametrize("location", ["edges/", "edges/*.csv", "edges/a.csv"])
def test_listing_answered_with_choices_is_an_error(s3_bucket, proxy, behind, location):
    proxy.faults = [Fault("GET", times=99, status=300), Fault("HEAD", times=99, status=300)]
    with pytest.raises(StorageError, match=r"cannot be listed .*check AWS_ENDPOINT_URL"):
        list_files(f"{s3_bucket}/{location}")


@pytest.mark.parametrize(
    ("fault", "error"), [(PermissionError(13, "Permission denied"), AccessError), (OSError(5, "EIO"), StorageError)]
)
@pytest.mark.parametrize("location", ["", "/*/*.csv"])
def test_unlisted_folder_of_disk_is_an_error(tmp_path, monkeypatch, location, fault, error):
    for name in ("rel=a", "rel=b"):
        open_store(tmp_path).put_new(f"{name}/0.csv", b"x")
    listed = LocalFileSystem.ls

    def ls(filesystem, path, *given, **named):
        if path.endswith("rel=b"):
            raise fault
        return listed(filesystem, path, *given, **named)

    monkeypatch.setattr(LocalFileSystem, "ls", ls)
    with pytest.raises(error, match="rel=b: "):
        list_files(f"{tmp_path}{location}")


@pytest.mark.s3
def test_unlisted_folder_of_s3_is_an_error(s3_bucket, proxy, behind):
    for name in ("rel=a", "rel=b"):
        behind.put_new(f"d1/{name}/0.csv", b"x")
    proxy.faults = [Fault("GET", "rel%3Db", times=99, status=503, forward=False)]
    with pytest.raises(StorageError, match="/d1/rel=b: cannot be listed"):
        list_files(f"{s3_bucket}/d1/*/*.csv")


@pytest.mark.s3
def test_busy_server_is_asked_again(s3_bucket, proxy, behind):
    behind.put_new("a.csv", b"xyz")
    proxy.faults = [Fault(method, "a.csv", times=4, status=503, forward=False) for method in ("HEAD", "GET")]
    filesystem = filesystem_for(s3_bucket)
    assert [size for _, size, _ in list_files(f"{s3_bucket}/a.csv")] == [3]
    assert filesystem.cat_file(f"{s3_bucket}/a.csv", start=0, end=2) == b"xy"


def test_silent_server_is_asked_twice(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    asked = []

    async def send(_, request):
        asked.append(request.url)
        raise ReadTimeoutError(endpoint_url=request.url, error="silent")

    monkeypatch.setattr(AIOHTTPSession, "send", send)
    with pytest.raises(SilentServerError, match="no answer for a minute"):
        filesystem_for("s3://bucket").cat_file("s3://bucket/a.csv", start=0, end=2)
    assert len(asked) == 2


@pytest.mark.parametrize(("reason", "named"), [("certificate verify failed", True), ("EOF occurred in", False)])
def test_untrusted_certificate_names_its_variable(reason, named):
    with pytest.raises(StorageError, match=r"cannot be listed .*AWS_ENDPOINT_URL") as raised, read_errors("s3://b"):
        raise SSLError(endpoint_url="https://s3.example", error=reason)
    assert ("AWS_CA_BUNDLE" in str(raised.value)) == named


def test_other_protocols_are_refused():
    with pytest.raises(ConfigError, match="ftp"):
        list_files("ftp://host/x")


@pytest.mark.s3
def test_wrong_credentials(s3_bucket, monkeypatch):
    open_store(s3_bucket).put_new("a.csv", b"1")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(AccessError, match="AWS_SECRET_ACCESS_KEY"):
        list_files(s3_bucket)


@pytest.mark.s3
def test_endpoint_without_listener_raises(s3_bucket, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    start = time.monotonic()
    with pytest.raises(StorageError, match="AWS_ENDPOINT_URL"):
        list_files(s3_bucket)
    assert time.monotonic() - start < 30


@pytest.mark.s3
def test_a_missing_bucket_is_named(s3_bucket):
    with pytest.raises(InputError, match="s3://not-there/x"):
        list_files("s3://not-there/x")
