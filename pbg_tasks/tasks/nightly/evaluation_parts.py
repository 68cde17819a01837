"""Parts of a run's evaluation in the store.

Each part stores its counts and its drift first and then its result, which names them, so that a part that was
interrupted is missing and is counted again.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from pbg_tasks.checkpoint.manifest import sha256
from pbg_tasks.config.names import part_name
from pbg_tasks.config.results import (
    EvalPart,
    EvalPartResult,
    EvalReleases,
    EvalReleasesResult,
    EvalResult,
    PartitionResult,
    PartsTaken,
    Taken,
)
from pbg_tasks.errors import ConfigError, ConflictError, FormatError, InputError
from pbg_tasks.evaluate.counts import MergedCounting, Share, from_bytes, to_bytes
from pbg_tasks.evaluate.partition_drift import PartitionDrift
from pbg_tasks.forecast.usage import Usage
from pbg_tasks.progress import say
from pbg_tasks.publish import Channel
from pbg_tasks.publish.gc_holds import hold, run_with
from pbg_tasks.storage.files import disk_errors
from pbg_tasks.storage.staging import put_all_new, put_equal, sha256_file
from pbg_tasks.tasks.context import perform
from pbg_tasks.tasks.nightly.comparison_target import awaited, release_before, replaced_release
from pbg_tasks.tasks.nightly.moved_vectors import compared_partitions, drift_queries
from pbg_tasks.tasks.nightly.yardstick import best_release

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pbg_tasks.evaluate.counts import PartCounting
    from pbg_tasks.publish import Release
    from pbg_tasks.tasks.context import RunContext
    from pbg_tasks.tasks.nightly.baseline import Baseline
    from pbg_tasks.tasks.runs.part_files import Key


@dataclass(frozen=True, slots=True)
class Releases:
    """Releases that are ranked beside a run.

    Attributes:
        current: the release before; None: there is none.
        best: the best one of the last nights, which may be the same; None: there is none.
        replaced: of the same snapshot, whose place the run would take; None: there is none.
        awaited: snapshot before an independent run's, where its night is unfinished.
    """

    current: Release | None
    best: Release | None
    awaited: str | None
    replaced: Release | None = None

    @classmethod
    def of(cls, run: RunContext) -> Self:
        """Choose the releases, and hold them.

        Raises:
            ConflictError: `pbg gc` is removing the one before.
        """
        missing = awaited(run)
        current = release_before(run)
        if current is not None:  # of an independent night of an earlier day, a collection may find it unreachable
            hold(run.store, run_with(current.directory, current.run))
        best, replaced = (_held(run, each) for each in (best_release(run, current), replaced_release(run)))
        return cls(current, best, missing, replaced)

    @property
    def numbers(self) -> tuple[int | None, int | None, int | None]:
        """Numbers of the release before, the best and the replaced one."""
        current, best, replaced = (
            None if each is None else each.seq for each in (self.current, self.best, self.replaced)
        )
        return current, best, replaced


def _held(run: RunContext, release: Release | None) -> Release | None:
    """Return a release that a collection leaves, if there is one."""
    if release is not None:
        try:
            hold(run.store, run_with(release.directory, release.run))
        except ConflictError:
            say(f"release {release.seq} is being removed: not compared with it")
            return None
    return release


def choose_releases(url: str) -> None:
    """Store which releases all parts of a run's evaluation rank.

    The first part decides, because the channel may move before the others begin.
    """
    perform(EvalReleasesResult, url, _choose)


def _choose(run: RunContext) -> EvalReleases:
    chosen = Releases.of(run)
    current, best, replaced = chosen.numbers
    return EvalReleases(against=current, best=best, replaced=replaced, awaited=chosen.awaited)


def chosen_releases(run: RunContext) -> Releases:
    """Return the releases that the parts rank.

    Raises:
        ConfigError: nothing was chosen.
        FormatError: one of them was removed.
    """
    chosen, channel = run.find(EvalReleasesResult), Channel(run.store, run.spec.graph.channel)
    if chosen is None:
        raise ConfigError(
            f"{run.url}: results/{EvalReleasesResult.TASK}.json is missing, so the parts of the evaluation may have "
            "had other releases; remove the results of all parts and count them again"
        )

    def release(seq: int | None) -> Release | None:
        try:
            return None if seq is None else channel.release(seq)
        except InputError as error:
            raise FormatError(
                f"{run.url}: the parts of the evaluation rank beside release {seq}, which was removed ({error}); "
                "evaluate the run as a whole, with `pbg eval RUN`"
            ) from None

    return Releases(release(chosen.against), release(chosen.best), chosen.awaited, release(chosen.replaced))


def store_counts(
    run: RunContext, share: Share, counting: PartCounting, releases: Releases, drift: str | None
) -> EvalPart:
    """Store the counts of a part, and return its findings.

    The file is named after its contents: two attempts of a part may differ where machines round differently, and the
    result names the counts of its own. So it is with the drift, whose hash is ``drift``.
    """
    names = sorted(counting.found)
    data = to_bytes(counting.found, names)
    digest = sha256(data)
    put_equal(run.store, _counts_key(run, digest), data)
    current, best, replaced = releases.numbers
    return EvalPart(
        part=str(share),
        counts=names,
        asked=counting.asked,
        edges=next(iter(counting.found.values())).shape[-1],
        sha256=digest,
        against=current,
        best=best,
        replaced=replaced,
        drift=drift,
    )


def store_drift(run: RunContext, drifts: Iterable[tuple[Key, PartitionDrift]], directory: Path) -> str:
    """Store the drift of a part's partitions, and return the file's hash."""
    path = directory / "drift"
    with disk_errors(path), path.open("xb") as file:
        for _, drift in drifts:
            drift.write(file)
    digest = sha256_file(path)
    put_all_new(run.store, {_drift_key(run, digest): path})
    return digest


def stored_drift(
    run: RunContext, parts: int, baseline: Baseline, directory: Path
) -> Iterator[tuple[Key, PartitionDrift]]:
    """Yield the drift of each partition, in order, as parts stored it.

    Args:
        run: of the night, all of whose parts have a drift.
        parts: number of parts.
        baseline: the release before, as far as its entities are known.
        directory: an empty local one.

    Raises:
        FormatError: a part's file is damaged.
    """
    counts = run.need(PartitionResult).counts
    with ExitStack() as stack:
        files = []
        for share, found in _parts(run, parts):
            if found.drift is None:
                raise RuntimeError(f"{run.url}: part {share} has no drift: a bug")
            key, path = _drift_key(run, found.drift), directory / f"{share.number}"
            source = f"{run.store.url}/{key}"
            run.store.fetch(key, path)
            if sha256_file(path) != found.drift:
                raise FormatError(
                    f"{source}: was changed after part {share} was counted; remove it and {_again(share)}"
                )
            own = compared_partitions(baseline, counts, share.partitions(counts))
            files.append((own, source, stack.enter_context(path.open("rb"))))
        for entity, partitions in compared_partitions(baseline, counts).items():
            known, bases = baseline.known[entity], np.concatenate(([0], np.cumsum(counts[entity])))
            queries = len(drift_queries(run, known))
            for partition in partitions:
                _, source, file = next(each for each in files if partition in each[0].get(entity, ()))
                here = int(known[bases[partition] : bases[partition + 1]].sum())
                yield (
                    (entity, partition),
                    PartitionDrift.read(file, known=here, queries=queries, source=source),
                )


def parts_have_drift(run: RunContext, parts: int) -> bool:
    """Return whether all parts have a drift, which an earlier version's lack.

    Raises:
        ConfigError: a part is missing.
    """
    return all(found.drift is not None for _, found in _parts(run, parts))


def parts_taken(run: RunContext, parts: int) -> PartsTaken | None:
    """Return the time and resources of all parts.

    None where an earlier version's part has no resources.

    Raises:
        ConfigError: a part is missing.
    """
    used = [usage for _, found in _parts(run, parts) if (usage := Usage.of_result(found)) is not None]
    if len(used) < parts:
        return None
    together = Usage.at_once(used)._asdict()
    longest, paid = together.pop("seconds"), round(sum(each.seconds for each in used), 3)
    return PartsTaken(count=parts, seconds=longest, all_seconds=paid, usage=Taken(**together))


def merged_counts(run: RunContext, parts: int) -> MergedCounting:
    """Add the counts of all parts.

    Args:
        run: of the night.
        parts: number of parts.

    Raises:
        ConfigError: a part is missing.
        FormatError: a part is damaged, was asked other edges than the first one, or ranked beside other releases.
    """
    asked, total = "", dict[str, np.ndarray]()
    releases = run.find(EvalReleasesResult)
    for share, found in _parts(run, parts):
        key = _counts_key(run, found.sha256)
        source, data = f"{run.store.url}/{key}", run.store.get(key).data
        if sha256(data) != found.sha256:
            raise FormatError(f"{source}: was changed after part {share} was counted; remove it and {_again(share)}")
        if releases is not None and _numbers(found) != _numbers(releases):
            raise FormatError(
                f"{run.url}: part {share} of the evaluation ranked beside other releases than results/"
                f"{EvalReleasesResult.TASK}.json has; remove {_again(share)}"
            )
        if share.number > 1 and (found.asked != asked or set(found.counts) != set(total)):
            raise FormatError(
                f"{run.url}: part {share} of the evaluation was asked other edges or releases than part 1/{parts}; "
                f"remove {_again(share)}"
            )
        counts, asked = from_bytes(data, found.counts, source=source), found.asked
        total = {name: counts[name] + total.get(name, 0) for name in counts}
    return MergedCounting(total, asked)


def _numbers(found: EvalPart | EvalReleases) -> tuple[int | None, ...]:
    return found.against, found.best, found.replaced


def _parts(run: RunContext, parts: int) -> Iterator[tuple[Share, EvalPartResult]]:
    for number in range(1, parts + 1):
        share = Share(number, parts)
        found = run.find(EvalPartResult, part_name(EvalResult.TASK, str(share)))
        if found is None:
            raise ConfigError(
                f"{run.url}: part {share} of the evaluation is missing; run `pbg eval RUN --part {share}`, then merge"
            )
        yield share, found


def _counts_key(run: RunContext, digest: str) -> str:
    return run.key(f"eval/{digest}.npy")


def _drift_key(run: RunContext, digest: str) -> str:
    return run.key(f"eval/{digest}.drift")


def _again(share: Share) -> str:
    return f"results/{part_name(EvalResult.TASK, str(share))}.json of the run, then run `pbg eval RUN --part {share}`"
