"""A data set as PBG's directories, for trainings in several ways."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from benchmarks.quality.commands import Clock, Pbg
from benchmarks.quality.data import FB15K_237, DataSet, cache_directory, obtain

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_COLUMNS = ("--lhs-col", "0", "--rel-col", "1", "--rhs-col", "2")


def imported(directory: Path, data: Path, config: Mapping[str, Any], of: DataSet = FB15K_237) -> Pbg:
    """Import its three splits, and return a runner of commands on them.

    Args:
        directory: for ``config.json`` and what its paths name.
        data: folder with the data sets.
        config: PBG's; ``edge_paths`` are for training, validation and test.
        of: triples in ``train.tsv``, ``valid.tsv`` and ``test.tsv``.
    """
    files = obtain(of, data, cache_directory())
    pbg = Pbg(directory, Clock())
    (directory / "config.json").write_text(json.dumps(config))
    splits = [str(files / f"{split}.tsv") for split in ("train", "valid", "test")]
    pbg("import", "import", "tsv", "config.json", *splits, *_COLUMNS)
    return pbg
