"""A digest of the engine's state, updated at a cost that grows with the changes only.

Every job is hashed separately, and the digest adds the hashes up. The sum doesn't depend on the
order, and a changed job only replaces its own hash. A collected job stays in the sum, so the digest
covers all jobs of the past and doesn't depend on when jobs were collected.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from shadowprice.core.schedule import Placement, Schedule
from shadowprice.engine.job_record import JobRecord

_MODULUS: Final = 2**256
_COMPACT: Final = json.JSONEncoder(separators=(",", ":")).encode


class StateDigest:
    """The sum of the hashes of all jobs, updated on request for the jobs in ``changed``."""

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
        """Update the sum for all changed jobs, or for those in ``only``; return it.

        ``names`` are the servers' names by row.
        """
        outdated = self.changed if only is None else self.changed.intersection(only)
        for name in outdated:
            record = jobs.get(name)
            if record is not None:
                self._take_out(name)
                self._hashes[name] = value = _hash(_text(record, names))
                self._sum += value
            elif name in self._hashes:  # its arrival was rolled back
                self._take_out(name)
                del self._hashes[name]
        if only is None:
            self.changed.clear()
        else:
            self.changed -= outdated
        self._sum %= _MODULUS
        return self._sum

    def leave(self, names: Iterable[str]) -> None:
        """Forget the hashes of collected jobs, which must be up to date; the sum keeps them."""
        for name in names:
            self._hashes.pop(name, None)

    def clone(self) -> StateDigest:
        """Return an independent copy."""
        copy = StateDigest()
        copy._sum, copy._hashes, copy.changed = self._sum, dict(self._hashes), set(self.changed)
        return copy

    def removed_jobs_sum(self) -> int:
        """Return the share of collected jobs in the sum."""
        return (self._sum - sum(self._hashes.values())) % _MODULUS

    def restore(self, departed: int, names: Iterable[str]) -> None:
        """Reset the sum to the share of collected jobs; mark the jobs in ``names`` as changed."""
        self._sum, self._hashes, self.changed = departed, {}, set(names)

    def _take_out(self, name: str) -> None:
        self._sum -= self._hashes.get(name, 0)


def of_state(parts: Mapping[str, object]) -> str:
    """Return the SHA-256 of plain values."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest(), "big")


def _text(record: JobRecord, names: Sequence[str]) -> str:
    """Return a job's state as a JSON list; the numbers are formatted directly, for speed."""
    job, refusal = record.job, record.refusal
    refusal_record = None if refusal is None else refusal.record()
    plan = _plan(record.plan, names) if record.status.open else None
    return (
        f'[{_COMPACT(job.name)},{job.required},"{record.status.value}",{record.progress},'
        f"{record.measured},{_number(record.started)},{_number(record.completion)},"
        f"{record.generation},{record.failures},{record.plans},{_number(record.promise)},"
        f"{_json(refusal_record)},{_json(plan)},{_json(_sorted_entries(record.placement, names))},"
        f"{_json(record.finished)},{_json(record.left)}]"
    )


def _number(value: int | None) -> str:
    return "null" if value is None else str(value)


def _json(value: object) -> str:
    if value is None:
        return "null"
    return _COMPACT(value) if value else "[]"


def _plan(plan: Schedule, names: Sequence[str]) -> list[list[object]]:
    # By name: the digest doesn't depend on the order of the servers.
    rows = ([slot, names[server], workers, ps] for slot, server, workers, ps in plan.rows())
    return sorted(rows)  # (slot, name) is unique, so the order is too


def _sorted_entries(placement: Placement | None, names: Sequence[str]) -> list[list[object]] | None:
    if placement is None:
        return None
    entries = zip(placement.servers, placement.workers, placement.ps, strict=True)
    return sorted([names[server], workers, ps] for server, workers, ps in entries)
