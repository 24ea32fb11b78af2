"""Work and speed of traced jobs, with their GPU-time conserved."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from shadowprice.traces.options import MAX_WORKERS, SynthesisOptions
from shadowprice.traces.throughput import Curve, Family, rate_at
from shadowprice.traces.workload import NANO

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_CHUNK: Final = 50
_MANY: Final = 50 * _CHUNK


class JobSpeeds:
    """Work, step time and worker range of every job; each conserves its GPU-time.

    ``frame`` has the columns of `records.SCHEMA`. ``traced`` is the number of workers in the trace,
    shape (jobs,). Assumptions are appended to ``notes``.

    The attributes are arrays by job. ``duration``: seconds with the traced workers, from the trace
    or implied by the iterations. ``epochs``, ``chunks`` and ``minibatches``: the work.
    ``minibatch_time``: nanoseconds on one worker without communication; 0 with a curve.
    ``min_workers`` and ``max_workers``: limits of the number of workers. ``curves``: measured
    speeds, or None.
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
        widest = np.clip(np.floor(traced * factor), traced, np.maximum(MAX_WORKERS, traced))
        self.max_workers = widest.astype(np.int64)
        self.min_workers = traced.copy() if options.elasticity == 1 else np.ones_like(traced)
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
        self.chunks, rest = _split_into_chunks(batches, self.max_workers, exact)
        self.epochs, self.minibatches, rest = _epochs(rest, measured)
        work = self.chunks * rest
        share = traced * self.duration / work - comm
        short = ~measured & (share < 1e-9)
        if short.any():
            notes.append(f"{int(short.sum())} jobs are shorter than one mini-batch: one is made")
        step = np.where(short, 1e-9, share)
        self.minibatch_time = np.where(measured, 0, np.rint(step * NANO)).astype(np.int64)
        self.max_workers = np.minimum(self.max_workers, self.chunks)
        self.min_workers = np.minimum(self.min_workers, self.max_workers)

    def _measure(
        self,
        families: list[Family],
        traced: Ints,
        wanted: NDArray[np.bool_],
        described: NDArray[np.bool_],
        options: SynthesisOptions,
        rates: Floats,
    ) -> None:
        """Set curve, rate and worker range of each job that has a measured speed."""
        cache: dict[tuple[int, int], tuple[Curve | None, float]] = {}
        curve: Curve | None
        for index in np.flatnonzero(wanted):
            family, workers = families[index], int(traced[index])
            key = (id(family), workers)
            if key not in cache:
                rate = rate_at(family.curve, workers)
                curve = (
                    None if rate is None else dict(sorted({**family.curve, workers: rate}.items()))
                )
                cache[key] = (curve, rate or 0.0)
            self.curves[index], rates[index] = cache[key]
            curve = self.curves[index]
            if curve is not None and described[index] and options.elasticity == 0:
                self.max_workers[index] = max(curve)

    @staticmethod
    def _communication(families: list[Family], options: SynthesisOptions) -> Floats:
        """Return the seconds of communication per mini-batch, 2 e / b of OASiS (2)."""
        bandwidth = options.worker_bandwidth
        gradients = np.array([family.gradient for family in families], dtype=np.float64)
        return 16.0 * gradients / bandwidth


def _split_into_chunks(batches: Ints, wanted: Ints, exact: NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """Split mini-batches into at least ``wanted`` chunks, without rounding if ``exact``.

    If rounded, there are ``wanted`` chunks with equal numbers of mini-batches, rounded to the
    nearest. If exact, the number of chunks is the smallest divisor in [wanted, 4 wanted). Without
    a divisor, every chunk has one mini-batch.
    """
    chunks = np.minimum(wanted, batches)
    rest = np.maximum(1, np.rint(batches / chunks)).astype(np.int64)
    uneven = exact & (batches % chunks != 0)
    for index in np.flatnonzero(uneven):
        total, low = int(batches[index]), int(chunks[index])
        divisor = next(
            (chunk_count for chunk_count in range(low, 4 * low) if total % chunk_count == 0), total
        )
        chunks[index], rest[index] = divisor, total // divisor
    return chunks, rest


def _epochs(rest: Ints, exact: NDArray[np.bool_]) -> tuple[Ints, Ints, Ints]:
    """Split mini-batches per chunk and job into epochs and chunks of up to 50 mini-batches.

    If not exact, the step time absorbs rounding many mini-batches to the nearest 50 (within 1 %).
    """
    nearest = np.where(~exact & (rest > _MANY), np.rint(rest / _CHUNK) * _CHUNK, rest)
    rest = nearest.astype(np.int64)
    size = np.ones_like(rest)
    for candidate in range(2, _CHUNK + 1):
        size[rest % candidate == 0] = candidate
    return rest // size, size, rest
