"""``shadowprice cloning``: several copies of each task, against tasks that take long."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table

from shadowprice.cli import console
from shadowprice.cli.console import Output, SafeText
from shadowprice.cli.options import PlainOutputOption, PlainSeedOption
from shadowprice.core import bounds
from shadowprice.core.amounts import format_seconds
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.wording import hint_for_unknown

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from shadowprice.cloning.api import CloningProblem, CloningSolution, MonteCarloResult
    from shadowprice.cloning.waves import WaveResult, WaveRuleKind

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Choose the number of copies of each task that meets a deadline with minimum "
    "machine time.",
)


FileArgument = Annotated[
    Path,
    typer.Argument(
        metavar="FILE", help="YAML file with machines, deadline, miss_probability and tasks."
    ),
]
MethodOption = Annotated[
    Literal["exact", "closed-form", "subgradient"],
    typer.Option(
        help="Solver. exact: the optimum; closed-form: the paper's Theorem 1; subgradient: its "
        "Algorithm 1."
    ),
]
ConstraintOption = Annotated[
    Literal["exact", "relaxed"],
    typer.Option(
        help="Deadline constraint: exact, or relaxed as in the paper's (7), which can be missed "
        "slightly more often."
    ),
]


@app.command()
def solve(
    file: FileArgument,
    method: MethodOption = "exact",
    constraint: ConstraintOption = "exact",
    output: PlainOutputOption = "table",
) -> None:
    """Compute the number of copies of each task."""
    problem, solution = _solve(file, method, constraint, output)
    if output == "json":
        console.print_json(_solution_record(problem, solution))
        return
    _print_solution(problem, solution)


@app.command()
def simulate(
    file: FileArgument,
    trials: Annotated[
        int, typer.Option(min=1, max=bounds.TRIALS.maximum, help="Simulated runs of the job.")
    ] = 10_000,
    seed: PlainSeedOption = 0,
    method: MethodOption = "exact",
    constraint: ConstraintOption = "exact",
    copies: Annotated[
        int | None,
        typer.Option(
            min=1, max=bounds.COPIES.maximum, help="Copies of every task; skips the solver."
        ),
    ] = None,
    output: PlainOutputOption = "table",
) -> None:
    """Simulate the job many times; report deadline misses, machine time and flowtime."""
    import numpy as np

    from shadowprice.cloning.api import simulate as run

    numbers: NDArray[np.int64]
    if copies is None:
        problem, solution = _solve(file, method, constraint, output)
        numbers = solution.copies
    else:
        problem = _read(file, output)
        numbers = np.full(problem.tasks, copies, dtype=np.int64)
    measured = run(problem, numbers, trials=trials, seed=seed)
    if output == "json":
        console.print_json(_measured_record(problem, measured, numbers, seed))
        return
    _print_measured(problem, measured)


@app.command()
def waves(
    file: FileArgument,
    rule: Annotated[
        str, typer.Option(help="Comma-separated rules to compare: none, full, detect, saving.")
    ] = "none,full,detect,saving",
    load: Annotated[
        float,
        typer.Option(
            min=1e-6,
            max=bounds.OFFERED_LOAD.maximum,
            help="Offered load as a share of the capacity, with one copy per task.",
        ),
    ] = 0.8,
    jobs: Annotated[
        int,
        typer.Option(
            min=1,
            max=bounds.ARRIVALS.maximum,
            help="Number of jobs that arrive, each with the tasks of the file.",
        ),
    ] = 500,
    spread: Annotated[
        float,
        typer.Option(
            min=1.0, max=1000.0, help="Range of relative job sizes: from 1/spread to spread."
        ),
    ] = 1.0,
    copies: Annotated[
        int,
        typer.Option(min=1, max=bounds.COPIES.maximum, help="Maximum number of copies per task."),
    ] = 2,
    machine_price: Annotated[
        float,
        typer.Option(
            min=0.0,
            help="Rule saving: price of a machine second, in seconds of flowtime, while no task "
            "waits.",
        ),
    ] = 0.1,
    seed: PlainSeedOption = 0,
    output: PlainOutputOption = "table",
) -> None:
    """Simulate many jobs on fewer machines than tasks; compare rules for free machines.

    none: run the next waiting task. full: run every task in --copies copies. detect: copy a task
    that has run 1.5 medians of its job. saving: copy a task if the saved flowtime exceeds the delay
    that the copy causes to waiting tasks.
    """
    from shadowprice.cloning.waves import WaveRule, poisson_jobs, simulate_waves
    from shadowprice.inputs.cloning import read_cloning

    rules = _rules(rule)
    content = read_cloning(file)
    console.announce_compiling(output == "json")
    drawn = poisson_jobs(
        content.groups, machines=content.machines, load=load, jobs=jobs, seed=seed,
        spread=spread, max_copies=copies,
    )  # fmt: skip
    results = {
        item.value: simulate_waves(
            drawn, content.machines, WaveRule(item, copies=copies, machine_price=machine_price)
        )
        for item in rules
    }
    records = [
        _waves_record(name, item, content.deadline, content.machines)
        for name, item in results.items()
    ]
    if output == "json":
        console.print_json(
            {"machines": content.machines, "load": load, "jobs": jobs, "seed": seed,
             "deadline": content.deadline, "rules": records}
        )  # fmt: skip
        return
    _print_waves(records, content.deadline)


def _rules(text: str) -> list[WaveRuleKind]:
    from shadowprice.cloning.waves import WaveRuleKind

    choices = [rule.value for rule in WaveRuleKind]
    rules = []
    for name in dict.fromkeys(part.strip() for part in text.split(",")):
        if name not in choices:
            hint = hint_for_unknown(name, choices)
            raise InputError(Fault("--rule", f"unknown rule {name!r}", hint))
        rules.append(WaveRuleKind(name))
    return rules


def _waves_record(name: str, result: WaveResult, deadline: float, machines: int) -> dict[str, Any]:
    import numpy as np

    count = len(result.flowtime)
    p50, p99 = np.quantile(result.flowtime, (0.5, 0.99))
    return {
        "rule": name,
        "mean_flowtime": result.mean_flowtime,
        "median_flowtime": float(p50),
        "p99_flowtime": float(p99),
        "late_jobs": float((result.flowtime > deadline).mean()),
        "machine_time_per_job": result.machine_time / count,
        "wasted_share": result.wasted / result.machine_time,
        "copies_per_task": float(result.copies.mean()),
        "helped_tasks": result.helped,
        "utilisation": result.machine_time / (machines * result.makespan),
    }


def _print_waves(records: list[dict[str, Any]], deadline: float) -> None:
    columns = (
        "rule", "flowtime", "median", "p99", f"over {format_seconds(deadline)}",
        "machine time a job", "wasted", "copies a task",
    )  # fmt: skip
    rows = [
        (
            record["rule"], format_seconds(record["mean_flowtime"]),
            format_seconds(record["median_flowtime"]), format_seconds(record["p99_flowtime"]),
            f"{record['late_jobs']:.1%}", format_seconds(record["machine_time_per_job"]),
            f"{record['wasted_share']:.1%}", f"{record['copies_per_task']:.2f}",
        )
        for record in records
    ]  # fmt: skip
    console.stdout().print(console.make_table(columns, rows))


def _read(file: Path, output: Output) -> CloningProblem:
    from shadowprice.inputs.cloning import read_cloning

    problem = read_cloning(file).problem()
    console.announce_compiling(output == "json")
    return problem


def _solve(
    file: Path, method: str, constraint: str, output: Output
) -> tuple[CloningProblem, CloningSolution]:
    from shadowprice.cloning.api import DeadlineConstraint, SolveMethod
    from shadowprice.cloning.api import solve as find

    problem = _read(file, output)
    solution = find(problem, SolveMethod(method), DeadlineConstraint(constraint))
    if method == "closed-form" and constraint == "exact":
        console.print_note("note: Theorem 1 is about the relaxed constraint (7)")
    if method == "subgradient" and solution.violation > 1e-5:
        console.print_note(
            f"warning: Algorithm 1 stopped after {solution.iterations} iterations with its "
            f"constraints off by {solution.violation:.1e}"
        )
    return problem, solution


def _solution_record(problem: CloningProblem, solution: CloningSolution) -> dict[str, object]:
    record: dict[str, object] = {
        "copies": solution.copies.tolist(),
        "continuous": solution.continuous.tolist(),
        "miss_probability": solution.miss_probability,
        "expected_cost": solution.expected_cost,
        "method": solution.method.value,
        "constraint": solution.constraint.value,
        "iterations": solution.iterations,
        "machines": solution.machines,
        "continuous_miss_probability": solution.continuous_miss,
        "continuous_cost": solution.continuous_cost,
        "deadline_price": solution.deadline_price,
        "machine_price": solution.machine_price,
        "violation": solution.violation,
        "condition": solution.condition.value,
    }
    if solution.method.value == "exact":
        record |= {
            "proved": solution.proved,
            "lower_bound": solution.lower_bound,
            "gap": solution.gap,
        }
    if tails := _tails(problem):
        record["tails"] = tails
    return record


def _tails(problem: CloningProblem) -> list[dict[str, object]]:
    """Return the tails that were fitted to measured durations, by group of tasks."""
    from shadowprice.cloning.api import Empirical

    return [
        {
            "tasks": position,
            "file": group.duration.name,
            "samples": int(group.duration.durations.size),
            "threshold": group.duration.tail.threshold,
            "order": group.duration.tail.order,
            "order_error": group.duration.tail.error,
            "points": group.duration.tail.points,
            "distance": group.duration.tail.distance,
            "against_exponential": group.duration.tail.against_exponential,
        }
        for position, group in enumerate(problem.groups)
        if isinstance(group.duration, Empirical) and group.duration.tail is not None
    ]


def _print_solution(problem: CloningProblem, solution: CloningSolution) -> None:
    screen = console.stdout()
    rows = []
    begin = 0
    shown = problem.groups[:20]
    for group in shown:
        tasks = slice(begin, begin + group.count)
        begin += group.count
        rows.append(
            [
                str(group.count),
                group.duration.label,
                format_seconds(group.duration.mean),
                _copies_text(solution.copies[tasks].tolist()),
                f"{solution.continuous[tasks].mean():.4f}",
            ]
        )
    columns = ("tasks", "duration", "mean", "copies", "continuous")
    screen.print(console.make_table(columns, rows, left=(1,)))
    if len(problem.groups) > len(shown):
        screen.print(f"... and {len(problem.groups) - len(shown)} more; -o json has them all")
    screen.print()
    facts = Table.grid(padding=(0, 2))
    misses = f"{solution.miss_probability:.6g} of {problem.miss_probability:g} allowed"
    facts.add_row("misses the deadline", misses)
    facts.add_row(
        "expected machine time", f"{solution.expected_cost:.6g}s with integer copies, "
        f"{solution.continuous_cost:.6g}s with fractional copies",
    )  # fmt: skip
    facts.add_row("machines", f"{solution.machines} of {problem.machines}")
    if solution.method.value == "exact":
        proof = "proved optimal" if solution.proved else f"within {solution.gap:.2%} of the best"
        facts.add_row("integer copies", proof)
        if solution.machine_price > 0:
            price = f"{solution.machine_price:.4g}s of machine time for one more machine"
            facts.add_row("price of a machine", price)
    facts.add_row(
        "method", f"{solution.method.value}, {solution.constraint.value} constraint, "
        f"{solution.iterations} passes",
    )  # fmt: skip
    screen.print(facts)
    for tail in _tails(problem):
        findings = (
            f": tail of order {tail['order']:.3g} +- {tail['order_error']:.2g} beyond "
            f"{tail['threshold']:.4g}s, {tail['points']} of {tail['samples']} durations, "
            f"Kolmogorov-Smirnov distance {tail['distance']:.3f}, "
            f"log-likelihood against an exponential tail {tail['against_exponential']:+.1f}"
        )
        screen.print(SafeText.assemble((str(tail["file"]), "bold"), findings))


def _copies_text(copies: list[int]) -> str:
    """Format the copies of a group's tasks: ``16 x 2, 4 x 1`` for 16 tasks of 2, 4 of 1."""
    counts = {number: copies.count(number) for number in sorted(set(copies), reverse=True)}
    if len(counts) == 1:
        return str(copies[0])
    return ", ".join(f"{tasks} x {number}" for number, tasks in counts.items())


