"""Python API: the commands as functions that return results with polars frames.

.. code-block:: python

    import shadowprice

    run = shadowprice.simulate("cluster.yaml", "jobs.yaml", policy="oasis")
    run.jobs.filter(run.jobs["outcome"] == "refused")
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from shadowprice.core import bounds
from shadowprice.core.collection import few_collections
from shadowprice.core.defaults import DEFAULT_POLICY
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.paths import expand_home
from shadowprice.core.relative_values import STATED, check_values
from shadowprice.core.wording import quote_for_display
from shadowprice.inputs import given
from shadowprice.policies.choice import PolicyChoice, check_choices
from shadowprice.results.columns import typed_columns
from shadowprice.results.comparison import (
    comparison_short_table,
    display_rows,
    is_comparison,
    write_compared_run,
    write_comparison,
)
from shadowprice.results.difference import CapacityGain, RunDiff, diff_runs
from shadowprice.results.listing import parse_slot
from shadowprice.results.output_paths import AtomicDirectory
from shadowprice.results.report.page import write_run_with_report
from shadowprice.results.run_directory import Fields, RunData, is_run, read_run
from shadowprice.results.slot_snapshot import SlotSnapshot, slot_snapshot_of
from shadowprice.short_table import ShortTable, ShownAsTable
from shadowprice.simulator.lengths import (
    KNOWN,
    check_advice_lengths,
    parse_lengths,
    with_lengths_in_label,
)
from shadowprice.simulator.scenario import Scenario, random_draws, run_policy
from shadowprice.simulator.source import ScenarioSource
from shadowprice.simulator.trials import (
    SeedRuns,
    collect_seed_runs,
    further_seeds,
    run_all,
    seeds_from,
)
from shadowprice.simulator.whatif import (
    CapacityAmounts,
    ClusterChange,
    capacity_changes,
    check_larger,
    run_with_more,
)
from shadowprice.simulator.whatif import WhatIfResult as Alternatives
from shadowprice.simulator.whatif import whatif as run_whatif

PathLike = str | Path
Parameters = Mapping[str, Any]
Policies = str | Sequence[str | tuple[str, Parameters]]
"""A name, or a sequence of names and (name, parameters) pairs."""


@dataclass(frozen=True, eq=False, repr=False)
class Result(ShownAsTable):
    """A run and its tables: the content of a run directory."""

    run: RunData

    def short_table(self) -> ShortTable:
        """Return the metrics that ``simulate`` prints, except elapsed times."""
        title = f"Result of {self.policy}{', partial' if self.partial else ''}"
        return comparison_short_table(title, [self.policy], display_rows([self.run]))

    @property
    def policy(self) -> str:
        """Name of the policy, with the parameters of a variant."""
        return self.run.policy

    @property
    def partial(self) -> bool:
        """Whether the run was interrupted."""
        return bool(self.run.info["partial"])

    @property
    def info(self) -> Fields:
        """Content of ``run.json``: effective parameters, inputs, versions, times."""
        return self.run.info

    @property
    def summary(self) -> Fields:
        """The summary metrics of ``run.json``."""
        return self.run.summary

    @property
    def jobs(self) -> pl.DataFrame:
        """One row per job, as ``jobs.parquet``."""
        return self.run.jobs

    @property
    def slots(self) -> pl.DataFrame:
        """One row per slot, as ``slots.parquet``."""
        return self.run.slots

    @property
    def allocations(self) -> pl.DataFrame:
        """Placements by slot, as ``allocations.parquet``, with server names."""
        names = pl.Series("server", self.run.server_names, dtype=pl.String())
        frame = self.run.allocations
        return frame.with_columns(names.gather(frame["server"]).alias("server"))

    @property
    @few_collections()
    def decisions(self) -> pl.DataFrame:
        """Decisions in order, one row each.

        Columns: ``job``, ``slot``, ``outcome``, ``reason``, ``payoff``, ``utility``, ``cost`` and
        ``completion``.
        """
        schema = typed_columns("job slot:i outcome reason payoff:f utility:f cost:f completion:i")
        rows = [
            {name: decision.get(name) for name in schema} for decision in self.run.decisions(False)
        ]
        return pl.DataFrame(rows, schema=schema, orient="row")

    @property
    @few_collections()
    def payments(self) -> pl.DataFrame | None:
        """Payments between tenants; None if the policy has none."""
        if self.run.payments is None:
            return None
        rows = [*self.run.payments()]
        schema = typed_columns("job slot:i payer payee")
        kinds = [*dict.fromkeys(name for row in rows for name in row if name not in schema)]
        schema |= dict.fromkeys(kinds or ["worker", "ps"], pl.Float64())
        return pl.DataFrame(rows, schema=schema, orient="row").fill_null(0.0)

    def at(self, slot: int | str) -> SlotSnapshot:
        """Return the state in one slot: ``jobs`` that run or wait, and ``servers``.

        ``slot`` may be a time from the start such as ``2h``.
        """
        seconds = self.info["cluster"]["slot_seconds"]
        return slot_snapshot_of(self.run, parse_slot(str(slot), seconds, "slot"))

    @property
    def advice(self) -> dict[str, Fields] | None:
        """Changes that would have admitted refused jobs, by job, as in ``advice.jsonl``.

        None if no advice was requested.
        """
        if "advice" not in self.info:
            return None
        return {job: advice.record() for job, advice in self.run.advice.items()}

    def diff(self, other: Result) -> RunDiff:
        """Return the ``jobs`` with another outcome in another run, and the causes."""
        return diff_runs(self.run, other.run)

    def save(self, folder: PathLike) -> Path:
        """Write the run directory with its report page.

        An earlier run is replaced; a folder with other content is an error.
        """
        path = _path(folder, "folder")
        with AtomicDirectory(path, is_run) as pending:
            write_run_with_report(self.run, pending.path)
            pending.commit()
        return path


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(ShownAsTable):
    """Several policies on one workload, for one or several seeds.

    Parameters
    ----------
    runs : dict of str to Result
        The runs of the first seed, by label.
    trials : SeedRuns
        Metrics of all seeds.
    gains : sequence of CapacityGain
        Gains from more servers with the first seed; empty if not requested.
    drawn : sequence of str
        What was drawn at random in the workload and by policies, in words.
    """

    runs: Mapping[str, Result]
    trials: SeedRuns
    gains: Sequence[CapacityGain] = ()
    drawn: Sequence[str] = ()

    def short_table(self) -> ShortTable:
        """Return the metrics that ``compare`` prints, except elapsed times."""
        seeds = len(self.trials.seeds)
        if seeds == 1:
            runs = [result.run for result in self.runs.values()]
            return comparison_short_table("Comparison", list(self.runs), display_rows(runs))
        title = f"Comparison, mean of {seeds} seeds ± 95 %"
        if self.trials.remark:
            title += f"; {self.trials.remark}"
        return comparison_short_table(title, self.trials.policies, self.trials.mean_rows())

    def __getitem__(self, label: str) -> Result:
        """Return the run of a policy with the first seed."""
        return self.runs[label]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the labels of ``runs``."""
        return iter(self.runs)

    def __len__(self) -> int:
        return len(self.runs)

    def save(self, folder: PathLike) -> Path:
        """Write the comparison's page and data, and a directory for each run.

        An earlier comparison is replaced; a folder with other content is an error.
        """
        path = _path(folder, "folder")
        runs = [result.run for result in self.runs.values()]
        with AtomicDirectory(path, is_comparison) as pending:
            for run in runs:
                write_compared_run(run, pending.path)
            has_several_seeds = len(self.trials.seeds) > 1
            trials = self.trials.record() if has_several_seeds else None
            write_comparison(runs, pending.path, trials, self.gains, self.drawn)
            pending.commit()
        return path

    @property
    def frame(self) -> pl.DataFrame:
        """One row per policy and seed, with every metric."""
        return self.trials.frame

    @property
    def means(self) -> pl.DataFrame:
        """One row per metric and policy: ``mean``, and ``low`` and ``high`` (95 % interval)."""
        rows = []
        for metric in self.trials.metrics:
            for name in self.trials.policies:
                mean = self.trials.interval(name, metric.key)
                if mean is not None:
                    rows.append({"metric": metric.key, "policy": name} | mean.record())
        schema = typed_columns("metric policy mean:f low:f high:f count:i")
        return pl.DataFrame(rows, schema=schema, orient="row")

    @property
    def tests(self) -> pl.DataFrame:
        """Differences from the first policy, with paired permutation tests over the seeds.

        A policy is left out if the seeds change neither its runs nor the first policy's runs. If
        the seeds change no run at all, ``trials.remark`` says so.
        """
        rows = [
            {"metric": metric.key, "policy": name}
            | test.difference.record()
            | {"p": test.p, "p_holm": test.adjusted}
            for metric in self.trials.metrics
            for name, test in self.trials.against_first(metric.key).items()
        ]
        schema = typed_columns("metric policy mean:f low:f high:f count:i p:f p_holm:f")
        return pl.DataFrame(rows, schema=schema, orient="row")


