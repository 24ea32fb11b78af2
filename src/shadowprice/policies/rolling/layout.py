"""Arrays that hold one way to lay jobs out, and grow with them."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.revision.plans import Log, Steps
from shadowprice.kernels.revision.timeline import Timeline, new_timeline

Integers = NDArray[np.int64]

_RUNS: Final = 256
"""Most runs of equal slots in a plan."""


class Layout:
    """One timeline with the plans in it.

    It is kept (pickled) without the space that nothing uses.

    Parameters
    ----------
    most, width : int
        Intervals, and groups of equal servers in each, that there is room for.
    share, common : ndarray of int64
        What tenants own, and what nobody does; see `Timeline`.

    Attributes
    ----------
    line : Timeline
        Room over time.
    steps : Steps
        Plans of the rows that are laid out.
    log : Log
        What the first slot holds, in the order in which it was packed.
    order : ndarray of int64, shape (laid out,)
        Rows in the order in which they were laid out.
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
        for whole, part in zip(self.line, state["line"], strict=False):  # type: ignore[call-overload]
            whole[tuple(slice(size) for size in part.shape)] = part
        self.line.used[:] = state["used"]  # type: ignore[call-overload]  # two integers
        self.steps = Steps(*state["steps"])  # type: ignore[misc]  # three arrays
        self.log = Log(*state["log"])  # type: ignore[misc]  # five arrays
        self.order = state["order"]  # type: ignore[assignment]

    def reserve(self, rows: int, entries: int) -> None:
        """Make room for the plans of so many rows, and for so many entries of the log."""
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
        """Make room for so many intervals; plans that are written stay."""
        old = self.line
        fresh = new_timeline(most, old.servers.shape[1], old.share, old.common)
        fresh.used[:] = old.used
        # What nothing uses is not even touched: there is far more room than plans take, and to
        # write zeros into all of it would hold up whoever submits at that moment.
        states = int(old.used[1]) + 1
        for new_array, old_array in zip(fresh[1:8], old[1:8], strict=True):
            kept = old_array[:states]
            new_array[: len(kept)] = kept
        self.line, self.most = fresh, most


def _padded(array: Integers, shape: tuple[int, ...], value: int) -> Integers:
    """Return a larger array that begins with what was there."""
    whole = tuple(map(max, array.shape, shape))
    larger = np.full(whole, value, np.int64) if value else np.zeros(whole, np.int64)
    larger[tuple(slice(size) for size in array.shape)] = array
    return larger


def _wider(array: Integers, runs: Integers, shape: tuple[int, int]) -> Integers:
    """Return a larger array of zeros with the rows that hold runs."""
    larger = np.zeros(shape, np.int64)
    rows, most = np.flatnonzero(runs > 0), int(runs.max(initial=0))
    larger[rows, :most] = array[rows, :most]
    return larger
