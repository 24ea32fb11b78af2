"""Comparison of a cluster with larger and smaller clusters on the same workload."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import polars as pl

from shadowprice.core import bounds
from shadowprice.core.amounts import MILLI, Dimension, parse_amount
from shadowprice.core.devices import is_device
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.wording import quote_for_display
from shadowprice.policies.choice import PolicyChoice
from shadowprice.results.columns import typed_columns
from shadowprice.results.difference import CapacityGain
from shadowprice.results.metric_definitions import (
    OVER_SEEDS,
    RESTRICTED,
    MetricDefinition,
    read_metrics,
    restricted_mean_until,
)
from shadowprice.results.run_directory import Fields, RunData
from shadowprice.results.significance import ConfidenceInterval, interval
from shadowprice.simulator.driver import ProgressCallback
from shadowprice.simulator.interrupt import StopRequestObserver
from shadowprice.simulator.scenario import run_policy
from shadowprice.simulator.source import ScenarioSource
from shadowprice.simulator.trials import ProgressBarFactory, run_all


@dataclass(frozen=True, slots=True)
class ClusterChange:
    """Servers that are added to a cluster, or removed."""

    added: tuple[tuple[str, int], ...] = ()
    """Pairs of an entry of the cluster and a number; empty for the cluster as it is."""
    text: str = ""  # label if an amount of a resource was requested

    @classmethod
    def parse(cls, text: str, sign: int = 1, location: str = "--add") -> ClusterChange:
        """Parse ``gpu:2`` or ``gpu:2,net:1``; the ``sign`` -1 removes the servers."""
        added: dict[str, int] = {}
        for part in text.split(","):
            match = re.fullmatch(r"\s*(.+?)\s*:\s*(\d{1,1000})\s*", part)
            if match is None or not int(match[2]):
                got = quote_for_display(part.strip())
                problem = f"expected NAME:COUNT with a count of 1 or more, got {got}"
                raise InputError(Fault(location, problem, "write gpu:2"))
            bounds.SERVERS.check(int(match[2]), location)
            added[match[1]] = added.get(match[1], 0) + sign * int(match[2])
        return cls(tuple(added.items()))

    @property
    def label(self) -> str:
        """Name in tables."""
        names = " ".join(f"{count:+d} {name}" for name, count in self.added)
        return self.text or names or "as it is"

    @property
    def servers(self) -> int:
        """Total number of servers added."""
        return sum(count for _, count in self.added)


NO_CHANGE = ClusterChange()


CapacityAmounts: TypeAlias = str | int | Sequence[str | int]
"""One or several amounts of resources to add, each as `CapacityRequest.parse` reads it."""


@dataclass(frozen=True, slots=True)
class CapacityRequest:
    """An amount of a resource to add: ``8`` GPUs of each type, or ``gpu/a100=8``."""

    amount: int
    name: str | None = None
    """Resource, or entry of the cluster with GPUs; None for every type of GPU."""

    @classmethod
    def parse(cls, text: str, location: str = "--more") -> list[CapacityRequest]:
        """Parse ``8``, or a comma-separated list such as ``gpu/a100=8,cpu=64``."""
        requests = []
        for part in text.split(","):
            match = re.fullmatch(r"\s*(?:(.+?)\s*=\s*)?(\d{1,9})\s*", part)
            if match is None or not int(match[2]):
                hint = "write 8 (GPUs of each type) or gpu/a100=8"
                problem = f"expected an amount of 1 or more, got {quote_for_display(part.strip())}"
                raise InputError(Fault(location, problem, hint))
            requests.append(cls(int(match[2]), match[1]))
        return requests

    def changes(
        self, entries: Sequence[Mapping[str, Any]], location: str = "--more"
    ) -> list[ClusterChange]:
        """Return a change for each type of server that provides the resource.

        Whole servers are added, so the amount may be larger than requested. Entries that differ
        only in name and count are one type, and servers are added to the first one or a named one.
        """
        # Triples of entry, resource and amount.
        provided = [
            (str(entry["name"]), resource, parse_amount(amount))
            for entry in _without_repeated(entries, self.name)
            for resource, amount in entry["capacity"].items()
        ]
        if self.name is None:
            chosen = _without_totals([item for item in provided if is_device(item[1])])
        else:
            chosen = [item for item in provided if item[0] == self.name and is_device(item[1])]
            chosen = _without_totals(chosen) or [item for item in provided if item[1] == self.name]
        chosen = [item for item in chosen if item[2].value and item[2].dimension is Dimension.COUNT]
        if not chosen:
            what = "GPUs" if self.name is None else quote_for_display(self.name)
            names = dict.fromkeys(
                name
                for _, name, amount in provided
                if amount.dimension is Dimension.COUNT and amount.value
            )
            hint = f"write RESOURCE=AMOUNT; countable resources: {', '.join(names)}"
            raise InputError(Fault(location, f"no server has {what}", hint))
        changes = []
        for entry_name, resource, amount in chosen:
            servers = -(-self.amount * MILLI // amount.value)
            bounds.SERVERS.check(servers, location)
            total = servers * amount.value / MILLI
            noun = "server" if servers == 1 else "servers"
            text = f"+{total:g} {resource} ({servers} {entry_name} {noun})"
            changes.append(ClusterChange(((entry_name, servers),), text))
        return changes


def _without_repeated(
    entries: Sequence[Mapping[str, Any]], name: str | None
) -> list[Mapping[str, Any]]:
    """Leave out entries that differ from an earlier one only in name and count, except ``name``."""
    seen: list[dict[str, Any]] = []
    kept = []
    for entry in entries:
        rest = {key: value for key, value in entry.items() if key not in {"name", "count"}}
        if rest not in seen or entry["name"] == name:
            seen.append(rest)
            kept.append(entry)
    return kept


def _without_totals(provided: list[tuple[str, str, Any]]) -> list[tuple[str, str, Any]]:
    """Leave out ``gpu`` of entries that also state their types of GPU, as in a live service."""
    typed = {entry for entry, resource, _ in provided if resource != "gpu"}
    return [item for item in provided if item[1] != "gpu" or item[0] not in typed]


def capacity_changes(
    amounts: CapacityAmounts, entries: Sequence[Mapping[str, Any]], location: str = "--more"
) -> list[ClusterChange]:
    """Return the changes that ``--more`` requests; ``amounts`` are its texts or numbers of GPUs."""
    listed = [amounts] if isinstance(amounts, str | int) else amounts
    requests = [
        request for text in map(str, listed) for request in CapacityRequest.parse(text, location)
    ]
    return list(
        dict.fromkeys(
            change for request in requests for change in request.changes(entries, location)
        )
    )


def _unread(_info: Mapping[str, Any]) -> float | None:  # gains aren't in a single ``run.json``
    return None


_MAIN_METRICS: Final = tuple(
    metric for metric in OVER_SEEDS if metric.key in {"total_utility", "finished", "in_time"}
)
_GAINS: Final = (
    MetricDefinition("gain", "gain", _unread, 1),
    MetricDefinition("gain_per_server", "gain a server", _unread, 1),
    MetricDefinition("gain_per_cost", "gain a cost", _unread, 1),
    MetricDefinition("waiting_saved_hours", "hours of waiting saved", _unread, 1),
)


@dataclass(frozen=True, eq=False)
class WhatIfResult:
    """Metrics of every changed cluster, policy and seed."""

    changes: tuple[ClusterChange, ...]  # the cluster as it is, then the changed ones
    frame: pl.DataFrame
    """One row per change, policy and seed: ``change``, ``servers`` (number added), ``policy``,
    ``seed``, and the metrics by key.

    ``gain`` is the total utility minus that on the cluster as it is, under the same policy and
    seed. ``gain_per_server`` divides the gain by ``servers``. If servers have costs,
    ``gain_per_cost`` divides the gain by the difference of the clusters' costs. The latter is null
    if the difference has the wrong sign, because one run ended much earlier. Negative servers and
    costs are those removed. ``waiting_saved_hours`` sums the differences of waiting times (from
    submission to first start), over the jobs that ran on both clusters."""

    def of(self, change: ClusterChange, policy: str) -> pl.DataFrame:
        """Return the rows of a change under a policy, seed by seed."""
        return self.frame.filter((pl.col("change") == change.label) & (pl.col("policy") == policy))

    def interval(self, change: ClusterChange, policy: str, key: str) -> ConfidenceInterval | None:
        """Return the mean of a column over the seeds; None if no run has it."""
        values = self.of(change, policy)[key].drop_nulls().to_list()
        return interval(values) if values else None

    @property
    def policies(self) -> list[str]:
        """Labels of the policies, in the given order."""
        return self.frame["policy"].unique(maintain_order=True).to_list()

    def table(self, policy: str) -> tuple[list[str], list[list[str]]]:
        """Return the column heads and rows of a policy's table: label of the change, then means."""
        shown = [
            metric
            for metric in (*_MAIN_METRICS, *_GAINS)
            if self.frame[metric.key].null_count() < len(self.frame)
        ]
        rows = []
        for change in self.changes:
            cells = [change.label]
            for metric in shown:
                mean = self.interval(change, policy, metric.key)
                is_own = bool(change.added) or metric not in _GAINS
                cells.append(metric.written_mean(mean) if mean is not None and is_own else "-")
            rows.append(cells)
        return [metric.name.partition(",")[0] for metric in shown], rows

    def record(self) -> Fields:
        """Return plain values."""
        return {
            "changes": [dict(change.added) for change in self.changes],
            "policies": self.policies,
            "seeds": self.frame["seed"].unique(maintain_order=True).to_list(),
            "runs": self.frame.to_dicts(),
        }


