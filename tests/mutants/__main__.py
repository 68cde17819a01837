"""Read thousands of damaged files, and count the outcomes.

``python -m tests.mutants``; they are read as the product reads them.
"""

from __future__ import annotations

import argparse
import sys

from tests.mutants.driving import Mutant, run


def main() -> int:
    """Read the requested mutants; return 1 if one was bad.

    Bad are those that crashed, hung or surprised their reader.
    """
    from tests.mutants.kinds import KINDS

    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--kind", default="all", choices=["all", *KINDS], help="of the files")
    parser.add_argument("--count", type=int, default=10_000, help="mutants, over all kinds")
    parser.add_argument("--seed", type=int, default=0, help="the same seed makes the same mutants")
    parser.add_argument("--only", type=int, help="of one kind, the mutant of this number alone")
    parser.add_argument("--workers", type=int, default=2, help="processes that read")
    options = parser.parse_args()
    kinds = list(KINDS) if options.kind == "all" else [options.kind]
    numbers = range(options.count) if options.only is None else [options.only]
    mutants = [Mutant(kinds[number % len(kinds)], options.seed, number) for number in numbers]
    tally = run(mutants, workers=options.workers)
    print(tally.summary())
    return 1 if tally.bad else 0


if __name__ == "__main__":
    sys.exit(main())
