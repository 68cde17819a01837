"""Markup in every text of every page, without effect.

It is shown in a real browser that ignores the pages' policy.
"""

from __future__ import annotations

import copy
import itertools
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pbg_tasks.publish import Channel
from pbg_tasks.report.comparison import comparison_document
from pbg_tasks.report.history import history_document
from pbg_tasks.report.pages import DOCS, POLICY, Links, assets, live_sections, plotly_name, render
from pbg_tasks.report.run import run_document
from pbg_tasks.tasks.view.report import read_graph, read_run
from tests.browser import chromium
from tests.report.conftest import DAYS
from tests.report.document import Page, check_page

DOCS_FOLDER = Path(__file__).parents[2] / "docs"
RUN = "window.ran = true"
MARKUP = (
    f"<script>{RUN}</script>",
    f'<img src=x onerror="{RUN}">',
    f'" autofocus onfocus="{RUN}" x="',
    f"' onmouseover='{RUN}' x='",
    f'</title></textarea></script><svg onload="{RUN}">',
    f'<a href="javascript:{RUN}">here</a>',
    '<a href="https://elsewhere.example/">here</a>',
    '<iframe srcdoc="<script>parent.ran = true</script>"></iframe>',
    f"javascript:{RUN}",
    '--></style><base href="https://elsewhere.example/">',
    '<form action="https://elsewhere.example/"><button>Send</button></form>',
    "{{ 7 * 7 }}{% raw %}",
    "&lt;script&gt;\u2028\u202e<b",
)
LINKS = Links(assets="assets", history="nights", run="{run}", compare="compare", lookup="lookup", live="live.json")
FOUND = """() => ({
  ran: window.ran === true,
  elements: [...document.querySelectorAll("base, iframe, object, embed, img, svg[onload], [onerror], [onfocus], " +
    "[onmouseover], [autofocus], [srcdoc], [action*='elsewhere'], script:not([src^='assets/'])")]
    .map((element) => element.outerHTML.slice(0, 200)),
  addresses: [...document.querySelectorAll("a")]
    .map((link) => link.getAttribute("href") ?? link.getAttribute("xlink:href") ?? "")
    .map((address) => new URL(address, location)).filter((address) => address.origin !== location.origin).map(String),
})"""
LEAST = {
    "run": 40,
    "history": 9,
    "comparison": 15,
    "lookup": 5,
    "message": 2,
    "graphs": 2,
    "tune": 10,
    "failed": 5,
    "begin": 8,
}
"""Lower bound on the kinds of texts with markup on each page, so that the pages stay tested."""


ADDRESSES = {"kind", "href", "page", "log", "answers", "airflow", "api", "runs"}
"""Keys of a template's name, and of addresses that the application makes."""
GRAPH = {"name": "toy", "dag": "reembed_toy", "href": "dags/reembed_toy", "broken": False, "airflow": "dags/toy"}


