"""Options of the synthesis of what a trace lacks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Final, Literal

from shadowprice.core.amounts import Dimension, parse_amount
from shadowprice.core.errors import InputError

MAX_WORKERS: Final = 64  # maximum number of workers that elasticity gives a job

OWN_LOGS: Final = ("csv", "sacct")  # formats of clusters' own logs

_CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "families": ("a100", "v100"),
    "speed": ("auto", "linear", "measured"),
    "training": ("auto", "ps", "allreduce"),
    "utility": ("auto", "default", "drawn"),
    "target": ("relative", "slots"),
    "cpu_jobs": ("drop", "keep"),
    "gpu_types": ("requested", "any"),
}


@dataclass(frozen=True, slots=True)
class SynthesisOptions:
    """Options of the synthesis of what a trace lacks."""

    families: Literal["a100", "v100"] = "a100"
    """Measured model families from which jobs without a model are drawn, uniformly."""
    speed: Literal["auto", "linear", "measured"] = "auto"
    """Linear: any number of workers, each at the family's rate on one GPU (the papers' model).
    Measured: only the measured numbers, at the measured rates. Auto: measured if the trace names a
    model of the table, else linear."""
    training: Literal["auto", "ps", "allreduce"] = "auto"
    """Whether jobs use parameter servers. Auto: allreduce for a cluster's own log, else ps."""
    utility: Literal["auto", "default", "drawn"] = "auto"
    """Default: jobs state no utility and have the default one, until the deadline if the trace has
    it. Drawn: as in OASiS, section V. Auto: default for a cluster's own log, else drawn."""
    insensitive: float = 0.10
    """Share of time-insensitive jobs, with decay 0. OASiS, section V: 10 %."""
    sensitive: float = 0.55
    """Share of time-sensitive jobs, with decay 0.01-1 per slot; the rest are time-critical, with
    decay 4-6. OASiS, section V: 55 %."""
    target: Literal["relative", "slots"] = "relative"
    """Relative: the target is the traced duration times a log-uniform stretch from 1 to
    ``stretch``, and at least a slot. Slots: uniform in 1 to 15 slots, independent of the
    duration (OASiS, section V; longer jobs miss it)."""
    stretch: float = 4.0  # maximum stretch of a relative target
    elasticity: float = 0.0
    """A job may run with 1 to ``elasticity`` times its traced workers, at most 64; 1 fixes the
    traced number. 0, the default, means 1 for a cluster's own log, every measured number for a
    measured curve of the trace, and otherwise 2."""
    cpu_jobs: Literal["drop", "keep"] = "drop"
    """Whether jobs without GPUs are dropped, with a note, or scheduled."""
    gpu_types: Literal["requested", "any"] = "requested"
    """Requested: a job runs on GPUs of a type that it requested, if servers name types. Any: on
    GPUs of all types."""
    bandwidth: str = "3Gbps"
    """Bandwidth of a worker with one GPU; the default of 3Gbps is an eighth of 25 Gbps."""

    def __post_init__(self) -> None:
        for name, kind in _CHOICES.items():
            if getattr(self, name) not in kind:
                raise InputError(f"{name}={getattr(self, name)}: write {' or '.join(kind)}")
        shares = (self.insensitive, self.sensitive, 1 - self.insensitive - self.sensitive)
        if not all(-1e-9 <= share <= 1 for share in shares):
            raise InputError("insensitive and sensitive are shares of all jobs, at most 1 together")
        if not (math.isfinite(self.stretch) and self.stretch >= 1):
            raise InputError(f"stretch={self.stretch}: write 1 or more")
        if not (self.elasticity == 0 or 1 <= self.elasticity <= MAX_WORKERS):
            raise InputError(f"elasticity={self.elasticity}: write 0, or 1 to {MAX_WORKERS}")

    def resolved(self, trace_format: str) -> SynthesisOptions:
        """Return the options for a trace of a format, without ``auto`` where it depends on that.

        Jobs of a cluster's own log stay as they are: nothing is drawn that changes a schedule.
        """
        own = trace_format in OWN_LOGS
        return replace(
            self,
            utility=("default" if own else "drawn") if self.utility == "auto" else self.utility,
            training=("allreduce" if own else "ps") if self.training == "auto" else self.training,
            elasticity=1.0 if own and self.elasticity == 0 else self.elasticity,
        )

    @property
    def worker_bandwidth(self) -> int:
        """Bandwidth of a worker in bit/s."""
        value = parse_amount(self.bandwidth)
        if not value.value or value.dimension is not Dimension.RATE:
            raise InputError(f"bandwidth={self.bandwidth}: write a rate such as 3Gbps")
        return value.value

    @classmethod
    def from_text(cls, pairs: dict[str, str]) -> SynthesisOptions:
        """Parse the options of ``?training=allreduce&stretch=2``."""
        values: dict[str, object] = {}
        for field in fields(cls):
            if field.name in pairs:
                text = pairs[field.name]
                try:
                    values[field.name] = float(text) if field.type == "float" else text
                except ValueError as error:
                    raise InputError(f"{field.name}={text}: write a number") from error
        return cls(**values)  # type: ignore[arg-type]  # __post_init__ checks them


OPTION_NAMES: Final = tuple(field.name for field in fields(SynthesisOptions))

_MEANINGS: Final[Mapping[str, str]] = {
    "families": "measured model families that jobs without a model are drawn from",
    "speed": "linear: any number of workers, each as fast as one; measured: the measured numbers "
    "of workers, at their rates; auto: measured where the trace names a measured model",
    "training": "with parameter servers, or all-reduce without; auto: allreduce for your own log, "
    "otherwise ps",
    "utility": "default: that of jobs that state none; drawn: as in OASiS's evaluation; auto: "
    "default for your own log (csv, sacct), otherwise drawn",
    "insensitive": "share of time-insensitive jobs (decay 0)",
    "sensitive": "share of time-sensitive jobs (decay 0.01 to 1 a slot); the rest are "
    "time-critical",
    "target": "relative: the traced duration times 1 to `stretch`; slots: 1 to 15 slots",
    "stretch": "largest stretch of a relative target, 1 or more",
    "elasticity": "times its traced workers that a job may run with, 1 to 64; 0: 1 for your own "
    "log, otherwise every measured number, or 2",
    "cpu_jobs": "whether jobs without GPUs are left out or scheduled",
    "gpu_types": "whether jobs run on the types of GPU that they requested, if servers name types",
    "bandwidth": "network share of a worker with one GPU",
}


def _describe(name: str, default: object) -> str:
    choices = f"{' or '.join(_CHOICES[name])}; " if name in _CHOICES else ""
    return f"{_MEANINGS[name]} ({choices}default {default})"


SYNTHESIS_OPTIONS: Final[Mapping[str, str]] = {
    field.name: _describe(field.name, field.default) for field in fields(SynthesisOptions)
}
"""Descriptions of the options by name; a test compares them with ``docs/traces.md``."""