@dataclass(frozen=True, eq=False, repr=False)
class WhatIf(ShownAsTable):
    """A workload on a cluster as it is, and with servers added or removed."""

    result: Alternatives

    def short_table(self) -> ShortTable:
        """Return the table that ``whatif`` prints, with a row for each policy and change."""
        rows: list[list[str]] = []
        columns: list[str] = []
        for policy in self.result.policies:
            columns, of_policy = self.result.table(policy)
            rows += ([policy, *row] for row in of_policy)
        numeric = range(2, 2 + len(columns))
        return ShortTable("What if", ("policy", "change", *columns), rows, len(rows), numeric)

    @property
    def frame(self) -> pl.DataFrame:
        """One row per change, policy and seed, with metrics and gains."""
        return self.result.frame

    @property
    def gains(self) -> pl.DataFrame:
        """Mean gains over the seeds, one row per change and policy.

        Columns: ``gain``, ``gain_per_server``, ``gain_per_cost`` and ``waiting_saved_hours``.
        """
        return (
            self.frame.filter(pl.col("servers") != 0)  # without the rows of the unchanged cluster
            .group_by("change", "policy", maintain_order=True)
            .agg(pl.col("gain", "gain_per_server", "gain_per_cost", "waiting_saved_hours").mean())
        )


