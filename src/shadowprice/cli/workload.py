"""Workload options, shared by every command that runs a workload."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from shadowprice.cli import options as o
from shadowprice.cli.console import print_note
from shadowprice.core.errors import Fault, InputError

if TYPE_CHECKING:
    from shadowprice.simulator.scenario import Scenario
    from shadowprice.simulator.source import ScenarioSource


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Workload to run, as given by options."""

    cluster: o.ClusterOption = None
    jobs: o.JobsOption = None
    trace: o.TraceOption = None
    columns: o.ColumnsOption = None
    incidents: o.IncidentsOption = None
    until: o.UntilOption = None
    slot: o.SlotOption = "20min"
    load: o.LoadOption = 1.0
    skip_invalid: o.SkipInvalidOption = False

    def source(self, params: Path | None = None) -> ScenarioSource:
        """Return the source that the options name; ``params`` is recorded with it."""
        from shadowprice.simulator.source import ScenarioSource
        from shadowprice.traces.locate import with_columns

        named = {field.name: getattr(self, field.name) for field in fields(self)}
        columns = named.pop("columns")
        if self.trace is not None:
            named["trace"] = with_columns(self.trace, columns)
        elif columns is not None:
            raise InputError(Fault("--map", "maps columns of a trace", "add --trace csv:FILE"))
        return ScenarioSource(**named, params=params)

    def scenario(self, seed: int, params: Path | None = None, *, quiet: bool) -> Scenario:
        """Read all input files, and print notes on omitted or assumed data."""
        return read(self.source(params), seed, quiet=quiet)


def read(source: ScenarioSource, seed: int, *, quiet: bool) -> Scenario:
    """Read the scenario of a source, and print notes on omitted or assumed data."""
    scenario, remarks = source.scenario(seed)
    if not quiet:
        for remark in remarks:
            print_note(f"note: {remark}")
    return scenario
