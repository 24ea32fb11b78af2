"""Measurements of a job: the parameters of the schedulers' model of a job."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from shadowprice.training.servers.locality import Distance

MIN_WEIGHT: Final = 0.05  # minimum weight of the newest value in a running mean


class RunningMean:
    """A mean, exponentially weighted from the 20th value on; restarts after infinity or NaN."""

    def __init__(self) -> None:
        self.value = 0.0
        self.count = 0

    def add(self, value: float) -> None:
        """Include a value."""
        if not math.isfinite(self.value):
            self.value, self.count = 0.0, 0
        self.count += 1
        self.value += (value - self.value) * max(1.0 / self.count, MIN_WEIGHT)


class TrafficMeter:
    """Bytes moved, and the seconds with active transfers, which enter the meter as a context."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._active = 0  # number of active transfers
        self._since = 0.0  # moment up to which `seconds` counts
        self.bytes = 0
        self.seconds = 0.0

    def __enter__(self) -> TrafficMeter:
        with self._lock:
            if not self._active:
                self._since = time.monotonic()
            self._active += 1
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._add_elapsed()
            self._active -= 1

    def add_bytes(self, size: int) -> None:
        """Count bytes that a transfer has moved; call it before the transfer ends."""
        with self._lock:
            self._add_elapsed()
            self.bytes += size

    def bandwidth(self) -> float:
        """Return the bits per second of active time, 0 before the first transfer."""
        with self._lock:
            return 8.0 * self.bytes / self.seconds if self.seconds > 0 else 0.0

    def _add_elapsed(self) -> None:
        """Count the time up to now, even if transfers continue; the caller holds the lock."""
        if self._active:
            now = time.monotonic()
            self.seconds += now - self._since
            self._since = now


@dataclass(slots=True)
class LeaderMetrics:
    """Measurements of the leading server, in seconds, bytes, and bit/s while data moves."""

    gradient_bytes: int = 0
    minibatch_time: RunningMean = field(default_factory=RunningMean)  # OASiS's tau: no exchange
    exchange_time: RunningMean = field(default_factory=RunningMean)  # push and pull
    update_time: RunningMean = field(default_factory=RunningMean)  # Astraea's G
    worker_bandwidth: RunningMean = field(default_factory=RunningMean)  # OASiS's b
    ps_bandwidth: float = 0.0  # OASiS's B, as far as workers used the bandwidth
    staleness: RunningMean = field(default_factory=RunningMean)  # mini-batches from pull to push
    max_staleness: int = 0
    loss: RunningMean = field(default_factory=RunningMean)
    distances: Counter[Distance] = field(default_factory=Counter)  # of chunks with a known location

    def metrics(self) -> dict[str, float]:
        """Return the available metrics of a report, in seconds, bytes and bits per second."""
        metrics = {"gradient_bytes": float(self.gradient_bytes)}
        for name in ("minibatch_time", "exchange_time", "update_time", "worker_bandwidth"):
            running: RunningMean = getattr(self, name)
            if running.count:
                metrics[name] = running.value
        if self.ps_bandwidth:
            metrics["ps_bandwidth"] = self.ps_bandwidth
        if self.staleness.count:
            metrics |= {
                "staleness": self.staleness.value,
                "max_staleness": float(self.max_staleness),
            }
        if self.loss.count:
            metrics["loss"] = self.loss.value
        if assigned := self.distances.total():
            for distance in Distance:
                metrics[f"{distance.name.lower()}_chunks"] = float(self.distances[distance])
            metrics["local_share"] = self.distances[Distance.LOCAL] / assigned
        return metrics
