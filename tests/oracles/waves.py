"""A plain simulation of jobs in waves, for the rules without expectations."""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np

from shadowprice.cloning.waves import WaveJobs, WaveRule, WaveRuleKind


class PlainWaves:
    """Jobs as lists of dicts; every machine examines everything, step by step."""

    def __init__(self, jobs: WaveJobs, machines: int, rule: WaveRule, look: float) -> None:
        self.rule, self.free, self.look = rule, machines, look
        self.machines = machines
        self.jobs: list[dict[str, Any]] = [
            {
                "arrival": float(jobs.arrival[j]),
                "priority": float(jobs.priority[j]),
                "number": j,
                "work": 0.0,
                "tasks": [
                    {"durations": jobs.durations[t], "copies": [], "done": None}
                    for t in range(jobs.first[j], jobs.first[j + 1])
                ],
            }
            for j in range(jobs.jobs)
        ]

    def run(self) -> tuple[list[float], list[float], list[int]]:
        """Return flow times, machine seconds and started copies."""
        now = 0.0
        tick = np.inf
        while any(task["done"] is None for job in self.jobs for task in job["tasks"]):
            ends = [
                min(start + length for start, length in task["copies"])
                for job in self.jobs
                for task in job["tasks"]
                if task["copies"] and task["done"] is None
            ]
            arrivals = [job["arrival"] for job in self.jobs if not job.get("here")]
            now = min([*ends, *arrivals, tick])
            # One end at a time, in the order of tasks: each frees machines before the next.
            ended = self._end_one(now)
            if not ended:
                for job in self.jobs:
                    if not job.get("here") and job["arrival"] == now:
                        job["here"] = True
                        break
            self._dispatch(now)
            busy = self.machines - self.free
            patient = self.rule.rule is WaveRuleKind.DETECT and self.free and busy
            tick = now + self.look if patient else np.inf
        flow = [max(t["done"] for t in job["tasks"]) - job["arrival"] for job in self.jobs]
        copies = [len(task["copies"]) for job in self.jobs for task in job["tasks"]]
        return flow, [job["work"] for job in self.jobs], copies

    def _end_one(self, now: float) -> bool:
        for job in self.jobs:
            for task in job["tasks"]:
                if task["done"] is None and any(s + d == now for s, d in task["copies"]):
                    task["done"] = now
                    job["work"] += sum(now - start for start, _ in task["copies"])
                    self.free += len(task["copies"])
                    return True
        return False

    def _dispatch(self, now: float) -> None:
        while self.free:
            task = self._choose(now)
            if task is None:
                return
            task["copies"].append((now, float(task["durations"][len(task["copies"])])))
            self.free -= 1

    def _choose(self, now: float) -> dict[str, Any] | None:
        queue = sorted(
            (job for job in self.jobs if job.get("here")),
            key=lambda job: (-job["priority"], job["number"]),
        )
        for job in queue:
            running: list[dict[str, Any]] = [
                t for t in job["tasks"] if t["copies"] and t["done"] is None
            ]
            if self.rule.rule is WaveRuleKind.FULL:
                for task in running:
                    if len(task["copies"]) < self.rule.copies:
                        return task
            fresh: dict[str, Any] | None = next((t for t in job["tasks"] if not t["copies"]), None)
            if fresh is not None:
                return fresh
            if self.rule.rule is WaveRuleKind.DETECT:
                late = self._late(job, running, now)
                if late is not None:
                    return late
        return None

    def _late(
        self, job: dict[str, Any], running: list[dict[str, Any]], now: float
    ) -> dict[str, Any] | None:
        finished = [t for t in job["tasks"] if t["done"] is not None]
        if not finished or len(finished) < self.rule.late_share * len(job["tasks"]):
            return None
        own = [
            min((start + length, length) for start, length in task["copies"])[1]
            for task in finished
        ]
        limit = self.rule.late_factor * statistics.median(own)
        late = [
            task
            for task in running
            if len(task["copies"]) < self.rule.copies and now - task["copies"][-1][0] > limit
        ]
        return max(late, key=lambda task: now - task["copies"][-1][0], default=None)
