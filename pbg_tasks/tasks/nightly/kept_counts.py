"""Counts of an evaluation in the store.

The night after it corrects them instead of counting the release anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.checkpoint.manifest import sha256
from pbg_tasks.config import RunLayout
from pbg_tasks.config.registry import COMPARATORS, OPERATORS
from pbg_tasks.config.results import EvalResult, KeptCountsRecord, PreserveResult, parse_result
from pbg_tasks.errors import FormatError, NotFoundError
from pbg_tasks.evaluate.kept_counts import RULE, KeptCounts
from pbg_tasks.progress import say
from pbg_tasks.storage.staging import put_equal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.publish import Release
    from pbg_tasks.tasks.context import RunContext

_MATRICES = {"linear", "affine"}


def store_kept_counts(run: RunContext, kept: KeptCounts) -> KeptCountsRecord:
    """Store the counts of a run's model; return their record.

    The file is named after its contents, and the result has that name: two attempts do not mix.
    """
    data = kept.to_bytes()
    digest = sha256(data)
    put_equal(run.store, _key(run.run_id, digest), data)
    manifest = run.need(PreserveResult).manifest_sha256
    return KeptCountsRecord(rule=RULE, manifest_sha256=manifest, sha256=digest, edges=len(kept.edges))


def kept_counts(run: RunContext, release: Release, rows: Mapping[str, Sequence[int]]) -> KeptCounts | None:
    """Return the counts of a release's own evaluation.

    None is returned, and the reason reported, where there are none that hold for these vectors by the rule of this
    version: then the release is counted anew.

    Args:
        run: of tonight.
        release: that it is compared with, whose ids it kept.
        rows: the release's entities of each partition, by type.
    """
    try:
        return _read(run, release, rows)
    except (FormatError, NotFoundError) as error:
        say(f"release {release.seq} is counted anew, without the counts of its own night: {error}")
        return None


def are_kept(config: ConfigSchema) -> bool:
    """Whether counts of a model hold in later nights.

    Products of whole matrices round by the shape of their batch, and parts of installed packages may change.
    """
    operators = {relation.operator for relation in config.relations}
    return config.comparator in COMPARATORS.built_in and operators <= {*OPERATORS.built_in} - _MATRICES


def _read(run: RunContext, release: Release, rows: Mapping[str, Sequence[int]]) -> KeptCounts:
    key = f"runs/{release.run}/{RunLayout.result(EvalResult.TASK)}"
    source = f"{run.store.url}/{key}"
    record = parse_result(EvalResult, run.store.get(key).data, source=source).kept
    if record is None:
        raise FormatError(f"{source}: names none, as results of earlier versions and of evaluations in parts")
    if record.rule != RULE:
        raise FormatError(f"{source}: they were counted by rule {record.rule}, and this version has rule {RULE}")
    if record.manifest_sha256 != release.manifest_sha256:
        raise FormatError(f"{source}: they are of other vectors than the release has")
    key = _key(release.run, record.sha256)
    source, data = f"{run.store.url}/{key}", run.store.get(key).data
    if sha256(data) != record.sha256:
        raise FormatError(f"{source}: was changed after it was stored")
    return KeptCounts.from_bytes(data, rows, source=source)


def _key(run_id: str, digest: str) -> str:
    return f"runs/{run_id}/eval/{digest}.counts"
