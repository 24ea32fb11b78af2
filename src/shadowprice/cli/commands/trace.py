"""``shadowprice trace`` and ``shadowprice generate``: sources of workloads."""

from __future__ import annotations

from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from shadowprice.cli import console
from shadowprice.cli.completion import complete_trace
from shadowprice.cli.console import SafeText
from shadowprice.cli.options import MIN_LOAD, PlainOutputOption, PlainSeedOption
from shadowprice.core import bounds
from shadowprice.core.amounts import format_seconds, parse_positive_duration
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.wording import pluralize
from shadowprice.results.output_paths import check_output_file, created_directory, is_marked_yaml

MAX_SERVERS_PER_ROLE = bounds.SERVERS.maximum // 2
_CLUSTER_HINT = "ask for fewer servers"
app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Inspect cluster traces and convert them to jobs.",
)

SpecArgument = Annotated[
    str,
    typer.Argument(
        metavar="FORMAT:PATH",
        help="Format and path, such as philly:philly.csv.gz, with options: "
        "philly:PATH?vc=6214e9&limit=1000. `shadowprice trace formats` lists formats "
        "and options. ./file.py:NAME:PATH uses the format that a Python file defines.",
        autocompletion=complete_trace,
    ),
]
SlotOption = Annotated[str, typer.Option("--slot", help="Slot length, such as 20min.")]
SkipOption = Annotated[
    bool, typer.Option("--skip-invalid", help="Skip invalid rows, and report their number.")
]


MapOption = Annotated[
    str | None,
    typer.Option(
        "--map",
        metavar="MEANING=COLUMN,...",
        help="Columns of a log (format csv), such as submit=Queued,gpus=GPUs; other columns are "
        "guessed.",
    ),
]


@app.command()
def info(
    spec: SpecArgument,
    output: PlainOutputOption = "table",
    columns: MapOption = None,
    skip_invalid: SkipOption = False,
) -> None:
    """Show statistics of a trace: jobs, GPUs, run times, burstiness and omitted rows."""
    from shadowprice.traces.locate import read_trace, with_columns
    from shadowprice.traces.statistics import describe

    trace = read_trace(with_columns(spec, columns), skip_invalid=skip_invalid)
    statistics = describe(trace)
    if output == "json":
        record = asdict(statistics)
        record["start"] = statistics.start.isoformat() if statistics.start else None
        console.print_json(record)
        return
    _print_statistics(statistics)


@app.command()
def convert(
    spec: SpecArgument,
    out: Annotated[Path, typer.Argument(help="Output job file: .jsonl or .yaml.")],
    slot: SlotOption = "20min",
    seed: PlainSeedOption = 0,
    cluster: Annotated[
        Path | None, typer.Option(help="Output cluster file, sized to the jobs.")
    ] = None,
    load: Annotated[
        float,
        typer.Option(
            min=MIN_LOAD,
            max=bounds.OFFERED_LOAD.maximum,
            help="Load of the --cluster file: requested over available GPU-time (core-time if "
            "no job uses GPUs).",
        ),
    ] = 1.0,
    horizon: Annotated[
        int,
        typer.Option(
            min=1,
            max=bounds.HORIZON.maximum,
            help="Planning horizon of the --cluster file, in slots.",
        ),
    ] = 300,
    columns: MapOption = None,
    skip_invalid: SkipOption = False,
    output: PlainOutputOption = "table",
) -> None:
    """Convert a trace to a job file; missing data is drawn at random from the seed."""
    from shadowprice.traces.generator import cluster_for
    from shadowprice.traces.locate import parse_spec, read_trace, with_columns
    from shadowprice.traces.synthesis import OPTION_NAMES, SynthesisOptions, synthesize
    from shadowprice.traces.workload import check_job_file, write_yaml

    check_job_file(out)
    if cluster is not None:
        if cluster.resolve() == out.resolve():
            raise InputError(Fault("--cluster", f"{cluster} is the job file", "give another name"))
        check_output_file(cluster, is_marked_yaml)
    parsed = parse_spec(with_columns(spec, columns), OPTION_NAMES)
    options = SynthesisOptions.from_text(dict(parsed.synthesis))
    trace = read_trace(parsed, skip_invalid=skip_invalid)
    workload = synthesize(
        trace, parse_positive_duration(slot, "--slot", "20min"), options, seed=seed
    )
    document = cluster_for(workload, load=load, horizon=horizon) if cluster else None
    workload.write(out)
    if cluster is not None and document is not None:
        write_yaml(cluster, document, _CLUSTER_HINT)
    notes = [*(f"{n.count} x {n.reason} ({n.action})" for n in trace.notes), *workload.notes]
    if output == "json":
        record = {"jobs": len(workload), "file": str(out), "notes": notes}
        console.print_json({**record, "cluster": None if cluster is None else str(cluster)})
        return
    for note in notes:
        console.print_note(f"note: {note}")
    written = f" and {cluster}" if cluster else ""
    console.print_line(f"{pluralize(len(workload), 'job')} in {out}{written}")


