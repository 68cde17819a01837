"""Pictures of the pages for the README, taken by a browser.

    python -m benchmarks.nights.pictures --source FOLDER

Real nights of ICEWS14 run as a chain; one day arrives with a third of its facts missing, so that its night is refused.
Chromium then takes the page of the last run and the page of the nights into ``docs/pictures``.
"""

from __future__ import annotations

import re
import sys
import tempfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from benchmarks.nights.days import write_snapshot
from benchmarks.nights.graph import Graph, merged
from benchmarks.nights.night import run_nights
from benchmarks.nights.results import read
from benchmarks.nights.settings import kept
from pbg_tasks.errors import PbgError
from pbg_tasks.storage import open_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from playwright.sync_api import Browser

DAYS, BROKEN = 8, 5
SHOWN = {"model": {"entities": {"node": {"num_partitions": 4}}}, "train": {"warm_epochs": 3}}
"""Changes of the chain's spec, with which pages show a matrix of buckets and a line of losses."""
CHROMIUM = Path("/usr/bin/chromium")
WIDTH = 1100
NIGHTS_HEIGHT, RUN_HEIGHT, MAP_HEIGHT = 800, 665, 860
THEMES: dict[Literal["light", "dark"], str] = {"light": "", "dark": "-dark"}
"""Themes of the pictures, with what their files' names end with."""
_SETTLED = "() => [...document.querySelectorAll('figure.plot')].every((plot) => plot.querySelector('.main-svg'))"


class Quiet(SimpleHTTPRequestHandler):
    """Server of a folder's files without a log."""

    def log_message(self, *args: object) -> None:
        """Log nothing."""


def take(
    browser: Browser,
    root: Path,
    pages: Sequence[tuple[str, int, Path]],
    theme: Literal["light", "dark"] = "light",
) -> None:
    """Take pictures of pages.

    Args:
        browser: that shows them.
        root: folder of the store, which is served over HTTP meanwhile.
        pages: path below ``root``, height of the picture in pixels, and its file. With a ``#`` in the path, the picture
            begins at the part that it names.
        theme: of the browser.
    """
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=root)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        tab = browser.new_page()
        tab.emulate_media(color_scheme=theme)
        for path, height, picture in pages:
            tab.set_viewport_size({"width": WIDTH, "height": height})
            tab.goto(f"http://127.0.0.1:{server.server_port}/{path}")
            tab.wait_for_function(_SETTLED)
            # The path of the store is a scratch folder here.
            store = tab.locator("p.subtitle", has_text=re.compile("^Store "))
            store.evaluate_all("found => found.forEach((each) => each.remove())")
            if part := path.partition("#")[2]:
                tab.evaluate("id => document.getElementById(id).scrollIntoView()", part)
            tab.screenshot(path=picture)
        tab.close()
        server.shutdown()


def main(
    source: Annotated[Path, typer.Option(help="Folder with the data set, as a folder or archive.")] = Path(
        "../shared/data"
    ),
    out: Annotated[Path, typer.Option(help="Folder of the pictures.")] = Path("docs/pictures"),
) -> None:
    """Run the nights and take the pictures, light and dark."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory(prefix="pbg-pictures-") as scratch:
        graph = Graph.write("icews14", source, place=f"{scratch}/graph", specs=Path(scratch), count=DAYS)
        ((day, edges),) = graph.dated.snapshots([graph.days[BROKEN]])
        write_snapshot(open_store(graph.place), day, edges[: len(edges) * 2 // 3])
        _, chain = kept(read(), graph.name)
        spec = graph.spec("chain", **merged(chain, SHOWN))
        for night in run_nights(spec, graph.days):
            print(night.day, night.outcome)
        store = Path(graph.place.removeprefix("file://")) / "chain"
        (last,) = (store / "runs").glob(f"{graph.days[-1]}-*")
        out.mkdir(parents=True, exist_ok=True)
        nights, run = "report/production/index.html", f"runs/{last.name}/report/index.html"
        with sync_playwright() as play:
            browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
            for theme, suffix in THEMES.items():
                shown = (
                    (nights, NIGHTS_HEIGHT, "nights"),
                    (run, RUN_HEIGHT, "run"),
                    (f"{run}#model", MAP_HEIGHT, "map"),
                )
                take(browser, store, [(path, high, out / f"{name}{suffix}.png") for path, high, name in shown], theme)
            browser.close()


if __name__ == "__main__":
    try:
        typer.run(main)
    except PbgError as error:
        sys.exit(f"error: {error.kind}: {error}")
