"""The pages in a real browser without a mouse.

Airflow serves them: nights, comparison and look-up.
"""

from __future__ import annotations

import threading
import time
from contextlib import closing
from urllib.parse import parse_qs, urlsplit

import pytest

from pbg_tasks.tasks.nightly.chain import run_chain
from pbg_tasks.tasks.tuning.steps import start
from tests.browser import UNREACHED, chromium, tab_through
from tests.operators.plugin.served import Pages, served
from tests.tasks.conftest import ring, workplace

pytestmark = pytest.mark.browser
ENTITIES = 30
PATH = "dags/reembed_toy"
SHOWN = "() => document.querySelector('h1') && !document.querySelector('[aria-busy]')"
PAINTED_MILLISECONDS = 1000
PAINTED = """() => new Promise((found) => new PerformanceObserver((list) => {
  const [paint] = list.getEntriesByName("first-contentful-paint");
  if (paint) found(paint.startTime);
}).observe({ type: "paint", buffered: true }))"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    with workplace(tmp_path_factory.mktemp("nights")) as found:
        yield found


@pytest.fixture(scope="module")
def runs(place):
    """URLs of the runs of two nights, oldest first."""
    place.write_spec(model={"num_epochs": 1})
    found = []
    for day in ("d1", "d2"):
        place.snapshot(day, ring(ENTITIES))
        found.append(run_chain(place.spec, day)["run"])
    return found


@pytest.fixture(scope="module")
def site(runs):
    """Address of the pages, for a user with all rights."""
    with served(runs[-1]) as address:
        yield address


@pytest.fixture(scope="module")
def tab():
    with chromium() as browser:
        page = browser.new_page()
        page.set_default_timeout(90_000)
        page.route("**/plotly-*.js", lambda route: route.fulfill(content_type="text/javascript", body=""))
        yield page


@pytest.fixture
def opened(tab, site):
    def open_page(path):
        tab.goto(f"{site}/{path}")
        tab.wait_for_function(SHOWN)
        return tab

    return open_page


def run_id(url):
    return url.rpartition("/")[2]


def slow_by():
    """Return the ratio of wall time to CPU time of some work."""
    began, used = time.monotonic(), time.process_time()
    while time.process_time() - used < 0.1:
        pass
    return max(1.0, (time.monotonic() - began) / (time.process_time() - used))


def tab_to(page, name):
    """Press Tab until a field has the focus."""
    for _ in range(100):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()") == name:
            return
    pytest.fail(f"Tab never reaches {name!r}")


def test_everything_on_each_page_is_reachable_and_visible(opened, runs):
    older, newer = map(run_id, runs)
    compared = f"{PATH}/compare?left={older}&right={newer}"
    expected = {
        PATH: (
            "Skip to content",
            "Begin a night",
            "Neighbours",
            "snapshot",
            "Figures of “Edges”",
            "Nights",
            "d1",
            "Side by side",
        ),
        compared: (
            "Nights of toy",
            older,
            "Figures of both runs",
            "MRR of relations",
        ),
        f"{PATH}/neighbours": ("Nights of toy", "Entity", "How many", "Look up"),
        f"{PATH}/neighbours?entity=e5&k=3": ("Entity", "Neighbours of e5"),
    }
    for path, names in expected.items():
        page = opened(path)
        focused = tab_through(page)
        assert all(each["seen"] and each["name"] for each in focused), (path, focused)
        said = [each["name"] for each in focused]
        assert [name for name in names if not any(name in each for each in said)] == [], (path, said)
        assert page.evaluate(UNREACHED) == [], path


def test_two_nights_are_compared_by_keyboard_only(opened, runs):
    older, newer = map(run_id, runs)
    page = opened(PATH)
    tab_to(page, "left")
    page.keyboard.press("ArrowUp")
    tab_to(page, "right")
    page.keyboard.press("ArrowDown")
    tab_to(page, "Side by side")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Side by side").wait_for()
    assert parse_qs(urlsplit(page.url).query) == {"left": [newer], "right": [older]}
    assert page.locator(".subtitle a").all_inner_texts() == [newer, older]


@pytest.mark.parametrize("page", ["", "/begin", "/runs/manual__1", "/nights/{run}"])
def test_outline_is_painted_before_store_answers(tab, site, runs, monkeypatch, page):
    answers, asked = threading.Event(), Pages.own
    monkeypatch.setattr(Pages, "own", lambda self, planned: answers.wait() and asked(self, planned))
    slowness = slow_by()
    try:
        tab.goto(f"{site}/{PATH}{page.format(run=run_id(runs[-1]))}", wait_until="commit")
        painted = tab.evaluate(PAINTED)
        assert tab.locator("[aria-busy]").count() == 1
    finally:
        answers.set()
    assert painted < PAINTED_MILLISECONDS * max(slowness, slow_by())
    tab.wait_for_function(SHOWN)
    assert tab.locator("h1").inner_text()


def test_every_page_paints_first_within_a_second(tab, site, place, runs, capsys):
    """An outline comes first, or the page itself."""
    place.write_spec(tune={"space": {"model.lr": [0.1, 0.05]}})
    search = start(place.spec, "d2")
    older, newer = map(run_id, runs)
    pages = {
        "embeddings": "",
        "nights": PATH,
        "begin a night": f"{PATH}/begin",
        "run of Airflow": f"{PATH}/runs/manual__1",
        "run": f"{PATH}/nights/{newer}",
        "search": f"{PATH}/nights/{run_id(search['run'])}/searches/{search['search']}",
        "side by side": f"{PATH}/compare?left={older}&right={newer}",
        "look-up": f"{PATH}/neighbours",
        "neighbours": f"{PATH}/neighbours?entity=e5&k=3",
    }
    slowness, painted = slow_by(), {}
    for name, path in pages.items():
        answer = tab.goto(f"{site}/{path}", wait_until="commit")
        assert answer.status == 200, path
        painted[name] = tab.evaluate(PAINTED)
    with capsys.disabled():
        print("\n".join(["", "first paint", *(f"{took:6.0f} ms  {name}" for name, took in painted.items())]))  # noqa: T201
    late = PAINTED_MILLISECONDS * max(slowness, slow_by())
    assert {name: took for name, took in painted.items() if took >= late} == {}


def test_outline_leads_on_where_scripts_are_off(site, tab):
    context = tab.context.browser.new_context(java_script_enabled=False)
    with closing(context):
        page = context.new_page()
        page.goto(f"{site}/{PATH}/neighbours?entity=e5&k=3")
        page.get_by_role("link", name="Show the page").click()
        assert page.locator("tbody th").count() == 3


def test_names_are_suggested_while_typing(opened):
    page = opened(f"{PATH}/neighbours")
    tab_to(page, "entity")
    page.keyboard.type("E2")
    options, values = page.locator("#names option"), "found => found.map((each) => each.value)"
    options.first.wait_for(state="attached")
    assert options.evaluate_all(values) == ["e2", *(f"e2{digit}" for digit in range(10))]
    page.keyboard.type("9")
    page.locator("#names option[value=e2]").wait_for(state="detached")
    assert options.evaluate_all(values) == ["e29"]


def test_neighbours_are_found_by_keyboard_only(opened):
    page = opened(PATH)
    tab_to(page, "Neighbours")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Neighbours").wait_for()
    tab_to(page, "entity")
    page.keyboard.type("e5")
    page.keyboard.press("Enter")
    page.get_by_text("Nearest to e5").wait_for()
    found = page.locator("tbody th").all_inner_texts()
    assert len(found) == len(set(found)) == 10
    assert "e5" not in found
    tab_to(page, "k")
    page.keyboard.press("Control+A")
    page.keyboard.type("3")
    tab_to(page, "Look up")
    page.keyboard.press("Enter")
    page.wait_for_url("**k=3")
    page.wait_for_function(SHOWN)
    assert page.locator("tbody th").all_inner_texts() == found[:3]
    tab_to(page, "entity")
    page.keyboard.press("Control+A")
    page.keyboard.type("nobody")
    page.keyboard.press("Enter")
    assert "nobody" in page.get_by_role("alert").inner_text()
