"""``docs/quality.md`` and its plot, written from the results only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.quality.experiments import EXPERIMENTS
from benchmarks.quality.plot import Line, Panel, draw
from benchmarks.quality.results import means

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from benchmarks.quality.experiments import Experiment, Kind
    from benchmarks.quality.results import Results, Run

_COLUMNS: Mapping[Kind, Mapping[str, str]] = {
    "links": {
        "mrr": "MRR",
        "hits1": "Hits@1",
        "hits10": "Hits@10",
        "mr": "MR",
        "raw_mrr": "raw MRR",
    },
    "init": {"mrr": "MRR", "hits1": "Hits@1", "hits10": "Hits@10"},
    "dated links": {
        "dated_mrr": "time-aware MRR",
        "dated_hits1": "Hits@1",
        "dated_hits10": "Hits@10",
        "mrr": "filtered MRR",
        "raw_mrr": "raw MRR",
    },
    "labels": {
        **{f"micro_f1_{share}": f"micro-F1 {share}" for share in ("10%", "50%", "90%")},
        **{f"macro_f1_{share}": f"macro-F1 {share}" for share in ("10%", "50%", "90%")},
    },
}
_INTRODUCTION = """\
# Quality on public data
"""
_METHOD = """\
`make quality` runs each config of `examples/configs` with a user's commands (`pbg import tsv`, `pbg train`, `pbg eval
--filtered`) and writes this page from `benchmarks/quality/results.json`. One experiment: `make quality ARGS="--only
fb15k --seeds 0,1"`. Data come from `--data DIR` or are fetched, and are checked by SHA-256.

* Test edges are ranked on both sides among all entities. *Filtered*: other edges of train, valid or test do not count.
* A tie counts against us; some published rows use the mean rank of ties.
* Settings were chosen by the valid MRR where a note gives it.
"""
_CURVES = "![Quality of the valid split and loss by epoch](quality.svg)\n"
_INIT = """\
## What `pbg init` writes

The config that `pbg init` writes, unchanged, beside the one tuned for the data set.
"""
_COSTS = """\
## Cost

Seconds are wall / CPU; wall seconds and edges/s depend on the load of the machine"""
_LABELS = """\
DeepWalk's protocol: one-vs-rest logistic regression (L2, C = 1) on the embeddings scaled to length 1, fitted to 10, 50
or 90 % of the labelled nodes. Each other node gets as many labels as it has, the best ones. Means of 10 random splits,
in percent.
"""


def write(results: Results, document: Path, plot: Path) -> None:
    """Write the document and its plot.

    Args:
        results: of the experiments that were run; the others are listed as missing.
        document: Markdown.
        plot: SVG, in the same directory.
    """
    document.write_text(_document(results), encoding="utf-8")
    plot.write_text(_plot(results), encoding="utf-8")


def _document(results: Results) -> str:
    parts = [
        _INTRODUCTION,
        "\n".join(_targets(results)),
        _METHOD,
        _CURVES,
        _INIT,
        "\n".join(_initial(results)),
    ]
    shown = (each for each in EXPERIMENTS if each.kind != "init")
    parts += ["\n".join(_section(each, results.of(each.name))) for each in shown]
    return "\n".join([*parts, *_costs(results)])


def _initial(results: Results) -> Iterator[str]:
    """Yield the table of ``pbg init``'s configs beside the tuned ones."""
    yield "| data set | tuned: MRR (seeds) | `pbg init`: MRR (seeds) | share of the tuned |"
    yield "|---|---|---|---|"
    for experiment in EXPERIMENTS:
        if experiment.kind != "init":
            continue
        runs, tuned = results.of(experiment.name), results.of(experiment.tuned)
        ours, theirs = means(runs).get("mrr"), means(tuned).get("mrr")
        share = "not run" if ours is None or theirs is None else f"{ours / theirs:.1%}"
        cells = [f"{_number(theirs)} ({len(tuned)})", f"{_number(ours)} ({len(runs)})", share]
        yield _row([experiment.data.name, *cells])
    yield ""


def _targets(results: Results) -> Iterator[str]:
    yield "| experiment | figure | target | reached (mean of seeds) | |"
    yield "|---|---|---|---|---|"
    for experiment in EXPERIMENTS:
        names = _COLUMNS[experiment.kind]
        reached = means(results.of(experiment.name))
        for figure, target in experiment.targets.items():
            value = reached.get(figure)
            state = "not run" if value is None else "met" if value >= target else "**missed**"
            aim = f", aim {_number(experiment.aims[figure])}" if figure in experiment.aims else ""
            yield _row([experiment.title, names[figure], f"{_number(target)}{aim}", _number(value), state])
    yield ""


def _section(experiment: Experiment, runs: Sequence[Run]) -> Iterator[str]:
    names = _COLUMNS[experiment.kind]
    yield f"## {experiment.title}\n"
    yield f"`{experiment.config}`, data set `{experiment.data.name}`.\n"
    if experiment.notes:
        yield f"{experiment.notes}\n"
    if experiment.kind == "labels":
        yield _LABELS
    if not runs:
        yield "Not run yet.\n"
    yield _row(["", *names.values()])
    yield "|---" * (len(names) + 1) + "|"
    for run in runs:
        yield _row([f"**ours**, seed {run.seed}", *(_number(run.figures[name]) for name in names)])
    first = next(each for each in EXPERIMENTS if each.published == experiment.published)
    for row in first.published if first is experiment else ():
        yield _row([row.system, *(_number(row.figures.get(name)) for name in names)])
    yield "" if first is experiment else f"\nThe published rows are those of *{first.title}*.\n"


def _costs(results: Results) -> Iterator[str]:
    """Yield the table of what each run cost."""
    runs = results.runs.values()
    machines = "; ".join(sorted({f"{run.environment['cpu']}, torch {run.environment['torch']}" for run in runs}))
    yield f"{_COSTS} ({machines}).\n"
    yield "| experiment | seed | epochs | workers | edges/s | train | eval | cores |"
    yield "|---|---|---|---|---|---|---|---|"
    for experiment in EXPERIMENTS:
        for run in results.of(experiment.name) if experiment.kind != "init" else ():
            training = [str(run.training[name]) for name in ("epochs", "workers", "edges_per_second")]
            seconds = [_seconds(run.seconds.get(what)) for what in ("train", "eval")]
            yield _row([experiment.title, str(run.seed), *training, *seconds, str(run.environment["cores"])])
    yield ""


def _seconds(spent: Mapping[str, float] | None) -> str:
    return "" if spent is None else f"{spent['wall']:.0f} / {spent['cpu']:.0f}"


def _number(value: float | None) -> str:
    """Write shares with four digits, larger figures with one."""
    if value is None:
        return ""
    return f"{value:.4f}".rstrip("0") if value <= 1 else f"{value:.1f}"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _plot(results: Results) -> str:
    panels = [
        Panel("valid MRR (BlogCatalog: micro-F1, 50 % labels)", "epochs", _lines(results, "quality")),
        Panel("loss per edge", "epochs", _lines(results, "loss"), legend="top"),
    ]
    return draw([panel for panel in panels if panel.lines])


def _lines(results: Results, curve: str) -> list[Line]:
    return [
        Line(experiment.title, number, [(x, y) for x, y in run.curves[curve]])
        for number, experiment in enumerate(EXPERIMENTS)
        for run in results.of(experiment.name)
        if run.curves[curve]
    ]
