"""Rank that is only a member of the gang.

``python -m tests.training.ranks.member_process HOST PORT RANK WHAT``
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections import deque

from pbg_tasks.errors import PbgError
from pbg_tasks.training.ranks.group import watchdog
from pbg_tasks.training.ranks.group.member_registry import Membership
from pbg_tasks.training.ranks.transport.wire import Credentials


def main(host, port, rank, what):
    credentials = Credentials(os.environ["PBG_RUN_TOKEN"].encode(), "spec", int(rank), "trainer")
    watchdog._GRACE = 0.5
    with Membership((host, int(port)), credentials, beat=0.1, silence=2.0, limit=0.5) as membership:
        membership.doing = "bucket (1, 2)"
        assert "torch" not in sys.modules
        time.sleep(0.3)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while what == "train" or not membership.broken.is_set():
            membership.check()
            time.sleep(0.01)
        if what == "lock":
            deque(itertools.repeat(None), maxlen=0)  # this loop never lets another thread run
        time.sleep(60)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except PbgError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)
