from __future__ import annotations

import tarfile
import zipfile

import pytest
import zstandard

from benchmarks.quality.data import DataSet, Source, line_digest, obtain
from examples.data.archives import unpack
from pbg_tasks.errors import InputError, StorageError


@pytest.fixture
def pair(tmp_path):
    folder = tmp_path / "given" / "pair"
    folder.mkdir(parents=True)
    (folder / "a.tsv").write_text("1\t2\n3\t4\n")
    (folder / "b.tsv").write_text("x\n")
    return DataSet("pair", {name: line_digest(folder / name) for name in ("a.tsv", "b.tsv")})


def _pack(folder, archive):
    with (
        archive.open("wb") as raw,
        zstandard.ZstdCompressor().stream_writer(raw) as stream,
        tarfile.open(fileobj=stream, mode="w|") as files,
    ):
        files.add(folder, folder.name)


def test_digest_ignores_order_and_ends_of_lines(tmp_path):
    first, second, other = (tmp_path / name for name in "abc")
    first.write_bytes(b"b\na\n")
    second.write_bytes(b"a\r\nb")
    other.write_bytes(b"a\nb\nb\n")
    assert line_digest(first) == line_digest(second) != line_digest(other)


def test_folder_is_used_in_its_place(pair, tmp_path):
    assert obtain(pair, tmp_path / "given", tmp_path / "cache") == tmp_path / "given" / "pair"


def test_archive_is_unpacked_once_into_cache(pair, tmp_path):
    archive = tmp_path / "pair.tar.zst"
    _pack(tmp_path / "given" / "pair", archive)
    found = obtain(pair, tmp_path, tmp_path / "cache")
    assert (found / "a.tsv").read_text() == "1\t2\n3\t4\n"
    archive.unlink()
    assert obtain(pair, tmp_path, tmp_path / "cache") == found


def test_other_content_is_refused_and_not_cached(pair, tmp_path):
    folder = tmp_path / "given" / "pair"
    (folder / "b.tsv").write_text("y\n")
    _pack(folder, tmp_path / "pair.tar.zst")
    with pytest.raises(InputError, match=r"b\.tsv: its sorted lines have sha256"):
        obtain(pair, tmp_path / "given", tmp_path / "cache")
    with pytest.raises(InputError, match=r"b\.tsv"):
        obtain(pair, tmp_path, tmp_path / "cache")
    assert list((tmp_path / "cache" / "data").iterdir()) == []


def test_missing_file_is_named(pair, tmp_path):
    (tmp_path / "given" / "pair" / "b.tsv").unlink()
    with pytest.raises(InputError, match=r"b\.tsv: missing"):
        obtain(pair, tmp_path / "given", tmp_path / "cache")


def test_members_of_archive_get_data_set_names(pair, tmp_path):
    with zipfile.ZipFile(tmp_path / "published.zip", "w") as archive:
        archive.writestr("Release/first.txt", "3\t4\n1\t2\n")
    (tmp_path / "b.txt").write_text("x\n")
    url = tmp_path.as_uri()
    sources = {"a.tsv": Source(f"{url}/published.zip", "Release/first.txt"), "b.tsv": Source(f"{url}/b.txt")}
    found = obtain(DataSet("pair", pair.digests, sources), tmp_path / "nothing", tmp_path / "cache")
    assert found == tmp_path / "cache" / "data" / "pair"
    assert (found / "a.tsv").read_text() == "3\t4\n1\t2\n"


def test_missing_data_set_is_reported_with_remedy(pair, tmp_path):
    with pytest.raises(StorageError, match="--data"):
        obtain(pair, tmp_path / "nothing", tmp_path / "cache")
    gone = DataSet("pair", pair.digests, {"a.tsv": Source((tmp_path / "gone.tsv").as_uri())})
    with pytest.raises(StorageError, match=r"gone\.tsv: cannot be fetched .* --data"):
        obtain(gone, tmp_path / "nothing", tmp_path / "cache")


@pytest.mark.parametrize("member", ["../outside.txt", "/outside.txt", "link"])
def test_archive_with_link_or_path_outside_is_refused(tmp_path, member):
    info = tarfile.TarInfo(member)
    if member == "link":
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
    with tarfile.open(tmp_path / "hostile.tar.gz", "w:gz") as files:
        files.addfile(info)
    with pytest.raises(InputError, match="is a link, or outside of the directory"):
        unpack(tmp_path / "hostile.tar.gz", tmp_path / "unpacked")
    assert not (tmp_path / "outside.txt").exists()
