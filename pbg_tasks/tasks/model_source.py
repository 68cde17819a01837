"""Files of one version of a model, pinned when it is opened.

Every place that holds a model (a run, a release, a directory of PBG) is resolved by one set of rules.
The file is longer than others so that these rules are found in one place.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from pbg_tasks.checkpoint import VerifiedFiles, open_best, open_preserved
from pbg_tasks.checkpoint.contents import checkpoint_names
from pbg_tasks.checkpoint.plain import open_directory
from pbg_tasks.checkpoint.reader import VERSION_MIRROR, read_mirror
from pbg_tasks.config import RunLayout
from pbg_tasks.config.contract import Contract
from pbg_tasks.config.results import EvalResult, Metrics, PreserveResult
from pbg_tasks.config.run import other_meaning, vector_space
from pbg_tasks.errors import AccessError, ConfigError, FormatError, InputError, NotFoundError, printable
from pbg_tasks.formats.directory import read_config
from pbg_tasks.formats.distinct_names import check_distinct
from pbg_tasks.formats.embeddings import embeddings_file_name
from pbg_tasks.formats.entities import (
    RELATION_COUNT,
    RELATION_NAMES,
    check_relation_count,
    entity_count_file_name,
    entity_names_file_name,
    read_relation_count,
    read_relation_names,
)
from pbg_tasks.formats.entity_sets import EXPIRED, EntitySet
from pbg_tasks.formats.files import parse_natural
from pbg_tasks.formats.guard import open_foreign
from pbg_tasks.formats.metadata import CONFIG as CONFIG_ATTRIBUTE
from pbg_tasks.formats.model import ModelState, model_file_name, read_model
from pbg_tasks.formats.name_index import MappedNames, digests_file_name, index_file_name
from pbg_tasks.model.stored_parameters import fit_shared, initial_parameters
from pbg_tasks.progress import say
from pbg_tasks.publish import Channel, channel_names
from pbg_tasks.publish.promotion import release_for
from pbg_tasks.publish.reachability import CANARY
from pbg_tasks.publish.service_pins import pin_of
from pbg_tasks.storage import open_store
from pbg_tasks.storage.parallel import in_parallel
from pbg_tasks.storage.staging import named, sha256_file
from pbg_tasks.tasks.context import RunContext, names_run
from pbg_tasks.tasks.files import Directory, refuse_unfinished
from pbg_tasks.tasks.files import open_directory as open_directory_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from pbg_tasks.checkpoint import CheckpointFiles
    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.publish import Release
    from pbg_tasks.storage import Store

Loaded = TypeVar("Loaded")

CONFIG = "config.json"
HERE = "."  # as entity_path of a directory that holds its names itself
_THREADS = 4
_TRIES = 5


@dataclass(frozen=True, slots=True)
class Origin:
    """Night that made a model.

    Attributes:
        graph: its name.
        snapshot: key of the edges.
        mrr: filtered one of the held-out edges; None before the evaluation.
    """

    graph: str
    snapshot: str
    mrr: float | None


@dataclass(frozen=True, slots=True)
class Source:
    """One version of a model's files.

    Attributes:
        version: checkpoint version the file names carry.
        config: of the model.
        checkpoint: holds embeddings and shared parameters.
        entities: holds names.
        channel: by which it was found; None without one.
        release: its number in the channel; None without one.
        space: id of the space that the vectors are in; None: unknown.
        origin: the night that made it; None for a directory of PBG.
    """

    version: int
    config: ConfigSchema
    checkpoint: Directory
    entities: Directory
    channel: str | None = None
    release: int | None = None
    space: str | None = None
    origin: Origin | None = None

    @property
    def contract(self) -> Contract:
        """Contract of the model, by which readers check that it fits."""
        return Contract.of(self.config, self.space)

    def model(self, scratch: Path, relation_count: int) -> ModelState:
        """Return the shared parameters; of a file without any, the untrained ones.

        Raises:
            FormatError: the file is damaged, or lacks a parameter of the config or has it in another shape.
        """
        name = model_file_name(self.version)
        (path,) = self.checkpoint.bring([name], scratch)
        with named(path, f"{self.checkpoint.url}/{name}"):
            return read_shared(path, self.config, relation_count)

    def embeddings(self, entity: str, scratch: Path, partitions: Iterable[int] | None = None) -> list[Path]:
        """Return the local files of a type's embeddings; None: all partitions."""
        own = self._partitions(entity) if partitions is None else partitions
        return self.checkpoint.bring([embeddings_file_name(entity, part, self.version) for part in own], scratch)

    def entity_names(self, entity: str, scratch: Path, partitions: Iterable[int] | None = None) -> list[Path]:
        """Return the local files of a type's names; None: all partitions."""
        own = self._partitions(entity) if partitions is None else partitions
        return self.entities.bring([entity_names_file_name(entity, part) for part in own], scratch)

    def distinct_names(self, entity: str, scratch: Path, partitions: Iterable[int] | None = None) -> list[Path]:
        """Return the files of ``entity_names`` whose names are distinct among them.

        Where the directory of the names has a manifest, that vouches for them.

        Raises:
            FormatError: a name occurs twice.
        """
        paths = self.entity_names(entity, scratch, partitions)
        if paths and not self.entities.whole:
            check_distinct(paths)
        return paths

    def names_digests(self, entity: str, scratch: Path) -> list[str]:
        """Return the SHA-256 of the files of a type's names, by partition."""
        names = [entity_names_file_name(entity, part) for part in self._partitions(entity)]
        records = self.entities.records
        if self.entities.whole and all(name in records for name in names):
            return [records[name].sha256 for name in names]
        return [sha256_file(path) for path in self.entity_names(entity, scratch)]

    def name_index(self, entity: str, counts: Sequence[int], scratch: Path) -> MappedNames | None:
        """Open the stored index of a type's names.

        Args:
            entity: the type.
            counts: entities of each partition.
            scratch: local directory for downloads.

        Returns:
            The index; None where the manifest has none, or its files were removed.

        Raises:
            FormatError: it is damaged.
        """
        name, digests_name = index_file_name(entity), digests_file_name(entity)
        if not self.entities.whole or not {name, digests_name} <= self.entities.records.keys():
            return None
        try:
            (digests,) = self.entities.bring([digests_name], scratch)
            path = self.entities.bring_unread(name, scratch)
        except NotFoundError:
            return None
        advice = "restore it, or remove it: each reader then builds one of the names, in its cache (~/.cache/pbg/names)"
        url = f"{self.entities.url}/{name}"
        return MappedNames(path, digests.read_bytes(), counts=counts, source=url, advice=advice)

    def check_counts(self, entity: str, sizes: Mapping[int, int]) -> None:
        """Compare a type's counts with its vectors.

        Where the directory of the names has a manifest, that vouches for the counts.

        Args:
            entity: the type.
            sizes: rows by partition.

        Raises:
            FormatError: they disagree.
        """
        if not self.entities.whole:
            in_parallel(lambda item: self._check_count(entity, *item), sizes.items(), _THREADS)

    def _check_count(self, entity: str, partition: int, rows: int) -> None:
        name = entity_count_file_name(entity, partition)
        count = self._number(name)
        if count not in {None, rows}:
            raise FormatError(
                f"{self.entities.url}/{name}: says {count}, but {self.checkpoint.url}/"
                f"{embeddings_file_name(entity, partition, self.version)} holds {rows} rows; the two are "
                "not of one import"
            )

    def _number(self, name: str) -> int | None:
        """Return the number in a file beside the names; None without it."""
        data = self.entities.read(name)
        if data is None:
            return None
        return parse_natural(data.decode("utf-8", "replace").strip(), source=f"{self.entities.url}/{name}")

    def _partitions(self, entity: str) -> range:
        return range(self.config.entities[entity].num_partitions)

    def hidden(self, entity: str, bases: np.ndarray, partitions: Sequence[int] | None = None) -> np.ndarray:
        """Return the entities of a type that readers are not shown.

        Args:
            entity: the type.
            bases: int64 (P + 1,), number of each partition's first entity, then the total.
            partitions: to which ``bases`` belong, ascending; None: all.

        Returns:
            int64 (H,), ascending numbers over these partitions.

        Raises:
            FormatError: their list is damaged.
        """
        data = self.entities.read(EXPIRED)
        if data is None:
            return np.empty(0, np.int64)
        expired = EntitySet.from_bytes(data, source=f"{self.entities.url}/{EXPIRED}")
        numbers = (expired if partitions is None else expired.within(entity, partitions)).numbers(entity, bases)
        return np.empty(0, np.int64) if numbers is None else numbers

    def shown_counts(self, entity: str) -> list[int]:
        """Return the number of shown entities of each partition.

        Raises:
            FormatError: the directory of the names does not have the counts.
        """
        names = [entity_count_file_name(entity, part) for part in self._partitions(entity)]
        found = in_parallel(self._number, names, _THREADS)
        if None in found:
            raise FormatError(
                f"{self.entities.url}/{names[found.index(None)]}: missing, and parts of this format number all "
                "entities; export the model whole"
            )
        sizes = np.array(found, np.int64)
        bases = np.cumsum([0, *sizes])
        places = np.searchsorted(bases, self.hidden(entity, bases), "right") - 1
        shown: list[int] = (sizes - np.bincount(places, minlength=len(sizes))).tolist()
        return shown

    def relations(self, scratch: Path) -> tuple[str, ...]:
        """Return the names of the relations, by id."""
        if not self.config.relations_from_data:
            return tuple(relation.name for relation in self.config.relations)
        try:
            (path,) = self.entities.bring([RELATION_NAMES], scratch)
        except NotFoundError:
            if self.entities.whole:
                raise
            # PBG itself needs their number only.
            (path,) = self.entities.bring([RELATION_COUNT], scratch)
            return tuple(map(str, range(read_relation_count(path.parent))))
        names = read_relation_names(path.parent)
        count = None if self.entities.whole else self._number(RELATION_COUNT)
        if count is not None:
            check_relation_count(names, count, directory=self.entities.url)
        return tuple(names)


