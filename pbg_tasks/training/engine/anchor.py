"""Pull of known entities towards their vectors of the night before.

The penalty is half of ``weight`` times the squared distance between an entity's vector and the one that it has in the
release that the night continues. Its gradient would need every known vector at every step. Its proximal step

    x <- (x + weight * x0) / (1 + weight)

minimises the penalty exactly, together with the distance to x (Parikh and Boyd, "Proximal algorithms", 2014, 6.1.1),
and needs the known vectors of a partition once. It is taken at the end of every epoch, when the last bucket of a
partition is trained. So the result does not depend on the engine or on the number of ranks. Vectors of new entities,
optimizer sums and relations stay as they are.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import torch

from pbg_tasks.formats.embeddings import embeddings_file_name, iter_blocks
from pbg_tasks.training.engine.rounding import Rounding
from pbg_tasks.training.iterations import ends_epoch

if TYPE_CHECKING:
    from pathlib import Path

    from pbg_tasks.checkpoint import CheckpointFiles, Iteration
    from pbg_tasks.formats.metadata import IterationInfo
    from pbg_tasks.training.data.partitions import PartitionKey
    from pbg_tasks.training.data.tables import Table

_BLOCK_VALUES = 1 << 22  # numbers read at once: 16 MiB of float32


class Anchor:
    """Pull of partitions towards a release, for one thread at a time.

    Args:
        release: the release that the night continues.
        weight: of the penalty, above 0.
        scratch: local directory; each file of the release is downloaded once and stays there.
    """

    def __init__(self, release: CheckpointFiles, weight: float, scratch: Path) -> None:
        self._release, self._scratch = release, scratch / "anchor"
        self._share = weight / (1 + weight)

    def draw(self, key: PartitionKey, table: Table, iteration: Iteration | IterationInfo) -> None:
        """Pull a partition's known rows, if the iteration ends an epoch.

        The iteration must not change the partition afterwards.

        Raises:
            FormatError: the release is damaged.
        """
        if not ends_epoch(iteration):
            return
        name = embeddings_file_name(*key, self._release.version)
        path = self._scratch / name
        if not path.exists():
            self._scratch.mkdir(exist_ok=True)
            self._release.fetch(name, self._scratch)
        for start, known_ND in iter_blocks(path, max(1, _BLOCK_VALUES // table.embeddings.shape[1])):
            # Rows that have not moved stay equal bit by bit, because lerp adds a share of the difference.
            rows_ND = table.embeddings[start : start + len(known_ND)]
            drawn_ND = rows_ND.float().lerp_(torch.from_numpy(known_ND).to(rows_ND.device), self._share)
            if table.narrow:
                numbers = torch.arange(start, start + len(known_ND))
                # The release's numbers differ each night; the same bits each night would round each coordinate one way.
                bits = _key(key, iteration) ^ zlib.crc32(known_ND[0].tobytes())
                rows_ND.copy_(Rounding(bits, 0).rounded(drawn_ND, numbers))
        if table.embeddings.is_cuda:  # the copies that follow are on streams that do not wait for this one
            torch.cuda.current_stream(table.embeddings.device).synchronize()


def _key(key: PartitionKey, iteration: Iteration | IterationInfo) -> int:
    """Return a number that random bits of a partition follow from."""
    return zlib.crc32(f"{key.entity}/{key.partition}/{iteration.epoch_idx}".encode())
