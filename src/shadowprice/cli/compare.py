"""``shadowprice compare``: one workload under several policies."""

from __future__ import annotations

from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shadowprice.cli import options as o
from shadowprice.cli.console import (
    Output,
    mention_compiling,
    print_json,
    progress_bar,
    stderr,
    stdout,
)
from shadowprice.core.errors import Fault, InputError

if TYPE_CHECKING:
    from shadowprice.results.files import Run

PAGE, NUMBERS = "compare.html", "compare.json"


def compare(
    policy: Annotated[
        str,
        typer.Option(
            "--policy",
            "-p",
            help="Policies with commas between them; `shadowprice policies` lists them. "
            "oasis?preset=paper is a variant with a parameter of its own.",
            rich_help_panel=o.HOW,
            autocompletion=o.complete_policy,
        ),
    ],
    cluster: o.ClusterOption = None,
    jobs: o.JobsOption = None,
    trace: o.TraceOption = None,
    incidents: o.IncidentsOption = None,
    until: o.UntilOption = None,
    slot: o.SlotOption = "20min",
    load: o.LoadOption = 1.0,
    skip_invalid: o.SkipInvalidOption = False,
    set_: o.SetOption = None,
    params: o.ParamsOption = None,
    seed: o.SeedOption = 0,
    out: o.OutOption = None,
    output: o.OutputOption = Output.TABLE,
    quiet: o.QuietOption = False,
) -> None:
    """Run a workload under several policies, all from the same seed.

    --out DIR keeps compare.html, and each policy's run in DIR/POLICY.

    A parameter that several policies share is set for all of them; oasis.prices=online for one.
    A policy may stand several times, as variants with other parameters.

    [bold]Examples[/bold]

    shadowprice compare -c cluster.yaml -j jobs.yaml -p oasis,fifo,drf,rrh,dorm --out compared

    shadowprice compare --trace 'philly:philly.csv.gz?limit=2000' -p oasis,fifo

    shadowprice compare -c cluster.yaml -j jobs.yaml -p 'oasis,oasis?preset=paper,drf'
    """
    from shadowprice.cli.simulate import leave_if_partial
    from shadowprice.cli.tables import summary_table
    from shadowprice.results.directory import PendingDirectory
    from shadowprice.results.files import folder_name
    from shadowprice.simulator.interrupt import stop_sign
    from shadowprice.simulator.scenario import build_policy, record_run

    variants = _variants(policy)
    settings = o.policy_settings(params, set_, sorted({v.policy for v in variants}))
    scenario, remarks = o.load_scenario(
        cluster=cluster,
        jobs=jobs,
        trace=trace,
        incidents=incidents,
        params=params,
        until=until,
        slot=slot,
        load=load,
        seed=seed,
        skip_invalid=skip_invalid,
    )
    if not quiet:
        for remark in remarks:
            stderr().print(f"note: {remark}", soft_wrap=True, markup=False)
    # From here on a first Ctrl-C ends the run early and keeps it; a second one leaves at once.
    place = PendingDirectory(out, _is_comparison) if out is not None else nullcontext()
    with stop_sign() as stop, place as pending:
        # All are built before any runs: a wrong parameter of the last must not cost the others.
        built = {
            v.label: build_policy(scenario, v.policy, v.over(settings[v.policy])) for v in variants
        }
        mention_compiling(quiet)
        runs: list[Run] = []
        for name in [v.label for v in variants]:
            with progress_bar(name, quiet) as progress:
                policy_run = record_run(
                    scenario, name, built.pop(name), progress=progress, stop=stop
                )
                runs.append(policy_run)
            if pending is not None:
                _keep(runs[-1], pending.path / folder_name(name))
            if runs[-1].info["partial"]:
                break
        if pending is not None:
            _keep_comparison(runs, pending.path)
            pending.commit()
    if output is Output.JSON:
        print_json(_record(runs))
    else:
        stdout().print(summary_table(runs))
        if out is not None:
            stdout().print(f"read {out}/{PAGE}", soft_wrap=True, markup=False)
        elif not quiet:
            stderr().print("add --out DIR to keep the runs and a page", soft_wrap=True)
    leave_if_partial(runs, out, stop.status)


@dataclass(frozen=True, slots=True)
class _Variant:
    """A policy with parameters of its own, as ``oasis?preset=paper`` names it."""

    policy: str
    pairs: tuple[str, ...]

    @property
    def label(self) -> str:
        return " ".join((self.policy, *self.pairs))

    def over(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Return the settings of the call with this variant's own on top."""
        merged = deepcopy(settings)
        for pair in self.pairs:
            o.merge(merged, o.setting(pair))
        return merged


def _variants(text: str) -> list[_Variant]:
    from shadowprice.policies.registry import policy_info

    variants: list[_Variant] = []
    for part in (part.strip() for part in text.split(",")):
        name, _, pairs = part.partition("?")
        if part:
            policy_info(name)
            variants.append(_Variant(name, tuple(pair for pair in pairs.split("&") if pair)))
    if not variants:
        raise InputError(Fault("--policy", "names no policy", "write --policy oasis,fifo"))
    for variant in variants:
        if variants.count(variant) > 1:
            raise InputError(Fault("--policy", f"{variant.label!r} is given twice"))
    return variants


def _is_comparison(path: Path) -> bool:
    from shadowprice.results.files import is_run

    entries = list(path.iterdir())
    return any(entry.name == NUMBERS for entry in entries) and all(
        entry.name in {PAGE, NUMBERS} or (entry.is_dir() and is_run(entry)) for entry in entries
    )


def _keep(run: Run, folder: Path) -> None:
    from shadowprice.results.files import REPORT, write_run
    from shadowprice.results.report import write_report

    folder.mkdir()
    write_run(run, folder)
    write_report(run, folder / REPORT)


def _keep_comparison(runs: list[Run], folder: Path) -> None:
    from shadowprice.cli.tables import best_of, metric_rows
    from shadowprice.results.files import write_json
    from shadowprice.results.report.comparison import write_comparison

    table = []
    for row in metric_rows(runs):
        values = [row.value(run) for run in runs]
        texts = ["-" if value is None else row.text(value) for value in values]
        table.append((row.name, texts, frozenset(best_of(values, row.better))))
    write_comparison(runs, table, folder / PAGE)
    write_json(folder / NUMBERS, _record(runs))


def _record(runs: list[Run]) -> dict[str, Any]:
    return {
        "partial": any(run.info["partial"] for run in runs),
        "seed": runs[0].info["seed"],
        "inputs": runs[0].info["inputs"],
        "policies": {
            run.policy: {
                "parameters": run.info["parameters"],
                "summary": run.summary,
                "timing": run.info["timing"],
                "partial": run.info["partial"],
            }
            for run in runs
        },
    }
