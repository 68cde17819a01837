"""The data sets: their sources, and the required contents of files.

The contents are checked, from any source.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from examples.data.archives import unpack
from pbg_tasks.errors import InputError, StorageError
from pbg_tasks.progress import say

if TYPE_CHECKING:
    from collections.abc import Mapping

_TIMEOUT = 60


class Source(NamedTuple):
    """Published location of a file.

    It is the URL of the file itself, or of an archive with ``member`` in it.
    """

    url: str
    member: str | None = None


@dataclass(frozen=True, slots=True)
class DataSet:
    """A public data set: tab-separated files without a header.

    Attributes:
        name: of its folder or archive.
        digests: sha256 of each file's lines, sorted, so that an order of lines does not matter.
        sources: of each file; empty when no stable place is known.
    """

    name: str
    digests: Mapping[str, str]
    sources: Mapping[str, Source] = field(default_factory=dict)


def line_digest(path: Path) -> str:
    """Return the sha256 of a file's lines in sorted order.

    Each line is ended by a line feed.
    """
    digest = hashlib.sha256()
    for line in sorted(path.read_bytes().splitlines()):
        digest.update(line + b"\n")
    return digest.hexdigest()


def cache_directory() -> Path:
    """Return the directory of data sets and runs.

    It is ``$PBG_BENCH_CACHE``, else ``.bench`` in the working directory.
    """
    return Path(os.environ.get("PBG_BENCH_CACHE") or ".bench").absolute()


def obtain(data: DataSet, given: Path, cache: Path) -> Path:
    """Return a directory with the checked files of a data set.

    They are looked for in ``given`` (a folder with the data set's name, or ``NAME.tar.zst``), then in the cache, then
    fetched.

    Raises:
        InputError: a file is missing or holds something else.
        StorageError: it is missing and cannot be fetched.
    """
    folder, archive, cached = given / data.name, given / f"{data.name}.tar.zst", cache / "data" / data.name
    if folder.is_dir():
        return _checked(data, folder)
    if cached.is_dir():
        return _checked(data, cached)
    partial = cached.with_name(f"{data.name}.part")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        if archive.is_file():
            unpack(archive, partial)
            _checked(data, partial / data.name).rename(cached)
        else:
            _fetch(data, partial, given)
            _checked(data, partial).rename(cached)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return cached


def _checked(data: DataSet, directory: Path) -> Path:
    for name, expected in data.digests.items():
        path = directory / name
        if not path.is_file():
            raise InputError(f"{path}: missing; the data set {data.name} is made of {', '.join(data.digests)}")
        found = line_digest(path)
        if found != expected:
            raise InputError(
                f"{path}: its sorted lines have sha256 {found}, those of {data.name} have {expected}; "
                "figures of other data cannot be compared"
            )
    return directory


def _fetch(data: DataSet, directory: Path, given: Path) -> None:
    if not data.sources:
        raise StorageError(
            f"{data.name}: not in {given}, and no stable place to fetch it from is known; put its files "
            f"({', '.join(data.digests)}) into a folder {data.name} and name the folder above with --data"
        )
    for url in {source.url for source in data.sources.values()}:
        fetched = directory / url.rpartition("/")[2]
        _download(url, fetched, data.name)
        members = {name: source.member for name, source in data.sources.items() if source.url == url}
        if any(members.values()):
            unpack(fetched, directory)
        for name, member in members.items():
            (directory / member if member else fetched).rename(directory / name)


def _download(url: str, target: Path, what: str) -> None:
    say(f"fetching {url}")
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT) as response, target.open("wb") as file:  # noqa: S310 - https, below
            shutil.copyfileobj(response, file)
    except (OSError, urllib.error.URLError) as error:
        raise StorageError(
            f"{url}: cannot be fetched ({error}); put the data set into a folder {what} and name the folder above "
            "with --data"
        ) from None


_FB15K = "https://dl.fbaipublicfiles.com/starspace/fb15k.tgz"
_FB15K_237 = "https://download.microsoft.com/download/8/7/0/8700516A-AB3D-4850-B4BB-805C515AECE1/FB15K-237.2.zip"
_ICEWS14 = "https://raw.githubusercontent.com/mniepert/mmkb/master/TemporalKGs/icews14"
_CODEX = "https://raw.githubusercontent.com/tsafavi/codex/e805ea2f512d7f0f8e44f213bc4db51dac0de118/data/triples"
_VILLMOW = "https://raw.githubusercontent.com/villmow/datasets_knowledge_embedding"
_WN18RR = f"{_VILLMOW}/045a868edc0b18d7083b14e80715e82d92938fff/WN18RR/text"
_UMLS = f"{_VILLMOW}/9e392453d6804d1f51c13e5650ae58ed48b638d5/other/umls"
_SPLITS = ("train", "valid", "test")

FB15K = DataSet(
    "fb15k",
    {
        "train.tsv": "696337a2d6133546ab6806e35dcbd5c0bfbef4f3e553e61714b95f754a6f3c5b",
        "valid.tsv": "bac82edda6b039f852c8f316eb39cc26061029a762c5d75d52b7a3b1db738663",
        "test.tsv": "c60cb5d919959724021809b504b648dfe385b4733bd75918b4dd93c1c3b5f97e",
    },
    {f"{split}.tsv": Source(_FB15K, f"FB15k/freebase_mtr100_mte100-{split}.txt") for split in _SPLITS},
)
FB15K_237 = DataSet(
    "fb15k-237",
    {
        "train.tsv": "8d2a771809b0f38f2824c839f25ec57e3a187405049112751e72c82ee9eb3e12",
        "valid.tsv": "1c4febacc6daabc6f3f8e72650935126ef208b098be3a90a81780ba69401836d",
        "test.tsv": "a7156e4560d173ee2e3e8504c490e95d14fa893f1863a6d584d2f5053489a647",
    },
    {f"{split}.tsv": Source(_FB15K_237, f"Release/{split}.txt") for split in _SPLITS},
)
WN18RR = DataSet(
    "wn18rr",
    {
        "train.tsv": "70fbc1c7881f33bd10c77bb493127fad58e5720f260d39c137fc927ecfb5d7f6",
        "valid.tsv": "0f42971b8aa35b97350a9aec3e2015bdce5d33636ed2d5a5b9ea5b2ea5f36547",
        "test.tsv": "92f29d2ed83e81896b91575792696fb4d79db289789128f4c1ddbb38b1a07350",
    },
    {f"{split}.tsv": Source(f"{_WN18RR}/{split}.txt") for split in _SPLITS},
)
CODEX_S = DataSet(
    "codex-s",
    {
        "train.tsv": "b474f0bcef256ff9a8e76bb7d2be459f45d5843b8557a29028e79cc10a2aeeee",
        "valid.tsv": "43eb7ccc5309081986df7dfa3d530a0609c4d75325831086038f7c3b131ed4f6",
        "test.tsv": "29f42710dcab8551acf260d3bf84b22839fce48c47727cc173a5fb5c99e64822",
    },
    {f"{split}.tsv": Source(f"{_CODEX}/codex-s/{split}.txt") for split in _SPLITS},
)
CODEX_M = DataSet(
    "codex-m",
    {
        "train.tsv": "af7fd1cc918e4871d86c4cbc1870e4539dbf8963a93950ddaaf118596afefdf1",
        "valid.tsv": "a54df63d39ee888bf2cf7602cab5f4614579bb50f3fd6af4b02e75e1817d3b9b",
        "test.tsv": "1ec9cf87623ce08401cd1f28ef4798e21cc4211e1ae3c99e040dd52a47a45d7a",
    },
    {f"{split}.tsv": Source(f"{_CODEX}/codex-m/{split}.txt") for split in _SPLITS},
)
UMLS = DataSet(
    "umls",
    {
        "train.tsv": "de6801fd5ca13372b5a0f314462fac674346badc292462c58e2f2852c147534f",
        "valid.tsv": "64c7771d5b5e2b5d76eaf93c758b45130c89cf419c5b963689956209ec213c95",
        "test.tsv": "cc119a3289e7f3a4f389b9f9e42d76e36a305f48ae5292315cfd0488083a2e14",
    },
    {f"{split}.tsv": Source(f"{_UMLS}/{split}.txt") for split in _SPLITS},
)
ICEWS14 = DataSet(
    "icews14",
    {
        "train.tsv": "9a440c92eebae9cf1b638c1b3d67722e3f0ae69e77dbb00a2674ae2e4f3596c6",
        "valid.tsv": "587c9d6719c7229e9daeda50615545d0a362559fe85fec728a700a461ca40a37",
        "test.tsv": "8a0330f71bfaf3882bd8b91dba0d109382a15a7bf818e3933866c0188156836b",
    },
    {f"{split}.tsv": Source(f"{_ICEWS14}/icews_2014_{split}.txt") for split in _SPLITS},
)
BLOGCATALOG = DataSet(
    "blogcatalog",
    {
        "edges.tsv": "b4f1e5dd3ce062b03e6a29ad114020ae3c3d2e3e8969b0250c2e04bbeeda2ace",
        "labels.tsv": "e08fca7cf1de4b403aefaf75bc7083aec9dcc19af36f276d5cbef814ae37ce95",
    },
)
SLASHDOT = DataSet(
    "soc-slashdot0902",
    {"edges.tsv": "73e59cf897b1435d950fbe9b9ca6e26e2ea9ec22af37c3fbb04eb4f70a300772"},
)
