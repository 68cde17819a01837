"""Options of snapshot sources that are tables, and their locations."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator

from pbg_tasks.config.base import Options, parse
from pbg_tasks.errors import ConfigError
from pbg_tasks.redaction import redacted

if TYPE_CHECKING:
    from collections.abc import Mapping


class IcebergOptions(Options):
    """Options of format ``iceberg``.

    Attributes:
        catalog: properties of the catalog beside those that PyIceberg finds in its own settings: ``type``, ``uri``,
            ``warehouse`` and others, never a credential.
        keys: names by which snapshots are listed: ``snapshots``, by time and id, or ``tags``.
    """

    catalog: dict[str, str] = Field(default={})
    keys: Literal["snapshots", "tags"] = "snapshots"

    @field_validator("catalog")
    @classmethod
    def _without_credentials(cls, catalog: dict[str, str]) -> dict[str, str]:
        for name in catalog:
            if redacted(text := f"{name}=x") != text or name.lower().endswith("authorization"):
                raise ValueError(
                    f"{name} is a credential, which a spec has not: put it into PYICEBERG_CATALOG__NAME__KEY of the "
                    "environment, or into .pyiceberg.yaml; a run that was stored with it is not read: plan its "
                    "snapshot again, and change the key"
                )
        return catalog


class DeltaOptions(Options):
    """Options of format ``delta``, which has none."""


class ChangesOptions(Options):
    """Options of format ``changes``.

    Attributes:
        files: format of the files.
        change: column with ``+`` or ``-``.
        weight: column of weights, which is no part of what an edge is; that of ``columns.weight``.
        unknown: ``refuse`` a row that removes an edge which is not there, or ``ignore`` it.
        complete: name of the file that a producer writes last into a day's folder; null for none. A day that is one
            file needs none.
    """

    files: Literal["parquet", "csv", "tsv"] = "parquet"
    change: str = "change"
    weight: str | None = None
    unknown: Literal["refuse", "ignore"] = "refuse"
    complete: str | None = "_SUCCESS"


OPTIONS: dict[str, type[Options]] = {"iceberg": IcebergOptions, "delta": DeltaOptions, "changes": ChangesOptions}
_LOCATIONS = {
    "iceberg": (re.compile(r"iceberg://[^/]+/[^/]+/\{snapshot\}"), "iceberg://CATALOG/NAMESPACE.TABLE/{snapshot}"),
    "changes": (
        re.compile(r"(?!.*\{day\}.*\{day\})[^@{]*\{day\}[^@{]*@\{snapshot\}"),
        "the files' with {day}, and @{snapshot}, as s3://bucket/log/{day}/*.parquet@{snapshot}",
    ),
    "delta": (re.compile(r".+@\{snapshot\}"), "the table's location and @{snapshot}, as s3://bucket/edges@{snapshot}"),
}


def check_table(form: str, location: str, options: Mapping[str, Any]) -> None:
    """Refuse a wrong location of a table, or a wrong option.

    Raises:
        ValueError: the message names the form of a location, or the option.
    """
    pattern, asked = _LOCATIONS[form]
    if not pattern.fullmatch(location):
        raise ValueError(f"format {form} takes the location {asked}, not {location!r}")
    try:
        parse(OPTIONS[form], options, source=f"snapshots.options of format {form}")
    except ConfigError as error:
        raise ValueError(str(error)) from None
