"""Write the table of hostile inputs: ``python -m tests.hostile.make_table --cases 1000``.

Distinct inputs are drawn as the fuzzer draws them, and those that are refused in a way not seen
before come first, so that the table holds many kinds of refusal rather than many of one. Each is
kept with what it gets; a test calls every one of them again.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from tests.hostile.case import Case
from tests.hostile.drawing import Drawer
from tests.hostile.pool import RUNS, Worker, good_runs, journal_lines, judge

TABLE = Path(__file__).with_name("inputs.jsonl.gz")
"""A line a case: ``words``, ``files``, and what it ``gets``: exit status and first line."""

LARGEST = 4_000
"""Characters of a case in the table, as JSON."""


def gets(answer: dict[str, Any]) -> list[Any]:
    """Return what a call got: its exit status and what its first error is, without the mend."""
    lines = answer["err"].splitlines()
    line = next((one for one in lines if one.startswith("error: ")), "")
    return [answer["status"], line.partition(";")[0][:160] if answer["status"] else ""]


def kind_of(line: str) -> str:
    """Return the kind of a refusal: its words without names and numbers."""
    return re.sub(r"'[^']*'|\"[^\"]*\"|[\d,.]+|\S*\.(yaml|jsonl|csv|toml)\S*", "", line)[:160]


def main() -> int:
    """Draw cases until the table is full."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    kept: dict[str, dict[str, Any]] = {}
    kinds: Counter[str] = Counter()
    with good_runs() as runs, Worker(runs) as worker:
        drawer = Drawer(chosen.seed, [*RUNS], journal_lines(runs), quick=True)
        worker.ask(Case(("policies",)), 300.0)
        tried = 0
        while len(kept) < chosen.cases and tried < 100 * chosen.cases:
            tried += 1
            case = drawer.draw()
            text = json.dumps(case.record())
            if len(text) > LARGEST or text in kept:
                continue
            answer = worker.ask(case, 20.0)
            faults = judge(answer)
            if faults:
                print(json.dumps({"faults": faults, **case.record()}), flush=True)
                continue
            kind = kind_of(gets(answer)[1])
            # Of one kind no more than a few; of calls that succeed, not many either.
            if kinds[kind] >= (40 if not kind else 8) or answer["seconds"] > 0.3:
                continue
            kinds[kind] += 1
            kept[text] = {**case.record(), "gets": gets(answer)}
            if len(kept) % 50 == 0:
                print(f"{len(kept)} of {tried}", file=sys.stderr, flush=True)
    lines = "".join(json.dumps(record) + "\n" for record in kept.values())
    TABLE.write_bytes(gzip.compress(lines.encode(), 9, mtime=0))
    told = f"{len(kept)} of {tried} cases kept, {len(kinds)} kinds of answers"
    print(told, file=sys.stderr)
    return 0 if len(kept) >= chosen.cases else 1


if __name__ == "__main__":
    sys.exit(main())
