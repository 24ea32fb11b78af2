"""What really runs on this machine, whoever started it; for a service that only looks on.

Whoever starts a job elsewise (a shell, cron, another scheduler's prolog) names it in the
environment, ``SHADOWPRICE_JOB=name`` (and ``SHADOWPRICE_TENANT``, ``SHADOWPRICE_ROLE``); that is
all it takes to be seen. A process whose parent carries the same name is part of that one.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from shadowprice.core import bounds
from shadowprice.executors.contract import Ended, Ending, Held, Observed, Share
from shadowprice.executors.generations.generation import start_time
from shadowprice.executors.supervision.children import processes

_MOST: Final = 10_000
"""Jobs observed at once."""


def observed(
    own: Iterable[Held], slice_of: Callable[[Sequence[int]], str | None]
) -> tuple[Observed, ...]:
    """Return what runs: own generations, and what others started.

    Parameters
    ----------
    own : iterable of Held
        The executor's own generations that run, or ran and are not forgotten.
    slice_of : callable
        Returns the server whose cores a process is bound to, None where that is no one's.
    """
    found: dict[str, Observed] = {}
    for held in own:  # in the order in which they were taken: the newest of a job counts
        if held.started is not None:
            found[held.job] = Observed(held.job, held.placement, held.started, **_end(held))
    foreign: dict[str, list[tuple[int, dict[str, str]]]] = {}
    marks = _marks()
    for process, (parent, told) in marks.items():
        name = told["SHADOWPRICE_JOB"]
        above = marks.get(parent)
        if above is not None and above[1]["SHADOWPRICE_JOB"] == name:
            continue
        foreign.setdefault(name, []).append((process, told))
    for name, members in list(foreign.items())[:_MOST]:
        if name not in found or found[name].ended is not None:
            seen = _observed(name, members, slice_of)
            if seen is not None:
                found[name] = seen
    return tuple(found.values())


def _end(held: Held) -> dict[str, Any]:
    """Return when and how an own generation ended; nothing for one that runs."""
    if not isinstance(held.end, Ended):
        return {}
    return {"ended": held.end.at, "done": held.end.ending is Ending.DONE}


def _marks() -> dict[int, tuple[int, dict[str, str]]]:
    """Return the processes that name a job, with their parents and what they say."""
    marks = {}
    for process, parent, _ in processes():
        with contextlib.suppress(OSError):
            content = Path(f"/proc/{process}/environ").read_bytes()
            if b"SHADOWPRICE_JOB=" not in content:
                continue
            pairs = (part.partition(b"=") for part in content.split(b"\0"))
            told = {
                name.decode("utf-8", "replace"): value.decode("utf-8", "replace")
                for name, _, value in pairs
                if name.startswith(b"SHADOWPRICE_")
            }
            if 0 < len(told.get("SHADOWPRICE_JOB", "")) <= bounds.NAME.most:
                marks[process] = (parent, told)
    return marks


def _observed(
    name: str,
    members: list[tuple[int, dict[str, str]]],
    slice_of: Callable[[Sequence[int]], str | None],
) -> Observed | None:
    places: dict[str, Counter[str]] = {}
    began = []
    for process, told in members:
        ticks = start_time(process)
        if ticks is None:  # it has just ended
            continue
        try:
            cores = sorted(os.sched_getaffinity(process))
        except OSError:
            continue
        role = "ps" if told.get("SHADOWPRICE_ROLE") == "ps" else "worker"
        server = slice_of(cores) or socket.gethostname()
        places.setdefault(server, Counter())[role] += 1
        began.append(ticks / os.sysconf("SC_CLK_TCK"))
    if not began:
        return None
    since = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + min(began)
    tenant = members[0][1].get("SHADOWPRICE_TENANT")
    placement = tuple(Share(server, n["worker"], n["ps"]) for server, n in places.items())
    return Observed(name, placement, since, tenant)
