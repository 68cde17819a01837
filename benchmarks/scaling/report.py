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
_EXCHANGES = {-1: "memory servers", 0: "through the store"}


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

Made by `python -m benchmarks.scaling` (and `--real`) from `benchmarks/results/scaling.json`. **Simulated**, unless a
table is marked *measured*: a gang's events one by one, with the lease book that real gangs use. How to run one is in
[distributed.md](distributed.md).

What goes in:

* Freebase as PBG's paper has it: {FREEBASE.entities / 1e6:.0f} million entities of dimension {FREEBASE.dimension}, an
  epoch of {FREEBASE.epoch_seconds / 3600:g} hours on one machine;
* buckets as uneven as real graphs make them: the logarithm of a partition's edges deviates by {SKEW:g}, of a bucket's
  by {NOISE:g} more;
* {network.link / 1e9:g} GB/s between two processes, {network.store / 1e9:g} GB/s between a process and the store,
  {network.record:g} s for a record of progress.

A speed-up of N means: N times faster than one rank that never waits for anything. Not simulated: shared parameters,
which travel beside the training; edges, which are read while partitions come or, with `partitions_ahead`, during the
bucket before; deaths.

![Speed-up by ranks](distributed-scaling.svg)

## Ranks and partitions

Speed-up with memory servers (`num_partition_servers: -1`) / through the store (`0`):
"""
    yield from _grid([row for row in results["scaling"] if row["faster"] == 1])
    yield """
Few ranks in many partitions move more than they train: every bucket brings and takes two partitions, and there are as
many buckets as partitions squared. Twice as many partitions as ranks is the least at which all can work. Four times as
many end most of the waiting, but what they move costs more than that gains.
"""
    yield from _table(
        ("ranks", "partitions", "exchange", "speed-up", "training", "without a bucket", "moved"),
        [
            (
                row["ranks"],
                row["partitions"],
                _EXCHANGES[row["servers"]],
                row["speed_up"],
                f"{row['busy']:.0%}",
                f"{row['waiting']:.0%}",
                f"{row['moved_gb'] / 1000:.1f} TB",
            )
            for row in results["scaling"]
            if row["faster"] == 1 and row["partitions"] in {2 * row["ranks"], 4 * row["ranks"]}
        ],
    )
    yield f"""
The faster a rank trains, the more its transfers weigh. With our native engine, {FASTER:g} times as fast as PBG by CPU:
"""
    yield from _table(
        ("ranks", "partitions", "exchange", "speed-up", "against PBG on one machine"),
        [
            (
                row["ranks"],
                row["partitions"],
                _EXCHANGES[row["servers"]],
                row["speed_up"],
                round(row["speed_up"] * row["faster"], 1),
            )
            for row in results["scaling"]
            if row["faster"] != 1
        ],
    )
    yield from _ahead(results["scaling"], results["ahead"], network)
    yield """
## PBG's published scaling

Hours of the paper (Lerer et al., SysML 2019), which were not checked against the print again, and the simulation of
PBG's way: leases in the order of rows, trainers that ask once a second, nothing recorded. Machines and network of the
paper are not known well enough to expect more than the shape.
"""
    yield from _table(
        ("graph", "machines", "partitions", "published", "simulated", "of it without a bucket"),
        [
            (
                row["graph"],
                row["ranks"],
                row["partitions"],
                row["published"],
                row["speed_up"],
                f"{row['waiting']:.0%}",
            )
            for row in results["published"]
        ],
    )
    yield """
## Which of equally cheap buckets

PBG leases the bucket that costs least I/O, and of equal ones the first by rows. Share of the time in which a rank has
no bucket, and speed-up, with memory servers:
"""
    yield from _ties(results["ties"])
    yield """
`inside_out`, PBG's order for one machine, makes a gang meet in one corner of the grid. Hence gangs take a random order,
drawn anew every iteration from the seed. A rule that also prefers partitions with many buckets left was tried: it gains
-2 to 3 %, too little for a rule of its own.
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


