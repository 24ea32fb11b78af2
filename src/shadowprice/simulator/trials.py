"""Comparison of policies over several seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import polars as pl

from shadowprice.core import bounds
from shadowprice.policies.choice import PolicyChoice
from shadowprice.results.comparison import MetricRow
from shadowprice.results.metric_definitions import (
    OVER_SEEDS,
    RESTRICTED,
    TIMING_METRICS,
    MetricDefinition,
    best_positions,
    read_metrics,
    restricted_mean_until,
)
from shadowprice.results.run_directory import Fields, RunData
from shadowprice.results.significance import (
    ConfidenceInterval,
    PairedTest,
    compare_to_reference,
    interval,
)
from shadowprice.simulator.driver import ProgressCallback
from shadowprice.simulator.interrupt import StopRequestObserver
from shadowprice.simulator.scenario import Scenario, record_run
from shadowprice.simulator.source import ScenarioSource

ProgressBarFactory = Callable[[str], AbstractContextManager[ProgressCallback | None]]
SeedRun = tuple[str, int, Mapping[str, Any]]
"""A policy's label, a seed, and the ``run.json`` of its run."""


@dataclass(frozen=True, eq=False)
class SeedRuns:
    """Metrics of every policy with every seed."""

    frame: pl.DataFrame  # one row per policy and seed: ``policy``, ``seed``, and the metrics by key

    @property
    def policies(self) -> list[str]:
        """Labels of the policies, in the given order."""
        return self.frame["policy"].unique(maintain_order=True).to_list()

    @property
    def seeds(self) -> list[int]:
        """Seeds with which all policies ran."""
        return self.frame["seed"].unique(maintain_order=True).to_list()

    @property
    def metrics(self) -> list[MetricDefinition]:
        """Metrics that any run has."""
        return [
            metric for metric in OVER_SEEDS if self.frame[metric.key].null_count() < len(self.frame)
        ]

    @cached_property
    def policies_with_variation(self) -> frozenset[str]:
        """Policies whose metrics depend on the seed, besides wall times and the restricted mean.

        The restricted mean is ignored, because it also depends on the ends of other policies' runs.
        """
        ignored = TIMING_METRICS | {RESTRICTED}
        keys = [metric.key for metric in self.metrics if metric.key not in ignored]
        distinct = self.frame.group_by("policy").agg(pl.col(keys).n_unique())
        return frozenset(policy for policy, *counts in distinct.iter_rows() if max(counts) > 1)

    @property
    def remark(self) -> str:
        """Reason why further seeds add nothing; empty if they do."""
        if self.policies_with_variation or len(self.seeds) == 1:
            return ""
        return (
            "nothing in this comparison depends on the seed but times: a job file fixes the "
            "workload, and these policies draw nothing"
        )

    def values(self, policy: str, key: str) -> list[float | None]:
        """Return a metric of a policy, seed by seed."""
        return self.frame.filter(pl.col("policy") == policy)[key].to_list()

    def interval(self, policy: str, key: str) -> ConfidenceInterval | None:
        """Return the mean of a metric of a policy; None if no run has it.

        If the seed doesn't change a policy's runs, they count as one run, without an interval.
        """
        measured_values = [value for value in self.values(policy, key) if value is not None]
        if (
            key not in TIMING_METRICS
            and policy not in self.policies_with_variation
            and len(set(measured_values)) == 1
        ):
            measured_values = measured_values[:1]
        return interval(measured_values) if measured_values else None

    def mean_rows(self) -> list[MetricRow]:
        """Return each metric's means by policy, with confidence intervals."""
        rows = []
        for metric in self.metrics:
            intervals = [self.interval(name, metric.key) for name in self.policies]
            means = [None if each is None else each.mean for each in intervals]
            texts = ["-" if each is None else metric.written_mean(each) for each in intervals]
            rows.append(
                MetricRow(
                    metric.key, metric.name, means, texts, best_positions(means, metric.better)
                )
            )
        return rows

    def against_first(self, key: str) -> dict[str, PairedTest]:
        """Return each policy's difference from the first, with paired tests over the seeds.

        The result is empty if a run lacks the metric, or if there is only one policy. A policy is
        left out if the seed changes neither its runs nor those of the first, because equal pairs
        aren't a sample.
        """
        first, *others = self.policies
        others = [
            name for name in others if not self.policies_with_variation.isdisjoint((first, name))
        ]
        samples = [self.values(name, key) for name in (first, *others)]
        if not others or any(value is None for sample in samples for value in sample):
            return {}
        reference, *rest = [[float(v) for v in sample if v is not None] for sample in samples]
        return dict(zip(others, compare_to_reference(reference, rest), strict=True))

    def record(self) -> Fields:
        """Return plain values: values by seed, means, and tests against the first policy."""
        result: Fields = {"seeds": self.seeds, "confidence": 0.95, "policies": {}}
        if self.remark:
            result["remark"] = self.remark
        tests = {metric.key: self.against_first(metric.key) for metric in self.metrics}
        for name in self.policies:
            result["policies"][name] = {}
            for metric in self.metrics:
                mean = self.interval(name, metric.key)
                entry: Fields = {"values": self.values(name, metric.key)}
                entry |= {} if mean is None else mean.record()
                if name in tests[metric.key]:
                    test = tests[metric.key][name]
                    entry["against_first"] = {
                        **test.difference.record(),
                        "p": test.p,
                        "p_holm": test.adjusted,
                    }
                result["policies"][name][metric.key] = entry
        return result


