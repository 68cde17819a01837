"""The data sets: where they come from, and what their files must hold whoever brings them."""

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
    """Where a file is published: the URL of the file itself, or of an archive with ``member`` in it."""

    url: str
    member: str | None = None


@dataclass(frozen=True, slots=True)
class DataSet:
    """A public data set: tab-separated files without a header.

    Attributes:
        name: of its folder or archive.
        digests: sha256 of each file's lines, sorted, so that an order of lines does not matter.
        sources: where each file can be fetched; empty when no stable place is known.
    """

    name: str
    digests: Mapping[str, str]
    sources: Mapping[str, Source] = field(default_factory=dict)


def line_digest(path: Path) -> str:
    """Return the sha256 of a file's lines in sorted order, each ended by a line feed."""
    digest = hashlib.sha256()
    for line in sorted(path.read_bytes().splitlines()):
        digest.update(line + b"\n")
    return digest.hexdigest()


def cache_directory() -> Path:
    """Return where data sets and runs lie: ``$PBG_BENCH_CACHE``, else ``.bench`` in the working directory."""
    return Path(os.environ.get("PBG_BENCH_CACHE") or ".bench").absolute()


def obtain(data: DataSet, given: Path, cache: Path) -> Path:
    """Return a directory with the files of a data set, all of them checked.

    They are looked for in ``given`` (a folder with the data set's name, or ``NAME.tar.zst``), then in the cache, then
    fetched.

    Raises:
        InputError: a file is missing or holds something else.
        StorageError: it is nowhere, and cannot be fetched.
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