def _measured_record(
    problem: CloningProblem, measured: MonteCarloResult, copies: Any, seed: int
) -> dict[str, object]:
    return {
        "trials": measured.trials,
        "seed": seed,
        "copies": copies.tolist(),
        "misses": measured.misses,
        "miss_probability": measured.miss_probability,
        "interval": list(measured.interval),
        "confidence": measured.confidence,
        "predicted_miss_probability": measured.predicted_miss,
        "allowed_miss_probability": problem.miss_probability,
        "machine_time": measured.machine_time,
        "machine_time_error": _finite(measured.machine_time_error),
        "predicted_machine_time": measured.predicted_machine_time,
        "flowtime": measured.flowtime,
        "flowtime_error": _finite(measured.flowtime_error),
        "flowtime_percentiles": _percentiles(measured),
    }


def _finite(value: float) -> float | None:
    return value if value == value else None  # noqa: PLR0124  # NaN, as with a single trial


def _percentiles(measured: MonteCarloResult) -> dict[str, float]:
    import numpy as np

    values = np.quantile(measured.flowtimes, (0.5, 0.9, 0.99))
    return {f"p{p}": float(v) for p, v in zip((50, 90, 99), values, strict=True)}


def _print_measured(problem: CloningProblem, measured: MonteCarloResult) -> None:
    low, high = measured.interval
    percentiles = _percentiles(measured)
    rows = [
        (
            "misses the deadline", f"{measured.miss_probability:.4f}",
            f"{measured.confidence:.0%} interval {low:.4f} to {high:.4f}",
            f"{measured.predicted_miss:.4f}",
        ),
        (
            "machine time", f"{measured.machine_time:.6g}s",
            f"+- {measured.machine_time_error:.2g}s", f"{measured.predicted_machine_time:.6g}s",
        ),
        (
            "flowtime", f"{measured.flowtime:.6g}s",
            f"median {percentiles['p50']:.4g}s, 99 % within {percentiles['p99']:.4g}s", "",
        ),
    ]  # fmt: skip
    screen = console.stdout()
    screen.print(console.make_table(("", "measured", "", "formula"), rows, left=(0, 2)))
    screen.print(
        f"\n{measured.trials:,} runs of {problem.tasks} tasks; the deadline is "
        f"{problem.deadline:g}s, with a miss probability of at most {problem.miss_probability:g}"
    )
