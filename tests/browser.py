"""A real browser for tests, and checks of accessibility."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path

import pytest

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

# Contrast of all text with its background, by WCAG 2: 4.5, for large text 3.
CONTRAST = """() => {
  const channel = (c) => { c /= 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
  const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const parse = (text) => [...text.match(/[\\d.]+/g).map(Number), 1].slice(0, 4);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour[3] > 0.99) return colour;
    }
    return [255, 255, 255, 1];
  };
  const poor = [];
  for (const element of document.querySelectorAll("body *")) {
    const texts = [...element.childNodes].filter((node) => node.nodeType === 3);
    const text = texts.map((node) => node.textContent).join("").trim();
    const box = element.getBoundingClientRect();
    if (!text || box.width < 2 || element.closest("svg, script, option")) continue;
    const style = getComputedStyle(element);
    const [a, b] = [luminance(parse(style.color)), luminance(behind(element))].sort((x, y) => y - x);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < (large ? 3 : 4.5)) poor.push(`${text.slice(0, 40)}: ${ratio.toFixed(2)}`);
  }
  return poor;
}"""

# The focused element after a press of Tab: its name for assistive technology, and whether the focus is visible.
FOCUS = """() => {
  const element = document.activeElement;
  if (!element || element === document.body) return null;
  const style = getComputedStyle(element);
  const name = element.getAttribute("aria-label") || element.textContent.trim() || element.labels?.[0]?.textContent;
  return { tag: element.tagName, name, seen: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1 };
}"""

# Usable and visible elements that never had the focus since `tab_through` began.
UNREACHED = """() => {
  const usable = document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex='0']");
  const missed = [...usable].filter((element) => element.checkVisibility() && !element.dataset.reached);
  return missed.map((element) => element.outerHTML.slice(0, 200));
}"""


@contextmanager
def chromium():
    """Start a browser; skip the test where there is none."""
    if not CHROMIUM.exists():
        pytest.skip(f"no browser at {CHROMIUM}; apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


def tab_through(page):
    """Press Tab from top to end; return the focused elements."""
    page.locator("body").evaluate("body => { document.activeElement.blur(); scrollTo(0, 0); }")
    page.evaluate("() => document.addEventListener('focusin', (event) => { event.target.dataset.reached = 'yes'; })")
    found = []
    for _ in range(400):
        page.keyboard.press("Tab")
        focused = page.evaluate(FOCUS)
        if focused is None:
            break
        found.append(focused)
    return found
