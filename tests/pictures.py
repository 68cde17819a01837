"""Pictures of the pages for README and docs, taken by a browser.

    python -m tests.pictures --source FOLDER

Real nights of ICEWS14 run as a chain; one day arrives with a third of its facts missing, so that its night is refused.
The map is of WordNet, whose parts of speech are entity types. ``tests/test_pictures.py`` takes the same pictures of a
small graph.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
import yaml

from benchmarks.nights.days import write_snapshot
from benchmarks.nights.graph import Graph, merged
from benchmarks.nights.night import RELEASED, run_nights
from benchmarks.nights.results import read
from benchmarks.nights.settings import kept
from pbg_tasks.datasets.wordnet import FOLDERS, PARTS_OF_SPEECH, write_wordnet
from pbg_tasks.errors import ConfigError
from pbg_tasks.storage import open_store
from pbg_tasks.tasks.nightly.chain import run_chain
from pbg_tasks.tasks.nightly.plan import plan
from tests.browser import chromium

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from playwright.sync_api import Browser

DAYS, BROKEN = 8, 5
SHOWN = {"model": {"entities": {"node": {"num_partitions": 4}}}, "train": {"warm_epochs": 3}}
"""Changes of the chain's spec, with which pages show a matrix of buckets and a line of losses."""
WIDTH = 1100
THEMES: dict[Literal["light", "dark"], str] = {"light": "", "dark": "-dark"}
"""Themes of the pictures, with what their files' names end with."""
IN_AIRFLOW = ("embeddings", "begin")
"""Pictures that ``tests/stack/test_airflow_e2e.py`` takes in Airflow's own pages."""
FAILED = "manual__failed"
_HIDE = """(store) => {
  document.querySelectorAll("p.subtitle").forEach((each) => each.textContent.startsWith("Store ") && each.remove());
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) texts.currentNode.data = texts.currentNode.data.replaceAll(store, "STORE");
}"""
_SETTLED = """() => document.querySelector("h1") && !document.querySelector("[aria-busy]")
  && [...document.querySelectorAll("figure.plot")].every((plot) => plot.querySelector(".main-svg"))"""


class Picture(NamedTuple):
    """Picture of a page.

    Attributes:
        name: of its file, without the theme.
        path: of the page. With a ``#`` in it, the picture begins at the part that it names.
        height: in pixels.
        shows: a text of the page; where it is missing, the page shows something else.
    """

    name: str
    path: str
    height: int
    shows: str


class Nights(NamedTuple):
    """Nights of a graph.

    Attributes:
        graph: its name.
        released: URLs of two runs or more, oldest first.
        refused: URL of a run that a gate refused.
        failed: key that no snapshot has, and the error of ``plan``.
        entity: whose neighbours are shown.
        typed: graph and URL of a run with several entity types, whose map is shown.
    """

    graph: str
    released: Sequence[str]
    refused: str
    failed: tuple[str, str]
    entity: str
    typed: tuple[str, str]

    def pictures(self) -> list[Picture]:
        """Return the pictures of the pages."""
        older, newer, refused = (url.rpartition("/")[2] for url in (*self.released[-2:], self.refused))
        of_dag = f"dags/reembed_{self.graph}"
        run = f"{of_dag}/nights/{newer}"
        return [
            Picture("nights", of_dag, 800, "From night to night"),
            Picture("run", run, 665, "Loss per edge"),
            Picture("relations", f"{run}#relations", 500, "Relations"),
            Picture("side-by-side", f"{of_dag}/compare?left={older}&right={newer}", 720, "Figures of both runs"),
            Picture("neighbours", f"{of_dag}/neighbours?entity={self.entity}&k=10", 520, "Nearest to"),
            Picture("refused", f"{of_dag}/nights/{refused}", 500, "refused"),
            Picture("failed", f"{of_dag}/runs/{FAILED}", 360, "did you mean"),
        ]

    def map(self) -> Picture:
        """Return the picture of the map."""
        graph, run = self.typed
        return Picture("map", f"dags/reembed_{graph}/nights/{run.rpartition('/')[2]}#model", 860, "Names that begin")


def take(
    browser: Browser,
    site: str,
    pictures: Iterable[Picture],
    out: Path,
    *,
    store: str,
    theme: Literal["light", "dark"] = "light",
) -> None:
    """Take pictures of pages.

    Args:
        browser: that shows them.
        site: address of the pages.
        pictures: to take.
        out: folder of their files.
        store: path of the graph's store, a scratch folder, which pictures do not show.
        theme: of the browser.
    """
    tab = browser.new_page()
    tab.set_default_timeout(90_000)
    tab.emulate_media(color_scheme=theme)
    for name, path, height, shows in pictures:
        tab.set_viewport_size({"width": WIDTH, "height": height})
        tab.goto(f"{site}/{path}")
        tab.wait_for_function(_SETTLED)
        tab.get_by_text(shows).first.wait_for(state="attached")
        tab.evaluate(_HIDE, store)
        if part := path.partition("#")[2]:
            tab.evaluate("id => document.getElementById(id).scrollIntoView()", part)
        tab.screenshot(path=out / f"{name}{THEMES[theme]}.png")
    tab.close()