def read_shared(path: Path, config: ConfigSchema, relation_count: int, *, grown: bool = False) -> ModelState:
    """Read shared parameters: all those of a config, and no others.

    A file without any stands for an untrained model, as in PBG.

    Args:
        path: of the file.
        config: of the model.
        relation_count: number of relations.
        grown: with dynamic relations, give those that came since their start instead of an error.

    Raises:
        FormatError: the file is damaged, or of a config with other relations or entities.
    """
    state, params = read_model(path), initial_parameters(config, relation_count)
    sums = {name: np.zeros_like(value) for name, value in params.items()}
    shapes = {name: value.shape for name, value in params.items()}
    try:
        fit_shared(shapes, state.params, state.sums, dynamic=config.dynamic_relations)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from None
    for kept, stored in ((params, state.params), (sums, state.sums)):
        for name, value in stored.items():
            kept[name][: len(value)] = value
    for name, found in state.params.items():
        if not grown and found.shape != params[name].shape:
            raise FormatError(f"{path}: model/{name}: has shape {found.shape}, the relations need {params[name].shape}")
    params = {name: params[name] for name in state.params or params}  # in the order of the file
    return ModelState(params, sums if state.sums else {}, state.loops)


def load_newest(find: Callable[[], Source], load: Callable[[Source], Loaded]) -> Loaded:
    """Load the newest version.

    If its trainer replaces it meanwhile, or its release is removed, the next one is loaded.

    Args:
        find: locates the newest version.
        load: downloads and reads its files.

    Raises:
        FormatError: a file is missing or damaged, or files do not fit together.
    """
    source = find()
    for _ in range(_TRIES):
        try:
            return load(source)
        except (NotFoundError, FormatError):
            newest = find()
            # Releases of nights of as many epochs have the same version.
            if (newest.checkpoint.url, newest.version) == (source.checkpoint.url, source.version):
                raise
            source = newest
    return load(source)


