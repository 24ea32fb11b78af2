"""A joint plan of jobs as arrays, which grow with it."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.revision.plans import Log, Steps
from shadowprice.kernels.revision.timeline import Timeline, new_timeline

Integers = NDArray[np.int64]

_RUNS: Final = 256
"""Maximum number of runs of equal slots in a plan."""


class Layout:
    """A timeline with the plans in it.

    Pickles omit unused space.

    Parameters
    ----------
    most : int
        Maximum number of intervals.
    width : int
        Maximum number of groups of equal servers in an interval.
    share, common : ndarray of int64
        As in `Timeline`.

    Attributes
    ----------
    line : Timeline
        Free capacity over time.
    steps : Steps
        Plans by row.
    log : Log
        Allocations of the first slot, in packing order.
    order : ndarray of int64, shape (planned,)
        Rows in planning order.
    """

    def __init__(self, most: int, width: int, share: Integers, common: Integers) -> None:
        self.most = most
        self.line: Timeline = new_timeline(most, width, share, common)
        self.steps = Steps(
            np.zeros(0, np.int64), np.zeros((0, 0), np.int64), np.zeros((0, 0), np.int64)
        )
        self.log = Log(*(np.zeros(n, np.int64) for n in (1, 0, 0, 0, 0)))
        self.order = np.zeros(0, np.int64)

    def __getstate__(self) -> dict[str, object]:
        line, steps, log = self.line, self.steps, self.log
        states = int(line.used[1])
        groups = int(line.groups[:states].max(initial=0))
        runs = int(steps.runs.max(initial=0))
        entries = int(log.used[0])
        return {
            "size": (self.most, line.free.shape[1], line.share, line.common),
            "line": [
                part[: states + 1] if part is line.start else part[:states] for part in line[:4]
            ]
            + [part[:states, :groups] for part in line[4:7]]
            + [line.held[:states]],
            "used": line.used,
            "steps": [steps.runs, steps.until[:, :runs], steps.level[:, :runs]],
            "log": [log.used, *(part[:entries] for part in log[1:4]), log.level],
            "order": self.order,
        }

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__init__(*state["size"])  # type: ignore[misc]  # two integers, two arrays
        for array, part in zip(self.line, state["line"], strict=False):  # type: ignore[call-overload]
            array[tuple(slice(size) for size in part.shape)] = part
        self.line.used[:] = state["used"]  # type: ignore[call-overload]  # two integers
        self.steps = Steps(*state["steps"])  # type: ignore[misc]  # three arrays
        self.log = Log(*state["log"])  # type: ignore[misc]  # five arrays
        self.order = state["order"]  # type: ignore[assignment]

    def reserve(self, rows: int, entries: int) -> None:
        """Allocate space for plans of ``rows`` rows and a log of ``entries``; keep the content."""
        steps, log, width = self.steps, self.log, min(self.most, _RUNS)
        if steps.until.shape != (rows, width):
            self.steps = Steps(
                _padded(steps.runs, (rows,), -1),
                _wider(steps.until, steps.runs, (rows, width)),
                _wider(steps.level, steps.runs, (rows, width)),
            )
        if len(log.row) < entries or len(log.level) < rows:
            entries = max(entries, min(2 * entries, 2 * len(log.row)))
            self.log = Log(
                log.used,
                _padded(log.row, (entries,), 0),
                _padded(log.workers, (entries,), 0),
                _padded(log.servers, (entries,), 0),
                _padded(log.level, (rows,), -1),
            )

    def grow(self, most: int) -> None:
        """Allocate space for ``most`` intervals; keep the plans."""
        old = self.line
        larger = new_timeline(most, old.servers.shape[1], old.share, old.common)
        larger.used[:] = old.used
        # Copy used states only: writing to the rest, which is most of it, would delay a submission.
        states = int(old.used[1]) + 1
        for new_array, old_array in zip(larger[1:8], old[1:8], strict=True):
            used = old_array[:states]
            new_array[: len(used)] = used
        self.line, self.most = larger, most


def _padded(array: Integers, shape: tuple[int, ...], value: int) -> Integers:
    """Return a larger array that starts with the content of the old one."""
    larger_shape = tuple(map(max, array.shape, shape))
    larger = np.full(larger_shape, value, np.int64) if value else np.zeros(larger_shape, np.int64)
    larger[tuple(slice(size) for size in array.shape)] = array
    return larger


def _wider(array: Integers, runs: Integers, shape: tuple[int, int]) -> Integers:
    """Return a larger array of zeros with the runs of each row."""
    larger = np.zeros(shape, np.int64)
    rows, count = np.flatnonzero(runs > 0), int(runs.max(initial=0))
    larger[rows, :count] = array[rows, :count]
    return larger