def take_all(nights: Nights, out: Path) -> None:
    """Take all pictures of nights, light and dark."""
    from tests.operators.plugin.served import attempts, served  # imports Airflow

    out.mkdir(parents=True, exist_ok=True)
    snapshot, reason = nights.failed
    store = _store_of(nights.refused)
    failed = attempts.Attempt(
        f"reembed_{nights.graph}", FAILED, "failed", None, snapshot, task="prepare.plan", reason=reason
    )
    with chromium() as browser:
        with served(nights.released[-1], graph=nights.graph, ended=[failed]) as site:
            for theme in THEMES:
                take(browser, site, nights.pictures(), out, store=store, theme=theme)
        graph, run = nights.typed
        with served(run, graph=graph) as site:
            for theme in THEMES:
                take(browser, site, [nights.map()], out, store=_store_of(run), theme=theme)


def _store_of(run: str) -> str:
    return run.rpartition("/runs/")[0].removeprefix("file://")


def nights_of_words(scratch: Path) -> tuple[str, str]:
    """Run a night of each version of WordNet; return graph and run.

    Entity types are parts of speech, which the sense keys that name the entities have.
    """
    spec = yaml.safe_load((Path(__file__).parents[1] / "examples" / "graphs" / "wordnet.yaml").read_text())
    of_pointer, kinds = spec["model"]["relations"][0], dict(zip("12345", (*PARTS_OF_SPEECH, "adj"), strict=True))
    found: set[tuple[str, str, str]] = set()
    for snapshot in write_wordnet(f"{scratch}/words"):
        for file in (scratch / "words" / snapshot.snapshot).glob("*.parquet"):
            table = pq.read_table(file)
            types = {
                side: [kinds[name.as_py().partition("%")[2][0]] for name in table[side]] for side in ("lhs", "rhs")
            }
            found |= set(zip(table["rel"].to_pylist(), types["lhs"], types["rhs"], strict=True))
            for side, listed in types.items():
                table = table.append_column(f"{side}_type", pa.array(listed))
            pq.write_table(table, file)
    relations = [of_pointer | {"name": name, "lhs": lhs, "rhs": rhs} for name, lhs, rhs in sorted(found)]
    model = {"entities": {kind: {"num_partitions": 1} for kind in PARTS_OF_SPEECH}, "relations": relations}
    changes = {
        "store": f"{scratch}/wordnet",
        "snapshots": {"location": f"{scratch}/words/{{snapshot}}/*.parquet"},
        "columns": {"lhs_type": "lhs_type", "rhs_type": "rhs_type"},
        "model": model | {"dynamic_relations": False},
        "gates": {"min_mrr": 0.0},
    }
    (scratch / "wordnet.yaml").write_text(yaml.safe_dump(merged(spec, changes)))
    runs = [run_chain(scratch / "wordnet.yaml", version)["run"] for version in FOLDERS]
    return spec["graph"], runs[-1]


def error_of_plan(spec: Path, snapshot: str) -> tuple[str, str]:
    """Return a wrong key and the error of planning it."""
    with pytest.raises(ConfigError) as found:
        plan(spec, snapshot)
    return snapshot, f"{found.value.kind}: {found.value}"


def main(
    source: Annotated[Path, typer.Option(help="Folder with the data set, as a folder or archive.")] = Path(
        "../shared/data"
    ),
    out: Annotated[Path, typer.Option(help="Folder of the pictures.")] = Path("docs/pictures"),
) -> None:
    """Run the nights and take the pictures, light and dark."""
    with tempfile.TemporaryDirectory(prefix="pbg-pictures-") as scratch:
        graph = Graph.write("icews14", source, place=f"{scratch}/graph", specs=Path(scratch), count=DAYS)
        ((day, edges),) = graph.dated.snapshots([graph.days[BROKEN]])
        write_snapshot(open_store(graph.place), day, edges[: len(edges) * 2 // 3])
        _, chain = kept(read(), graph.name)
        spec = graph.spec("chain", **merged(chain, SHOWN))
        runs: dict[bool, list[str]] = {True: [], False: []}
        for night in run_nights(spec, graph.days):
            typer.echo(f"{night.day} {night.outcome}")
            runs[night.outcome == RELEASED].append(night.run)
        wrong = error_of_plan(spec, graph.days[-1].replace("-", "/"))
        take_all(Nights("icews14", runs[True], runs[False][0], wrong, "China", nights_of_words(Path(scratch))), out)


if __name__ == "__main__":
    typer.run(main)
