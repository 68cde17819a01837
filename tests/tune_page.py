"""Screenshot of the page of a search, for docs/tuning.md.

``python -m tests.tune_page docs/tuning.png`` searches on a random graph of communities, and takes the picture in a real
browser.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from pbg_tasks.tasks.tuning.tune import tune
from tests.browser import chromium
from tests.tasks.conftest import communities, workplace

TUNE = {
    "space": {
        "model.lr": {"low": 0.01, "high": 1.0, "log": True},
        "model.dimension": [16, 32],
        "model.comparator": ["dot", "l2"],
    },
    "samples": 9,
    "halving": {"eta": 3, "min_epochs": 2},
}


def take(picture: Path) -> None:
    """Search on a small graph and write a picture of the page."""
    with tempfile.TemporaryDirectory() as root, workplace(Path(root)) as place:
        place.snapshot("2026-11-20", communities(600, 20, 4000, "knows"))
        model = {"num_epochs": 18, "entities": {"n": {"num_partitions": 1}}, "batch_size": 100}
        place.write_spec(model=model, split={"valid": 0.1, "test": 0.1}, graph="friends", tune=TUNE)
        found = tune(place.spec, "2026-11-20")
        handler = partial(SimpleHTTPRequestHandler, directory=str(place.store))
        with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, chromium() as browser:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            tab = browser.new_page(viewport={"width": 1280, "height": 720})
            page = f"runs/{found['run']}/report/search-{found['search']}.html"
            tab.goto(f"http://127.0.0.1:{server.server_port}/{page}")
            tab.screenshot(path=picture, full_page=True)
            server.shutdown()


if __name__ == "__main__":
    take(Path(sys.argv[1]))