def _ahead(before: Sequence[Row], rows: Sequence[Row], network: Network) -> Iterator[str]:
    yield f"""
## Partitions moved behind the training

The tables above are of ranks that wait for each partition that comes or goes, which is the default. With
[`partitions_ahead`](distributed.md#partitions-that-move-behind-the-training) a rank reserves its next bucket, reads its
partitions and puts the last ones away while it trains; partitions of both buckets are copied first, at
{network.copy / 1e9:g} GB/s. Speed-up, and share of the time in which a rank has no bucket:
"""
    found = {_gang_of(row): row for row in before}
    pairs = [(found[_gang_of(row)], row) for row in rows if _gang_of(row) in found]
    yield from _table(
        ("ranks", "partitions", "exchange", "engine", "by default", "with `partitions_ahead`", "moved"),
        [
            (
                row["ranks"],
                row["partitions"],
                _EXCHANGES[row["servers"]],
                "PBG's" if row["faster"] == 1 else f"{row['faster']:g} x",
                f"{old['speed_up']}, {old['waiting']:.0%}",
                f"{row['speed_up']}, {row['waiting']:.0%}",
                f"{old['moved_gb'] / 1000:.1f} -> {row['moved_gb'] / 1000:.1f} TB",
            )
            for old, row in pairs
        ],
    )
    gains = [row["speed_up"] / old["speed_up"] - 1 for old, row in pairs]
    yield f"""
Speed-ups change by {min(gains):+.0%} to {max(gains):+.0%}. Where links are full, as with a faster engine, there is
little training for transfers to hide behind. At twice as many partitions as ranks, ranks wait for each other, longer
with reservations. At four times as many there remain a record of progress before each bucket, and the copies.
"""


def _gang_of(row: Row) -> tuple[object, ...]:
    return row["ranks"], row["partitions"], row["servers"], row["faster"]


def _ties(rows: Sequence[Row]) -> Iterator[str]:
    settings: Mapping[tuple[int, int], dict[str, str]] = {(row["ranks"], row["partitions"]): {} for row in rows}
    for row in rows:
        settings[row["ranks"], row["partitions"]][row["ties"]] = f"{row['waiting']:.0%}, {row['speed_up']}"
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
    yield """*Measured* on one machine: an epoch of a random graph in 8 partitions, one thread a rank. Beside it, the
simulation of the same buckets with the time they took; what I/O takes was measured with a graph of hardly any edges.
The load is of the whole machine at the end; where it is above the ranks, other programs took their time, from I/O as
from training, and the two do not compare well.
"""
    yield from _table(
        ("ranks", "exchange", "load", "seconds", "training, measured", "training, simulated"),
        [
            (
                row["ranks"],
                _EXCHANGES[row["servers"]] if row["ranks"] > 1 else "alone",
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
    epochs, order = len(rows[0]["edges"]), rows[0]["order"]
    edges = {count for row in rows for count in row["edges"]}
    yield f"""*Measured*, `python -m benchmarks.scaling.equality`: FB15k-237 in 16 partitions, {epochs} epochs, memory
servers; filtered test MRR by seed. One rank walks the buckets in the order `{order}`, which is nearest to what a
gang does: orders of buckets differ more in what they learn than numbers of ranks do. Every epoch of every run trained
{" or ".join(f"{count:,}" for count in sorted(edges))} edges, {sum(row["retrained"] for row in rows)} of them twice.
"""
    seeds = sorted({row["seed"] for row in rows})
    found = {(row["ranks"], row["seed"]): row["mrr"] for row in rows}
    yield from _table(
        ("ranks", *(f"seed {seed}" for seed in seeds), "mean", "against one rank"),
        [
            (
                ranks,
                *(f"{found[ranks, seed]:.4f}" for seed in seeds),
                f"{statistics.mean(found[ranks, seed] for seed in seeds):.4f}",
                f"{statistics.mean(found[ranks, seed] - found[1, seed] for seed in seeds):+.4f}",
            )
            for ranks in sorted({row["ranks"] for row in rows})
        ],
    )
    noise = statistics.stdev(found[1, seed] for seed in seeds)
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
            (1, -1, "memory servers"),
            (1, 0, "through the store"),
            (FASTER, -1, f"memory servers, {FASTER:g}x faster engine"),
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
