"""Result of profiling: a speed curve, models compared with it, and the job file."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from shadowprice.core.amounts import Dimension, format_amount, format_seconds
from shadowprice.core.program import DEFAULT_GRACE_SECONDS
from shadowprice.profiling.fit import LinearFit, SerialFit, fit_linear, fit_serial
from shadowprice.profiling.running import Command, Point

HEAD: Final = "# Measured by shadowprice profile"
"""Start of all written files, by which `profile` recognizes files that it may replace."""

_MEMORY_MARGIN: Final = 1.25  # requested memory, as a multiple of the largest measured use
_MEBIBYTE: Final = 1 << 20
_MEMORY_STEP_BYTES: Final = 64 * _MEBIBYTE  # requests are multiples of this


@dataclass(frozen=True)
class Findings:
    """Result of profiling. Servers are parameter servers here."""

    points: Sequence[Point]
    unmeasured: Mapping[tuple[int, int], str]  # reasons by numbers of (workers, servers)
    command: Command

    @cached_property
    def metrics(self) -> dict[str, float]:
        """Medians of the metrics that the job reported."""
        names = {name for point in self.points for name in point.metrics}
        return {
            name: statistics.median(
                point.metrics[name] for point in self.points if name in point.metrics
            )
            for name in sorted(names)
        }

    @cached_property
    def curve(self) -> dict[int, Point]:
        """Measurement for each number of workers in the job file.

        With parameter servers, it is the measurement with the fewest servers that satisfy OASiS (6)
        with the measured bandwidths. If none has enough servers, it is the one with the most.
        """
        chosen: dict[int, Point] = {}
        for workers in sorted({point.workers for point in self.points}):
            candidates = sorted(
                (point for point in self.points if point.workers == workers),
                key=lambda point: point.ps,
            )
            enough = [point for point in candidates if point.ps >= self.servers_needed(workers)]
            chosen[workers] = (enough or candidates[-1:])[0]
        return chosen

    @property
    def uses_servers(self) -> bool:
        """Whether any measurement used parameter servers."""
        return any(point.ps for point in self.points)

    def servers_needed(self, workers: int) -> int:
        """Return the number of servers that OASiS (6) requires, 0 for a job without servers."""
        if not self.uses_servers:
            return 0
        need = self.metrics.get("worker_bandwidth", 0.0)
        have = self.metrics.get("ps_bandwidth", 0.0)
        if not need or have < need:
            return 1
        return math.ceil(workers * round(need) / round(have))

    @cached_property
    def linear(self) -> LinearFit:
        """The papers' linear model."""
        return fit_linear(
            [point.speed for point in self.curve.values()],
            gradient_bytes=self.metrics.get("gradient_bytes"),
            minibatch_time=self.metrics.get("minibatch_time"),
        )

    @cached_property
    def serial(self) -> SerialFit | None:
        """Amdahl's law, None with too few measurements."""
        return fit_serial([point.speed for point in self.curve.values()])

    @property
    def restart(self) -> float | None:
        """Seconds from the stop command to the first step after a change; None if unknown."""
        stops = [point.stop for point in self.points if point.stop is not None]
        # A resumed start also loads the checkpoint, so only these count if there are any.
        starts = [point.start for point in self.points if point.resumed] or [
            point.start for point in self.points
        ]
        return statistics.median(stops) + statistics.median(starts) if stops else None

    def memory(self, role: str) -> int | None:
        """Return the bytes to request per process of a role; None if none was measured."""
        used = [point.memory[role] for point in self.points if role in point.memory]
        if not used:
            return None
        return math.ceil(max(used) * _MEMORY_MARGIN / _MEMORY_STEP_BYTES) * _MEMORY_STEP_BYTES

    def record(self) -> dict[str, object]:
        """Return all results as ``profile -o json`` prints them."""
        return {
            "points": [_point_record(point) for point in self.points],
            "unmeasured": [
                {"workers": workers, "ps": ps, "reason": reason}
                for (workers, ps), reason in self.unmeasured.items()
            ],
            "throughput": {
                str(n): round_significant(p.step.per_second) for n, p in self.curve.items()
            },
            "metrics": self.metrics,
            "restart": self.restart,
            "memory": {role: self.memory(role) for role in ("worker", "ps") if self.memory(role)},
            "linear": {
                "minibatch_time": self.linear.minibatch_time,
                "step_time": self.linear.step_time,
                "bandwidth": self.linear.bandwidth,
                **_quality_record(self.linear),
            },
            "serial": None
            if self.serial is None
            else {
                "serial": self.serial.serial,
                "shared": self.serial.shared,
                **_quality_record(self.serial),
            },
        }

    def remarks(self) -> list[str]:
        """Return remarks on the results, one per line."""
        lines = [f"the linear model {self._linear_model_text()}"]
        if self.serial is not None:
            parts = format_seconds(self.serial.serial), format_seconds(self.serial.shared)
            text = "Amdahl's law {}: {} per mini-batch, and {} that workers share"
            lines.append(text.format(_fit_text(self.serial), *parts))
        if self.metrics:
            lines.append(
                "the job measured: " + ", ".join(map(_format_metric, self.metrics.items()))
            )
        if self.restart is not None:
            lines.append(
                f"a change costs {format_seconds(self.restart)}: stopping, starting, loading"
            )
        for point in self.points:
            lines.extend(_warnings(point))
        resumptions = [point.resumed for point in self.points if point.resumed is not None]
        if resumptions and not any(resumptions):
            remark = "the job never resumed from a checkpoint: each change would lose its work"
            lines.append(remark)
        return lines

    def _linear_model_text(self) -> str:
        fit = self.linear
        tau = (
            "tau unknown"
            if fit.minibatch_time is None
            else f"tau {format_seconds(fit.minibatch_time)}"
        )
        step = format_seconds(fit.step_time)
        text = f"(tau + 2 e / b) {_fit_text(fit)}: {tau}, a worker's step {step}"
        if fit.bandwidth is not None:
            text += f", b {format_amount(round(fit.bandwidth), Dimension.RATE)}"
        return text