@app.command()
def formats(output: PlainOutputOption = "table") -> None:
    """List the trace formats with their files, sources, options and notes."""
    from shadowprice.traces.locate import SELECTION_OPTIONS
    from shadowprice.traces.registry import TraceFormat, get_format, installed_formats
    from shadowprice.traces.registry import formats as known_formats
    from shadowprice.traces.synthesis import SYNTHESIS_OPTIONS

    by_name = known_formats()
    for broken in installed_formats().keys() - by_name.keys():
        try:
            get_format(broken)
        except InputError as error:
            console.print_note(f"note: {error}")
    known = by_name.values()
    if output == "json":
        hidden = {"read", "extension"}
        names = [item.name for item in fields(TraceFormat) if item.name not in hidden]
        rows = [{name: getattr(item, name) for name in names} for item in known]
        console.print_json(rows)
        return
    screen = console.rows_console()
    for item in known:
        screen.print(SafeText.assemble((item.name, "bold"), f"  {item.title}"))
        if item.files:
            screen.print(f"  files    {item.files}")
        if item.citation:
            screen.print(f"  source   {item.citation} ({item.licence})")
        for name, meaning in item.options.items():
            screen.print(f"  option   {name}: {meaning}")
        for gotcha in item.gotchas:
            screen.print(f"  note     {gotcha}")
    screen.print(SafeText("options of every format", "bold"))
    for name, meaning in SELECTION_OPTIONS.items():
        screen.print(f"  {name}: {meaning}")
    screen.print(SafeText("options of data that a trace lacks", "bold"))
    for name, meaning in SYNTHESIS_OPTIONS.items():
        screen.print(f"  {name}: {meaning}")


