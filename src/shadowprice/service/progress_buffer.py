"""Unwritten progress: the newest report of each job, and points of its progress curve."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Final

from shadowprice.executors.contract import Progressed
from shadowprice.service.clock import SECOND, MonotonicWallClock
from shadowprice.service.read_model import ReadModel
from shadowprice.service.state.report_operations import RecordProgress

MIN_POINT_INTERVAL_NS: Final = SECOND // 2  # minimum time between two points of a job's curve
MAX_POINT_INTERVAL_NS: Final = 3_600 * SECOND  # otherwise a large clock step would stop the curve
POINTS_PER_RUNTIME: Final = 2_000  # interval: running time over this; about 18,000 points a month
POINT_FLUSH_THRESHOLD: Final = 1_000  # more unwritten points are written before the slot ends
MAX_POINTS: Final = 10_000  # maximum number of unwritten points; later ones are omitted


class ProgressBuffer:
    """Buffers progress reports, so that jobs can report more often than the store is written."""

    def __init__(self, clock: MonotonicWallClock, published: ReadModel) -> None:
        self._clock = clock
        self._published = published
        self._reports: dict[str, Progressed] = {}  # newest report of each job
        self._points: list[Progressed] = []
        # By job, in nanoseconds since 1970:
        self._last_point: dict[str, int] = {}  # when its last point was added
        self._last_reports: dict[str, int] = {}  # when its newest report was sent

    def __bool__(self) -> bool:
        return bool(self._reports or self._points)

    @property
    def has_points(self) -> bool:
        """Whether there are unwritten points."""
        return bool(self._points)

    @property
    def needs_write(self) -> bool:
        """Whether there are so many points that they should be written before the slot ends."""
        return len(self._points) > POINT_FLUSH_THRESHOLD

    @property
    def last_reports(self) -> Mapping[str, int]:
        """Time of each job's newest report, in nanoseconds since 1970 (a copy)."""
        return dict(self._last_reports)

    def add(self, report: Progressed) -> None:
        """Buffer a report, and add it to the points unless the previous point is too recent."""
        self._last_reports[report.job] = max(
            self._last_reports.get(report.job, 0), int(report.at * SECOND)
        )
        previous = self._reports.get(report.job)
        if previous is None or (report.generation, report.progress) > (
            previous.generation,
            previous.progress,
        ):
            self._reports[report.job] = report
        now = self._clock.now()
        since = now - self._last_point.get(
            report.job, -now
        )  # negative after the clock was set back
        too_soon = 0 <= since < self._between_points(report.job, now)
        if not too_soon and len(self._points) < MAX_POINTS:
            self._last_point[report.job] = now
            self._points.append(report)

    def _between_points(self, job: str, now: int) -> int:
        """Return the interval of points in nanoseconds, which grows with the job's running time."""
        view = self._published.jobs.get(job)
        ran = 0 if view is None or view.first_start is None else now - view.first_start
        return max(MIN_POINT_INTERVAL_NS, min(MAX_POINT_INTERVAL_NS, ran // POINTS_PER_RUNTIME))

    def take(self) -> RecordProgress:
        """Remove all reports and points, and return the operation that records them."""
        newest, points = self._reports, self._points
        self._reports, self._points = {}, []
        return RecordProgress(newest, points)

    def remove_closed(self, open_jobs: Container[str]) -> None:
        """Remove the times of jobs that aren't open."""
        self._last_point = {
            job: timestamp for job, timestamp in self._last_point.items() if job in open_jobs
        }
        self._last_reports = {
            job: timestamp for job, timestamp in self._last_reports.items() if job in open_jobs
        }