def _fit_text(fit: LinearFit | SerialFit) -> str:
    quality = fit.quality
    if quality.verdict == "untried":
        return "can't be tested with so few worker counts"
    r_squared = quality.determination
    suffix = "" if r_squared is None else f", R2 {r_squared:.3f}"
    return f"{quality.verdict} (off by {quality.largest:.1%} at most{suffix})"


def _warnings(point: Point) -> list[str]:
    counts = format_counts(point.workers, point.ps)
    warnings = []
    if not point.precise:
        warnings.append(
            f"{counts}: only precise to {point.step.error:.1%}; raise --time, or report more often"
        )
    if point.forced:
        warnings.append(
            f"{counts}: it did not exit on SIGTERM and was killed; see docs/executors.md"
        )
    return warnings


def format_counts(workers: int, ps: int) -> str:
    """Return ``4 workers, 2 servers``."""
    text = f"{workers} worker{'s' * (workers != 1)}"
    return f"{text}, {ps} server{'s' * (ps != 1)}" if ps else text


def round_significant(value: float) -> float:
    """Return a number with four significant digits."""
    return float(f"{value:.4g}")


def _format_metric(item: tuple[str, float]) -> str:
    name, value = item
    if name == "gradient_bytes":
        return f"e {format_amount(round(value), Dimension.BYTES)}"
    if name.endswith("bandwidth"):
        symbol = "b" if name.startswith("worker") else "B"  # as in OASiS
        return f"{symbol} {format_amount(round(value), Dimension.RATE)}"
    return f"{'tau' if name == 'minibatch_time' else 'update'} {format_seconds(value)}"


def _point_record(point: Point) -> dict[str, object]:
    return {
        "workers": point.workers,
        "ps": point.ps,
        "minibatches_per_second": point.step.per_second,
        "step_time": point.step.seconds,
        "half_width": point.step.half_width,
        "minibatches": point.step.minibatches,
        "warm_up": point.step.warm_up,
        "precise": point.precise,
        "memory": dict(point.memory),
        "metrics": dict(point.metrics),
        "start": point.start,
        "stop": point.stop,
        "resumed": point.resumed,
        "forced": point.forced,
        "finished": point.finished,
    }


