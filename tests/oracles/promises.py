"""Completion slots of jobs, from allocations alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shadowprice.core.job import Job
from shadowprice.results.recorder import PlacementSegments

Standing = Mapping[int, tuple[int, int]]


def completions(
    jobs: Sequence[Job], segments: PlacementSegments, *, first: bool = False
) -> dict[str, int]:
    """Return the slot in which each job completed its work, from its allocations alone.

    Progress is counted slot by slot by the job model: the gain of the number of workers, or that of
    co-located training if all are on one server. A part is lost if the placement differs from the
    slot before, or at the ``first`` start if that costs one. Jobs that didn't complete are missing.
    """
    placements: dict[int, dict[int, dict[int, tuple[int, int]]]] = {}
    columns = (
        segments.jobs, segments.servers, segments.workers, segments.ps, segments.starts,
        segments.ends,
    )  # fmt: skip
    for job, server, workers, ps, start, end in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        for slot in range(start, end):
            placements.setdefault(job, {}).setdefault(slot, {})[server] = (workers, ps)
    done: dict[str, int] = {}
    for at, slots in placements.items():
        job, made, before, last = jobs[at], 0, None, None
        for slot in sorted(slots):
            here = slots[slot]
            workers = sum(count for count, _ in here.values())
            moved = first if before is None else here != before or slot != last + 1
            made += job.gain(workers, colocated=len(here) == 1, moved=moved)
            before, last = here, slot
            if made >= job.required:
                done[job.name] = slot
                break
    return done
