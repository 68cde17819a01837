"""The processes of ``test_gang``.

They are forked from one that has imported torch, because that takes seconds.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import time
from pathlib import Path

from pbg_tasks.errors import PbgError
from pbg_tasks.training.ranks.group import gang, rendezvous

importlib.import_module("torch.distributed")


def freeze(*_):
    """Stop taking part, without an end.

    Services that were offered still exist, but never answer.
    """
    os.kill(os.getpid(), signal.SIGSTOP)


def run(out, *, rank, world, servers, method, spec, token, timeout, then, environment):
    """Join, act as requested and write the result.

    This is the whole life of a process.
    """
    signal.alarm(60)
    rendezvous._PORT_SECONDS = gang._GRACE = 0.5
    gang._SILENCE = 4.0
    if then == "freeze":
        rendezvous._exchange_arrivals = freeze
    os.environ.update(environment)
    result = {}
    began = time.monotonic()
    try:
        place = gang.RankEnv(rank, world, servers, method)
        joined = gang.Gang.join(place, spec, token=token, timeout=timeout)
        if then == "die":
            os._exit(9)
        result = {"host": joined.host, "token": joined.credentials.token.decode()}
        result["shared"] = joined.share({"rank": rank, "text": "x" * rank})
        joined.barrier(timeout=10)
        if then == "vanish":
            os._exit(9)
        if then == "dawdle":
            time.sleep(2)
        joined.barrier(timeout=1)
    except PbgError as error:
        result["error"] = [type(error).__name__, str(error)]
    result["seconds"] = time.monotonic() - began
    Path(out).write_text(json.dumps(result))