def whatif(
    source: ScenarioSource,
    choices: Sequence[PolicyChoice],
    changes: Sequence[ClusterChange],
    seeds: Sequence[int] = (0,),
    *,
    stop: StopRequestObserver | None = None,
    progress: Callable[[str, int], None] | None = None,
) -> WhatIfResult:
    """Run a workload on a cluster as it is, and with servers added or removed.

    Each change is tried alone. Without changes, one more server of each entry is tried. The seeds
    are the same for every cluster, so that gains are differences of pairs. ``progress`` is called
    with (label of the change and policy, seed) before each run. Raises `InputError` if a job can
    never run on a changed cluster. Raises `KeyboardInterrupt` if it is stopped, because a partial
    comparison is useless.
    """
    if not changes:
        changes = [ClusterChange(((name, 1),)) for name in source.kinds(seeds[0])]
    clusters = (NO_CHANGE, *dict.fromkeys(changes))
    for change in clusters:
        # Before any run, so that an invalid change doesn't waste the runs of others.
        source.scenario(seeds[0], dict(change.added))
    rows: list[dict[str, Any]] = []
    for seed in seeds:
        infos: list[Fields] = []
        before: dict[str, RunData] = {}  # runs on the cluster as it is, by label of the policy
        for change in clusters:
            scenario, _ = source.scenario(seed, dict(change.added))
            for choice in choices:
                if progress is not None:
                    progress(f"{change.label}, {choice.label}", seed)
                run = run_policy(scenario, choice, stop=stop)
                if run.info["partial"]:
                    raise KeyboardInterrupt
                as_is = before.setdefault(choice.label, run)
                difference = CapacityGain.of(change.label, dict(change.added), as_is, run)
                rows.append(
                    {
                        "change": change.label,
                        "servers": change.servers,
                        "policy": choice.label,
                        "seed": seed,
                        **read_metrics(run.info),
                        "waiting_saved_hours": difference.waiting_saved_hours,
                    }
                )
                infos.append(run.info)
        # Times are counted up to the latest end of all runs of the seed; see `collect_seed_runs`.
        common_end = max(info["summary"]["end"] for info in infos)
        for row, info in zip(rows[-len(infos) :], infos, strict=True):
            row[RESTRICTED] = restricted_mean_until(info, common_end)
    schema = typed_columns("change servers:i policy seed:i")
    schema |= {metric.key: pl.Float64() for metric in OVER_SEEDS}
    schema["waiting_saved_hours"] = pl.Float64()
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    return WhatIfResult(clusters, _with_gains(frame))


