"""Object that a worker holds in tests."""

from __future__ import annotations

import os
import subprocess
import sys
import time

BURN = "import time\nwhile time.process_time() < {}: pass"


class Subject:
    def __init__(self, start=0):
        self._count = start

    def add(self, number):
        sys.stdout.write("printed, and no answer\n")
        self._count += number
        return self._count

    def burn(self, seconds):
        """Use the CPU here and in a process that is waited for."""
        subprocess.run([sys.executable, "-c", BURN.format(seconds)], check=True)
        begun = time.process_time()
        while time.process_time() - begun < seconds:
            pass
        return 1

    def take(self, mebibytes):
        return len(bytearray(mebibytes << 20))

    def fail(self):
        raise ValueError("not today")

    def die(self):
        sys.stderr.write("last words\n")
        os._exit(1)
