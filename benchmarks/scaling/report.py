"""``docs/distributed-scaling.md`` and its plot, written from the results only."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from benchmarks.quality.plot import Line, Panel, draw
from benchmarks.scaling.graphs import FREEBASE, NOISE, SKEW, TWITTER
from benchmarks.scaling.links import Network
from benchmarks.scaling.scenarios import FASTER, ORDERS, PARTITIONS, RANKS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from benchmarks.scaling.scenarios import Row

Results = dict[str, list[dict[str, Any]]]
_EXCHANGES = {-1: "partition servers", 0: "through the store"}


def write(results: Results, document: Path, plot: Path) -> None:
    """Write the document and its plot.

    Args:
        results: lists of rows by name: ``scaling``, ``ahead``, ``ties``, ``published``, ``real``, ``equality``.
        document: Markdown.
        plot: SVG, in the same directory.
    """
    document.write_text("\n".join([*_document(results), ""]), encoding="utf-8")
    plot.write_text(draw(_panels(results)), encoding="utf-8")


def _document(results: Results) -> Iterator[str]:
    network = Network()
    yield f"""\
# How training scales with ranks

[distributed.md](distributed.md) shows when ranks pay and how to run them. Written by `python -m benchmarks.scaling`
(and `--real`) from `benchmarks/results/scaling.json`. **Simulated**, where not marked *measured*: a gang's events one
by one, with the lease book of real gangs.

* Graph: Freebase as in PBG's paper, {FREEBASE.entities / 1e6:.0f} million entities of dimension {FREEBASE.dimension},
  {FREEBASE.epoch_seconds / 3600:g} hours an epoch on one
  machine; buckets uneven (deviation of the logarithm of edges: {SKEW:g} a partition, {NOISE:g} more a bucket).
* Network: {network.link / 1e9:g} GB/s between processes, {network.store / 1e9:g} GB/s to the store,
  {network.record:g} s a record of progress.
* Left out: shared parameters, edges, deaths.

![Speed-up by ranks](distributed-scaling.svg)

## Ranks and partitions

Speed-up over one rank that never waits, with partition servers (`num_partition_servers: -1`) / through the store (`0`):
"""
    yield from _grid([row for row in results["scaling"] if row["faster"] == 1])
    yield from _costs([row for row in results["scaling"] if row["faster"] == 1])
    yield from _ahead(results["scaling"], results["ahead"], network)
    yield """
## PBG's published scaling

Speed-ups by the paper's hours (Lerer et al., SysML 2019; not checked against the print again), and PBG's way simulated:
leases in the order of rows, trainers that ask once a second, no records. Machines and network of the paper are not
known well: expect the shape only.
"""
    yield from _table(
        ("graph", "machines", "partitions", "published", "simulated"),
        [
            (row["graph"], row["ranks"], row["partitions"], row["published"], row["speed_up"])
            for row in results["published"]
        ],
    )
    yield """
## Which of equally cheap buckets

A gang leases the bucket that costs least I/O. Which of equal ones, by speed-up with partition servers:
"""
    yield from _ties(results["ties"])
    yield """
With `inside_out`, PBG's order for one machine, ranks meet in one corner of the grid. So gangs take a random order,
drawn anew every iteration from the seed. To prefer partitions with many buckets left gains -2 to 3 %, too
little for a rule.
"""
    yield from _real(results["real"])
    yield from _equality(results.get("equality", []))


def _grid(rows: Sequence[Row]) -> Iterator[str]:
    found = {(row["partitions"], row["ranks"], row["servers"]): row["speed_up"] for row in rows}
    yield from _table(
        ("partitions", *(f"{ranks} ranks" if ranks > 1 else "1 rank" for ranks in RANKS)),
        [
            (
                partitions,
                *(
                    f"{found[partitions, ranks, -1]} / {found[partitions, ranks, 0]}"
                    if (partitions, ranks, 0) in found
                    else ""
                    for ranks in RANKS
                ),
            )
            for partitions in PARTITIONS
        ],
    )


def _costs(rows: Sequence[Row]) -> Iterator[str]:
    def waiting(times: int) -> str:
        shares = [row["waiting"] for row in rows if row["partitions"] == times * row["ranks"]]
        return f"{min(shares):.0%} to {max(shares):.0%}"

    moved = {row["partitions"]: row["moved_gb"] / 1000 for row in rows if row["partitions"] == 2 * row["ranks"]}
    counts, amounts = ", ".join(map(str, moved)), ", ".join(f"{amount:.0f}" for amount in moved.values())
    yield f"""