def _with_gains(frame: pl.DataFrame) -> pl.DataFrame:
    base = frame.filter(pl.col("change") == NO_CHANGE.label).select(
        "policy",
        "seed",
        pl.col("total_utility").alias("_utility"),
        pl.col("cost_whole").alias("_cost"),
    )
    gain = pl.col("total_utility") - pl.col("_utility")
    servers = pl.when(pl.col("servers") != 0).then(pl.col("servers"))
    added_cost = pl.col("cost_whole") - pl.col("_cost")
    return (
        frame.join(base, on=["policy", "seed"], how="left", maintain_order="left")
        .with_columns(
            gain.alias("gain"),
            (gain / servers).alias("gain_per_server"),
            pl.when(added_cost * pl.col("servers") > 0)
            .then(gain / added_cost)
            .alias("gain_per_cost"),
        )
        .drop("_utility", "_cost")
    )


def check_larger(source: ScenarioSource, changes: Sequence[ClusterChange], seed: int) -> None:
    """Raise InputError if a larger cluster is invalid, before hours of runs."""
    for change in changes:
        source.scenario(seed, dict(change.added))


def run_with_more(
    source: ScenarioSource,
    choices: Sequence[PolicyChoice],
    changes: Sequence[ClusterChange],
    before: Sequence[RunData],
    seed: int,
    *,
    stop: StopRequestObserver | None = None,
    bar: ProgressBarFactory = lambda _: nullcontext(None),
) -> tuple[list[CapacityGain], RunData | None]:
    """Run every policy on every changed cluster; return the gains, and an interrupted run or None.

    ``before`` has the runs of the policies on the cluster as it is, with the same seed.
    """
    by_policy = {run.policy: run for run in before}
    gains: list[CapacityGain] = []
    for change in changes:
        text, servers = change.label, dict(change.added)
        larger, _ = source.scenario(seed, servers)

        def labelled(
            policy: str, text: str = text
        ) -> AbstractContextManager[ProgressCallback | None]:
            return bar(f"{policy}, {text}")

        for run in run_all(larger, choices, stop=stop, bar=labelled):
            if run.info["partial"]:
                return gains, run
            gains.append(CapacityGain.of(text, servers, by_policy[run.policy], run))
    return gains, None
