"""Filtered ranking of FB15k's test edges among all 14,951 entities.

Edges are ranked on both sides.
"""

from __future__ import annotations

import statistics
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.speed.measurement import Measurement, in_turns
from benchmarks.speed.workloads import SPLITS, trained_fb15k
from pbg_tasks.config import ConfigSchema
from pbg_tasks.config.results import Metrics
from pbg_tasks.errors import PbgError
from pbg_tasks.formats.edges import edge_file_name, read_edges, write_edges
from pbg_tasks.progress import human_count
from pbg_tasks.tasks.directory.evaluate import evaluate_directory

if TYPE_CHECKING:
    from benchmarks.speed.harness import Tools
    from benchmarks.speed.workloads import Document
    from pbg_tasks.config.graph import DeviceName

_TARGET = 6.0
_PAIRED, _QUICK = 20_000, 10_000
_WHOLE = 59_071
_SAME_MRR = 2e-6


class Ours:
    """Our ranking of a checkpoint.

    Args:
        config: its edges are those to rank.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = ConfigSchema(**config)

    def rank_on(self, device: DeviceName) -> float:
        """Rank by all threads, known or not; return the raw MRR."""
        found = evaluate_directory(self._config, device=device)
        return Metrics.model_validate(found).raw.figures()["mrr"]

    def rank(self, known: list[str]) -> float:
        """Rank by one thread without those known; return the filtered MRR."""
        found = evaluate_directory(self._config, filtered=True, known=known, threads=1)
        return Metrics.model_validate(found).filtered.figures()["mrr"]


def measure(tools: Tools, *, quick: bool) -> list[Measurement]:
    """Rank test edges: some in turns, all of them once.

    The model was trained for one pass over the valid edges.

    ``quick``: fewer, and not all of them.
    """
    root = tools.directory / "fb15k"
    config = trained_fb15k(tools.fb15k(), root)
    known = [str(root / split) for split in SPLITS]
    some = read_edges(root / "test" / edge_file_name(0, 0), stop=_QUICK if quick else _PAIRED)
    (root / "some").mkdir()
    write_edges(root / "some" / edge_file_name(0, 0), some)
    found = [_compared(tools, config | {"edge_paths": [str(root / "some")]}, known, len(some), tools.pairs)]
    return found if quick else [*found, _compared(tools, config, known, _WHOLE, 1)]


def _compared(tools: Tools, config: Document, known: list[str], edges: int, pairs: int) -> Measurement:
    """Rank the edges of a config by both.

    Raises:
        PbgError: the MRR of both is not the same.
    """
    # PBG ranks among all entities only where a relation asks for it; the checkpoint is the same.
    everything = config | {"relations": [config["relations"][0] | {"all_negs": True}], "num_uniform_negs": 0}
    with tools.ours(f"{__name__}:Ours", config=config) as ours, tools.theirs("Evaluation", config=everything) as pbg:
        sides = {"ours": partial(ours, "rank", known=known), "theirs": partial(pbg, "rank", known=known)}
        rounds = in_turns(pairs, sides, warm_up=False)
    mrr = {side: statistics.median(done.value for done in column) for side, column in rounds.items()}
    if abs(mrr["ours"] - mrr["theirs"]) > _SAME_MRR:
        raise PbgError(f"filtered MRR of one checkpoint: {mrr['ours']} by us and {mrr['theirs']} by PBG")
    which = "all" if edges == _WHOLE else human_count(edges)
    return Measurement.cost(
        f"filtered evaluation of FB15k, {which} test edges",
        "cpu-s",
        rounds["ours"],
        rounds["theirs"],
        target=_TARGET,
        note="one thread; reading the checkpoint counts for us, not for PBG" + ("; one round" if pairs == 1 else ""),
        details={"MRR of both": mrr["ours"]},
    )
