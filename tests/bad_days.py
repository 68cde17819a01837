"""Campaigns of nights with bad days and default gates.

    python -m tests.bad_days --days 10 --seed 1

Every night is the whole chain in this process. The days are those of AS-733, a real graph with four relations made of
its left ends, where the data is there, else of a generated one. Some get a defect of the seed's choice; a day that is
late or corrected has to be published after all. A defect that reaches ``production`` is a problem, and so is a good day
that does not. Prints a table; the last line counts, and the exit status is 1 if there is a problem.

A doubled snapshot has every row twice or more: one nearer to a usual day only warns (docs/gates.md). The days begin
with ``FIRST_DAYS`` that stay good, beside the number asked for. With ``--as-collected`` the days stay as AS-733 itself
has them, some of which are bad (``BAD_AS_COLLECTED``): they begin ``GOOD_AS_COLLECTED`` before two of those unless the
first is given. Other campaigns avoid such days.
"""

from __future__ import annotations

import io
import random
import sys
import tempfile
import zlib
from collections import Counter
from contextlib import redirect_stderr
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
import yaml

from benchmarks import program
from benchmarks.nights.days import DatedEdges, find, read_dated_edges
from pbg_tasks.errors import InputError, OutOfTurnError, PbgError, QualityGateError, UnusableError
from pbg_tasks.progress import aligned, say
from pbg_tasks.publish import Channel
from pbg_tasks.storage import open_store
from pbg_tasks.tasks.nightly.chain import run_chain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from benchmarks.nights.days import Edge

    Defect = Callable[[list[Edge], random.Random], list[Edge]]

GRAPH = "as733"
RELATIONS = 4
FIRST_DAYS = 8
"""Nights that stay good: the first, and seven by which it is known how many edges usually stay."""
GOOD_AS_COLLECTED = 2
BAD_AS_COLLECTED = frozenset(
    {
        *(str(date(1998, 12, 29) + timedelta(number)) for number in range(14)),
        *("1999-07-08", "1999-08-12", "1999-08-29", "1999-08-31"),
    }
)
"""Days of AS-733 that lack more than a third of the edges, of those that a campaign without ``--first`` can have."""
TWO_BAD_DAYS = "1999-08-29"
"""First of the two bad days of a campaign as collected."""
REFUSALS = (QualityGateError, UnusableError)
MODEL = {
    "entities": {"node": {"num_partitions": 1}},
    "relations": [{"name": "edge", "lhs": "node", "rhs": "node", "operator": "translation"}],
    "dynamic_relations": True,
    "global_emb": False,
    "dimension": 64,
    "comparator": "l2",
    "loss_fn": "softmax",
    "lr": 0.05,
    "num_epochs": 15,
    "batch_size": 500,
    "num_batch_negs": 50,
    "num_uniform_negs": 500,
}


def lost(edges: list[Edge], rng: random.Random) -> list[Edge]:
    """Keep a random part, less than a fifth."""
    return rng.sample(edges, max(1, int(len(edges) * rng.uniform(0.02, 0.19))))


def doubled(edges: list[Edge], rng: random.Random) -> list[Edge]:
    """Repeat every row once or several times."""
    return edges * rng.randint(2, 6)


def shifted(edges: list[Edge], rng: random.Random) -> list[Edge]:
    """Move the cells of every row by one or two columns."""
    by = rng.randint(1, 2)
    return [(row[by], row[(by + 1) % 3], row[(by + 2) % 3]) for row in edges]


def misaligned(edges: list[Edge], rng: random.Random) -> list[Edge]:
    """Exchange the ends, or give each row the end of another."""
    ends = [rhs for _, _, rhs in edges]
    if rng.random() < 0.5:
        return [(rhs, rel, lhs) for lhs, rel, rhs in edges]
    rng.shuffle(ends)
    return [(lhs, rel, end) for (lhs, rel, _), end in zip(edges, ends, strict=True)]


