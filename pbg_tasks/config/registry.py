"""Registry of the parts that a config may name.

They are operators, comparators, losses, regularizers, exchange formats, sinks and sources. Only names are looked up
here: no part is imported, and above all not torch.
"""

from __future__ import annotations

from pbg_tasks.config.comparators import BUILT_IN
from pbg_tasks.plugins import Kind

OPERATORS = Kind(
    "operator", "pbg_tasks.operators", ("none", "translation", "diagonal", "complex_diagonal", "linear", "affine")
)
COMPARATORS = Kind("comparator", "pbg_tasks.comparators", tuple(BUILT_IN))
LOSSES = Kind("loss", "pbg_tasks.losses", ("ranking", "logistic", "softmax"))
REGULARIZERS = Kind("regularizer", "pbg_tasks.regularizers", ("N3", "N3_edge", "L2"))
SOURCES = Kind("snapshot source", "pbg_tasks.sources", ("parquet", "csv", "tsv", "iceberg", "delta", "changes"))
FILE_FORMATS = ("parquet", "csv", "tsv")
"""Built-in sources whose snapshots are files."""
EXPORTS = Kind(
    "exchange format",
    "pbg_tasks.exchange",
    ("angel", "angel-line", "parquet", "npy", "word2vec", "word2vec-bin", "safetensors", "faiss", "projector", "tsv"),
)
PARTED = ("parquet", "npy", "tsv")
"""Exchange formats that have a file a partition, where an export is in parts; the module of each has its name."""
JOINED = ("angel",)
"""Exchange formats whose parts have pieces of files, which the merge joins; same."""
IMPORTS = Kind(
    "exchange format",
    "pbg_tasks.exchange",
    ("angel", "angel-line", "parquet", "npy", "word2vec", "tsv", "wikidata-pbg"),
)
SINKS = Kind("sink", "pbg_tasks.sinks", ("lancedb", "milvus", "pgvector", "qdrant"))
"""Vector stores into which an export fills tables; a name is of a sink or of an exchange format."""
