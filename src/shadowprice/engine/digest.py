"""A digest of the engine's state that costs what changed, not what there is.

Every job is hashed on its own, and the hashes are added up: a sum does not depend on an order, and
a job that changed is taken out and put in again. A job that has left the engine stays in the sum,
so that the digest tells all that ever happened, whether or not somebody has collected it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from shadowprice.core.schedule import Placement, Schedule
from shadowprice.engine.state import JobRecord

_MODULUS: Final = 2**256
_COMPACT: Final = json.JSONEncoder(separators=(",", ":")).encode


class StateDigest:
    """The sum of the hashes of all jobs, brought up to date when asked.

    Attributes
    ----------
    changed : set of str
        Jobs that changed since the sum was last brought up to date.
    """

    __slots__ = ("_hashes", "_sum", "changed")

    def __init__(self) -> None:
        self._sum = 0
        self._hashes: dict[str, int] = {}
        self.changed: set[str] = set()

    def refresh(
        self,
        jobs: Mapping[str, JobRecord],
        names: Sequence[str],
        only: Iterable[str] | None = None,
    ) -> int:
        """Return the sum, brought up to date for some jobs only, or for all that changed.

        ``names`` are those of the servers.
        """
        due = self.changed if only is None else self.changed.intersection(only)
        for name in due:
            record = jobs.get(name)
            if record is not None:
                self._take_out(name)
                self._hashes[name] = value = _hash(_text(record, names))
                self._sum += value
            elif name in self._hashes:  # its arrival was taken back
                self._take_out(name)
                del self._hashes[name]
        if only is None:
            self.changed.clear()
        else:
            self.changed -= due
        self._sum %= _MODULUS
        return self._sum

    def leave(self, names: Iterable[str]) -> None:
        """Let jobs leave whose hashes are up to date; the sum keeps them."""
        for name in names:
            self._hashes.pop(name, None)

    def clone(self) -> StateDigest:
        """Return a digest that changes on its own from now on."""
        made = StateDigest()
        made._sum, made._hashes, made.changed = self._sum, dict(self._hashes), set(self.changed)
        return made

    def of_departed(self) -> int:
        """Return the part of the sum that jobs left behind which are gone."""
        return (self._sum - sum(self._hashes.values())) % _MODULUS

    def restore(self, departed: int, names: Iterable[str]) -> None:
        """Begin from what jobs left behind that are gone; the others are still to be added."""
        self._sum, self._hashes, self.changed = departed, {}, set(names)

    def _take_out(self, name: str) -> None:
        self._sum -= self._hashes.get(name, 0)


def of_state(parts: Mapping[str, object]) -> str:
    """Return the digest of a state given by plain values."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest(), "big")


def _text(record: JobRecord, names: Sequence[str]) -> str:
    """Return all that a job is as a JSON list; most of it are numbers, which need no encoder."""
    job, refusal = record.job, record.refusal
    told = None if refusal is None else refusal.record()
    plan = _plan(record.plan, names) if record.status.open else None
    return (
        f'[{_COMPACT(job.name)},{job.required},"{record.status.value}",{record.progress},'
        f"{record.measured},{_number(record.started)},{_number(record.completion)},"
        f"{record.generation},{record.failures},{record.plans},{_number(record.promise)},"
        f"{_json(told)},{_json(plan)},{_json(_standing(record.placement, names))},"
        f"{_json(record.finished)},{_json(record.left)}]"
    )


def _number(value: int | None) -> str:
    return "null" if value is None else str(value)


def _json(value: object) -> str:
    if value is None:
        return "null"
    return _COMPACT(value) if value else "[]"


def _plan(plan: Schedule, names: Sequence[str]) -> list[list[object]]:
    # By name: two clusters that number their servers otherwise agree.
    rows = ([slot, names[server], workers, ps] for slot, server, workers, ps in plan.rows())
    return sorted(rows)  # (slot, name) is unique and decides


def _standing(placement: Placement | None, names: Sequence[str]) -> list[list[object]] | None:
    if placement is None:
        return None
    entries = zip(placement.servers, placement.workers, placement.ps, strict=True)
    return sorted([names[server], workers, ps] for server, workers, ps in entries)
