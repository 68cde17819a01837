"""Feast feature views of a Parquet export, as a Python file.

The file has an entity, a source and a view for each entity type. ``feast apply`` imports it, so every value from
outside is written as an ASCII literal of Python: no name can end its string and become code. Names within Feast are
made of lower-case letters, digits and underscores.
"""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING

from pbg_tasks.config.comparators import facts_of
from pbg_tasks.config.sinks import slug
from pbg_tasks.publish.exchange.parquet import TIME

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pbg_tasks.publish.exchange import Contents, EntityRows, Outbox

DEFINITION = "_feast/features.py"
"""File of the definitions; the folder is hidden from readers of Parquet folders."""

_HEAD = '''\
"""Feast feature views of exported embeddings. The next export writes them anew."""

from datetime import timedelta

from feast import Entity, FeatureView, Field, FileSource
from feast.types import Array, Float32, String
'''
_VIEW = Template("""

entity_$slug = Entity(name=$name, join_keys=["id"])
view_$slug = FeatureView(
    name=$view,
    entities=[entity_$slug],
    ttl=timedelta(0),  # embeddings are valid until the next ones
    schema=[
        Field(name="id", dtype=String),
        Field($embedding),
    ],
    source=FileSource(name=$source, path=$path, timestamp_field=$time),
    online=True,
    tags=$tags,
)
""")
_METRICS = {"l2": "L2", "cosine": "COSINE", "dot": "IP"}


def write_feature_views(
    contents: Contents, outbox: Outbox, *, prefix: str, destination: str, tags: Mapping[str, str]
) -> None:
    """Write the definition of a feature view for each entity type.

    Args:
        contents: that the Parquet files hold.
        outbox: of the export.
        prefix: of the names in Feast, lower-case letters, digits and underscores.
        destination: URL of the export.
        tags: facts of the model; those of each type are added.
    """
    views = [
        _view(contents, rows, prefix=prefix, path=f"{destination.rstrip('/')}/{rows.entity}.parquet", tags=tags)
        for rows in contents.entities.values()
    ]
    outbox.path(DEFINITION).write_text(_HEAD + "".join(views), encoding="ascii")


def _view(contents: Contents, rows: EntityRows, *, prefix: str, path: str, tags: Mapping[str, str]) -> str:
    name, comparator = f"{prefix}_{slug(rows.entity)}", contents.config.comparator
    facts = {"entity_type": rows.entity, "dimension": str(rows.dimension), "comparator": comparator, **tags}
    return _VIEW.substitute(
        slug=name,
        name=ascii(name),
        view=ascii(f"{name}_embeddings"),
        embedding=_embedding(contents, rows.dimension),
        source=ascii(f"{name}_parquet"),
        path=ascii(path),
        time=ascii(TIME),
        tags="{" + "".join(f"\n        {key!a}: {value!a}," for key, value in facts.items()) + "\n    }",
    )


def _embedding(contents: Contents, dimension: int) -> str:
    """Return the arguments of the field of vectors.

    It is searched only where a metric of the vector stores compares whole vectors as the model does.
    """
    field, metric = 'name="embedding", dtype=Array(Float32)', _metric(contents)
    if metric is None:
        return field
    return f"{field}, vector_index=True, vector_length={dimension}, vector_search_metric={metric!a}"


def _metric(contents: Contents) -> str | None:
    facts = facts_of(contents.config.comparator)
    if facts.metric is None or contents.config.bias:  # with a bias, the first number is not compared
        return None
    return _METRICS["l2" if facts.metric == "l2" else "cosine" if facts.normalized else "dot"]
