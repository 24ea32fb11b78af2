"""Damage to run directories and journals."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

from tests.hostile import documents

_FILES = (
    "run.json", "run.json", "jobs.parquet", "slots.parquet", "allocations.parquet", "heat.parquet",
    "decisions.jsonl", "payments.jsonl", "journal.jsonl", "report.html",
)  # fmt: skip
_KEYS = (
    "format", "policy", "cluster", "cluster.servers", "cluster.kinds", "summary", "summary.jobs",
    "parameters", "inputs", "timing", "partial", "until", "seed", "cluster.slot_seconds",
    "incidents", "capabilities", "files", "job", "slot", "outcome", "plan", "versions", "settings",
    "options", "state_digest", "digest", "interrupted_in_slot", "journal", "inputs.0.name",
)  # fmt: skip

Action = list[Any]


def damage(rng: random.Random) -> list[Action]:
    """Return actions that damage a run directory, or none."""
    return [_action(rng) for _ in range(rng.choice((0, 1, 1, 1, 2)))]


def _action(rng: random.Random) -> Action:
    target = rng.choice(_FILES)
    action = rng.choice(
        (["cut", rng.randrange(400)], ["flip", rng.randrange(-300, 300)], ["empty"],
         ["remove"], ["text", documents.damaged_text("{}", rng)],
         ["copy", rng.choice(("jobs.parquet", "run.json", "slots.parquet"))],
         ["append", str(documents.nasty(rng))], ["link", "nowhere"], ["folder"],
         ["set", rng.choice(_KEYS), documents.nasty(rng)], ["drop", rng.choice(_KEYS)],
         ["set", "format", rng.choice((0, 1, 2, 4, 99))])
    )  # fmt: skip
    if action[0] in {"set", "drop"} and target.endswith(("parquet", "html")):
        target = "run.json"
    return [target, *action]


def journal_damage(lines: Sequence[str], rng: random.Random) -> list[Action]:
    """Return actions that change values inside the lines of a journal.

    Parameters
    ----------
    lines : sequence of str
        Lines of the journal.
    rng : random.Random
        Generator for all choices.
    """
    actions: list[Action] = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        at = rng.randrange(len(lines))
        places = [path for path in documents.paths(json.loads(lines[at])) if _plain(path)]
        place = ".".join(map(str, rng.choice(places)))
        if rng.random() < 0.8:
            actions.append(["journal.jsonl", "edit", at, place, documents.nasty(rng)])
        elif rng.random() < 0.5:
            actions.append(["journal.jsonl", "edit", at, place])
        else:
            actions.append(["journal.jsonl", "move", at, rng.randrange(len(lines))])
    return actions


def _plain(path: Sequence[Any]) -> bool:
    return all("." not in str(part) for part in path)
