"""Write the table of hostile inputs: ``python -m tests.hostile.make_table --least 25``.

Cases of the table are kept; ``--again`` updates their results. New cases are drawn as by the
fuzzer, until every command has enough of them. New kinds of refusals come first, so that the
table has many kinds rather than many of one. ``--found FILE`` adds fixed findings of the fuzzer
that its ``--keep`` wrote. A test calls every case of the table.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests.hostile.case import Case
from tests.hostile.commands import STAYING, commands
from tests.hostile.drawing import Drawer
from tests.hostile.pool import RUNS, Worker, good_runs, journal_lines, judge

TABLE = Path(__file__).with_name("inputs.jsonl.gz")
"""One case a line: ``words``, ``files``, and the result ``gets``: exit status and first line."""

PATIENCE = 300
"""Number of cases drawn for a command that has too few."""

LARGEST = 4_000
"""Maximum length of a case in the table, in characters of JSON."""


def gets(answer: dict[str, Any]) -> list[Any]:
    """Return the result of a call: its exit status and its first error without the hint."""
    lines = answer["err"].splitlines()
    line = next((line for line in lines if line.startswith("error: ")), "")
    return [answer["status"], line.partition(";")[0][:160] if answer["status"] else ""]


def kind_of(line: str) -> str:
    """Return the kind of a refusal: its words without names and numbers."""
    return re.sub(r"'[^']*'|\"[^\"]*\"|[\d,.]+|\S*\.(yaml|jsonl|csv|toml)\S*", "", line)[:160]


def records(path: Path) -> list[dict[str, Any]]:
    """Return the cases of a file of JSON Lines."""
    data = path.read_bytes()
    lines = (gzip.decompress(data) if path.suffix == ".gz" else data).decode().splitlines()
    return [json.loads(line) for line in lines]


class Table:
    """Cases by their text, with the number of cases for each kind of result.

    Parameters
    ----------
    worker : Worker
        The worker that runs the cases.
    """

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.kept: dict[str, dict[str, Any]] = {}
        self.kinds: Counter[tuple[str, str]] = Counter()
        self.commands: Counter[str] = Counter()

    def add(self, record: dict[str, Any], *, anyway: bool) -> None:
        """Run a case, and keep it ``anyway``, or if its kind is rare and the call is fast."""
        text = json.dumps(record)
        if text in self.kept or (len(text) > LARGEST and not anyway):
            return
        answer = self.worker.ask(Case.of(record), 60.0)
        faults = judge(answer)
        if faults:
            print(json.dumps({"faults": faults, **record}), flush=True)
            return
        kind = command_of(record["words"]), kind_of(gets(answer)[1])
        # A few of each kind, and not many calls that succeed.
        if anyway or (self.kinds[kind] < 4 and answer["seconds"] <= 1.0):
            self.keep({**record, "gets": gets(answer)})

    def keep(self, record: dict[str, Any]) -> None:
        """Keep a case with its result."""
        command = command_of(record["words"])
        self.kinds[command, kind_of(record["gets"][1])] += 1
        self.commands[command] += 1
        self.kept[json.dumps(Case.of(record).record())] = record


def command_of(words: Sequence[str]) -> str:
    """Return the command of a call, or an empty string if it names none."""
    known = _names()
    return next((name for name in known if list(words[: len(name.split())]) == name.split()), "")


@cache
def _names() -> tuple[str, ...]:
    return tuple(" ".join(command.words) for command in commands())


def main() -> int:
    """Draw cases until every command has enough."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--least", type=int, default=25, help="cases of every command")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--again", action="store_true", help="ask what is there again")
    parser.add_argument("--found", type=Path, help="cases that the fuzzer found")
    chosen = parser.parse_args()
    # Some commands have few possible errors. Others take seconds a call, and are left to the
    # fuzzer.
    wanted = {
        " ".join(command.words): min(chosen.least, 8 * len(command.options))
        for command in commands()
        if command.words[0] not in STAYING
    }
    with good_runs() as runs, Worker(runs) as worker:
        drawer = Drawer(chosen.seed, [*RUNS], journal_lines(runs), quick=True)
        worker.ask(Case(("policies",)), 300.0)
        table = Table(worker)
        for record in records(TABLE):
            if chosen.again:
                table.add(Case.of(record).record(), anyway=True)
            else:
                table.keep(record)
        for record in records(chosen.found) if chosen.found else ():
            table.add(Case.of(record).record(), anyway=True)
        print(f"{len(table.kept)} cases kept", file=sys.stderr, flush=True)
        for name, least in wanted.items():
            for _ in range(PATIENCE):
                if table.commands[name] >= least:
                    break
                table.add(drawer.draw(name).record(), anyway=False)
            print(f"{name}: {table.commands[name]}", file=sys.stderr, flush=True)
    lines = "".join(json.dumps(record) + "\n" for record in table.kept.values())
    TABLE.write_bytes(gzip.compress(lines.encode(), 9, mtime=0))
    print(f"{len(table.kept)} cases, {len(table.kinds)} kinds of answers", file=sys.stderr)
    return 0 if len(table.kept) >= 1000 else 1


if __name__ == "__main__":
    sys.exit(main())
