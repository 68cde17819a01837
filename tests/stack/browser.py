"""A browser that is signed in to a running Airflow."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.browser import chromium

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Page

    from examples.stack.stack import Stack


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
