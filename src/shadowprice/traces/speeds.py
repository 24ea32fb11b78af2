"""Work and speed of traced jobs; GPU-time is conserved here."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from shadowprice.traces.options import MOST_WORKERS, SynthesisOptions
from shadowprice.traces.throughput import Curve, Family, at_workers
from shadowprice.traces.workload import NANO

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_CHUNK: Final = 50
_MANY: Final = 50 * _CHUNK


class Speeds:
    """Work, step time and worker range of every job; each conserves its GPU-time.

    ``frame`` has the columns of `records.SCHEMA`; ``traced`` is the number of workers in the trace,
    shape (jobs,). Assumptions are appended to ``notes``.

    The attributes are arrays by job: ``duration`` in seconds with the traced workers, as traced or
    as the iterations imply; the work as ``epochs``, ``chunks`` and ``minibatches``;
    ``minibatch_time`` in nanoseconds on one worker without communication, 0 with a curve;
    ``fewest`` and ``most`` workers; and ``curves`` of measured speeds, None without one.
    """

    def __init__(
        self,
        frame: pl.DataFrame,
        families: list[Family],
        traced: Ints,
        options: SynthesisOptions,
        notes: list[str],
    ) -> None:
        described = frame["iterations"].is_not_null().to_numpy()
        iterations = frame["iterations"].fill_null(0).to_numpy().astype(np.int64)
        duration = frame["duration"].fill_null(np.nan).to_numpy().astype(np.float64)
        steps = np.array([family.step_seconds for family in families])
        factor = options.elasticity or 2.0
        widest = np.clip(np.floor(traced * factor), traced, np.maximum(MOST_WORKERS, traced))
        self.most = widest.astype(np.int64)
        self.fewest = traced.copy() if options.elasticity == 1 else np.ones_like(traced)
        self.curves: list[Curve | None] = [None] * frame.height
        rates = np.zeros(frame.height)
        wanted = described if options.speed == "auto" else np.full_like(described, True)
        if options.speed != "linear":
            self._measure(families, traced, wanted, described, options, rates)
        measured = rates > 0
        missing = int((wanted & ~measured).sum()) if options.speed != "linear" else 0
        if missing:
            notes.append(f"{missing} jobs ran with more GPUs than were measured: linear speed")
        comm = self._communication(families, options)
        # Without a traced duration, it is that of the iterations at their speed.
        with np.errstate(divide="ignore"):
            implied = np.where(
                measured, iterations / np.where(measured, rates, 1.0), iterations * steps / traced
            )
        self.duration = np.where(np.isnan(duration), implied, duration)
        untimed = np.isnan(duration) & ~measured
        # Without a traced duration, linear work is the iterations at compute plus communication.
        self.duration[untimed] += (iterations * comm / traced)[untimed]
        batches = np.where(
            measured,
            np.where(described, iterations, np.rint(self.duration * np.where(measured, rates, 1))),
            np.rint(traced * self.duration / (steps + comm)),
        )
        batches = np.maximum(1, batches).astype(np.int64)
        exact = measured & described
        self.chunks, rest = _chunked(batches, self.most, exact)
        self.epochs, self.minibatches, rest = _epochs(rest, measured)
        work = self.chunks * rest
        share = traced * self.duration / work - comm
        short = ~measured & (share < 1e-9)
        if short.any():
            notes.append(f"{int(short.sum())} jobs are shorter than one mini-batch: one is made")
        step = np.where(short, 1e-9, share)
        self.minibatch_time = np.where(measured, 0, np.rint(step * NANO)).astype(np.int64)
        self.most = np.minimum(self.most, self.chunks)
        self.fewest = np.minimum(self.fewest, self.most)

    def _measure(
        self,
        families: list[Family],
        traced: Ints,
        wanted: NDArray[np.bool_],
        described: NDArray[np.bool_],
        options: SynthesisOptions,
        rates: Floats,
    ) -> None:
        """Set curve, rate at the traced workers, and worker range of jobs with a measured speed."""
        known: dict[tuple[int, int], tuple[Curve | None, float]] = {}
        curve: Curve | None
        for at in np.flatnonzero(wanted):
            family, workers = families[at], int(traced[at])
            key = (id(family), workers)
            if key not in known:
                rate = at_workers(family.curve, workers)
                curve = (
                    None if rate is None else dict(sorted({**family.curve, workers: rate}.items()))
                )
                known[key] = (curve, rate or 0.0)
            self.curves[at], rates[at] = known[key]
            curve = self.curves[at]
            if curve is not None and described[at] and options.elasticity == 0:
                self.most[at] = max(curve)

    @staticmethod
    def _communication(families: list[Family], options: SynthesisOptions) -> Floats:
        """Return the seconds of communication per mini-batch, 2 e / b of OASiS (2)."""
        bandwidth = options.worker_bandwidth
        gradients = np.array([family.gradient for family in families], dtype=np.float64)
        return 16.0 * gradients / bandwidth


def _chunked(batches: Ints, most: Ints, exact: NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """Split mini-batches into at least ``most`` chunks, without rounding if ``exact``.

    If rounded, there are ``most`` chunks with equally many mini-batches, the nearest number. If
    exact, there are as many as the smallest divisor in [most, 4 most), or else chunks of one
    mini-batch.
    """
    chunks = np.minimum(most, batches)
    rest = np.maximum(1, np.rint(batches / chunks)).astype(np.int64)
    left = exact & (batches % chunks != 0)
    for at in np.flatnonzero(left):
        total, low = int(batches[at]), int(chunks[at])
        divisor = next((c for c in range(low, 4 * low) if total % c == 0), total)
        chunks[at], rest[at] = divisor, total // divisor
    return chunks, rest


def _epochs(rest: Ints, exact: NDArray[np.bool_]) -> tuple[Ints, Ints, Ints]:
    """Split mini-batches per chunk and job into epochs and chunks of up to 50 mini-batches.

    If not exact, the step time absorbs rounding many mini-batches to the nearest 50 (within 1 %).
    """
    rounded = np.where(~exact & (rest > _MANY), np.rint(rest / _CHUNK) * _CHUNK, rest)
    rest = rounded.astype(np.int64)
    size = np.ones_like(rest)
    for candidate in range(2, _CHUNK + 1):
        size[rest % candidate == 0] = candidate
    return rest // size, size, rest