@few_collections()
def simulate(
    cluster: PathLike | Mapping[str, Any] | None = None,
    jobs: PathLike | Iterable[Mapping[str, Any]] | None = None,
    policy: str = DEFAULT_POLICY,
    *,
    trace: str | None = None,
    parameters: Parameters | None = None,
    incidents: PathLike | Iterable[Mapping[str, Any]] | None = None,
    until: str | None = None,
    slot: str = "20min",
    load: float = 1.0,
    seed: int = 0,
    skip_invalid: bool = False,
    lengths: str = KNOWN,
    values: str = STATED,
    advice_seconds: float | None = None,
) -> Result:
    """Run a workload under one policy, as ``shadowprice simulate`` does.

    Invalid input raises an `InputError` with all diagnostics.

    Parameters
    ----------
    cluster : path or mapping, optional
        Cluster file, or its content.
    jobs : path or iterable of mappings, optional
        Job file, or its jobs. Numbers may be numpy's, in all inputs.
    policy : str
        Name of the policy, or ``./file.py:NAME``.
    trace : str, optional
        A trace instead of jobs, such as ``philly:PATH?limit=1000``. Without ``cluster``, a cluster
        is sized to the trace by ``load`` and ``slot``.
    parameters : mapping, optional
        Parameters of the policy; nested ones as nested mappings.
    incidents : path or iterable of mappings, optional
        Lost and restored servers and cancelled jobs: incident file, or its incidents.
    until : str, optional
        Timespan, such as ``300 slots``.
    slot, load
        Slot length and load of the cluster that is sized to a trace.
    seed : int
        Random seed.
    skip_invalid : bool
        Whether to leave invalid jobs out.
    lengths : str
        Lengths of jobs that the policy sees: ``known``, ``limits`` (time limits) or ``unknown``
        (predictions).
    values : str
        How values of jobs count: as ``stated``, or ``relative`` to those of their tenant's other
        jobs.
    advice_seconds : float, optional
        Seconds to search for changes that would have admitted refused jobs, the most valuable job
        first. A search that has started is completed. None for no search. See `Result.advice`.
    """
    seed = _seed(seed)
    advice_seconds = _advice_seconds(advice_seconds)
    _check_name(policy)
    modes = _lengths(lengths, advice_seconds)
    if len(modes) > 1:
        raise InputError(Fault("lengths", "expected one value", "use compare for several"))
    source = _source(cluster, jobs, trace, incidents, until, slot, load, skip_invalid)
    scenario, _ = source.with_lengths(modes[0]).scenario(seed)
    check_values(values, "values")
    scenario = scenario.with_values(values)
    if advice_seconds is not None and values != STATED:
        problem = "needs stated values"
        raise InputError(Fault("advice_seconds", problem, "leave out one of the two"))
    settings = _parameters(parameters, "parameters")
    named = PolicyChoice.named(policy, settings, location="policy")
    choice = with_lengths_in_label(replace(named, titled=named.name), modes[0])
    return Result(_with_advice(run_policy(scenario, choice), scenario, choice, advice_seconds))


