"""Gates of a night, before and after training.

The data gate judges the snapshot, the quality gate the vectors before they are published.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from pbg_tasks.config.base import Frozen, Growing
from pbg_tasks.config.limits import AtLeast, AtMost
from pbg_tasks.config.schema import NonNegativeFloat, NonNegativeInt, PositiveInt

EVERY_OTHER = "*"
"""Key of ``Gates.relations`` for all relations that have no entry."""


class EntityLimits(Frozen):
    """Limits of one entity type in place of those for all types.

    Attributes:
        max_gone_entities: the type then counts no more among all entities; null: the limit for all.
        max_degree_distance: null: the limit for all.
    """

    max_gone_entities: AtMost | None = None
    max_degree_distance: AtMost | None = None


class DataGates(Growing):
    """Limits that a snapshot must fulfil before it is trained on.

    Shares are of 1; *before* is the last release's snapshot.

    Attributes:
        min_edges: number of rows.
        min_volume: rows against the median of the last 7, and of the last 28, released snapshots.
        max_volume: same.
        max_added_edges: distinct edges that are new, as a share of those before.
        max_removed_edges: distinct edges that are gone, as a share of those before.
        min_kept_edges: share of the distinct edges before that are still there, where a replaced edge counts twice,
            against the median of the last 7 nights; not judged where that is below 0.7.
        min_kept_by_relation: same of each relation of at least 1 % of the edges and 100 edges.
        max_gone_relations: edges of relations that have no edge any more, as a share of all edges before.
        max_gone_entities: entities that are in no edge any more, as a share of those before; of all, and of each type.
        max_duplicates: share of rows that repeat an earlier (lhs, rel, rhs).
        max_self_loops: share of rows that lead from an entity to itself.
        max_degree_distance: Kolmogorov-Smirnov distance between the distributions of an entity type's degrees before
            and now, between 0 and 1; 1 for a type that is in no edge any more.
        changed_columns: consequence of files with other columns, or columns of other types, than before.
        entities: limits of single entity types by their name, such as one whose entities are others every night.
    """

    later_keys: ClassVar[tuple[str, ...]] = ("entities", "min_kept_edges", "min_kept_by_relation")

    min_edges: AtLeast = AtLeast(block=1)
    min_volume: AtLeast = AtLeast(warn=0.5, block=0.2)
    max_volume: AtMost = AtMost(warn=2, block=5)
    max_added_edges: AtMost = AtMost()
    max_removed_edges: AtMost = AtMost(warn=0.65, block=0.8)
    min_kept_edges: AtLeast = AtLeast(warn=0.8, block=0.55)
    min_kept_by_relation: AtLeast = AtLeast(warn=0.6, block=0.2)
    max_gone_relations: AtMost = AtMost(warn=0.05, block=0.25)
    max_gone_entities: AtMost = AtMost(warn=0.2, block=0.35)
    max_duplicates: AtMost = AtMost(warn=0.05, block=0.45)
    max_self_loops: AtMost = AtMost(warn=0.05)
    max_degree_distance: AtMost = AtMost(warn=0.25)
    changed_columns: Literal["ignore", "warn", "block"] = "warn"
    entities: dict[str, EntityLimits] = Field(default={})

    @property
    def gone_entities(self) -> dict[str, AtMost]:
        """Limits on gone entities of the types that have their own."""
        return {name: each.max_gone_entities for name, each in self.entities.items() if each.max_gone_entities}

    def degree_distance(self, entity: str) -> AtMost:
        """Return the limit on the distance of an entity type's degrees."""
        own = self.entities.get(entity)
        return own.max_degree_distance if own and own.max_degree_distance else self.max_degree_distance


class RelationFloor(Frozen):
    """Floors for the held-out edges of one relation.

    Attributes:
        min_mrr: floor of the filtered MRR.
        min_edges: with fewer held-out edges than this, a relation is not judged.
    """

    min_mrr: NonNegativeFloat
    min_edges: PositiveInt = 30