def locate(
    url: str | Path,
    scratch: Path,
    *,
    channel: str | None = None,
    release: int | None = None,
    service: str | None = None,
    key: str | None = None,
    entity_path: str | Path | None = None,
) -> Source:
    """Find the newest version at a URL.

    Args:
        url: a checkpoint directory of PBG or of this package, a preserved or released one, a run
            (``{store}/runs/{id}``), or a graph's store.
        scratch: local directory for downloads.
        channel: of the store, whose current release is opened; needed where the store has several.
        release: number of the release that is opened instead.
        service: whose pin names the release; without a pin it reads what the channel serves.
        key: of the reader, by which it reads the channel's release or the one of a share of the keys.
        entity_path: directory of the names, if it is another than the config's.

    Raises:
        NotFoundError: there is no checkpoint.
        InputError: the channel has no release, or none of that number.
        ConfigError: the directory of the names is unknown, the store has several channels, or a release is named twice
            or outside a channel.
        FormatError: a manifest or config is damaged.
    """
    names = None if entity_path is None else Directory.imported(open_store(entity_path))
    text = str(url).rstrip("/")
    place, has_reader = open_store(url), service is not None or key is not None
    if channel is None and not _is_plain(place):
        if "/" not in text.rpartition("/runs/")[2] and not has_reader and names_run(text):
            return _of_run(RunContext.open(text), names, scratch)
        channel = _only_channel(place)
    if release is not None and has_reader:
        raise ConfigError(f"{url}: release {release} is named, so no pin or share chooses one; leave the others out")
    if channel is not None:
        found = _released(Channel(place, channel), release, service, key)
        files = open_preserved(place, found.directory, expected_sha256=found.manifest_sha256)
        source = _preserved(files, names, scratch)
        origin = Origin(found.graph, found.snapshot, _mrr(Metrics.model_validate(found.metrics)))
        space = source.space or found.run
        return replace(source, channel=found.channel, release=found.seq, space=space, origin=origin)
    if release is not None:
        raise ConfigError(f"{url}: release {release} of which channel? name it")
    if has_reader:
        raise ConfigError(f"{url}: is no graph's store with channels, so it has no pins and no shares of readers")
    return _plain(place, names, scratch)


