"""Parts of a run's evaluation in the store.

Each part stores its counts first and then its result, which names them, so that a part that was interrupted is missing
and is counted again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pbg_tasks.checkpoint.manifest import sha256
from pbg_tasks.config.names import part_name
from pbg_tasks.config.results import EvalPart, EvalPartResult, EvalReleases, EvalReleasesResult, EvalResult
from pbg_tasks.errors import ConfigError, FormatError, InputError
from pbg_tasks.evaluate.counts import MergedCounting, Share, from_bytes, to_bytes
from pbg_tasks.publish import Channel
from pbg_tasks.storage.staging import put_equal
from pbg_tasks.tasks.context import perform
from pbg_tasks.tasks.nightly.comparison_target import awaited, release_before
from pbg_tasks.tasks.nightly.yardstick import best_release

if TYPE_CHECKING:
    import numpy as np

    from pbg_tasks.evaluate.counts import PartCounting
    from pbg_tasks.publish import Release
    from pbg_tasks.tasks.context import RunContext


@dataclass(frozen=True, slots=True)
class Releases:
    """Releases that are ranked beside a run.

    Attributes:
        current: the release before; None: there is none.
        best: the best one of the last nights, which may be the same; None: there is none.
        awaited: snapshot before an independent run's, where its night is unfinished.
    """

    current: Release | None
    best: Release | None
    awaited: str | None


def choose_releases(url: str) -> None:
    """Store which releases all parts of a run's evaluation rank.

    The first part decides, because the channel may move before the others begin.
    """
    perform(EvalReleasesResult, url, _choose)


def _choose(run: RunContext) -> EvalReleases:
    missing = awaited(run)
    current = release_before(run)
    best = best_release(run, current)
    return EvalReleases(
        against=None if current is None else current.seq, best=None if best is None else best.seq, awaited=missing
    )


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

    return Releases(release(chosen.against), release(chosen.best), chosen.awaited)


def store_counts(run: RunContext, share: Share, counting: PartCounting, releases: Releases) -> EvalPart:
    """Store the counts of a part, and return its findings.

    The file is named after its contents: two attempts of a part may differ where machines round differently, and the
    result names the counts of its own.
    """
    names = sorted(counting.found)
    data = to_bytes(counting.found, names)
    digest = sha256(data)
    put_equal(run.store, _counts_key(run, digest), data)
    return EvalPart(
        part=str(share),
        counts=names,
        asked=counting.asked,
        edges=next(iter(counting.found.values())).shape[-1],
        sha256=digest,
        against=None if releases.current is None else releases.current.seq,
        best=None if releases.best is None else releases.best.seq,
    )


def merged_counts(run: RunContext, parts: int) -> MergedCounting:
    """Add the counts of all parts.

    Args:
        run: of the night.
        parts: number of parts.

    Raises:
        ConfigError: a part is missing.
        FormatError: a part is damaged, was asked other edges than the first one, or ranked beside other releases.
    """
    asked, total, releases = "", dict[str, "np.ndarray"](), run.find(EvalReleasesResult)
    for number in range(1, parts + 1):
        share = Share(number, parts)
        found = run.find(EvalPartResult, part_name(EvalResult.TASK, str(share)))
        if found is None:
            raise ConfigError(
                f"{run.url}: part {share} of the evaluation is missing; run `pbg eval RUN --part {share}`, then merge"
            )
        key = _counts_key(run, found.sha256)
        source, data = f"{run.store.url}/{key}", run.store.get(key).data
        if sha256(data) != found.sha256:
            raise FormatError(f"{source}: was changed after part {share} was counted; remove it and {_again(share)}")
        if releases is not None and (found.against, found.best) != (releases.against, releases.best):
            raise FormatError(
                f"{run.url}: part {share} of the evaluation ranked beside other releases than results/"
                f"{EvalReleasesResult.TASK}.json has; remove {_again(share)}"
            )
        if number > 1 and (found.asked != asked or set(found.counts) != set(total)):
            raise FormatError(
                f"{run.url}: part {share} of the evaluation was asked other edges or releases than part 1/{parts}; "
                f"remove {_again(share)}"
            )
        counts, asked = from_bytes(data, found.counts, source=source), found.asked
        total = {name: counts[name] + total.get(name, 0) for name in counts}
    return MergedCounting(total, asked)


def _counts_key(run: RunContext, digest: str) -> str:
    return run.key(f"eval/{digest}.npy")


def _again(share: Share) -> str:
    return f"results/{part_name(EvalResult.TASK, str(share))}.json of the run, then run `pbg eval RUN --part {share}`"
