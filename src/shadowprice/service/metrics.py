"""Prometheus metrics of the service, named by Prometheus' conventions."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from shadowprice.core.budget import in_points
from shadowprice.service.budgets.accounts import Account
from shadowprice.service.clock import SECOND
from shadowprice.service.state.durable_state import StreamEvent
from shadowprice.service.state.job_views import JobView, State

# Upper limits of histogram buckets, in seconds:
_FAST: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_SLOW: Final = (0.01, 0.1, 1, 10, 60, 300, 1_800, 3_600, 21_600, 86_400)
MAX_DISPLACED_JOBS: Final = 10_000  # maximum number of displaced jobs that await their next resize
_WAITING: Final = {State.PENDING: "undecided", State.STANDBY: "standby", State.ADMITTED: "planned"}
"""Value of the label ``reason`` of waiting jobs, by state."""


class Metrics:
    """The metrics of one service, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._displaced_jobs: dict[str, None] = {}  # that were not resized since, oldest first
        self._open_jobs: Tally[tuple[State, str]] = Tally()
        name, registry = "shadowprice", self.registry
        gauge = partial(Gauge, namespace=name, registry=registry)
        counter = partial(Counter, namespace=name, registry=registry)
        histogram = partial(Histogram, namespace=name, registry=registry, buckets=_FAST)
        self.jobs = gauge("jobs", "Open jobs.", ("state", "tenant"))
        self.pending = gauge("pending_jobs", "Jobs that wait, by why.", ("tenant", "reason"))
        self.admission = histogram(
            "admission_wait_seconds",
            "From a job's submission to the first decision on it.",
            buckets=_SLOW,
        )
        self.price = gauge(
            "shadow_price",
            "Price of all of a server's resource in the coming slot, in utility.",
            ("server_class", "resource"),
        )
        self.promises = counter("promises", "Promises by what became of them.", ("outcome",))
        self.orders = counter(
            "executor_commands", "Commands issued to the executor.", ("kind", "cause")
        )
        self.decision = histogram("policy_decision_seconds", "Time to decide on an event.")
        self.commit = histogram(
            "store_commit_seconds", "Time to apply a batch of operations and commit it."
        )
        self.reconciled = histogram(
            "trainingjob_reconcile_seconds",
            "Time to reconcile a TrainingJob once, requests included.",
        )
        self.lag = gauge(
            "journal_lag_seconds", "Age of the oldest operation that is not written yet."
        )
        self.slot_lag = gauge("slot_lag_seconds", "How late the running slot began.")
        self.events = counter("events", "Entries of the event stream.", ("kind",))
        self.event_subscribers = gauge("event_subscribers", "Subscribers of the event stream.")
        self.sequence = gauge("journal_sequence", "Number of the last event.")
        self.failures = counter("failures", "Errors of the service, by component.", ("component",))
        self.executor_errors = counter("executor_errors", "Failed calls to the executor.")
        self.writer = gauge("leader", "1 if this instance is the leader.")
        self.points_held = gauge(
            "points_held", "Points that a tenant holds and may spend.", ("tenant",)
        )
        self.points_spent = gauge(
            "points_spent", "Points that jobs used in the current period.", ("tenant",)
        )
        self.timespan_end = gauge(
            "timespan_end_seconds",
            "When nothing may run any more, in seconds since 1970; 0 without an end.",
        )
        self.timespan_ended = gauge("timespan_ended", "1 after the end of the timespan.")
        self.start_up = gauge(
            "start_up_seconds",
            "Median time from the beginning of a slot until a job that starts in it works.",
        )
        self.warnings = gauge("warning", "1 while a warning holds.", ("code",))
        self.clock_steps = counter("clock_steps", "Times that the wall clock was set.")

    def count_failure(self, what: str) -> None:
        """Count an internal failure of a component."""
        self.failures.labels(what).inc()

    def record_events(self, events: Collection[StreamEvent], views: dict[str, JobView]) -> None:
        """Count the events of a commit; ``views`` are the jobs that it changed."""
        times = {event.at for event in events}
        for view in views.values():
            if view.decided in times:  # its first decision is in this commit
                self.admission.observe((view.decided - view.submitted) / SECOND)
        for event in events:
            self.events.labels(event.kind).inc()
            match event.kind:
                case "moved" | "broken":
                    self.promises.labels(event.kind).inc()
                case "finished" if event.data.get("kept") is not None:
                    self.promises.labels("kept" if event.data["kept"] else "missed").inc()
                case "started" | "stopped":
                    self.orders.labels(event.kind, "plan").inc()
                case "resized":
                    cause = "displaced" if self._was_displaced(event.job) else "plan"
                    self.orders.labels(event.kind, cause).inc()
                case "displaced" if event.job is not None:
                    self._displaced_jobs[event.job] = None
                    while len(self._displaced_jobs) > MAX_DISPLACED_JOBS:
                        del self._displaced_jobs[next(iter(self._displaced_jobs))]
                case _:
                    pass

    def _was_displaced(self, job: str | None) -> bool:
        """Return whether a job was displaced since its last resize, and forget that."""
        return job is not None and self._displaced_jobs.pop(job, 0) is None

    def count_job(self, before: JobView | None, after: JobView | None) -> None:
        """Count a changed job; ``before`` is None if it is new, and ``after`` if it is closed."""
        if before is not None:
            self._open_jobs[before.state, before.tenant or ""] -= 1
        if after is not None:
            self._open_jobs[after.state, after.tenant or ""] += 1

    def scrape(self, accounts: Iterable[Account], prices: Mapping[tuple[str, str], float]) -> bytes:
        """Return the metrics as text. Gauges have only current jobs, accounts and prices."""
        self.price.clear()
        for (kind, resource), price in prices.items():
            self.price.labels(kind, resource).set(price)
        self.points_held.clear()
        self.points_spent.clear()
        for account in accounts:
            self.points_held.labels(account.tenant).set(in_points(account.balance))
            self.points_spent.labels(account.tenant).set(in_points(account.spent))
        self.jobs.clear()
        self.pending.clear()
        self._open_jobs = +self._open_jobs  # drops counts of 0
        for (state, tenant), count in self._open_jobs.items():
            self.jobs.labels(state.value, tenant).set(count)
            if state in _WAITING:
                self.pending.labels(tenant, _WAITING[state]).set(count)
        return generate_latest(self.registry)