Twice as many partitions as ranks is the least at which all can work; they are without a bucket {waiting(2)} of the
time. Four times as many end most of that ({waiting(4)}), but moving costs more: every bucket brings and takes two
partitions, and there are partitions squared of them. An epoch of {counts} partitions moves {amounts} TB.
"""


def _ahead(before: Sequence[Row], rows: Sequence[Row], network: Network) -> Iterator[str]:
    yield f"""
## Faster engines, and partitions moved behind the training

Each cell: by default -> with [`partitions_ahead`](distributed.md#partitions-that-move-behind-the-training), which
copies partitions first, at {network.copy / 1e9:g} GB/s. The engine of the last two columns is {FASTER:g} times as fast
as PBG's, about what our native [steps](performance.md#training-steps) are, and their speed-ups are over itself.
"""
    found = {_gang_of(row): row for row in before}
    then = {_gang_of(row): row for row in rows}
    gangs = {(row["ranks"], row["partitions"]): None for row in rows}

    def cell(gang: tuple[int, int], servers: int, faster: float) -> str:
        key = (*gang, servers, faster)
        return f"{found[key]['speed_up']} -> {then[key]['speed_up']}" if key in found and key in then else ""

    kinds = [(servers, faster) for faster in (1, FASTER) for servers in (-1, 0)]
    names = [f"{_EXCHANGES[servers]}{'' if faster == 1 else f', {faster:g} x'}" for servers, faster in kinds]
    yield from _table(
        ("ranks", "partitions", *names),
        [(*gang, *(cell(gang, servers, faster) for servers, faster in kinds)) for gang in gangs],
    )
    pairs = [(found[key], row) for key, row in then.items() if key in found]
    gains = [row["speed_up"] / old["speed_up"] - 1 for old, row in pairs]
    most = max(row["moved_gb"] / old["moved_gb"] - 1 for old, row in pairs)
    yield f"""
`partitions_ahead` changes speed-ups by {min(gains):+.0%} to {max(gains):+.0%}, and moves up to {most:.0%} more.
Where links are full, as with a fast engine, there is little training to hide behind. At twice as many partitions as
ranks, ranks wait longer for each other's reservations.
"""


def _gang_of(row: Row) -> tuple[object, ...]:
    return row["ranks"], row["partitions"], row["servers"], row["faster"]


def _ties(rows: Sequence[Row]) -> Iterator[str]:
    settings: Mapping[tuple[int, int], dict[str, str]] = {(row["ranks"], row["partitions"]): {} for row in rows}
    for row in rows:
        settings[row["ranks"], row["partitions"]][row["ties"]] = row["speed_up"]
    heads = [f"`{order}`" if order != "rows" else "rows (PBG)" for order in ORDERS]
    yield from _table(
        ("ranks", "partitions", *heads),
        [(*key, *(cells[order] for order in ORDERS)) for key, cells in settings.items()],
    )


def _real(rows: Sequence[Row]) -> Iterator[str]:
    yield "## Real gangs\n"
    if not rows:
        yield "None measured yet.\n"
        return
    yield """*Measured* on one machine: an epoch of a random graph in 8 partitions, one thread a rank; beside it the
simulation of the same buckets and I/O. Where the machine's load is above the ranks, the two do not compare well. What
moves behind the training takes CPU time, which the simulation takes to be free: on a machine with a CPU for each rank
it is not, so there ranks train a larger share of the time, and epochs need not be shorter.
"""
    yield from _table(
        ("ranks", "exchange", "load", "seconds", "training, measured", "training, simulated"),
        [
            (
                row["ranks"],
                _EXCHANGES[row["servers"]] + ", `partitions_ahead`" * row["ahead"] if row["ranks"] > 1 else "alone",
                row["load"],
                row["seconds"],
                f"{row['busy']:.0%}",
                f"{row['simulated_busy']:.0%}" if row["ranks"] > 1 else "",
            )
            for row in rows
        ],
    )


def _equality(rows: Sequence[Row]) -> Iterator[str]:
    yield "\n## What several ranks learn\n"
    if not rows:
        yield "Not measured yet.\n"
        return
    epochs, order, count = len(rows[0]["edges"]), rows[0]["order"], len({row["seed"] for row in rows})
    edges = {number for row in rows for number in row["edges"]}
    yield f"""*Measured*, `python -m benchmarks.scaling.equality`: filtered test MRR of FB15k-237 in 16 partitions,
{epochs} epochs, {count} seeds, partition servers. One rank takes the order `{order}`, the nearest to a gang's: orders
differ more in what they learn than numbers of ranks. Every epoch
trained {" or ".join(f"{edge:,}" for edge in sorted(edges))} edges,
{sum(row["retrained"] for row in rows)} of them twice.
"""
    seeds = sorted({row["seed"] for row in rows})
    found = {(row["ranks"], row["ahead"], row["seed"]): row["mrr"] for row in rows}
    yield from _table(
        ("ranks", "mean", "against one rank"),
        [
            (
                f"{ranks}, `partitions_ahead`" if ahead else ranks,
                f"{statistics.mean(found[ranks, ahead, seed] for seed in seeds):.4f}",
                f"{statistics.mean(found[ranks, ahead, seed] - found[1, False, seed] for seed in seeds):+.4f}",
            )
            for ranks, ahead in sorted({(row["ranks"], row["ahead"]) for row in rows})
        ],
    )
    noise = statistics.stdev(found[1, False, seed] for seed in seeds)
    yield f"\nSeeds of one rank deviate by {noise:.4f}."


def _table(heads: Sequence[object], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    yield f"| {' | '.join(map(str, heads))} |"
    yield "|" + "---|" * len(heads)
    for row in rows:
        yield f"| {' | '.join(map(str, row))} |"


def _panels(results: Results) -> list[Panel]:
    ideal = [(float(ranks), float(ranks)) for ranks in RANKS]
    lines = [Line("every rank always training", 6, ideal)]
    for colour, (faster, servers, name) in enumerate(
        (
            (1, -1, "partition servers"),
            (1, 0, "through the store"),
            (FASTER, -1, f"partition servers, {FASTER:g}x faster engine"),
            (FASTER, 0, f"through the store, {FASTER:g}x faster engine"),
        )
    ):
        points = [
            (float(row["ranks"]), float(row["speed_up"]))
            for row in results["scaling"]
            if (row["faster"], row["servers"]) == (faster, servers)
            and row["partitions"] == max(PARTITIONS[0], 2 * row["ranks"])
        ]
        lines.append(Line(name, colour, points))
    for colour, servers in ((4, -1), (5, 0)):
        points = [
            (float(row["ranks"]), float(row["speed_up"]))
            for row in results["ahead"]
            if (row["faster"], row["servers"]) == (1, servers)
            and row["partitions"] == max(PARTITIONS[0], 2 * row["ranks"])
        ]
        lines.append(Line(f"{_EXCHANGES[servers]}, partitions_ahead", colour, points))
    published = [Line("ideal", 6, ideal[:4])]
    for colour, graph in enumerate((FREEBASE, TWITTER)):
        rows = [row for row in results["published"] if row["graph"] == graph.name]
        for shift, key in enumerate(("published", "simulated")):
            points = [(1.0, 1.0), *((float(row["ranks"]), float(row[_KEYS[key]])) for row in rows)]
            published.append(Line(f"{graph.name}, {key}", 2 * colour + shift, points))
    return [
        Panel("Freebase, partitions: twice the ranks, at least 16 (simulated)", "ranks", lines, logarithmic=True),
        Panel("PBG, partitions: twice the machines", "machines", published, logarithmic=True),
    ]


_KEYS = {"published": "published", "simulated": "speed_up"}
