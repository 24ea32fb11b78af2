"""Random slots for PD-ORS's kernels, many of them degenerate, and the literal rounding loop."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Slot:
    """Prices, free capacity and demands of one slot, and the requested pairs."""

    price_worker: Floats
    price_server: Floats
    free: Integers
    worker: Integers
    server: Integers
    workers: Integers
    servers: Integers

    @property
    def machines(self) -> int:
        return len(self.price_worker)

    @property
    def place(self) -> tuple[Floats, Floats, Integers, Integers, Integers]:
        """The machines as the job sees them."""
        return self.price_worker, self.price_server, self.free, self.worker, self.server


def random_slot(rng: np.random.Generator, *, wide_prices: bool = False) -> Slot:
    """Draw a slot; equal machines, equal or zero prices, full machines and ties are common."""
    machines, resources = int(rng.integers(1, 14)), int(rng.integers(1, 6))
    style = rng.integers(0, 5)
    worker, server = rng.integers(0, 6, resources), rng.integers(0, 6, resources)
    top = 30
    if style == 0:
        worker, server = rng.integers(0, 10**9, resources), rng.integers(0, 10**9, resources)
        top = 5 * 10**9
    if not worker.any():
        worker[0] = 1
    if not server.any() and rng.random() < 0.5:
        server[0] = 1
    if style == 1:
        free = np.tile(rng.integers(0, top, resources), (machines, 1))
    elif style == 2:
        free = rng.integers(0, 4, (machines, resources)) * 6
    else:
        free = rng.integers(0, top, (machines, resources))
    low = -30.0 if wide_prices else -4.0
    price_worker, price_server = np.exp(rng.uniform(low, 2, (2, machines)))
    match rng.integers(0, 6):
        case 0:
            price_worker[:], price_server[:] = price_worker[0], price_server[0]
        case 1:
            price_worker, price_server = rng.integers(0, 3, (2, machines)) * 1.0
        case 2:
            price_worker[:], price_server[:] = 0.0, 0.0
        case 3:
            twin = rng.integers(0, 2, machines) % machines
            price_worker, price_server = price_worker[twin], price_server[twin]
        case 4:
            price_worker[rng.random(machines) < 0.2] = np.inf
    workers = np.arange(1, int(rng.integers(1, 16)) + 1)
    servers = np.ceil(workers * rng.random()).astype(np.int64)
    if rng.random() < 0.1:
        servers[:] = 0
    return Slot(price_worker, price_server, free, worker, server, workers, servers)


def round_literally(
    relaxed: tuple[Floats, Floats],
    slot: Slot,
    workers: int,
    servers: int,
    gain: float,
    tries: int,
    rng: np.random.Generator,
) -> tuple[int, Integers, Integers]:
    """Algorithm 4 steps 9-11 as written: round until feasible, 0 rounds after `tries` failures."""
    raised_w, raised_s = gain * relaxed[0], gain * relaxed[1]
    w = s = np.zeros(slot.machines, dtype=np.int64)
    for tried in range(1, tries + 1):
        w = (np.floor(raised_w) + (rng.random(slot.machines) < raised_w % 1)).astype(np.int64)
        s = (np.floor(raised_s) + (rng.random(slot.machines) < raised_s % 1)).astype(np.int64)
        if (
            workers <= w.sum() <= slot.workers[-1]
            and servers <= s.sum() <= w.sum()
            and (np.outer(w, slot.worker) + np.outer(s, slot.server) <= slot.free).all()
        ):
            return tried, w, s
    return 0, w, s


def polygon_corners(slot: Slot, machine: int, most: int) -> Floats:
    """Every corner of a machine's polygon, by intersecting all pairs of its lines, shape (n, 2)."""
    lines = [(1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (1.0, 0.0, float(most)), (0.0, 1.0, float(most))]
    for r in range(len(slot.worker)):
        a, b = float(slot.worker[r]), float(slot.server[r])
        if a or b:
            scale = max(a, b)
            lines.append((a / scale, b / scale, slot.free[machine, r] / scale))
    corners = []
    for i, (a, b, c) in enumerate(lines):
        for d, e, f in lines[:i]:
            det = a * e - b * d
            if abs(det) < 1e-12:
                continue
            w, s = (c * e - b * f) / det, (a * f - c * d) / det
            slack = 1e-9 * max(1.0, most)
            inside = w >= -slack and s >= -slack
            if inside and all(p * w + q * s <= bound + slack for p, q, bound in lines[2:]):
                corners.append((max(w, 0.0), max(s, 0.0)))
    return np.array(corners)
