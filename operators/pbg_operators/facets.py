"""OpenLineage's facets of a task's inputs and outputs.

They are made from the task's result, and only of known facts. This module imports OpenLineage's client, so it is
imported only where that is needed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from openlineage.client.generated.data_quality_assertions_dataset import Assertion, DataQualityAssertionsDatasetFacet
from openlineage.client.generated.data_quality_metrics_input_dataset import (
    ColumnMetrics,
    DataQualityMetricsInputDatasetFacet,
)
from openlineage.client.generated.dataset_version_dataset import DatasetVersionDatasetFacet
from openlineage.client.generated.input_statistics_input_dataset import InputStatisticsInputDatasetFacet
from openlineage.client.generated.lifecycle_state_change_dataset import (
    LifecycleStateChange,
    LifecycleStateChangeDatasetFacet,
)
from openlineage.client.generated.output_statistics_output_dataset import OutputStatisticsOutputDatasetFacet
from openlineage.client.generated.schema_dataset import SchemaDatasetFacet, SchemaDatasetFacetFields
from openlineage.client.generated.test_run import TestExecution, TestRunFacet

from pbg_tasks.config.results import (
    BucketFindings,
    ExportFindings,
    GateFindings,
    Judged,
    PartitionFindings,
    PlanFindings,
    PreserveFindings,
    PublishFindings,
    TrainFindings,
    ValidateFindings,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pbg_tasks.config.results import CheckDocument, Stored, Vectors

Named = dict[str, Any]
"""Facets, or arguments of a facet, by name."""
_CHECKS = "dataQualityAssertions"
ROLES = {
    "lhs": "left-hand end of an edge",
    "rel": "relation of an edge",
    "rhs": "right-hand end of an edge",
    "weight": "weight of an edge",
    "lhs_type": "entity type of the left-hand end",
    "rhs_type": "entity type of the right-hand end",
}


@dataclass(frozen=True)
class Facets:
    """Facets by their standard names.

    Attributes:
        snapshot: of the snapshot.
        reading: of this reading of the snapshot.
        written: of the task's output.
        writing: of this writing of the output.
        run: of the task's run.
    """

    snapshot: Named = field(default_factory=dict)
    reading: Named = field(default_factory=dict)
    written: Named = field(default_factory=dict)
    writing: Named = field(default_factory=dict)
    run: Named = field(default_factory=dict)


def facets_of(found: Stored | None, columns: Mapping[str, str | None]) -> Facets:
    """Return the facets of a task.

    A result of an older version of this package may have fewer facts.

    Args:
        found: findings of the command; None before it ends.
        columns: the snapshot's, by role, as the graph spec names them.
    """
    types = found.columns if isinstance(found, ValidateFindings) else {}
    return Facets(
        snapshot={"schema": _columns(columns, types)} if columns else {},
        reading=_reading(found, columns.get("weight")),
        written=_written(found) if found is not None else {},
        writing=_writing(found),
        run={"test": _tests(found.checks)} if isinstance(found, GateFindings) else {},
    )


def joined(first: Named, second: Named) -> Named:
    """Return the facets of the first reading, with the checks of both."""
    for name in {_CHECKS} & first.keys() & second.keys():
        first[name].assertions = [*first[name].assertions, *second[name].assertions]
    return second | first


def _columns(roles: Mapping[str, str | None], types: Mapping[str, list[str]]) -> SchemaDatasetFacet:
    """Return the schema of the snapshot's columns.

    Before its files are read, it has the columns that the graph spec names.
    """
    described = {column: ROLES.get(role) for role, column in roles.items() if column is not None}
    return SchemaDatasetFacet(
        fields=[
            SchemaDatasetFacetFields(
                name=name, type="|".join(types.get(name, [])) or None, description=described.get(name)
            )
            for name in types or described
        ]
    )


def _vectors(types: Mapping[str, Vectors]) -> SchemaDatasetFacet:
    """Return the schema of embeddings: names and vectors of each entity type."""

    def of(dimension: int) -> list[SchemaDatasetFacetFields]:
        columns = {"name": "VARCHAR", "vector": f"FLOAT[{dimension}]"}
        return [SchemaDatasetFacetFields(name=name, type=kind) for name, kind in columns.items()]

    return SchemaDatasetFacet(
        fields=[
            SchemaDatasetFacetFields(name=name, type="STRUCT", fields=of(each.dimension))
            for name, each in types.items()
        ]
    )


def _reading(found: Stored | None, weight: str | None) -> Named:
    """Return the facets of reading the snapshot, and of its checks."""
    facets: Named = {}
    if isinstance(found, PlanFindings):
        facets["inputStatistics"] = InputStatisticsInputDatasetFacet(size=found.bytes, fileCount=found.files)
    elif isinstance(found, ValidateFindings):
        facets["inputStatistics"] = InputStatisticsInputDatasetFacet(rowCount=found.edges)
        facets["dataQualityMetrics"] = _quality(found, weight)
    if isinstance(found, Judged) and found.data_gate.checks:
        judged = [Assertion(assertion=check.name, **_judged(check)) for check in found.data_gate.checks]
        facets[_CHECKS] = DataQualityAssertionsDatasetFacet(assertions=judged)
    return facets


def _quality(found: ValidateFindings, weight: str | None) -> Any:  # noqa: ANN401 - a class that OpenLineage makes on the spot
    """Return the metrics of a snapshot.

    A facet may have additional fields: here ``duplicates`` and ``selfLoops``.
    """
    bounds = found.weights
    columns = {weight: ColumnMetrics(min=bounds[0], max=bounds[1])} if weight and bounds else {}
    metrics = DataQualityMetricsInputDatasetFacet(columnMetrics=columns, rowCount=found.edges)
    return metrics.with_additional_properties(duplicates=found.duplicates, selfLoops=found.self_loops)


def _written(found: Stored) -> Named:
    """Return schema, version and change of the output.

    Places below a run are written once, a channel is moved.
    """
    if isinstance(found, PublishFindings) and not found.published:
        return {}
    facets: Named = {}
    if isinstance(found, PreserveFindings | ExportFindings) and found.types:
        facets["schema"] = _vectors(found.types)
    version = _version(found)
    if version is not None:
        facets["version"] = DatasetVersionDatasetFacet(datasetVersion=str(version))
    if not isinstance(found, ExportFindings):  # an export goes to a place of the user, which may have files
        published = isinstance(found, PublishFindings)
        change = LifecycleStateChange.OVERWRITE if published else LifecycleStateChange.CREATE
        facets["lifecycleStateChange"] = LifecycleStateChangeDatasetFacet(lifecycleStateChange=change)
    return facets


def _version(found: Stored) -> int | str | None:
    """Return the version that a command wrote of its output."""
    if isinstance(found, PreserveFindings):
        return found.manifest_sha256
    if isinstance(found, TrainFindings):
        return found.version
    return found.release if isinstance(found, PublishFindings) else None


def _writing(found: Stored | None) -> Named:
    """Return rows, files and bytes of the output."""
    rows = size = files = None
    if isinstance(found, PartitionFindings):
        rows = sum(map(sum, found.counts.values()))
    elif isinstance(found, BucketFindings):
        rows = found.edges.train + found.edges.valid + found.edges.test
    elif isinstance(found, PreserveFindings | ExportFindings):
        rows = sum(each.rows for each in found.types.values()) if found.types else None
        size, files = found.bytes, found.files
    if rows is None and size is None and files is None:
        return {}
    return {"outputStatistics": OutputStatisticsOutputDatasetFacet(rowCount=rows, size=size, fileCount=files)}


def _tests(checks: Sequence[CheckDocument]) -> TestRunFacet:
    """Return the verdict of the quality gate, with MRR among its figures."""
    tests = []
    for check in checks:
        judged = _judged(check)
        status = "pass" if judged.pop("success") else "fail"
        tests.append(TestExecution(name=check.name, status=status, **judged))
    return TestRunFacet(tests=tests)


def _judged(check: CheckDocument) -> Named:
    """Return a check in OpenLineage's form.

    A warning is a failed check that does not stop the run.
    """
    found: Named = {"success": check.passed and not check.warned, "description": check.sentence}
    if not found["success"]:
        found["severity"] = "warn" if check.passed else "error"
    figures = {"expected": check.limit, "actual": check.value}
    return found | {name: str(figure) for name, figure in figures.items() if figure is not None}