def _only_channel(store: Store) -> str | None:
    """Return the name of a store's channel; None where it has none.

    The canary of a channel's drills, which no reader follows, does not count.

    Raises:
        ConfigError: it has several.
    """
    found = channel_names(store)
    names = [name for name in found if not (name.endswith(CANARY) and name.removesuffix(CANARY) in found)]
    if len(names) > 1:
        raise ConfigError(f"{store.url}: has channels {', '.join(names)}; name one of them")
    return names[0] if names else None


def locate_config(config: ConfigSchema) -> Source:
    """Find the newest version of a config's checkpoint.

    The names are those at the config's entity path.

    Raises:
        ConfigError: an import into the entity path was cut off.
        NotFoundError: there is no checkpoint.
        FormatError: the directory is damaged.
    """
    entities = open_store(config.entity_path)
    refuse_unfinished(entities)
    files = open_config(config)
    return Source(
        files.version, config, _directory(files, open_store(config.checkpoint_path)), Directory.imported(entities)
    )


def open_config(config: ConfigSchema) -> CheckpointFiles:
    """Open the newest version of a config's checkpoint; raises as ``locate_config``."""
    store = open_store(config.checkpoint_path)
    files = open_directory(store, "", expect=checkpoint_names(config))
    if (trained := trained_config(files)) is not None and vector_space(trained) != vector_space(config):
        say(
            f"warning: {store.url}: was trained with another model than the config's (other "
            f"{other_meaning(trained, config)}); what follows is of one that was never trained"
        )
    return files


def trained_config(files: CheckpointFiles) -> ConfigSchema | None:
    """Return the config of a checkpoint of ours, if it is kept."""
    data = Directory.of(files).read(CONFIG) if isinstance(files, VerifiedFiles) else None
    return None if data is None else read_config(data, source=f"{files.url}/{CONFIG}")


def _directory(files: CheckpointFiles, store: Store) -> Directory:
    return Directory.of(files) if isinstance(files, VerifiedFiles) else Directory(store, "")


def _released(channel: Channel, number: int | None, service: str | None, key: str | None) -> Release:
    """Return the release of a number, a service's pin, or the channel.

    A pin whose last day is over counts, with a warning: its owner decides what the service reads next.
    """
    pinned = None if service is None else pin_of(channel, service)
    if pinned is not None:
        if pinned.is_expired():
            say(
                f"warning: the pin of service {service!r} on release {pinned.seq} of channel {channel.name!r} ended on "
                f"{pinned.until}; {printable(pinned.owner)} should pin it anew or unpin it"
            )
        number = pinned.seq
    release = release_for(channel, key) if number is None else channel.release(number)
    if release is None:
        raise InputError(f"channel {channel.name!r} of {channel.store.url} has no release yet")
    return release