@few_collections()
def compare(
    cluster: PathLike | Mapping[str, Any] | None = None,
    jobs: PathLike | Iterable[Mapping[str, Any]] | None = None,
    policies: Policies = (DEFAULT_POLICY, "fifo"),
    *,
    seeds: int = 1,
    trace: str | None = None,
    incidents: PathLike | Iterable[Mapping[str, Any]] | None = None,
    until: str | None = None,
    slot: str = "20min",
    load: float = 1.0,
    seed: int = 0,
    skip_invalid: bool = False,
    lengths: str = KNOWN,
    advice_seconds: float | None = None,
    more: CapacityAmounts = (),
) -> Comparison:
    """Run a workload under several policies, as ``shadowprice compare`` does.

    A signal raises `KeyboardInterrupt`, because a partial comparison is useless.

    Parameters
    ----------
    cluster, jobs, trace, incidents, until, slot, load, skip_invalid
        As in `simulate`.
    policies : sequence of str or (str, mapping)
        Names, references ``./file.py:NAME``, or (name, parameters).
    seeds : int
        Number of seeds: ``seed``, ``seed + 1`` and so on.
    seed : int
        The first seed.
    lengths : str
        As in `simulate`. With several, such as ``known,unknown``, every policy runs with each.
    advice_seconds : float, optional
        As in `simulate`, for every policy's run with the first seed.
    more : str, int, or sequence of them
        Capacity to add, as ``--more`` does: ``8`` for eight GPUs of each type in turn.
    """
    chosen = seeds_from(_seed(seed), _seeds(seeds))
    advice_seconds = _advice_seconds(advice_seconds)
    modes = _lengths(lengths, advice_seconds)
    source = _source(cluster, jobs, trace, incidents, until, slot, load, skip_invalid)
    choices = _choices(policies)
    scenario, _ = source.scenario(chosen[0])
    for mode in modes:
        if mode != KNOWN:  # some policies need all lengths: fail before the first run
            for choice in choices:
                choice.build(scenario.with_lengths(mode).context())
    changes = _capacity_changes(more, source, chosen[0])
    check_larger(source, changes, chosen[0])
    runs, further, gains = [], [], []
    for mode in modes:
        labelled = [with_lengths_in_label(choice, mode) for choice in choices]
        mode_runs = run_all(scenario.with_lengths(mode), labelled)
        if mode_runs[-1].info["partial"]:
            raise KeyboardInterrupt
        runs += [
            _with_advice(run, scenario, choice, advice_seconds)
            for run, choice in zip(mode_runs, labelled, strict=True)
        ]
        more_runs, stopped = further_seeds(source.with_lengths(mode), labelled, chosen[1:])
        if stopped is not None:
            raise KeyboardInterrupt
        further += more_runs
        mode_gains, stopped_run = run_with_more(
            source.with_lengths(mode), labelled, changes, mode_runs, chosen[0]
        )
        if stopped_run is not None:
            raise KeyboardInterrupt
        gains += mode_gains
    infos = [(run.policy, chosen[0], run.info) for run in runs]
    trials = collect_seed_runs([*infos, *further])
    results = {run.policy: Result(run) for run in runs}
    return Comparison(results, trials, gains, random_draws(scenario, choices))


