"""Text of the choice of edges to train.

It is that of a night that continues another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.prepare.sql.split import TRAIN

if TYPE_CHECKING:
    from pbg_tasks.config.graph import DeltaEpochs
    from pbg_tasks.prepare.sql.dialect import Dialect

WHY = "SELECT why, count(*) FROM chosen GROUP BY why"
_CHANCES = 1 << 64


def back(sql: Dialect) -> str:
    """Return ``back(least_id, greatest_id)``.

    They are pairs that go back to training only in this night. Their edges were held out until now, so they are new.
    """
    return f"""
        SELECT least_id, greatest_id FROM candidates {sql.anti_join} returned_before USING (least_key, greatest_key)
        WHERE returned
    """


def trained(before: str | None) -> str:
    """Return ``trained``: training edges of ``placed``, and whether each is ``new``.

    Args:
        before: table with the column ``hash`` of the edges of the release before; None: it had none.
    """
    known = "false" if before is None else f"mark IN (SELECT hash FROM {before})"
    return f"""
        SELECT placed.*, NOT ({known}) OR (candidate <> {TRAIN} AND least_id IS NOT NULL) AS new
        FROM placed LEFT JOIN back
            ON least_id = least(lhs_id, rhs_id) AND greatest_id = greatest(lhs_id, rhs_id)
        WHERE split = {TRAIN}
    """


def changed(share: float) -> str:
    """Return ``changed(id)``: ends with a share of new edges."""
    return f"""
        SELECT id FROM (SELECT lhs_id AS id, new FROM trained UNION ALL SELECT rhs_id, new FROM trained)
        GROUP BY id HAVING avg(CAST(new AS INTEGER)) >= {share}
    """


def chosen(sql: Dialect, rule: DeltaEpochs, night: str) -> str:
    """Return ``chosen``: rows of ``trained`` to train.

    Each has the first reason ``why``.

    Args:
        sql: dialect.
        rule: of the graph spec; where its ``touching`` is set, the table ``changed`` is there.
        night: key of the snapshot; another draws another sample.
    """
    touching = "false"
    if rule.touching is not None:
        touching = "lhs_id IN (SELECT id FROM changed) OR rhs_id IN (SELECT id FROM changed)"
    drawn = sql.md5_head(f"{sql.text(night)} || chr(31) || {sql.digits('mark')}")
    sampled = sql.below(drawn, int(rule.sample * _CHANCES))
    return f"""
        SELECT * FROM (
            SELECT *, CASE WHEN new THEN 'new' WHEN {touching} THEN 'touching' WHEN {sampled} THEN 'sampled' END AS why
            FROM trained
        ) WHERE why IS NOT NULL
    """