class DriftGates(Frozen):
    """Limits of the drift of each entity type's vectors between releases.

    Attributes:
        min_cosine: mean cosine between the earlier and the new vector of an entity.
        min_overlap: mean share of the nearest neighbours that an entity keeps.
        max_norm_change: factor by which the median norm grew or shrank.
    """

    min_cosine: AtLeast = AtLeast()
    min_overlap: AtLeast = AtLeast()
    max_norm_change: AtMost = AtMost(warn=2)


class Gates(Growing):
    """Limits that a candidate must fulfil before it is published.

    Attributes:
        min_mrr: floor of the filtered MRR.
        min_over_popularity: filtered MRR as a multiple of the MRR of a ranking by the number of edges in training.
        min_over_start: filtered MRR as a multiple of that of the vectors before tonight's training.
        max_mrr_drop: largest allowed relative fall of the filtered MRR against the current release (0.1 = 10 %), both
            on the edges and among the entities that both know.
        min_common_edges: with fewer held-out edges that both know, the fall decides nothing. ``split.test`` leaves
            about its share of the edges.
        on_few_common_edges: consequence of too few: ``warn``; ``block``, after which ``on_failure`` decides; or
            ``ask``: Airflow's task ``gate`` waits for a person when it refuses a night, whatever ``on_failure`` is.
        max_trend_drop: relative fall of the filtered MRR against the best release of the last nights.
        trend_nights: number of these nights, counted in released snapshots; 0 or null: no such comparison.
        relations: floors by the relation's name; ``*`` stands for every relation that has no entry.
        min_coverage: share of an entity type's new entities that are an end of a training edge and have moved.
        drift: limits of the vectors' drift.
        data: limits that the snapshot must fulfil before training.
        on_failure: Airflow's action for a night that a gate refuses: ``fail`` ends it, ``ask`` waits for a person to
            approve or reject it. Like the next key no part of a run.
        ask_hours: hours for which it waits; then the night ends as refused. Less than ``nights.collect.grace_hours``.
    """

    later_keys: ClassVar[tuple[str, ...]] = ("max_trend_drop", "trend_nights")

    min_mrr: NonNegativeFloat = 0.0
    min_over_popularity: AtLeast = AtLeast(block=1)
    min_over_start: AtLeast = AtLeast(warn=1, block=0.95)
    max_mrr_drop: Annotated[float, Field(gt=0, le=1)] = 0.2
    min_common_edges: PositiveInt = 100
    on_few_common_edges: Literal["warn", "ask", "block"] = "warn"
    max_trend_drop: AtMost = AtMost(warn=0.1, block=0.2)
    trend_nights: NonNegativeInt | None = 28
    relations: dict[str, RelationFloor] = Field(default_factory=dict)
    min_coverage: AtLeast = AtLeast(warn=0.9)
    drift: DriftGates = DriftGates()
    data: DataGates = DataGates()
    on_failure: Literal["fail", "ask"] = Field(default="fail", exclude=True)
    ask_hours: Annotated[float, Field(gt=0, le=87_600, allow_inf_nan=False)] = Field(default=24.0, exclude=True)

    def asks(self, task: str) -> bool:
        """Return whether a refusing task waits for a person in Airflow.

        Args:
            task: ``validate``, ``partition`` or ``gate``.
        """
        return self.on_failure == "ask" or (task == "gate" and self.on_few_common_edges == "ask")

    def check_asking(self, grace_hours: float | None, *, few_tasks: bool) -> None:
        """Refuse to ask where no answer could be waited for.

        Args:
            grace_hours: of the collections of the graph; None where there are none.
            few_tasks: whether one Airflow task does the work of several.

        Raises:
            ValueError: the night could be removed meanwhile, or the gates have no tasks of their own.
        """
        if not self.asks("gate"):
            return
        if grace_hours is not None and self.ask_hours >= grace_hours:
            raise ValueError(
                f"gates.ask_hours is {self.ask_hours:g} and nights.collect.grace_hours {grace_hours:g}: a night that "
                "waits for an answer could be removed meanwhile; ask for less time than the grace"
            )
        if few_tasks:
            key = "on_failure" if self.on_failure == "ask" else "on_few_common_edges"
            raise ValueError(f"gates.{key} is ask, for which each gate needs a task; leave airflow.few_tasks out")
