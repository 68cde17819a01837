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

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Result = dict[str, Any]
Named = dict[str, Any]

STORED = ("preserve", "export-release")
"""Commands whose results have numbers of files and bytes."""
SPLITS = ("train", "valid", "test")
VERSIONS = {"train": "version", "preserve": "manifest_sha256", "publish": "release"}
"""Key of a command's result that holds the version of its output."""
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


def facets_of(command: str, result: Result, columns: Mapping[str, str | None]) -> Facets:
    """Return the facets of a task.

    A result of an older version of this package may have fewer facts.

    Args:
        command: subcommand of ``pbg``.
        result: of the command; empty before it ends.
        columns: the snapshot's, by role, as the graph spec names them.
    """
    return Facets(
        snapshot={"schema": _columns(columns, result.get("columns") or {})} if columns else {},
        reading=_reading(command, result, columns.get("weight")),
        written=_written(command, result),
        writing=_writing(command, result),
        run={"test": _tests(result["checks"])} if command == "gate" and "checks" in result else {},
    )


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


def _vectors(types: Mapping[str, Result]) -> SchemaDatasetFacet:
    """Return the schema of embeddings: names and vectors of each entity type."""

    def of(dimension: int) -> list[SchemaDatasetFacetFields]:
        columns = {"name": "VARCHAR", "vector": f"FLOAT[{dimension}]"}
        return [SchemaDatasetFacetFields(name=name, type=kind) for name, kind in columns.items()]

    return SchemaDatasetFacet(
        fields=[
            SchemaDatasetFacetFields(name=name, type="STRUCT", fields=of(each["dimension"]))
            for name, each in types.items()
        ]
    )


def _reading(command: str, result: Result, weight: str | None) -> Named:
    """Return the facets of reading the snapshot, and of its checks."""
    found: Named = {}
    if command == "plan" and result:
        found["inputStatistics"] = InputStatisticsInputDatasetFacet(size=result["bytes"], fileCount=result["files"])
    elif command == "validate" and result:
        found["inputStatistics"] = InputStatisticsInputDatasetFacet(rowCount=result["edges"])
        found["dataQualityMetrics"] = _quality(result, weight)
    checks = result["data_gate"]["checks"] if "data_gate" in result else []
    if checks:
        judged = [Assertion(assertion=check["name"], **_judged(check)) for check in checks]
        found["dataQualityAssertions"] = DataQualityAssertionsDatasetFacet(assertions=judged)
    return found


def _quality(result: Result, weight: str | None) -> Any:  # noqa: ANN401 - a class that OpenLineage makes on the spot
    """Return the metrics of a snapshot.

    A facet may have additional fields: here ``duplicates`` and ``selfLoops``.
    """
    bounds = result.get("weights")
    columns = {weight: ColumnMetrics(min=bounds[0], max=bounds[1])} if weight and bounds else {}
    metrics = DataQualityMetricsInputDatasetFacet(columnMetrics=columns, rowCount=result["edges"])
    return metrics.with_additional_properties(duplicates=result["duplicates"], selfLoops=result["self_loops"])


def _written(command: str, result: Result) -> Named:
    """Return schema, version and change of the output.

    Places below a run are written once, a channel is moved.
    """
    if not result or not result.get("published", True):
        return {}
    found: Named = {}
    if command in STORED and result.get("types"):
        found["schema"] = _vectors(result["types"])
    version = result.get(VERSIONS.get(command, ""))
    if version is not None:
        found["version"] = DatasetVersionDatasetFacet(datasetVersion=str(version))
    if command != "export-release":  # an export goes to a place of the user, which may have files
        change = LifecycleStateChange.OVERWRITE if command == "publish" else LifecycleStateChange.CREATE
        found["lifecycleStateChange"] = LifecycleStateChangeDatasetFacet(lifecycleStateChange=change)
    return found


def _writing(command: str, result: Result) -> Named:
    """Return rows, files and bytes of the output."""
    rows = size = files = None
    if command == "partition" and result:
        rows = sum(map(sum, result["counts"].values()))
    elif command == "bucket" and result:
        rows = sum(result["edges"][split] for split in SPLITS)
    elif command in STORED and result:
        types = result.get("types")
        rows = sum(each["rows"] for each in types.values()) if types else None
        size, files = result.get("bytes"), result.get("files")
    if rows is None and size is None and files is None:
        return {}
    return {"outputStatistics": OutputStatisticsOutputDatasetFacet(rowCount=rows, size=size, fileCount=files)}


def _tests(checks: Sequence[Result]) -> TestRunFacet:
    """Return the verdict of the quality gate, with MRR among its figures."""
    tests = []
    for check in checks:
        judged = _judged(check)
        status = "pass" if judged.pop("success") else "fail"
        tests.append(TestExecution(name=check["name"], status=status, **judged))
    return TestRunFacet(tests=tests)


def _judged(check: Result) -> Named:
    """Return a check in OpenLineage's form.

    A warning is a failed check that does not stop the run.
    """
    found: Named = {"success": check["passed"] and not check.get("warned"), "description": check["sentence"]}
    if not found["success"]:
        found["severity"] = "warn" if check["passed"] else "error"
    figures = {"expected": check.get("limit"), "actual": check.get("value")}
    return found | {name: str(figure) for name, figure in figures.items() if figure is not None}