@pytest.fixture(scope="module")
def documents(nights):
    """A document of every kind, by kind."""
    first, second = (run_document(read_run(nights.run(day))) for day in DAYS[:2])
    lookup = {"graph": "toy", "entity": "e1", "types": ["n", "m"], "type": "n", "releases": [1], "release": 1, "k": 3}
    lookup |= {"comparator": "l2", "suggestions": [], "answers": [{"name": "e2", "score": 0.5}], "problem": "none"}
    history = history_document(read_graph("toy", Channel(nights.store, "production")))
    attempt = {"page": "p", "answers": "a", "log": "l", "state": "failed", "began": 1.0, "snapshot": "d9", "run": None}
    attempt |= {"task": "prepare.plan", "reason": "because", "awaiting": [], "ended": None}
    begin = {
        "kind": "begin",
        "graph": "toy",
        "channel": "production",
        "location": "l",
        "problem": "none",
        "warning": "none",
        "left_out": 1,
    }
    begin |= {"forecast": 1.0, "took": 2.0, "cost": "1 EUR", "api": "api", "runs": "runs"}
    row = {"rank": 1, "trial": "t", "changes": {"n": "dot"}, "mrr": 0.5, "low": 0.4, "high": 0.6, "metric": 0.5}
    row |= {
        "epochs": 4,
        "trained": 9,
        "values": {},
        "seconds": 1.5,
        "continued": 0,
        "state": "best",
        "reason": "because",
    }
    searched = {
        "kind": "tune",
        "graph": "toy",
        "snapshot": "d1",
        "store": "s",
        "run": "r",
        "search": "s",
        "metric": "m",
    }
    searched |= {"keys": ["n"], "epochs": [1, 4], "decided": 2, "rows": [row], "best": "t", "alike": 1, "patch": "a: 1"}
    return {
        "run": second,
        "history": history_document(read_graph("toy", Channel(nights.store, "production"))),
        "comparison": comparison_document(first, second),
        "lookup": lookup | {"kind": "lookup"},
        "message": {"kind": "message", "graph": "", "title": "title", "text": "text"},
        "tune": searched,
        "graphs": {"kind": "graphs", "graph": "", "dags": [GRAPH, GRAPH | {"broken": True}]},
        "failed": {"kind": "failed", "graph": "toy", "dag_run": "manual__1", "attempt": attempt},
        "begin": begin | {"current": history["nights"][0], "rows": [{"snapshot": "d1", "night": history["nights"][1]}]},
    }


def test_pages_with_figures_end_with_their_words(documents):
    without = {kind for kind, document in documents.items() if 'id="glossary"' not in render(document, LINKS)}
    assert without == {"failed", "message"}


def test_pages_link_to_documentation_where_it_is(documents, monkeypatch):
    assert "docs/gates.md" in render(documents["run"], LINKS)
    monkeypatch.setenv(DOCS, "https://docs.example/pbg/")
    html = render(documents["run"], LINKS)
    pages = re.findall(
        r'<a href="https://docs\.example/pbg/([^"]*)\.html" target="_blank" rel="noopener" data-airflow>', html
    )
    assert len(pages) == 4
    assert all((DOCS_FOLDER / f"{page}.md").is_file() for page in pages)
    assert "docs/gates.md" not in html


def texts(document, path=()):
    """Yield the place of each text of a document.

    The names of mappings are among them.
    """
    parts = document.items() if isinstance(document, dict) else enumerate(document)
    for name, part in parts:
        if isinstance(part, str):
            yield (*path, name)
        elif isinstance(part, dict | list | tuple):
            yield from texts(part, (*path, name))


def changed(document, path, text):
    """Return a document with another text at a place."""
    name, *rest = path
    document = copy.copy(document) if isinstance(document, dict) else list(document)
    document[name] = changed(document[name], rest, text) if rest else text
    return document


def kind_of(path):
    """Return a place without the numbers of lists.

    It stands for all entries of one.
    """
    return tuple("*" if isinstance(name, int) else name for name in path)


def with_type(value, name):
    """Return a document with another name of entity type ``n``.

    The name changes wherever it names a part of a mapping.
    """
    if isinstance(value, dict):
        return {name if key == "n" else key: with_type(part, name) for key, part in value.items()}
    return [with_type(part, name) for part in value] if isinstance(value, list | tuple) else value


def hostile(document):
    """Return a document with markup at places of each kind.

    At the first five of each; with it comes the number of kinds.

    Texts that select a template, are moments or addresses of the application stay.
    """
    markup, seen = itertools.cycle(MARKUP), {}
    document = with_type(document, MARKUP[6])
    for path in texts(document):
        kind = kind_of(path)
        if path[-1] in ADDRESSES or seen.get(kind, 0) >= 5:
            continue
        tried = changed(document, path, f"{next(markup)} {'.'.join(map(str, kind))}")
        try:
            render(tried, LINKS)
        except (ValueError, TypeError, KeyError):
            continue
        document, seen[kind] = tried, seen.get(kind, 0) + 1
    return document, len(seen)


@pytest.fixture(scope="module")
def pages(documents):
    return {kind: hostile(document) for kind, document in documents.items()}


