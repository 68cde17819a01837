from __future__ import annotations

import re

from tests.open_release import main


def test_release_opens_in_little_memory(tmp_path, capfd):
    main(names=200_000, scratch=tmp_path)
    lines = [line for line in capfd.readouterr().out.splitlines() if "memory:" in line]
    assert [line.split(":")[0] for line in lines] == [
        "opened",
        "100,000 vectors by name",
        "100,000 vectors by name, again",
        "10 best answers of 200,000",
    ]
    since = [int(re.search(r"without mapped files \d+ MB, (\d+) of it", line)[1]) for line in lines]
    assert since[0] < 20, "the names are in memory"
