"""Fuzz the whole command line: ``python -m tests.hostile.fuzz --seconds 60``.

Each call uses the declared commands and options. Its files come from grammars and are mutated. A
failure is printed as a line of JSON that ``--replay FILE`` runs again.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from tests.hostile import documents
from tests.hostile.case import Case
from tests.hostile.documents import text_of
from tests.hostile.drawing import Drawer
from tests.hostile.pool import RUNS, Worker, good_runs, journal_lines, judge


def main() -> int:
    """Fuzz for a given time; return 1 if a fault was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="duration in seconds")
    parser.add_argument("--calls", type=int, help="number of calls, instead of a duration")
    parser.add_argument("--seed", type=int, default=None, help="random seed; default: the time")
    parser.add_argument("--keep", type=Path, help="append failures to this file, one a line")
    parser.add_argument("--replay", type=Path, help="run the cases of this file instead")
    chosen = parser.parse_args()
    seed = time.time_ns() % 10**9 if chosen.seed is None else chosen.seed
    with good_runs() as runs, Worker(runs) as worker:
        # Import modules and compile the policies' kernels before the time limit starts.
        for words in (("policies",), ("trace", "formats"), ("warm",)):
            worker.ask(Case(words), 900.0)
        # `warm` doesn't compile the kernels of certificates; the first `bound` does.
        files = {"c.yaml": text_of(documents.CLUSTER), "j.yaml": text_of(documents.JOBS)}
        worker.ask(Case(("bound", "-c", "c.yaml", "-j", "j.yaml"), files), 900.0)
        if chosen.replay:
            lines = chosen.replay.read_text(encoding="utf-8").splitlines()
            calls: Iterator[Case] = (Case.of(json.loads(line)) for line in lines if line.strip())
            end = float("inf")
        else:
            drawer = Drawer(seed, [*RUNS], journal_lines(runs))
            calls = iter(drawer.draw, None)
            end = time.monotonic() + chosen.seconds
            if chosen.calls is not None:
                calls, end = islice(calls, chosen.calls), float("inf")
        tried, found = Counter[object](), 0
        for case in calls:
            if time.monotonic() > end:
                break
            answer = worker.ask(case)
            tried[answer["status"]] += 1
            # Kernels that `warm` leaves out may be compiled during a call.
            faults = judge(answer, seconds=50.0, max_refusal_seconds=5.0)
            if faults:
                found += 1
                record = {"faults": faults, **case.record(), "err": answer["err"][-400:]}
                print(json.dumps(record), flush=True)
                if chosen.keep:
                    with chosen.keep.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(record) + "\n")
    ends = ", ".join(f"{count} x {status}" for status, count in tried.most_common())
    print(f"seed {seed}: {sum(tried.values())} calls ({ends}), {found} failed", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