def _quality_record(fit: LinearFit | SerialFit) -> dict[str, object]:
    quality = fit.quality
    return {
        "predicted": list(quality.predicted),
        "errors": list(quality.errors),
        "largest_error": quality.largest,
        "r2": quality.determination,
        "verdict": quality.verdict,
    }


# ------------------------------------------------------------------ the job file


def job_record(findings: Findings, name: str, steps: int) -> dict[str, Any]:
    """Return the job's record in a job file; ``steps`` is the length of the whole training."""
    curve = findings.curve
    command = findings.command
    worker: dict[str, Any] = {"cpu": command.cores or 1}
    if command.gpus:
        worker = {"gpu": command.gpus, **worker}
    job: dict[str, Any] = {
        "name": name,
        "steps": steps,
        "throughput": {n: round_significant(point.step.per_second) for n, point in curve.items()},
    }
    _add_memory(worker, findings.memory("worker"))
    job["worker"] = worker
    if findings.uses_servers:
        ps: dict[str, Any] = {"cpu": command.cores or 1}
        _add_memory(ps, findings.memory("ps"))
        need, have = (findings.metrics.get(f"{role}_bandwidth", 0.0) for role in ("worker", "ps"))
        if need and have >= need:
            worker["bandwidth"] = format_amount(round(need), Dimension.RATE)
            ps["bandwidth"] = format_amount(round(have), Dimension.RATE)
        job["ps"] = ps
    if findings.restart is not None:
        job["restart"] = f"{findings.restart:.3g}s"
    job["utility"] = {"kind": "constant", "value": 1}
    run: dict[str, Any] = {"command": list(command.words), "workdir": command.directory}
    if command.environment:
        run["env"] = dict(command.environment)
    if command.grace != DEFAULT_GRACE_SECONDS:
        run["grace"] = f"{command.grace:g}s"
    job["run"] = run
    return job


def _add_memory(demand: dict[str, Any], size: int | None) -> None:
    if size is not None:
        demand["memory"] = f"{size // _MEBIBYTE}MiB"


def job_file(findings: Findings, name: str, steps: int, when: str, stated: bool) -> str:
    """Return the content of the job file; ``stated`` is false if ``steps`` is a guess."""
    lines = [f"{HEAD}, {when}:"]
    lines += [
        f"#   {format_counts(point.workers, point.ps)}: "
        f"{round_significant(point.step.per_second):g} mini-batches/s +- {point.step.error:.1%}"
        for point in findings.points
    ]
    lines += [
        f"#   {format_counts(*counts)}: not measured: {reason.splitlines()[0]}"
        for counts, reason in findings.unmeasured.items()
    ]
    lines += [f"# {remark}" for remark in findings.remarks()]
    if not stated:
        lines.append("# `steps` is a guess: write the mini-batches of the whole training.")
    lines.append("# Write in `utility` what the job is worth, and by when.")
    return "\n".join(lines) + "\n" + _dump_yaml({"jobs": [job_record(findings, name, steps)]})


def _dump_yaml(document: Mapping[str, object]) -> str:
    import yaml  # noqa: PLC0415  # only needed if a file is written

    return yaml.safe_dump(
        document, sort_keys=False, default_flow_style=None, allow_unicode=True, width=120
    )


def families_file(
    findings: Findings, family: str, existing: Mapping[str, Mapping[str, Any]], when: str
) -> str:
    """Return a library of families with one family added or replaced."""
    entry: dict[str, Any] = {
        "throughput": {
            n: round_significant(point.step.per_second) for n, point in findings.curve.items()
        }
    }
    if findings.restart is not None:
        entry["restart"] = f"{findings.restart:.3g}s"
    worst = max(point.step.error for point in findings.curve.values())
    entry["measured"] = f"{when}, +- {worst:.1%} at most"
    families = {**{name: dict(value) for name, value in existing.items()}, family: entry}
    return f"{HEAD} --family\n{_dump_yaml({'families': families})}"