def _of_run(run: RunContext, names: Directory | None, scratch: Path) -> Source:
    """Open a run's release; before there is one, its best commit."""
    if run.find(PreserveResult) is not None:
        source = _preserved(open_preserved(run.store, run.key(RunLayout.release)), names, scratch)
        return replace(source, space=source.space or run.run_id, origin=_origin(run))
    manifest, files = open_best(run.store, run.key(RunLayout.checkpoint))
    names = names or Directory.of(open_directory_of(run, RunLayout.entities))
    return Source(manifest.version, run.config, Directory.of(files), names, origin=_origin(run))


def _origin(run: RunContext) -> Origin:
    evaluated = run.find(EvalResult)
    return Origin(run.spec.graph.graph, run.spec.snapshot, None if evaluated is None else _mrr(evaluated))


def _mrr(evaluated: Metrics) -> float | None:
    return evaluated.filtered.figure("mrr")


def _preserved(files: VerifiedFiles, names: Directory | None, scratch: Path) -> Source:
    directory = Directory.of(files)
    config = _config(directory, files.version, scratch)
    return Source(files.version, config, directory, names or _names(directory, config), space=_space(files))


def _space(files: CheckpointFiles) -> str | None:
    contract = files.contract if isinstance(files, VerifiedFiles) else None
    return None if contract is None else contract.space


def _is_plain(store: Store) -> bool:
    """Whether a store is a plain checkpoint and not a run.

    A folder below ``runs`` may be either, or not exist at all.
    """
    if store.head(RunLayout.spec) is not None:
        return False
    return any(store.head(name) is not None for name in (CONFIG, VERSION_MIRROR, model_file_name(0)))


def _plain(store: Store, names: Directory | None, scratch: Path) -> Source:
    config = _config(Directory(store, ""), read_mirror(store, "") or 0, scratch)
    files = open_directory(store, "", expect=checkpoint_names(config))
    directory = _directory(files, store)
    if CONFIG in files.names:
        config = _config(directory, files.version, scratch)  # now verified
    return Source(files.version, config, directory, names or _names(directory, config), space=_space(files))


def _config(directory: Directory, version: int, scratch: Path) -> ConfigSchema:
    """Read the config from ``config.json`` or from a file's attribute.

    Snapshots that PBG preserved have no ``config.json``, but every file of theirs has the config as an attribute.
    """
    data = directory.read(CONFIG)
    if data is not None:
        return read_config(data, source=f"{directory.url}/{CONFIG}")
    try:
        (path,) = directory.bring([model_file_name(version)], scratch)
    except NotFoundError:
        raise NotFoundError(
            f"{directory.url}: no checkpoint here (neither {CONFIG} nor a model of version {version})"
            f"{_why_absent(directory)}"
        ) from None
    with open_foreign(path) as file:
        text = file.attrs.get(CONFIG_ATTRIBUTE)
    if not isinstance(text, str):
        raise FormatError(f"{path}: holds no config, and there is no {CONFIG} beside it")
    return read_config(text.encode(), source=f"{path}: attribute {CONFIG_ATTRIBUTE}")


def _why_absent(directory: Directory) -> str:
    """Return why a place has no model, within a sentence."""
    if directory.url.endswith((".yaml", ".yml")):
        return "; of a graph spec, name the store"
    with suppress(AccessError):  # a reader may be kept from listing
        if next(directory.store.list(), None) is None:
            return "; nothing is here: is the path right?"
        if next(directory.store.list("runs/"), None) is not None:
            return f"; this store has no release yet: `pbg show {directory.url}` tells why, and names its runs"
    return ""


def _names(directory: Directory, config: ConfigSchema) -> Directory:
    """Return the config's entity path.

    A relative one counts from the working directory, as in PBG.
    """
    if config.entity_path == HERE:
        return directory
    if not config.entity_path:
        raise ConfigError(f"{directory.url}: its config does not name the place of the names; give entity_path")
    return Directory.imported(open_store(config.entity_path))