@few_collections()
def whatif(
    cluster: PathLike | Mapping[str, Any] | None = None,
    jobs: PathLike | Iterable[Mapping[str, Any]] | None = None,
    policies: Policies = DEFAULT_POLICY,
    *,
    changes: Sequence[Mapping[str, int]] = (),
    more: CapacityAmounts = (),
    seeds: int = 1,
    trace: str | None = None,
    incidents: PathLike | Iterable[Mapping[str, Any]] | None = None,
    until: str | None = None,
    slot: str = "20min",
    load: float = 1.0,
    seed: int = 0,
    skip_invalid: bool = False,
) -> WhatIf:
    """Run a workload on changed clusters, as ``shadowprice whatif`` does.

    Parameters
    ----------
    cluster, jobs, trace, incidents, until, slot, load, skip_invalid
        As in `simulate`.
    policies, seeds, seed
        As in `compare`.
    changes : sequence of mappings
        One mapping for each changed cluster: the number of servers to add (negative: to remove) by
        the name of their entry in the cluster file. By default, one more server of each entry.
    more : str, int, or sequence of them
        Capacity to add, as in `compare`: each type of server is another changed cluster.
    """
    chosen = seeds_from(_seed(seed), _seeds(seeds))
    source = _source(cluster, jobs, trace, incidents, until, slot, load, skip_invalid)
    requested = _cluster_changes(changes)
    requested += _capacity_changes(more, source, chosen[0])
    return WhatIf(run_whatif(source, _choices(policies), requested, chosen))


@few_collections()
def open_run(folder: PathLike) -> Result:
    """Read a run directory."""
    return Result(read_run(_path(folder, "folder")))


def _path(value: object, location: str) -> Path:
    if not isinstance(value, str | Path):
        raise InputError(Fault(location, f"expected a path, got {quote_for_display(value)}"))
    if "\0" in str(value):
        raise InputError(Fault(location, "contains a null character"))
    return expand_home(value)


def _capacity_changes(
    more: CapacityAmounts, source: ScenarioSource, seed: int
) -> list[ClusterChange]:
    amounts = given.to_python_values(more)
    if not isinstance(amounts, str | int) or isinstance(amounts, bool):
        amounts = given.to_list(amounts, "more", "write 8, or ['gpu/a100=8', 'cpu=64']")
    # The servers of a trace are only read if they are needed.
    return [] if amounts == [] else capacity_changes(amounts, source.server_entries(seed), "more")


def _check_name(policy: object, location: str = "policy") -> None:
    if not isinstance(policy, str):
        hint = "write policy='oasis', parameters={...}" if location == "policy" else ""
        problem = f"expected the name of a policy, got {quote_for_display(policy)}"
        raise InputError(Fault(location, problem, hint))


def _seed(seed: Any) -> int:
    return given.to_int(seed, "seed", bounds.SEED, 0, "seed")


def _seeds(seeds: Any) -> int:
    return given.to_int(seeds, "seeds", bounds.SEEDS, 1, "number of seeds")


def _with_advice(
    run: RunData, scenario: Scenario, choice: PolicyChoice, seconds: float | None
) -> RunData:
    if seconds is None or run.info["partial"]:
        return run
    # Imported here, because runs without advice don't need it.
    from shadowprice.simulator.advice import add_advice  # noqa: PLC0415

    return add_advice(run, scenario, choice, seconds=seconds)


def _lengths(text: object, advice_seconds: float | None) -> tuple[str, ...]:
    if not isinstance(text, str):
        raise InputError(Fault("lengths", f"{text!r} is not text", "write 'unknown'"))
    modes = parse_lengths(text, "lengths")
    if advice_seconds is not None:
        check_advice_lengths(modes, "advice_seconds")
    return modes


