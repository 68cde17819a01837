"""Export of a checkpoint as PBG's text.

It has FB15k's 14,951 entities in 400 dimensions.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.speed.measurement import Measurement, in_turns
from benchmarks.speed.workloads import trained_fb15k
from pbg_tasks.config import ConfigSchema
from pbg_tasks.tasks.exchange.export_tsv import export_directory

if TYPE_CHECKING:
    from benchmarks.speed.harness import Tools

_TARGET = 15.0
_TIMES = 5


class Ours:
    """Our exporter.

    Args:
        config: names the checkpoint.
        entities: of the checkpoint.
    """

    def __init__(self, config: dict[str, Any], entities: int) -> None:
        self._config, self._entities = ConfigSchema(**config), entities

    def export_tsv(self, entities: str, relations: str) -> int:
        """Write the text several times; return the rows of entities.

        Once would be too short to measure.
        """
        for _ in range(_TIMES):
            export_directory(self._config, entities_output=entities, relation_types_output=relations, overwrite=True)
        return _TIMES * self._entities


def measure(tools: Tools, *, quick: bool) -> list[Measurement]:  # noqa: ARG001 - it is quick as it is
    """Write the same checkpoint by both."""
    config = trained_fb15k(tools.fb15k(), tools.directory / "fb15k")
    with (
        tools.ours(f"{__name__}:Ours", config=config, entities=14_951) as ours,
        tools.theirs("Conversion", config=config) as pbg,
    ):
        sides = {
            name: partial(
                worker,
                "export_tsv",
                entities=str(tools.directory / f"{name}-entities.tsv"),
                relations=str(tools.directory / f"{name}-relations.tsv"),
            )
            for name, worker in (("ours", ours), ("theirs", pbg))
        }
        rounds = in_turns(tools.pairs, sides)
    note = "rows of entities; those of relations are written too"
    return [
        Measurement.rate("export to TSV", "rows/cpu-s", rounds["ours"], rounds["theirs"], target=_TARGET, note=note)
    ]