def plotless(html):
    """Return a page without plotly.js, which takes most of its time."""
    return html.replace(f'<script src="assets/{plotly_name()}" defer></script>', "")


@pytest.fixture(scope="module")
def site(pages):
    """Serve the pages and their assets.

    One further page runs whatever it contains.
    """
    served = {f"/{kind}": render(document, LINKS) for kind, (document, _) in pages.items()}
    sections = live_sections(pages["run"][0], LINKS)
    served["/live.json"] = json.dumps({"version": "2", "finished": True, "sections": sections})
    served["/open"] = f"<!doctype html><title>open</title>{''.join(MARKUP)}"
    served["/guarded"] = f'<!doctype html><meta http-equiv="Content-Security-Policy" content="{POLICY}">{MARKUP[0]}'
    served = {path: text if 'class="plot"' in text else plotless(text) for path, text in served.items()}
    served |= {f"/assets/{name}": path.read_text("utf-8") for name, path in assets().items()}
    kinds = {"css": "text/css", "js": "text/javascript", "json": "application/json"}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            path = self.path.partition("?")[0]
            self.send_response(200 if path in served else 404)
            self.send_header("Content-Type", f"{kinds.get(path.rpartition('.')[2], 'text/html')}; charset=utf-8")
            self.end_headers()
            self.wfile.write(served.get(path, "").encode())

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def tabs():
    """Return browser pages that heed and ignore the pages' policy.

    They are by that.
    """
    with chromium() as browser:
        tabs = {guarded: browser.new_context(bypass_csp=not guarded).new_page() for guarded in (True, False)}
        for tab in tabs.values():
            tab.set_default_timeout(90_000)
        yield tabs


@pytest.fixture
def opened(tabs, site):
    """Open a page; return its effective markup and requested addresses."""

    def open_page(path, *, guarded=False, ready="true"):
        asked = set()
        tab = tabs[guarded]
        tab.on("dialog", lambda dialog: asked.add(f"dialog: {dialog.message}"))
        tab.on("request", lambda request: asked.add(request.url.removeprefix(site).partition("?")[0]))
        tab.goto(f"{site}/{path}")
        tab.wait_for_function(ready)
        return tab.evaluate(FOUND), asked

    return open_page


@pytest.mark.parametrize("kind", LEAST)
def test_markup_stays_text_of_page(pages, kind):
    document, count = pages[kind]
    assert count >= LEAST[kind], count
    html = render(document, LINKS)
    page = Page(html)
    assert not [element for element in page.elements if element["tag"] in {"img", "iframe", "base", "svg", "b"}]
    check_page(html)


@pytest.mark.browser
@pytest.mark.parametrize("kind", LEAST)
def test_markup_takes_no_effect_in_browser(opened, kind):
    """Leave out the pages' policy, so that escaping alone acts.

    Plots are drawn, and the news of a run are shown.
    """
    ready = "[...document.querySelectorAll('figure.plot')].every((plot) => plot.querySelector('.main-svg'))"
    if kind == "run":
        ready += " && performance.getEntriesByName(location.origin + '/live.json?since=').length > 0"
    found, asked = opened(kind, ready=ready)
    assert found == {"ran": False, "elements": [], "addresses": []}
    rows = {f"/{GRAPH['href']}/standing"} if kind == "graphs" else set()
    assert asked <= {f"/{kind}", "/live.json", "data:,", *rows, *(f"/assets/{name}" for name in assets())}


@pytest.mark.browser
def test_unescaped_markup_takes_effect(opened):
    """The tests above can detect effects of markup."""
    found, asked = opened("open", ready="window.ran === true")
    assert found["ran"]
    assert len(found["elements"]) >= 5
    assert len(found["addresses"]) >= 2
    assert "/x" in asked


@pytest.mark.browser
def test_policy_stops_script_that_escaping_missed(opened):
    found, _ = opened("guarded", guarded=True)
    assert not found["ran"]
    assert len(found["elements"]) == 1
