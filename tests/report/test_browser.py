"""The stored pages in a real browser.

Both themes, by keyboard, on a narrow screen, and with news of a run.
"""

from __future__ import annotations

import json
import re
import struct
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pbg_tasks.config.night_results import NightResults
from pbg_tasks.report.facts import RunFacts
from pbg_tasks.report.pages import Links, live_sections, render
from pbg_tasks.report.run import run_document
from pbg_tasks.tasks.context import CHAIN
from pbg_tasks.tasks.view.report import read_run
from tests.browser import CONTRAST, UNREACHED, chromium, tab_through
from tests.pictures import WIDTH, Picture, take
from tests.report.conftest import DAYS, HOSTILE_RELATION

pytestmark = pytest.mark.browser


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder, and ignores a page's query."""

    def log_message(self, *args):
        """Log nothing."""


@pytest.fixture(scope="module")
def site(nights):
    root = Path(nights.place.store)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=root)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def tab():
    with chromium() as browser:
        page = browser.new_page()
        page.set_default_timeout(90_000)
        yield page


@pytest.fixture
def opened(tab, site):
    """Open a page, and record its errors."""
    problems = []
    listeners = {
        "pageerror": lambda error: problems.append(str(error)),
        "dialog": lambda dialog: problems.append(f"a name ran: {dialog.message}"),
        "requestfailed": lambda request: problems.append(request.url),
        "request": lambda request: request.url.startswith((site, "data:")) or problems.append(request.url),
    }
    for event, listener in listeners.items():
        tab.on(event, listener)

    def open_page(path, *, width=1280, plots=False):
        if not plots:  # plotly.js takes most of a page's time
            tab.route("**/plotly-*.js", lambda route: route.fulfill(content_type="text/javascript", body=""))
        tab.emulate_media(color_scheme="light")
        tab.set_viewport_size({"width": width, "height": 900})
        tab.goto(f"{site}/{path}")
        return tab

    yield open_page
    tab.unroute("**/plotly-*.js")
    for event, listener in listeners.items():
        tab.remove_listener(event, listener)
    assert not problems


def run_page(nights, day):
    return f"runs/{nights.run(day).run_id}/report/index.html"


def test_text_is_readable_in_both_themes(opened, nights):
    for path in (run_page(nights, DAYS[1]), run_page(nights, DAYS[2]), "report/production/index.html"):
        page = opened(path)
        assert page.evaluate(CONTRAST) == []
        page.emulate_media(color_scheme="dark")
        assert page.evaluate(CONTRAST) == []


def test_plots_are_drawn_and_have_their_figures_beside(opened, nights):
    page = opened(run_page(nights, DAYS[1]), plots=True)
    plots = page.locator("figure.plot")
    assert plots.count() >= 5
    assert page.locator("figure.plot .main-svg").count() >= plots.count()
    assert page.locator("#loss .scatterlayer .trace").count() == 1
    page.locator("#loss-data summary").click()
    assert page.locator("#loss-data td.number").first.is_visible()
    assert page.get_by_text(HOSTILE_RELATION).first.is_visible()


def test_everything_is_reachable_and_visible_by_keyboard(opened, nights):
    page = opened(run_page(nights, DAYS[1]))
    focused = tab_through(page)
    assert focused[0]["name"] == "Skip to content"
    assert all(each["seen"] and each["name"] for each in focused), focused
    names = " ".join(each["name"] for each in focused)
    for name in ("Nights of toy", "Against the release before", "Matrix of buckets", "Figures of “Loss”", "Relations"):
        assert name in names
    assert page.evaluate(UNREACHED) == []
    page.locator("body").evaluate("() => { document.activeElement.blur(); scrollTo(0, 0); }")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


def test_narrow_screen_scrolls_tables_only(opened, nights):
    for path in (run_page(nights, DAYS[1]), "report/production/index.html"):
        page = opened(path, width=360)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_links_lead_from_page_to_page(opened, nights):
    page = opened("report/production/index.html")
    headings = {DAYS[1]: DAYS[1], "Against the release before": "Side by side", nights.run(DAYS[0]).run_id: DAYS[0]}
    for link, heading in headings.items():
        page.get_by_role("link", name=link).click()
        page.locator("h1", has_text=re.compile(rf"^\s*{heading}")).wait_for()


def test_tables_are_sorted_by_keyboard(opened):
    page = opened("report/production/index.html")
    page.get_by_role("button", name="entities").press("Enter")
    head = page.get_by_role("columnheader", name="entities")
    assert head.get_attribute("aria-sort") == "descending"
    cells = page.locator("table.sortable tbody tr td:nth-child(8)").all_inner_texts()
    counts = [int(cell.replace(",", "")) for cell in cells]
    assert counts == sorted(counts, reverse=True)


