"""A browser that is signed in to a running Airflow."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.browser import CONTRAST, chromium

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Page

    from examples.stack.stack import Stack

ENDED = "net::ERR_ABORTED"
# Tiles, tasks and words that do not fit into their place, and a page that scrolls sideways.
BROKEN = """() => {
  const wide = (element) => element.scrollWidth > element.clientWidth + 1;
  const lines = (element) => {
    const range = document.createRange();
    range.selectNodeContents(element.firstChild);
    return new Set([...range.getClientRects()].map((box) => box.top)).size;
  };
  const tiles = [...document.querySelectorAll(".tile, .tasks li, .pill, .settings div")].filter(wide);
  const figures = [...document.querySelectorAll(".tile dd")].filter((each) => each.firstChild && lines(each) > 1);
  const root = wide(document.documentElement) ? [document.documentElement] : [];
  return [...root, ...tiles, ...figures].map((element) => element.outerHTML.slice(0, 200));
}"""
# Milliseconds until the first paint, and what a browser has to load before it.
FIRST_PAINT = """() => {
  const [page] = performance.getEntriesByType("navigation");
  const blocking = performance.getEntriesByType("resource").filter((each) => each.renderBlockingStatus === "blocking");
  return {
    paint: performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? 0,
    blocking: blocking.map((each) => each.name),
    bytes: [page, ...blocking].reduce((sum, each) => sum + each.encodedBodySize, 0),
  };
}"""


@contextmanager
def signed_in(stack: Stack, path: str) -> Iterator[Page]:
    """Open a page of Airflow's; skip the test without a browser."""
    login = stack.login()
    with chromium() as browser:
        page = browser.new_page()
        page.set_default_timeout(60_000)
        page.goto(f"{login['url']}{path}")
        page.locator("input[name=username]").fill(login["username"])
        page.locator("input[name=password]").fill(login["password"])
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(
            re.compile(f"^{re.escape(login['url'] + path)}")
        )  # otherwise this ends the page that is opened next
        yield page


@contextmanager
def no_problems(page: Page) -> Iterator[None]:
    """Fail on errors of console, policy and requests meanwhile.

    A request that a next page ended is none, nor is Chromium's advice on Airflow's own frame.
    """
    found: list[str] = []
    said = lambda message: message.type == "error" and found.append(f"console: {message.text}")  # noqa: E731
    raised = lambda error: found.append(f"page: {error}")  # noqa: E731
    failed = lambda request: request.failure == ENDED or found.append(f"{request.failure}: {request.url}")  # noqa: E731
    answered = lambda answer: answer.ok or answer.status < 400 or found.append(f"{answer.status}: {answer.url}")  # noqa: E731
    listeners = {"console": said, "pageerror": raised, "requestfailed": failed, "response": answered}
    for event, listener in listeners.items():
        page.on(event, listener)
    yield
    for event, listener in listeners.items():
        page.remove_listener(event, listener)
    assert not found, found


def choose_theme(page: Page, mode: str) -> None:
    """Flip Airflow's own switch to ``Light`` or ``Dark``."""
    page.get_by_role("button", name="User").click()
    page.get_by_role("menuitem", name="Appearance").click()
    page.get_by_role("menuitemradio", name=f"{mode} Mode").click()
    page.keyboard.press("Escape")


def check_page(page: Page, mode: str, *, picture: Path | None = None) -> float:
    """Check theme, layout and first paint of the page in Airflow's frame.

    Returns the milliseconds until its first paint.
    """
    shown = page.frame_locator("iframe")
    shown.locator(f"html[data-theme={mode.lower()}]").wait_for(state="attached")
    body = shown.locator("body")
    page.mouse.move(700, 5)
    if picture is not None:
        page.screenshot(path=picture)
    assert body.evaluate(CONTRAST) == []
    assert body.evaluate(BROKEN) == []
    first = body.evaluate(FIRST_PAINT)
    assert len(first["blocking"]) <= 2, first  # the style sheet, and the script that sets the theme
    assert first["bytes"] < 20_000, first
    return float(first["paint"])
