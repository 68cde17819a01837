"""A page parsed as by a browser, and checks of every page."""

from __future__ import annotations

from html.parser import HTMLParser
from itertools import pairwise

VOID = {"meta", "link", "input", "img", "br", "hr", "source", "wbr", "col", "area", "base", "embed", "track"}


class Page(HTMLParser):
    """Elements of a page in order, each with its attributes and text.

    Args:
        html: of the page.
    """

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.elements, self._open = [], []
        self.feed(html)
        self.close()
        assert self._open == [], f"left open: {[element['tag'] for element in self._open]}"

    def handle_starttag(self, tag, attrs):
        element = {"tag": tag, "attrs": dict(attrs), "text": "", "inside": [each["tag"] for each in self._open]}
        assert len(element["attrs"]) == len(attrs), f"an attribute twice: {attrs}"
        self.elements.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_endtag(self, tag):
        assert self._open, f"</{tag}> closes nothing"
        assert self._open[-1]["tag"] == tag, f"</{tag}> where {self._open[-1]['tag']} is open"
        self._open.pop()

    def handle_data(self, data):
        for element in self._open:
            element["text"] += data

    def all(self, tag):
        """Return the elements of a name."""
        return [element for element in self.elements if element["tag"] == tag]

    def text(self):
        """Return the text of the page."""
        return " ".join(self.all("main")[0]["text"].split())


def check_page(html):
    """Check the promises of every page.

    Nothing from outside runs, and assistive technology finds its way.
    """
    page = Page(html)
    assert all({*script["attrs"]} - {"defer"} == {"src"} and not script["text"] for script in page.all("script"))
    names = {name for element in page.elements for name in element["attrs"]}
    assert not {name for name in names if name.startswith("on") or name == "style"}
    links = [element["attrs"].get(name, "") for element in page.elements for name in ("href", "src", "action")]
    assert not [link for link in links if ":" in link.split("/")[0] and link != "data:,"], "leads to another host"
    ids = [element["attrs"]["id"] for element in page.elements if "id" in element["attrs"]]
    assert len(ids) == len(set(ids)), "an id twice"
    assert page.all("html")[0]["attrs"]["lang"] == "en"
    assert page.all("title")[0]["text"].strip()
    assert [len(page.all(tag)) for tag in ("main", "h1")] == [1, 1]
    levels = [int(element["tag"][1]) for element in page.elements if element["tag"] in {"h1", "h2", "h3"}]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels)), levels
    for element in page.elements:
        if "aria-labelledby" in element["attrs"]:
            assert element["attrs"]["aria-labelledby"] in ids, element
    assert len(page.all("table")) == len(page.all("caption"))
    heads = [cell for cell in page.all("th") if cell["attrs"].get("scope") not in {"col", "row"}]
    assert not heads
    labels = {label["attrs"]["for"] for label in page.all("label")}
    fields = [field["attrs"]["id"] for tag in ("input", "select") for field in page.all(tag)]
    assert set(fields) <= labels
    scrolling = [each["attrs"] for each in page.elements if "scroll" in each["attrs"].get("class", "").split()]
    assert all(each["tabindex"] == "0" and each["aria-label"] for each in scrolling)
    return page
