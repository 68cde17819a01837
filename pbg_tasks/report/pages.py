"""Documents as HTML pages.

A page needs nothing from elsewhere but the files of ``static`` and plotly.js. All outside text (snapshots may contain
any names) reaches the page through Jinja's escaping, figures as an attribute's JSON text. The pages carry a policy by
which a browser runs and loads nothing but those files.
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined

from pbg_tasks.advice import spec_name, spec_note, with_spec
from pbg_tasks.errors import ConfigError
from pbg_tasks.report import figures, numbers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jinja2 import Template

POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
POLICY += "form-action 'self'; base-uri 'none'"
"""Content-Security-Policy of every page."""
LIVE_SECTIONS = (
    "status",
    "headline",
    "training",
    "quality",
    "model",
    "map",
    "data",
    "drift",
    "relations",
    "forecast",
    "lineage",
)
"""Blocks of a run's page that change while the run is under way."""
SHOWN_ROWS = 100

DOCS = "PBG_DOCS"
"""Variable with the address of the documentation."""


@dataclass(frozen=True, slots=True)
class Links:
    """Addresses of a page's links; None: there is no such page.

    ``{run}`` stands for a run's id.

    Attributes:
        assets: folder of the style sheet and scripts.
        graphs: list of all graphs.
        history: page of the channel.
        run: page of a run.
        comparison: page that compares the run with the one it continues.
        compare: address of the form that compares any two runs.
        lookup: address of the neighbour look-up.
        begin: list of the snapshots that are there, from which a night is begun.
        live: address from which a page loads updates.
        search: page of a search, whose id ``{search}`` stands for.
        names: address that suggests names to the look-up.
        files: folder of the run's stored documents.
    """

    assets: str
    graphs: str | None = None
    history: str | None = None
    run: str | None = None
    comparison: str | None = None
    compare: str | None = None
    lookup: str | None = None
    begin: str | None = None
    live: str | None = None
    search: str | None = None
    names: str | None = None
    files: str | None = None

    def of_run(self, run: str) -> str | None:
        """Return the address of a run's page."""
        return self.run.replace("{run}", quote(run, safe="")) if self.run is not None else None

    def of_file(self, key: str) -> str | None:
        """Return the address of a document or file below the run."""
        return f"{self.files}/{quote(key)}" if self.files is not None else None

    def of_search(self, run: str, search: str) -> str | None:
        """Return the address of a search's page."""
        if self.search is None:
            return None
        return self.search.replace("{run}", quote(run, safe="")).replace("{search}", quote(search, safe=""))


def render(document: Mapping[str, object], links: Links) -> str:
    """Return the HTML page of a document.

    Args:
        document: of a ``*_document`` function.
        links: addresses, relative to the place of the page.
    """
    return _template(str(document["kind"])).render(_variables(document, links))


def live_sections(document: Mapping[str, object], links: Links) -> dict[str, str]:
    """Return the changing parts of a run's page, as HTML by section.

    They change while the run is under way.
    """
    return {name: render_block(document, links, name) for name in LIVE_SECTIONS}


def render_block(document: Mapping[str, object], links: Links, block: str) -> str:
    """Return the HTML of one block of a document's template."""
    template = _template(str(document["kind"]))
    return "".join(template.blocks[block](template.new_context(_variables(document, links))))


def _variables(document: Mapping[str, object], links: Links) -> dict[str, object]:
    of_pages = {"policy": POLICY, "plotly": plotly_name(), "shown": SHOWN_ROWS, "docs": documentation()}
    of_pages |= {"spec": spec_name(), "spec_note": spec_note()}
    return {"document": document, "links": links, **of_pages}


def documentation() -> str | None:
    """Return the address of the documentation, if it has one.

    It is the place of the site's folder, as the environment names it.
    """
    return os.environ.get(DOCS, "").rstrip("/") or None


def assets() -> Mapping[str, Path]:
    """Return the files that pages load, by the name in the page.

    Raises:
        ConfigError: plotly is not installed.
    """
    static = Path(str(files("pbg_tasks.report") / "static"))
    return {path.name: path for path in sorted(static.iterdir())} | {plotly_name(): _bundle()}


def _bundle() -> Path:
    spec = find_spec("plotly")
    if spec is None or spec.submodule_search_locations is None:
        raise ConfigError("reports need the package plotly: pip install plotly")
    return Path(spec.submodule_search_locations[0]) / "package_data" / "plotly.min.js"


@functools.cache
def plotly_styles() -> tuple[str, ...]:
    """Return the ids of the style sheets inside plotly.js.

    It writes one into a page without an element of that id. The pages' policy forbids them, and plots of these pages,
    which are no maps, do not need them.
    """
    return tuple(re.findall(r'getElementById\("([0-9a-f]{64})"\)', _bundle().read_text(encoding="utf-8")))


@functools.cache
def plotly_name() -> str:
    """Return the file name of plotly.js in pages.

    Each version of plotly has another name, so that caches never mix them.
    """
    return f"plotly-{version('plotly')}.min.js"


@functools.cache
def _template(kind: str) -> Template:
    return _environment().get_template(f"{kind}.html")


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("pbg_tasks.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    names = (
        "count",
        "signed",
        "score",
        "percent",
        "size",
        "money",
        "seconds",
        "moment",
        "isoformat",
        "in_unit",
        "plain",
        "change",
        "rough",
    )
    environment.filters |= {name: getattr(numbers, name) for name in names}
    environment.filters |= {"figure": _as_text, "advised": with_spec}
    environment.globals["figures"] = figures
    environment.globals["plotly_styles"] = plotly_styles
    environment.globals["m"] = environment.get_template("macros.html").module  # also for a block that is rendered alone
    return environment


def _as_text(value: object) -> str:
    return json.dumps(_finite(value), allow_nan=False)


def _finite(value: Any) -> Any:  # noqa: ANN401 - any JSON
    """Replace numbers that JSON cannot represent by None.

    A curve has a gap there.
    """
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