def seeds_from(seed: int, seeds: int) -> range:
    """Return consecutive seeds, after checking the last against the limit."""
    bounds.SEED.check(seed + seeds - 1, "the last seed", "begin with a smaller one")
    return range(seed, seed + seeds)


def collect_seed_runs(runs: Sequence[SeedRun]) -> SeedRuns:
    """Return the metrics of runs, given as (label, seed, ``run.json``).

    The restricted mean counts times up to the latest end of all runs of a seed. If it counted up to
    each run's own end, a policy that refuses many jobs and ends early would look fast.
    """
    latest: dict[int, int] = {}
    for _, seed, info in runs:
        latest[seed] = max(latest.get(seed, 0), info["summary"]["end"])
    rows = [
        {
            "policy": label,
            "seed": seed,
            **read_metrics(info),
            RESTRICTED: restricted_mean_until(info, latest[seed]),
        }
        for label, seed, info in runs
    ]
    schema: dict[str, Any] = {"policy": pl.String(), "seed": pl.Int64()}
    schema |= {metric.key: pl.Float64() for metric in OVER_SEEDS}
    return SeedRuns(pl.DataFrame(rows, schema=schema, orient="row"))


def run_all(
    scenario: Scenario,
    choices: Sequence[PolicyChoice],
    *,
    stop: StopRequestObserver | None = None,
    bar: ProgressBarFactory = lambda _: nullcontext(None),
    each: Callable[[RunData], None] = lambda _: None,
) -> list[RunData]:
    """Run a scenario under every policy, in order; the list ends with the first partial run.

    All policies are built before any runs, so that a wrong parameter of the last policy doesn't
    waste the other runs. ``bar`` is called with a policy's label. It returns a context manager for
    the run, which gives the progress callback. ``each`` is called with every run as it ends.
    """
    built = [choice.build(scenario.context()) for choice in choices]
    built.reverse()  # `pop` then frees each policy after its run
    runs: list[RunData] = []
    for choice in choices:
        with bar(choice.label) as progress:
            run = record_run(
                scenario,
                choice.label,
                built.pop(),
                settings=choice.settings,
                origin=choice.origin,
                progress=progress,
                stop=stop,
            )
        runs.append(run)
        each(run)
        if run.info["partial"]:
            break
    return runs


def further_seeds(
    source: ScenarioSource,
    choices: Sequence[PolicyChoice],
    seeds: Sequence[int],
    *,
    stop: StopRequestObserver | None = None,
    bar: ProgressBarFactory = lambda _: nullcontext(None),
) -> tuple[list[SeedRun], RunData | None]:
    """Run every policy with every seed; return the runs of complete seeds, and a stopped run."""
    measured: list[SeedRun] = []
    for seed in seeds:
        scenario, _ = source.scenario(seed)
        with bar(f"seed {seed}"):
            runs = run_all(scenario, choices, stop=stop)
        if runs[-1].info["partial"]:
            return measured, runs[-1]
        measured += [(run.policy, seed, run.info) for run in runs]
    return measured, None
