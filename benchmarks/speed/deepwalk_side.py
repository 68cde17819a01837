"""DeepWalk by gensim: random walks, and word2vec on them.

It knows nothing of this project.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import h5py
import numpy as np
from gensim.models import Word2Vec

WALKS, LENGTH, WINDOW = 5, 20, 5
"""Walks from each entity, entities of a walk, and entities on either side that are its context."""
_SEED = 0


class DeepWalk:
    """Skip-grams with negative sampling on walks, by one thread.

    Args:
        edges: a bucket in PBG's format; walks go both ways, and relations are left out.
        entities: in the graph.
        dimension: of the vectors.
    """

    def __init__(self, edges: str, entities: int, dimension: int) -> None:
        with h5py.File(Path(edges)) as file:
            lhs, rhs = file["lhs"][:], file["rhs"][:]
        self._ends = np.concatenate((lhs, rhs)), np.concatenate((rhs, lhs))
        self._entities, self._dimension = entities, dimension

    def train(self, out: str) -> int:
        """Train on walks, and write vectors as npy.

        An entity without edges keeps the vector that it starts with. Returns the number of entities of all walks.
        """
        with tempfile.TemporaryDirectory() as directory:
            corpus = Path(directory) / "walks.txt"
            count = self._walk(corpus)
            model = Word2Vec(
                corpus_file=str(corpus),
                vector_size=self._dimension,
                window=WINDOW,
                min_count=1,
                sg=1,
                negative=5,
                sample=0,
                epochs=1,
                workers=1,
                seed=_SEED,
            )
        rows = [model.wv.key_to_index[str(entity)] for entity in range(self._entities)]
        np.save(out, model.wv.vectors[rows])
        return count

    def _walk(self, corpus: Path) -> int:
        """Write walks, one a line; return how many entities they have."""
        rng = np.random.default_rng(_SEED)
        sources, targets = self._ends
        targets = targets[np.argsort(sources, kind="stable")]
        degrees = np.bincount(sources, minlength=self._entities)
        starts = np.cumsum(degrees) - degrees
        walking = np.flatnonzero(degrees)
        names = list(map(str, range(self._entities)))
        with corpus.open("w", encoding="ascii") as file:
            file.writelines(f"{names[entity]}\n" for entity in np.flatnonzero(degrees == 0))
            for _ in range(WALKS):
                path = np.empty((len(walking), LENGTH), np.int64)
                path[:, 0] = rng.permutation(walking)
                for step in range(1, LENGTH):
                    at = path[:, step - 1]
                    path[:, step] = targets[starts[at] + (rng.random(len(at)) * degrees[at]).astype(np.int64)]
                file.writelines(" ".join(map(names.__getitem__, row)) + "\n" for row in path.tolist())
        return WALKS * LENGTH * len(walking)