def generate(
    out: Annotated[Path, typer.Option(help="Output directory for cluster.yaml and jobs.jsonl.")],
    preset: Annotated[
        str,
        typer.Option(
            help="Parameter ranges. paper: OASiS's evaluation; chunk: the same, with tau as "
            "the time of a data chunk, for --slot 1h; calibrated: feasible ranges; "
            "testbed: OASiS's nine servers and jobs (--jobs 12 --slots 10); pdors: "
            "PD-ORS's evaluation, on servers of role any."
        ),
    ] = "paper",
    jobs: Annotated[
        int, typer.Option(min=1, max=bounds.JOBS.maximum, help="Number of jobs.")
    ] = 100,
    slots: Annotated[
        int, typer.Option(min=1, max=bounds.HORIZON.maximum, help="Timespan T, in slots.")
    ] = 300,
    slot: SlotOption = "20min",
    arrivals: Annotated[
        str,
        typer.Option(help="Arrival process: uniform, poisson, or bursty (as in the Philly trace)."),
    ] = "poisson",
    workers: Annotated[
        int, typer.Option(min=1, max=MAX_SERVERS_PER_ROLE, help="Number of servers for workers, H.")
    ] = 50,
    parameter_servers: Annotated[
        int,
        typer.Option(
            min=1,
            max=MAX_SERVERS_PER_ROLE,
            help="Number of servers for parameter servers, K; none with --preset pdors.",
        ),
    ] = 50,
    seed: PlainSeedOption = 0,
    output: PlainOutputOption = "table",
) -> None:
    """Generate a workload and its cluster from the ranges of a paper's evaluation."""
    from shadowprice.inputs.text import check_document_size
    from shadowprice.traces.generator import (
        GeneratorOptions,
        colocated_cluster,
        generate,
        oasis_testbed_cluster,
        paper_cluster,
    )
    from shadowprice.traces.workload import check_job_file, write_yaml

    seconds = parse_positive_duration(slot, "--slot", "20min")
    options = GeneratorOptions(
        preset=preset,  # type: ignore[arg-type]  # checked by the options
        jobs=jobs,
        slots=slots,
        slot_seconds=seconds,
        arrivals=arrivals,  # type: ignore[arg-type]  # checked by arrival_times
    )
    with created_directory(out):
        if not out.is_dir():
            raise InputError(f"{out}: is a file; give --out a directory")
        check_output_file(out / "cluster.yaml", is_marked_yaml)
        check_job_file(out / "jobs.jsonl")
        workload = generate(options, seed=seed)
        if preset == "pdors":
            document = colocated_cluster(
                machines=workers, slot_seconds=seconds, horizon=slots, seed=seed
            )
        elif preset == "testbed":
            document = oasis_testbed_cluster(slot_seconds=seconds, horizon=slots)
        else:
            document = paper_cluster(
                workers=workers,
                parameter_servers=parameter_servers,
                slot_seconds=seconds,
                horizon=slots,
                seed=seed,
            )
        # Write the jobs first, which takes longest. After an interruption, the cluster file must
        # not belong to other jobs.
        check_document_size(out / "cluster.yaml", document, _CLUSTER_HINT)
        workload.write(out / "jobs.jsonl")
        write_yaml(out / "cluster.yaml", document, _CLUSTER_HINT)
    servers = sum(server.get("count", 1) for server in document["servers"])
    if output == "json":
        console.print_json({"jobs": jobs, "servers": servers, "directory": str(out)})
        return
    console.print_line(f"{pluralize(jobs, 'job')} and {pluralize(servers, 'server')} in {out}")


def _gpu_time(statistics: Any) -> str:
    if statistics.gpu_hours is None:
        return f"unknown; {statistics.multi_gpu_jobs:.0%} of the jobs take several GPUs"
    text = f"{statistics.gpu_hours:,.0f} GPU-h"
    if statistics.multi_gpu_share is not None:
        text += f", {statistics.multi_gpu_share:.0%} of it in jobs of several GPUs"
    if statistics.timed < statistics.jobs:
        text += f", of the {statistics.timed:,} jobs whose run time is known"
    return text


def _hourly(statistics: Any) -> str:
    if statistics.hourly_mean is None:
        return "unknown"
    mean = f"mean {statistics.hourly_mean:,.1f}"
    if statistics.hourly_fano is None:
        return f"{mean}; peak and Fano unknown without whole hours"
    peak, fano = statistics.hourly_peak, statistics.hourly_fano
    return f"{mean}, peak {peak}, Fano {fano:,.{0 if fano >= 10 else 1}f} (Poisson: 1)"


def _print_statistics(statistics: Any) -> None:
    shares = ", ".join(f"{name}: {share:.2%}" for name, share in statistics.gpu_shares.items())
    run = ", ".join(
        f"p{percentile} {seconds:,.0f} s" for percentile, seconds in statistics.run_time.items()
    )
    rows = {
        "jobs": f"{statistics.jobs:,}",
        "first submission": str(statistics.start or "unknown"),
        "span": format_seconds(statistics.span),
        "GPUs a job": f"{shares}; at most {statistics.max_gpus:g}",
        "run time": run or "unknown",
        "GPU-time": _gpu_time(statistics),
        "between arrivals": "unknown"
        if statistics.arrival_cv is None
        else f"CV {statistics.arrival_cv:.1f} (Poisson: 1)",
        "arrivals an hour": _hourly(statistics),
        "tenants": str(statistics.tenants),
        "model known": f"{statistics.with_model:,} jobs",
        "deadline known": f"{statistics.with_deadline:,} jobs",
    }
    title = SafeText(f"{statistics.format}: {statistics.source}", "table.title")
    table = Table(title=title, show_header=False, title_justify="left")
    for name, text in rows.items():
        table.add_row(name, text)
    for note in statistics.notes:
        table.add_row(note.action, SafeText(f"{note.count:,} x {note.reason}"))
    console.stdout().print(table)
