"""The nights of two walks side by side, for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.nights.days import AHEAD

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

HEAD = (
    ("", "day"),
    ("", "edges"),
    ("new", "entities"),
    ("MRR", "chain"),
    ("MRR", "independent"),
    ("same edges", "before"),
    ("same edges", "now"),
    ("cosine", "chain"),
    ("cosine", "independent"),
    ("overlap", "chain"),
    ("coming", "edges"),
    ("from", "neighbours"),
    ("at", "random"),
    ("", "gates"),
)


def table(walks: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Draw one row a day.

    Args:
        walks: nights as ``Night.to_json`` gives them, by ``chain`` and ``independent``; as many of each.
    """
    nights = zip(walks["chain"], walks["independent"], strict=True)
    rows = [*zip(*HEAD, strict=True), *(tuple(_cells(chain, independent)) for chain, independent in nights)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join([*lines[:2], "-" * len(lines[0]), *lines[2:]])


def _cells(chain: Mapping[str, Any], independent: Mapping[str, Any]) -> Iterator[str]:
    drift, newcomers = chain.get("drift", {}), chain.get("newcomers", {})
    yield chain["day"]
    yield _shown(chain.get("edges"), "{:,}")
    yield _shown(chain.get("entities", {}).get("new"), "{:,}")
    yield _shown(chain.get("mrr"))
    yield _shown(independent.get("mrr"))
    yield _shown(chain.get("frozen", {}).get("before"))
    yield _shown(chain.get("frozen", {}).get("now"))
    yield _shown(drift.get("cosine"))
    yield _shown(independent.get("drift", {}).get("cosine"))
    yield _shown(drift.get("overlap"))
    yield _shown(newcomers.get("edges"), "{:,}")
    yield _shown(newcomers.get("neighbours"))
    yield _shown(newcomers.get("random"))
    outcomes = {night["outcome"] for night in (chain, independent)}
    warned = sum(len(night.get("warnings", ())) for night in (chain, independent))
    yield " / ".join(sorted(outcomes)) + (f", {warned} warned" if warned else "")


def _shown(value: float | None, form: str = "{:.4f}") -> str:
    return "-" if value is None else form.format(value)


def means(walks: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, float | None]:
    """Return means over all nights but the first.

    A mean is None where nothing was measured.

    Returns:
        ``chain`` and ``independent``: MRR; ``gain``: share of MRR that a chain's night is above the one before, on
        the same edges; ``cosine`` and ``overlap`` of the chain; ``ends``: number of coming edges that are at new
        entities, and ``neighbours`` and ``random``: MRR of all of these.
    """
    found = {walk: _mean(night.get("mrr") for night in nights[1:]) for walk, nights in walks.items()}
    chain = walks["chain"][1:]
    found |= {name: _mean(night.get("drift", {}).get(name) for night in chain) for name in ("cosine", "overlap")}
    frozen = [each for night in chain if (each := night.get("frozen"))]
    found["gain"] = _mean(each["now"] / each["before"] - 1 for each in frozen)
    newcomers = [each for night in chain if (each := night.get("newcomers", {})).get("edges")]
    ends = sum(each["edges"] for each in newcomers)
    for way in ("neighbours", "random"):
        found[way] = sum(each[way] * each["edges"] for each in newcomers) / ends if ends else None
    return found | {"ends": ends}


def sentences(walks: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Write the means as sentences."""
    found = means(walks)
    return f"""\
mean MRR after the first night: chain {_shown(found["chain"])}, independent {_shown(found["independent"])}
a chain's night against the one before, on the same edges and candidates: {_shown(found["gain"], "{:+.2%}")}
mean cosine of a chain's night to the night before {_shown(found["cosine"])}, overlap {_shown(found["overlap"])}
MRR of the {found["ends"]:,} edges of the next {AHEAD} days at new entities, by how these started: \
from neighbours {_shown(found["neighbours"])}, at random {_shown(found["random"])}"""


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