def _advice_seconds(seconds: Any) -> float | None:
    if seconds is None:
        return None
    return given.to_number(
        seconds, "advice_seconds", bounds.SECONDS, "0 or more seconds", "write 60"
    )


def _parameters(parameters: Any, location: str) -> dict[str, Any]:
    hint = "write {'preset': 'paper'}"
    return {} if parameters is None else given.to_mapping(parameters, location, hint)


def _cluster_changes(changes: Any) -> list[ClusterChange]:
    requested = []
    hint = "write [{'gpu': 2}, {'gpu': -1}]"
    for index, change in enumerate(given.to_list(changes, "changes", hint)):
        location = f"changes[{index}]"
        added = given.to_mapping(change, location, hint)
        for name, count in added.items():
            if isinstance(count, bool) or not isinstance(count, int) or not count:
                problem = f"expected a number of servers, got {quote_for_display(count)}"
                raise InputError(Fault(f"{location}.{name}", problem, "write 2, or -1 to remove"))
            bounds.SERVERS.check(abs(count), f"{location}.{name}")
        requested.append(ClusterChange(tuple(added.items())))
    return requested


def _source(
    cluster: PathLike | Mapping[str, Any] | None,
    jobs: PathLike | Iterable[Mapping[str, Any]] | None,
    trace: str | None,
    incidents: PathLike | Iterable[Mapping[str, Any]] | None,
    until: str | None,
    slot: str,
    load: Any,
    skip_invalid: Any,
) -> ScenarioSource:
    if not isinstance(skip_invalid, bool | np.bool_):
        problem = f"expected True or False, got {quote_for_display(skip_invalid)}"
        raise InputError(Fault("skip_invalid", problem))
    load = given.to_number(load, "load", bounds.OFFERED_LOAD, "a number above 0", "write 1.0")
    if not load:
        raise InputError(Fault("load", "expected a number above 0, got 0", "write 1.0"))
    source = ScenarioSource(
        cluster=_path(cluster, "cluster")
        if isinstance(cluster, str | Path)
        else given.to_python_values(cluster),
        jobs=_path_or_entries(jobs, "jobs"),
        trace=None if trace is None else str(trace),
        incidents=_path_or_entries(incidents, "incidents"),
        until=until,
        slot=slot,
        load=load,
        skip_invalid=bool(skip_invalid),
        locate=str,  # errors name arguments, not options of a command
    )
    for name, is_default in (("slot", slot == "20min"), ("load", load == 1.0)):
        if cluster is not None and not is_default:
            problem = "applies only to the cluster that is sized to a trace, not to a given one"
            raise InputError(Fault(name, problem, "remove it, or change the cluster"))
    return source


def _path_or_entries(
    value: PathLike | Iterable[Mapping[str, Any]] | None, kind: str
) -> Path | list[Any] | None:
    if value is None:
        return None
    return _path(value, kind) if isinstance(value, str | Path) else given.list_entries(value, kind)


def _choices(policies: Policies) -> list[PolicyChoice]:
    choices = []
    hint = "write ['oasis', ('fifo', {'backfill': 2})]"
    entries = [policies] if isinstance(policies, str) else given.to_list(policies, "policies", hint)
    for index, entry in enumerate(entries):
        location = f"policies[{index}]"
        pair = (entry, {}) if isinstance(entry, str) else entry
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            problem = f"expected a name, or a name and parameters, got {quote_for_display(entry)}"
            raise InputError(Fault(location, problem, hint))
        name, parameters = pair
        _check_name(name, location)
        settings = _parameters(parameters, location)
        choices.append(PolicyChoice.named(name, settings, location="policies"))
        bounds.POLICIES.check(len(choices), "policies")
    check_choices(choices, "policies", "write ['oasis', 'fifo']")
    return choices


__all__ = ["Comparison", "Result", "WhatIf", "compare", "open_run", "simulate", "whatif"]