def test_news_appear_without_losing_the_place(opened, nights):
    run = nights.run(DAYS[1])
    folder = Path(run.url) / "report"
    found = NightResults.parse({task: run.result(task) for task in CHAIN[: CHAIN.index("train")]})
    facts = RunFacts(run.spec, run.url, run.spec_hash, CHAIN, found)
    before, after = (run_document(each) for each in (facts, read_run(run)))
    links = Links(assets="../../../report/_assets", live="live.json")
    (folder / "running.html").write_text(render(before, links))
    (folder / "live.json").write_text(json.dumps({"version": "1", "finished": False, "sections": {}}))
    page = opened(f"{folder.relative_to(nights.place.store)}/running.html", plots=True)
    assert page.locator("td.waiting").count() == 4
    page.locator("#snapshot-files summary").click()
    plot = page.evaluate_handle("document.getElementById('degrees')")
    resized = "plot => typeof plot._responsiveChartHandler"
    assert plot.evaluate(resized) == "function"
    news = {"version": "2", "finished": True, "sections": live_sections(after, links)}
    (folder / "live.json").write_text(json.dumps(news))
    page.get_by_role("status").get_by_text("released", exact=True).wait_for()
    assert page.locator("td.done").count() == 4
    assert page.locator("#loss .scatterlayer .trace").count() == 1
    assert page.locator("#snapshot-files").get_attribute("open") is not None
    assert plot.evaluate(resized) == "undefined", "the window keeps a plot that is gone"


def test_button_of_night_asks_once_and_rests(opened, nights):
    row = {"snapshot": "d9", "night": None}
    document = {"kind": "begin", "graph": "toy", "channel": "production", "location": "l", "rows": [row]}
    document |= dict.fromkeys(("problem", "warning", "forecast", "current"))
    document |= {"left_out": 0, "api": "api", "runs": "runs"}
    folder = Path(nights.place.store) / "report"
    (folder / "begin.html").write_text(render(document, Links(assets="_assets")))
    page = opened("report/begin.html")
    page.route("**/api", lambda route: route.fulfill(json={"dag_run_id": "manual__d9"}))
    button = page.locator("[data-begin]")
    button.click()
    assert button.inner_text() == "Really begin d9?"
    button.click()
    page.get_by_role("link", name="begun").wait_for()
    assert (button.inner_text(), button.is_disabled()) == ("Begin d9", True)
    page.unroute("**/api")


@pytest.mark.parametrize(
    ("seen", "summary"),
    [(True, "All 2 graphs need no one"), (False, "1 of 2 need no one, 1 cannot be seen")],
)
def test_graph_that_cannot_be_read_is_counted(tab, opened, nights, seen, summary):
    dag = {"broken": False, "airflow": "airflow"}
    dags = [{**dag, "name": name, "dag": name, "href": name} for name in ("a", "b")]
    folder = Path(nights.place.store) / "report"
    document = {"kind": "graphs", "graph": "", "dags": dags}
    (folder / "graphs.html").write_text(render(document, Links(assets="_assets")))
    cells = "<th scope='row'>a</th>" + "<td></td>" * 6
    row = {"rank": 3, "tone": "good", "html": cells}
    tab.route("**/a/standing", lambda route: route.fulfill(json=row))
    tab.route("**/b/standing", lambda route: route.fulfill(json=row) if seen else route.fulfill(status=502, json={}))
    page = opened("report/graphs.html")
    page.get_by_role("status").get_by_text(summary, exact=True).wait_for(timeout=10_000)
    assert page.get_by_role("status").get_attribute("class") == ("need good" if seen else "need warn")
    for name in "ab":
        tab.unroute(f"**/{name}/standing")


def test_picture_of_nights_has_plots_without_store(tab, site, nights, tmp_path):
    picture, seen = Picture("nights", "report/production/index.html", 800, "From night to night"), []
    page = tab.context.browser.new_page

    class Watched:
        """Browser that notes the page's text at its picture."""

        def new_page(self):
            opened = page()
            shoot = opened.screenshot
            opened.screenshot = lambda **options: seen.append(opened.locator("body").inner_text()) or shoot(**options)
            return opened

    take(Watched(), site, [picture], tmp_path, store=str(nights.place.store))
    assert (tmp_path / "nights.png").read_bytes()[16:24] == struct.pack("!II", WIDTH, 800)
    assert "MRR, filtered" in seen[0]
    assert str(nights.place.store) not in seen[0]
