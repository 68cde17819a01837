"""Training jobs on a cluster, and the lines that they log."""

from __future__ import annotations

import threading

from tests.operators.kubernetes.conftest import RUN

RESULT = {"shown": ["show", RUN, "--task=train", "--json"]}

RANKS = """
    import signal
    if sys.argv[1] == "show":
        print(json.dumps({"shown": sys.argv[1:]}))
        sys.exit()
    rank, world = int(os.environ["JOB_COMPLETION_INDEX"]), int(os.environ["WORLD_SIZE"])

    def end(text, status):
        print(text, flush=True)
        sys.exit(status)

    def ready_to_store():
        signal.signal(signal.SIGTERM, lambda *_: end("error: evicted: told to end", 13))
        print("training", flush=True)
"""

TRAIN = RANKS + "    ready_to_store(); time.sleep(60)"

QUICK = RANKS + "    print('trained', flush=True)"


def logged_lines(logged):
    return [entry["event"] % entry.get("positional_args", ()) for entry in logged]


class Try(threading.Thread):
    """A try of the task on a thread of its own."""

    def __init__(self, train, **changes):
        super().__init__(target=self._try, args=(train, changes))
        self.result = None
        self.start()

    def _try(self, train, changes):
        self.result = train(**changes)

    def end(self):
        self.join(timeout=30)
        assert not self.is_alive()
        return self.result
