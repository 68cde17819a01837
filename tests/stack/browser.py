"""A browser that is signed in to a running Airflow."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Page

    from examples.stack.stack import Stack

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextmanager
def signed_in(stack: Stack, path: str) -> Iterator[Page]:
    """Open a page of Airflow's; skip the test where there is no browser."""
    if not CHROMIUM.exists():
        pytest.skip(f"no browser at {CHROMIUM}; apt-get install chromium")
    from playwright.sync_api import sync_playwright

    login = stack.login()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS)
        page = browser.new_page()
        page.set_default_timeout(60_000)
        page.goto(f"{login['url']}{path}")
        page.locator("input[name=username]").fill(login["username"])
        page.locator("input[name=password]").fill(login["password"])
        page.get_by_role("button", name="Sign in").click()
        yield page
        browser.close()