def renamed(edges: list[Edge], rng: random.Random) -> list[Edge]:
    """Give every entity another id."""
    prefix = f"x{rng.randint(0, 9)}-"
    return [(prefix + lhs, rel, prefix + rhs) for lhs, rel, rhs in edges]


def partly_lost(edges: list[Edge], rng: random.Random) -> list[Edge]:
    """Keep every second edge, by chance."""
    return rng.sample(edges, len(edges) // 2)


def slipped(edges: list[Edge], rng: random.Random) -> list[Edge]:
    """Move one column of a sorted file by some rows.

    The file is sorted by relation and right end, so that each left end is another one.
    """
    rows, by = sorted(edges, key=lambda row: (row[1], row[2], row[0])), rng.randint(1, 3)
    starts = [lhs for lhs, _, _ in rows]
    return [(lhs, rel, rhs) for lhs, (_, rel, rhs) in zip(starts[-by:] + starts[:-by], rows, strict=True)]


def exchanged(edges: list[Edge], rng: random.Random) -> list[Edge]:
    """Give two relations each other's name."""
    one, other = rng.sample(sorted({rel for _, rel, _ in edges}), 2)
    names = {one: other, other: one}
    return [(lhs, names.get(rel, rel), rhs) for lhs, rel, rhs in edges]


def partly_shuffled(edges: list[Edge], rng: random.Random) -> list[Edge]:
    """Shuffle half of the ends among each other."""
    rows = rng.sample(range(len(edges)), len(edges) // 2)
    found, ends = list(edges), [edges[row][2] for row in rows]
    rng.shuffle(ends)
    for row, end in zip(rows, ends, strict=True):
        found[row] = (*edges[row][:2], end)
    return found


def partly_renamed(edges: list[Edge], rng: random.Random) -> list[Edge]:
    """Give three of ten entities another id."""
    entities = sorted({end for lhs, _, rhs in edges for end in (lhs, rhs)})
    others = {name: f"x-{name}" for name in rng.sample(entities, 3 * len(entities) // 10)}
    return [(others.get(lhs, lhs), rel, others.get(rhs, rhs)) for lhs, rel, rhs in edges]


def halved(edges: list[Edge], rng: random.Random) -> list[Edge]:
    """Leave out half of the relations."""
    names = sorted({rel for _, rel, _ in edges})
    kept = set(rng.sample(names, (len(names) + 1) // 2))
    return [edge for edge in edges if edge[1] in kept]


def empty(edges: list[Edge], rng: random.Random) -> list[Edge]:
    """Leave out everything."""
    return []


DEFECTS: dict[str, Defect] = {
    "lost edges": lost,
    "doubled edges": doubled,
    "shifted columns": shifted,
    "misaligned columns": misaligned,
    "other ids": renamed,
    "half the relations": halved,
    "empty": empty,
    "half of the edges lost": partly_lost,
    "slipped column": slipped,
    "exchanged relations": exchanged,
    "half of the ends shuffled": partly_shuffled,
    "other ids of three in ten": partly_renamed,
}
MISSING, LATE, CORRECTED = "missing", "late", "corrected"


@dataclass(frozen=True, slots=True)
class Ended:
    """A day of the campaign.

    Attributes:
        day: key of its snapshot.
        defect: of the day; empty for a good one.
        outcome: of the night.
        sentence: of the error.
        problem: whether the outcome is not the expected one.
    """

    day: str
    defect: str
    outcome: str
    sentence: str
    problem: bool


class Campaign:
    """Nights of one graph with the defaults of every gate.

    Args:
        root: local directory of the snapshots, store and spec.
        walk: ``chain`` or ``independent``.
        model: changes of the model.
    """

    def __init__(self, root: Path, walk: str, model: Mapping[str, object] | None = None) -> None:
        self._root, self._spec, self._store = root, root / "graph.yaml", root / "store"
        (root / "snapshots").mkdir(parents=True)
        document = {
            "graph": "days",
            "store": str(self._store),
            "snapshots": {"location": f"{root}/snapshots/{{snapshot}}.tsv", "format": "tsv"},
            "model": {**MODEL, **(model or {})},
            "split": {"valid": 0.01, "test": 0.1},
            # Without an anchor a chain of this model falls below popularity in some two weeks (docs/warm-start.md).
            "train": {"warm_epochs": 2, "anchor": 2} if walk == "chain" else {},
            "resources": {"memory_gb": 1, "threads": 1},
            "nights": {"walk": walk},
        }
        self._spec.write_text(yaml.safe_dump(document), encoding="utf-8")

    def day(self, day: str, edges: list[Edge], defect: str, rng: random.Random) -> Ended:
        """Do the night of a day with its defect, and judge it."""
        if defect == MISSING:
            return self._judged(day, defect, self._night(day), expected="missing")
        if defect == LATE:
            outcome, sentence = self._night(day, due=datetime.now(UTC) - timedelta(hours=1))
            self._write(day, edges)
            if outcome == "late":
                outcome, _ = self._night(day)
            return self._judged(day, defect, (outcome, sentence), expected="published")
        if defect == CORRECTED:
            name = rng.choice(list(DEFECTS))
            self._write(day, DEFECTS[name](edges, rng))
            outcome, sentence = self._night(day)
            if outcome != "refused":
                return Ended(day, f"{defect} ({name})", outcome, sentence, problem=True)
            self._write(day, edges)
            return self._judged(day, f"{defect} ({name})", (self._night(day)[0], sentence), expected="published")
        self._write(day, DEFECTS[defect](edges, rng) if defect in DEFECTS else edges)
        bad = defect in DEFECTS or defect == "as collected"
        return self._judged(day, defect, self._night(day), expected="refused" if bad else "published")

    def _judged(self, day: str, defect: str, ended: tuple[str, str], *, expected: str) -> Ended:
        outcome, sentence = ended
        served = self._served()
        wrong = outcome != expected or (served == day) != (expected == "published")
        return Ended(day, defect, outcome, sentence.replace(f"{self._root}/", ""), problem=wrong)

    def _write(self, day: str, edges: list[Edge]) -> None:
        lines = ("\t".join(edge) for edge in [("lhs", "rel", "rhs"), *edges])
        (self._root / "snapshots" / f"{day}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def _night(self, day: str, due: datetime | None = None) -> tuple[str, str]:
        told = io.StringIO()
        try:
            with redirect_stderr(told):
                run_chain(self._spec, day, due=due)
        except REFUSALS as error:
            return "refused", str(error)
        except OutOfTurnError as error:
            return "late", str(error)
        except InputError as error:
            return "missing" if "no snapshot there" in str(error) else "broken", str(error)
        except PbgError as error:
            return "broken", f"{error.kind}: {error}"
        warned = [line.partition("warning: ")[2] for line in told.getvalue().splitlines() if "warning: " in line]
        return "published", "; ".join(warned)

    def _served(self) -> str | None:
        release = Channel(open_store(str(self._store)), "production").current().release
        return None if release is None else release.snapshot


def generated(days: int, seed: int, entities: int = 300) -> Iterator[tuple[str, list[Edge]]]:
    """Yield days of a ring with chords.

    A hundredth of its edges goes each day, and as many come back.
    """
    rng = random.Random(seed)
    steps = {"next": 1, "second": 2, "fifth": 5, "ninth": 9}
    all_edges = [(f"n{i}", rel, f"n{(i + step) % entities}") for i in range(entities) for rel, step in steps.items()]
    away = set(rng.sample(range(len(all_edges)), len(all_edges) // 50))
    for number in range(days):
        yield str(date(2026, 1, 1) + timedelta(number)), [e for i, e in enumerate(all_edges) if i not in away]
        back = rng.sample(sorted(away), len(away) // 2)
        away = (away - set(back)) | set(rng.sample(range(len(all_edges)), len(back)))


def first_day(there: Sequence[str], days: int, seed: int, *, real: bool) -> str:
    """Choose the first day of a campaign.

    Args:
        there: all days of AS-733, in order.
        days: of the campaign.
        seed: chooses among the days before the two bad ones, so that the campaign has no bad day.
        real: begin shortly before the two bad ones, whatever the seed.
    """
    bad, rng = there.index(TWO_BAD_DAYS), random.Random(seed)
    if real:
        return there[bad - GOOD_AS_COLLECTED]
    while BAD_AS_COLLECTED.intersection(there[(start := rng.randrange(60, bad - days)) :][:days]):
        continue
    return there[start]


def collected(dated: DatedEdges, days: int, start: str) -> Iterator[tuple[str, list[Edge]]]:
    """Yield days of AS-733."""
    for day, edges in dated.snapshots(dated.chosen(days, start)):
        yield day, [(lhs, f"link{zlib.crc32(lhs.encode()) % RELATIONS}", rhs) for lhs, _, rhs in edges]


def walk_bad_days(campaign: Campaign, days: Iterator[tuple[str, list[Edge]]], seed: int, *, real: bool) -> list[Ended]:
    """Do the nights of a campaign.

    Args:
        campaign: its place.
        days: keys and edges.
        seed: of the defects.
        real: add no defect; days that are known to be bad have to be refused.
    """
    rng, found = random.Random(f"defects {seed}"), list[Ended]()
    kinds = [*DEFECTS, MISSING, LATE, CORRECTED]
    rng.shuffle(kinds)
    for number, (day, edges) in enumerate(days):
        defect = "as collected" if real and day in BAD_AS_COLLECTED else ""
        # At least two of five days are good, because good days after bad ones are those that a bad release would spoil.
        if not real and number >= FIRST_DAYS and kinds and rng.random() < 0.6:
            defect = kinds.pop()
        ended = campaign.day(day, edges, defect, rng)
        say(f"{ended.day}: {ended.defect or 'good'}: {ended.outcome}")
        found.append(ended)
    return found


def table(found: list[Ended]) -> str:
    """Return the days in columns."""
    rows = [("day", "defect", "what became of it", "the sentence")]
    rows += [(e.day, e.defect or "-", e.outcome + " (PROBLEM)" * e.problem, e.sentence[:150]) for e in found]
    return "\n".join(aligned(rows))


def summary(found: list[Ended]) -> str:
    """Return the counts in one line."""
    outcomes = Counter(each.outcome for each in found)
    bad = sum(1 for each in found if each.defect)
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    problems = sum(each.problem for each in found)
    return f"{len(found)} days, {bad} with a defect: {counts}; {problems} problems"


def main(
    days: Annotated[int, typer.Option(min=1, help="How many days after the first good ones.")] = 10,
    seed: Annotated[int, typer.Option(help="Of the days, of the defects and of their places.")] = 1,
    walk: Annotated[str, typer.Option(help="chain or independent; by the seed unless given.")] = "",
    first: Annotated[str | None, typer.Option(help="First day of AS-733, instead of a chosen one.")] = None,
    as_collected: Annotated[bool, typer.Option("--as-collected", help="Without defects of the seed.")] = False,  # noqa: FBT002 - an option
    data: Annotated[Path, typer.Option(help="Folder with the data set, as a folder or archive.")] = Path(
        "../shared/data"
    ),
) -> None:
    """Walk through days of which some are bad."""
    days += 0 if as_collected else FIRST_DAYS
    try:
        _, path = find(GRAPH, data)
    except InputError:
        if as_collected:
            raise
        print(f"no {GRAPH} in {data}: the days are generated")
        chosen = generated(days, seed)
    else:
        dated = read_dated_edges(path)
        chosen = collected(dated, days, first or first_day(list(dated.changes), days, seed, real=as_collected))
    walk = walk or ("chain", "independent")[seed % 2]
    with tempfile.TemporaryDirectory(prefix="pbg-bad-days-") as scratch:
        found = walk_bad_days(Campaign(Path(scratch) / "graph", walk), chosen, seed, real=as_collected)
    print(table(found))
    print(f"seed {seed}, {walk}: {summary(found)}")
    sys.exit(int(any(each.problem for each in found)))


if __name__ == "__main__":
    program.run(main)
