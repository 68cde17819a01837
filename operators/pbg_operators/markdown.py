"""Names and sentences from outside, for Airflow's UI, which renders Markdown."""

from __future__ import annotations

import re


def as_markdown(text: str) -> str:
    """Return Markdown that shows a text as it is.

    Relations may have names like an image or a link.
    """
    return re.sub(r"([\\`*_~\[\]<>!|&])", r"\\\1", text)
