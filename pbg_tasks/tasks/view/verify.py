"""``verify``: compare files with the manifests in their directory.

Files that no manifest lists are reported.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, TypedDict

from pydantic import ConfigDict

from pbg_tasks.checkpoint import ObjectRecord, open_best
from pbg_tasks.checkpoint.manifest import decode
from pbg_tasks.checkpoint.reader import (
    HEAD,
    found_twice,
    location,
    manifest_name,
    read_head,
    read_manifest,
    read_mirror,
)
from pbg_tasks.config.base import Frozen
from pbg_tasks.errors import FormatError, NotFoundError, StorageError
from pbg_tasks.formats.entities import entity_count_file_name, entity_names_file_name
from pbg_tasks.formats.files import parse_natural
from pbg_tasks.progress import Progress, human_count, say
from pbg_tasks.publish.exchange import MANIFEST as EXCHANGE_MANIFEST
from pbg_tasks.storage import LocalStore, open_store
from pbg_tasks.storage.names import join
from pbg_tasks.storage.parallel import in_parallel
from pbg_tasks.storage.staging import Scratch, fetch_verified, sha256_file
from pbg_tasks.tasks.files import IMPORT_MANIFEST, MANIFEST

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pbg_tasks.checkpoint import Manifest
    from pbg_tasks.checkpoint.manifest import Head
    from pbg_tasks.storage import ObjectInfo, Store

_FILES_AT_ONCE = 4
_NAMED = 20  # files that a message or result names
_COUNT = "entity_count_"


class Listing(Frozen):
    """Fields that all manifests have in common.

    Attributes:
        objects: size and hash of each file, by its path below the manifest.
    """

    model_config = ConfigDict(extra="ignore")

    objects: dict[str, ObjectRecord]


@dataclass(frozen=True, slots=True)
class _Directory:
    """A directory and everything below it.

    Attributes:
        store: rooted there.
        files: by key.
        wrong: what was found, a sentence each.
        heads: of its checkpoints, with the files of the versions that counted, by folder.
    """

    store: Store
    files: dict[str, ObjectInfo]
    wrong: list[str] = field(default_factory=list)
    heads: dict[str, tuple[Head, Listing]] = field(default_factory=dict)

    def find(self, key: str) -> ObjectInfo | None:
        """Return the facts of a file, also of one written since."""
        return self.files.get(key) or self.store.head(key)


class Verified(TypedDict):
    """Files that are as written, and some that no manifest lists."""

    task: str
    url: str
    manifests: list[str]
    verified: int
    bytes: int
    counts_compared: int
    unverified: int
    unverified_files: list[str]


def verify(url: str) -> Verified:
    """Compare files below a directory with their recorded size and SHA-256.

    A run, a release, a checkpoint, an export and the files of `pbg import` have manifests. Entity counts are compared
    with the names beside them, whichever program wrote both. Files of a version that a training replaces meanwhile are
    left out.

    Args:
        url: directory, local or ``s3://``.

    Returns:
        ``manifests``, ``verified`` (files), ``bytes``, and ``unverified``: how many files no manifest lists; some of
        them in ``unverified_files``.

    Raises:
        FormatError: files are missing, changed or contradict each other; naming the first.
        NotFoundError: nothing is there, or nothing that can be verified.
    """
    store = open_store(url)
    place = _Directory(store, {info.key: info for info in store.list() if not _is_own(info.key)})
    if not place.files:
        raise NotFoundError(f"{store.url}: holds no files, so there is nothing to verify")
    records: dict[str, ObjectRecord] = {}
    manifests = []
    for key in sorted(place.files):
        is_names = key in records and join(_folder(key), EXCHANGE_MANIFEST) in manifests  # of a type named `manifest`
        listing = None if is_names else _listing(place, key)
        if listing is not None:
            manifests.append(key)
            folder = _folder(key)
            records |= {join(folder, name): record for name, record in listing.objects.items()}
    compared = _check_counts(place)
    faults = _check_files(place, records)
    replaced = _replaced(place, faults)
    place.wrong.extend(fault for key, fault in faults.items() if key not in replaced)
    if place.wrong:
        more = f"; and {len(place.wrong) - _NAMED} more" if len(place.wrong) > _NAMED else ""
        raise FormatError(
            f"{store.url}: {'; '.join(place.wrong[:_NAMED])}{more}: restore what is damaged, or make it again"
        )
    unverified = sorted(place.files.keys() - records.keys() - set(manifests))
    if not records and not compared:
        raise NotFoundError(
            f"{store.url}: none of its {len(unverified)} files can be verified, for no manifest lists them; PBG writes "
            "none, `pbg import`, `pbg train` and `pbg publish` do"
        )
    verified = [record for key, record in records.items() if key not in replaced]
    say(f"verify: {human_count(len(verified))} files are as written, {human_count(len(unverified))} are in no manifest")
    return {
        "task": "verify",
        "url": store.url,
        "manifests": manifests,
        "verified": len(verified),
        "bytes": sum(record.size for record in verified),
        "counts_compared": compared,
        "unverified": len(unverified),
        "unverified_files": unverified[:_NAMED],
    }


def _is_own(key: str) -> bool:
    """Whether a local store keeps a file for itself."""
    return key.startswith(".pbg/") or "/.pbg/" in key


def _folder(key: str) -> str:
    return "" if "/" not in key else key.rpartition("/")[0]


def _listing(place: _Directory, key: str) -> Listing | None:
    """Return a manifest; None for any other file.

    Also None for the manifest of a checkpoint version that does not count.
    """
    name = PurePosixPath(key).name
    try:
        if name in {MANIFEST, IMPORT_MANIFEST, EXCHANGE_MANIFEST}:
            return decode(Listing, place.store.get(key).data, source=f"{place.store.url}/{key}")
        if name == HEAD:
            return found_twice(lambda: _of_head(place, _folder(key)))
    except FormatError as error:
        place.wrong.append(str(error))
    return None


def _of_head(place: _Directory, folder: str) -> Listing | None:
    """Return the files of the version that counts, and its manifest.

    The head has the manifest's hash. None is returned where PBG, which writes no manifest, has trained on.
    """
    mirror = read_mirror(place.store, folder)  # before the head, which a training moves first
    head, _ = read_head(place.store, folder)
    if head is not None and mirror is not None and mirror > head.version and _has_version(place, folder, mirror):
        say(f"verify: {location(place.store, folder)}: another program wrote version {mirror}, without a manifest")
        return None
    manifest = None if head is None else read_manifest(place.store, folder, head)
    if head is None or head.manifest_sha256 is None or manifest is None:
        return None
    own = _of_manifest(place, folder, head.version, head.manifest_sha256)
    found = Listing(objects={**manifest.objects, **own, **_of_best(place, folder, manifest)})
    place.heads[folder] = head, found
    return found


def _has_version(place: _Directory, folder: str, version: int) -> bool:
    return any(_folder(key) == folder and key.endswith(f".v{version}.h5") for key in place.files)


def _of_best(place: _Directory, folder: str, newest: Manifest) -> dict[str, ObjectRecord]:
    """Return the files of a best version that is older."""
    if newest.best is None:
        return {}
    manifest, _ = open_best(place.store, folder)
    if manifest.version != newest.best.version:
        raise FormatError(f"{location(place.store, folder)}: version {manifest.version} became the best one meanwhile")
    return {**manifest.objects, **_of_manifest(place, folder, manifest.version, newest.best.manifest_sha256)}


def _of_manifest(place: _Directory, folder: str, version: int, digest: str) -> dict[str, ObjectRecord]:
    name = manifest_name(version)
    if (info := place.find(join(folder, name))) is None:
        raise FormatError(f"{join(folder, name)} is missing")
    return {name: ObjectRecord(sha256=digest, size=info.size)}


def _replaced(place: _Directory, faults: Iterable[str]) -> set[str]:
    """Return the files that a training has removed meanwhile.

    It removes those of a version once the next one counts.
    """
    found = set[str]()
    for folder, (head, listing) in place.heads.items():
        own = {join(folder, name) for name in listing.objects}.intersection(faults)
        gone = {key for key in own if place.store.head(key) is None}
        now = read_head(place.store, folder)[0] if gone else None
        if now is not None and now.manifest_sha256 != head.manifest_sha256:
            found |= gone
            say(
                f"verify: {location(place.store, folder)} was trained on meanwhile: {len(gone)} files of version "
                f"{head.version} gave way to those of version {now.version} and are left out"
            )
    return found


def _check_files(place: _Directory, records: dict[str, ObjectRecord]) -> dict[str, str]:
    """Return the faults of files, by key."""
    with Scratch() as scratch, Progress("verify", total=sum(each.size for each in records.values()), unit="B") as shown:

        def check(item: tuple[int, tuple[str, ObjectRecord]]) -> str | None:
            number, (key, record) = item
            found = _fault(place, key, record, scratch.path / str(number))
            shown.advance(record.size)
            return found

        found = in_parallel(check, enumerate(sorted(records.items())), _FILES_AT_ONCE)
    return {key: fault for key, fault in zip(sorted(records), found, strict=True) if fault is not None}


def _fault(place: _Directory, key: str, record: ObjectRecord, scratch: Path) -> str | None:
    """Return what is wrong with a file; None if nothing."""
    info = place.find(key)
    if info is None:
        return f"{key} is missing"
    if info.size != record.size:
        return f"{key} has {info.size} bytes, recorded were {record.size}"
    try:
        if isinstance(place.store, LocalStore):
            same = sha256_file(Path(place.store.url) / key) == record.sha256
            return None if same else f"{key} has other bytes than were recorded"
        fetch_verified(place.store, key, scratch, sha256=record.sha256, size=record.size).unlink()
    except FormatError:
        return f"{key} has other bytes than were recorded"
    except StorageError:
        if place.store.head(key) is not None:
            raise
        return f"{key} is missing"
    return None


def _check_counts(place: _Directory) -> int:
    """Compare counts with names, and names with each other.

    Returns:
        How many counts were compared.
    """
    compared, folder = 0, ""
    seen = defaultdict[str, set[str]](set)
    for key in sorted(place.files):
        name = PurePosixPath(key).name
        entity, _, partition = name.removeprefix(_COUNT).removesuffix(".txt").rpartition("_")
        if not partition.isdigit() or name != entity_count_file_name(entity, int(partition)):
            continue
        names = join(_folder(key), entity_names_file_name(entity, int(partition)))
        if names not in place.files:
            continue
        compared += 1
        try:
            count = parse_natural(place.store.get(key).data.decode("utf-8", "replace").strip(), source=key)
            listed = json.loads(place.store.get(names).data)
        except (FormatError, ValueError, RecursionError) as error:
            place.wrong.append(f"{names} or {key} cannot be read ({error})")
            continue
        if not isinstance(listed, list) or len(listed) != count:
            held = len(listed) if isinstance(listed, list) else "no list of"
            place.wrong.append(f"{names} holds {held} names, {key} says {count}")
            continue
        if folder != _folder(key):
            folder = _folder(key)
            seen.clear()  # each folder has its own entities
        own = seen[entity]
        before = len(own)
        own.update(map(str, listed))
        if len(own) != before + len(listed):
            place.wrong.append(f"{names} has a name that another entity of type {entity!r} has as well")
    return compared
