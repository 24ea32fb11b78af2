"""Synthesis of job properties that a trace lacks: model, speed, demand, utility, elasticity.

Everything is drawn from one seed: the same trace, options and seed give the same jobs. Two
properties hold by construction and are tested:

- **GPU-time is conserved.** Mini-batches and step time are set so that a job takes its traced
  duration with its traced workers. In the linear model, ``work * step_time`` worker-seconds equal
  ``workers * duration`` to a nanosecond per mini-batch. With a measured curve,
  ``work / rate(workers)`` equals ``duration`` to half a mini-batch per chunk and another half.
- **Data of the trace is used unchanged.** Model, batch size, iterations and deadline (in
  ElasticFlow's and Gavel's files) are taken from the trace instead of drawn. With a measured curve,
  iterations take precedence over the traced duration: the run time then follows from them. With
  linear speed, the duration takes precedence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from fractions import Fraction
from functools import cache
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

import numpy as np
import polars as pl
from numpy.typing import NDArray

from shadowprice.core.amounts import MILLI, Dimension, format_seconds, parse_amount
from shadowprice.core.cluster import BANDWIDTH, Cluster
from shadowprice.core.errors import InputError
from shadowprice.core.job import Job
from shadowprice.traces.locate import parse_spec, read_trace
from shadowprice.traces.records import Trace
from shadowprice.traces.throughput import Curve, Family, family_table, rate_at
from shadowprice.traces.workload import NANO, JobProfile, UtilityKind, Workload, split_types

# ------------------------------------------------------------------ options


__all__ = ["CLASSES", "OPTION_NAMES", "SynthesisOptions", "load_jobs", "synthesize"]
MAX_WORKERS: Final = 64  # maximum number of workers that elasticity gives a job
OWN_LOGS: Final = ("csv", "sacct")  # formats of clusters' own logs


def _option(default: Any, meaning: str) -> Any:
    return field(default=default, metadata={"meaning": meaning})


@dataclass(frozen=True, slots=True)
class SynthesisOptions:
    """Options of the synthesis of what a trace lacks; `SYNTHESIS_OPTIONS` describes them."""

    families: Literal["a100", "v100"] = _option(
        "a100", "measured model families, one of which is drawn for each job without a model"
    )
    speed: Literal["auto", "linear", "measured"] = _option(
        "auto",
        "linear: any number of workers, each as fast as one; measured: the measured numbers "
        "of workers, at their rates; auto: measured for jobs with iterations, otherwise linear",
    )
    training: Literal["auto", "ps", "allreduce"] = _option(
        "auto",
        "ps: with parameter servers; allreduce: without; auto: allreduce for your own log, "
        "otherwise ps",
    )
    utility: Literal["auto", "default", "drawn"] = _option(
        "auto",
        "default: the utility of jobs that state none; drawn: as in OASiS's evaluation; auto: "
        "default for your own log (csv, sacct), otherwise drawn",
    )
    # The shares of OASiS, section V; time-critical jobs have a decay of 4 to 6 a slot.
    insensitive: float = _option(0.10, "share of time-insensitive jobs (decay 0)")
    sensitive: float = _option(
        0.55, "share of time-sensitive jobs (decay 0.01 to 1 a slot); the rest are time-critical"
    )
    # A relative target is at least a slot; those of OASiS, section V, don't depend on the duration.
    target: Literal["relative", "slots"] = _option(
        "relative", "relative: the traced duration times 1 to `stretch`; slots: 1 to 15 slots"
    )
    stretch: float = _option(
        4.0, "maximum of a relative target, as a multiple of the traced duration, 1 or more"
    )
    elasticity: float = _option(
        0.0,
        "maximum workers of a job, as a multiple of its traced ones, 1 to 64; 0 means 1 for "
        "your own log, otherwise all measured numbers for measured jobs with iterations, 2 for "
        "others",
    )
    cpu_jobs: Literal["drop", "keep"] = _option(
        "drop", "whether jobs without GPUs are left out or scheduled"
    )
    gpu_types: Literal["requested", "any"] = _option(
        "requested",
        "whether jobs run on the types of GPU that they requested, if servers name types",
    )
    # About an eighth of 25 Gbps, because a server of `generator.cluster_for` has these and 8 GPUs.
    bandwidth: str = _option("3Gbps", "network bandwidth of each worker")

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
        """Return the options, with each default that depends on the trace's format replaced."""
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
        for option in fields(cls):
            if option.name in pairs:
                text = pairs[option.name]
                try:
                    values[option.name] = float(text) if option.type == "float" else text
                except ValueError as error:
                    raise InputError(f"{option.name}={text}: write a number") from error
        return cls(**values)  # type: ignore[arg-type]  # __post_init__ checks them


OPTION_NAMES: Final = tuple(option.name for option in fields(SynthesisOptions))

_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    name: get_args(hint)
    for name, hint in get_type_hints(SynthesisOptions).items()
    if get_origin(hint) is Literal
}


def _describe(option: Field[Any]) -> str:
    choices = f"{' or '.join(_CHOICES[option.name])}; " if option.name in _CHOICES else ""
    return f"{option.metadata['meaning']} ({choices}default {option.default})"


SYNTHESIS_OPTIONS: Final[Mapping[str, str]] = {
    option.name: _describe(option) for option in fields(SynthesisOptions)
}
"""Descriptions of the options by name; a test compares them with ``docs/traces.md``."""


# ------------------------------------------------------------------ synthesis


CLASSES: Final = ("time-insensitive", "time-sensitive", "time-critical")
_DECAYS: Final = ((0.0, 0.0), (0.01, 1.0), (4.0, 6.0))
_LATEST: Final = 9e9
"""Maximum target in seconds: it fits into int64 nanoseconds, and later targets have no effect."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def load_jobs(
    spec: str, cluster: Cluster, *, seed: int = 0, skip_invalid: bool = False
) -> tuple[list[Job], Workload, Trace]:
    """Read a trace; return its jobs by arrival, the workload with notes, and the trace.

    ``spec`` is ``format:path?option=value&...`` with options of the format, of the selection
    (`shadowprice.traces.locate`) and of `SynthesisOptions`. Requests for resources that the cluster
    doesn't have are dropped. A job that requests a missing type of GPU is invalid. ``skip_invalid``
    drops invalid rows and counts them.
    """
    parsed = parse_spec(spec, OPTION_NAMES)
    options = SynthesisOptions.from_text(dict(parsed.synthesis))
    skip_invalid = skip_invalid or parsed.skip_invalid
    trace = read_trace(parsed, skip_invalid=skip_invalid)
    workload = synthesize(trace, cluster.slot_seconds, options, seed=seed)
    workload = workload.fitted_to(cluster, skip_invalid=skip_invalid)
    return workload.to_jobs(cluster), workload, trace


def synthesize(
    trace: Trace, slot_seconds: Fraction, options: SynthesisOptions | None = None, *, seed: int = 0
) -> Workload:
    """Build a workload from a trace, drawing values that the trace lacks from a seed.

    Targets and decays are in slots of ``slot_seconds``. The workload's ``notes`` list everything
    dropped or assumed.

    Raise `InputError` if no job remains.
    """
    options = (options or SynthesisOptions()).resolved(trace.format)
    notes: list[str] = []
    frame = _filter_usable_jobs(trace, options, notes)
    rng = np.random.default_rng(seed)
    families = _families(frame, options, rng, notes)
    traced, per_worker = _traced_workers(frame)
    speeds = JobSpeeds(frame, families, traced, options, notes)
    drawn = _describe_drawn(frame, speeds.curves, options)
    submit = _nanoseconds(frame["submit"].to_numpy())
    kind, value, decay, target, within, classes = _utilities(
        frame, submit, speeds.duration, slot_seconds, options, rng, notes
    )
    limit = frame["time_limit"].fill_null(np.nan).to_numpy().astype(np.float64)
    return Workload(
        names=frame["job"].to_list(),
        tenants=frame["tenant"].to_list(),
        arrival=submit,
        epochs=speeds.epochs,
        chunks=speeds.chunks,
        minibatches=speeds.minibatches,
        minibatch_time=speeds.minibatch_time,
        min_workers=speeds.min_workers,
        max_workers=speeds.max_workers,
        profiles=_profiles(frame, families, speeds.curves, traced, per_worker, options),
        kind=kind,
        value=value,
        decay=decay,
        target=target,
        labels=[
            {"family": family.name, "class": name}
            for family, name in zip(families, classes, strict=True)
        ],
        slot_seconds=slot_seconds,
        notes=tuple(notes),
        drawn=drawn,
        within=within,
        time_limit=None if np.isnan(limit).all() else limit,
        requested=traced,
    )


def _filter_usable_jobs(trace: Trace, options: SynthesisOptions, notes: list[str]) -> pl.DataFrame:
    frame = trace.jobs
    if options.cpu_jobs == "drop":
        kept = frame.filter(pl.col("gpus") > 0)
        if kept.height < frame.height:
            dropped = _count(frame.height - kept.height, "CPU job")
            notes.append(f"{dropped} left out (cpu_jobs=keep schedules them)")
        frame = kept
    has_family = pl.struct("model", "batch_size").is_in(
        [{"model": model, "batch_size": size} for model, size in family_table().by_model],
        nulls_equal=True,
    )
    # Without a duration, iterations at the family's speed give one.
    has_length = pl.col("iterations").is_not_null() & has_family
    kept = frame.filter(pl.col("duration").is_not_null() | has_length)
    if kept.height < frame.height:
        dropped = _count(frame.height - kept.height, "job")
        notes.append(f"{dropped} without a duration or a known model left out")
    if kept.is_empty():
        raise InputError(f"{trace.source}: no job is left to schedule ({'; '.join(notes)})")
    return kept


def _families(
    frame: pl.DataFrame, options: SynthesisOptions, rng: np.random.Generator, notes: list[str]
) -> list[Family]:
    """Return each job's family: that of its traced model if known, else a random one."""
    table = family_table()
    pool = table.of_set(options.families)
    drawn = rng.integers(0, len(pool), frame.height)
    pairs = zip(frame["model"].to_list(), frame["batch_size"].to_list(), drawn, strict=True)
    by_model = table.by_model
    families = [by_model.get((model, batch)) or pool[int(index)] for model, batch, index in pairs]
    unknown = sum(
        model is not None and (model, batch) not in by_model
        for model, batch in zip(frame["model"], frame["batch_size"], strict=True)
    )
    if unknown:
        jobs = _count(unknown, "job")
        notes.append(f"{jobs} with a model without measurements: a family is drawn for each")
    return families


def _describe_drawn(
    frame: pl.DataFrame, curves: Sequence[Curve | None], options: SynthesisOptions
) -> tuple[str, ...]:
    """Return the properties that are drawn because the trace lacks them, with numbers of jobs."""
    # With elasticity 1, jobs keep their traced workers and durations: a drawn family has no effect
    # on them, and isn't reported.
    known = family_table().by_model
    pairs = zip(frame["model"].to_list(), frame["batch_size"].to_list(), strict=True)
    unknown = sum(
        pair not in known and curve is None for pair, curve in zip(pairs, curves, strict=True)
    )
    is_default = options.utility == "default"
    untargeted = frame["deadline"].null_count()
    counts = (
        ("model families", 0 if options.elasticity == 1 else unknown),
        ("utilities and targets", 0 if is_default else untargeted),
        ("values of deadlines", 0 if is_default else frame.height - untargeted),
    )
    return tuple(f"the {noun} of {_count(count, 'job')}" for noun, count in counts if count)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _traced_workers(frame: pl.DataFrame) -> tuple[Ints, Floats]:
    """Return the traced workers of each job, and the GPUs of one worker."""
    gpus = frame["gpus"].to_numpy()
    stated = frame["workers"].fill_null(0).to_numpy()
    # Without workers in the trace, each started GPU is a worker; 1e-9 absorbs rounding errors.
    one_per_gpu = np.maximum(1, np.ceil(gpus - 1e-9)).astype(np.int64)
    traced = np.where(stated > 0, stated, one_per_gpu).astype(np.int64)
    return traced, gpus / traced


def _profiles(
    frame: pl.DataFrame,
    families: list[Family],
    curves: list[Curve | None],
    traced: Ints,
    per_worker: Floats,
    options: SynthesisOptions,
) -> list[JobProfile]:
    """Return demands and speed of every job; equal jobs share one object."""
    table = family_table()
    bandwidth = options.worker_bandwidth
    gpus = np.ceil(per_worker * MILLI - 1e-6).astype(np.int64)
    # Totals of the trace are divided by the workers and rounded up to the stored unit.
    cores = np.ceil(frame["cpus"].fill_null(0.0).to_numpy() * MILLI / traced - 1e-6)
    memory = np.ceil(frame["memory"].fill_null(0).to_numpy() / traced)
    cache: dict[tuple[object, ...], JobProfile] = {}
    profiles = []
    ps = {**table.ps} if options.training == "ps" else None
    if ps is not None:
        # OASiS (6) requires at least the bandwidth of a worker.
        ps[BANDWIDTH] = max(ps[BANDWIDTH], bandwidth)
    traced_types = frame["gpu_type"].to_list() if options.gpu_types == "requested" else None
    for index, family in enumerate(families):
        types = split_types(traced_types[index]) if traced_types and gpus[index] else ()
        key = (id(family), id(curves[index]), gpus[index], cores[index], memory[index], types)
        if key not in cache:
            scale = max(float(per_worker[index]), 0.0) or 1.0  # the table is for one GPU
            assumed = {
                "cpu": max(1, math.ceil(table.worker["cpu"] * scale)),
                "memory": max(1, math.ceil(table.worker["memory"] * scale)),
            }
            worker = {
                **({"gpu": int(gpus[index])} if gpus[index] else {}),
                "cpu": int(cores[index]) or assumed["cpu"],
                "memory": int(memory[index]) or assumed["memory"],
                BANDWIDTH: bandwidth,
            }
            # A measured rate includes the communication.
            gradient = family.gradient if curves[index] is None else 0
            cache[key] = JobProfile(worker, ps, gradient, curves[index], gpu_types=types)
        profiles.append(cache[key])
    return profiles


def _utilities(
    frame: pl.DataFrame,
    submit: Ints,
    duration: Floats,
    slot_seconds: Fraction,
    options: SynthesisOptions,
    rng: np.random.Generator,
    notes: list[str],
) -> tuple[list[UtilityKind], Floats, Floats, Floats, Ints, list[str]]:
    """Draw utilities: OASiS section V's mix, or the deadline of the trace.

    Returns the kinds, values, decays, targets in slots, targets in clock time (`Workload.within`),
    and names of classes.
    """
    count = frame.height
    value, decay, classes = draw_sigmoids(rng, count, (options.insensitive, options.sensitive))
    target = np.ones(count)
    within = np.full(count, -1, dtype=np.int64)  # ns from submission to target; -1: in slots
    if options.target == "slots":
        target = rng.uniform(1.0, 15.0, count)
    else:
        stretch = np.exp(rng.uniform(0.0, math.log(options.stretch), count))
        stretched = _nanoseconds(duration * stretch)
        # A target is no earlier than the end of the slot after the arrival slot (a target of 1
        # slot). Otherwise no schedule could meet the target of a job that lasts seconds in slots of
        # 20 minutes.
        slot = float(slot_seconds * NANO)
        earliest = (np.ceil(submit / slot) + 2) * slot
        within = np.where(submit + stretched > earliest, stretched, within)
    due = frame["deadline"].fill_null(np.nan).to_numpy()
    has_deadline = ~np.isnan(due)
    if has_deadline.any():
        deadline = _nanoseconds(np.where(has_deadline, due, 0.0))
        within = np.where(has_deadline, np.maximum(0, deadline - submit), within)
        _note_early(submit[has_deadline], deadline[has_deadline], slot_seconds, notes)
    decay = np.where(has_deadline, 0.0, decay)
    names = [
        "deadline" if timed else CLASSES[index]
        for timed, index in zip(has_deadline, classes, strict=True)
    ]
    kinds: list[UtilityKind] = ["deadline" if timed else "sigmoid" for timed in has_deadline]
    if options.utility == "default":  # such jobs only keep deadlines of the trace
        within = np.where(has_deadline, within, -1)
        names = ["default"] * count
        kinds = ["default"] * count
    return kinds, value, decay, target, within, names


def _note_early(submit: Ints, deadline: Ints, slot_seconds: Fraction, notes: list[str]) -> None:
    """Add a note on deadlines that no schedule meets, because slots are too long."""
    slot = float(slot_seconds * NANO)
    early = int((deadline < (np.ceil(submit / slot) + 1) * slot).sum())
    if early:
        notes.append(
            f"{_count(early, 'deadline')} before the end of the job's first usable slot: no "
            f"schedule in slots of {format_seconds(float(slot_seconds))} meets them; try shorter "
            "slots"
        )


def draw_sigmoids(
    rng: np.random.Generator, count: int, shares: tuple[float, float] = (0.10, 0.55)
) -> tuple[Floats, Floats, Ints]:
    """Draw values, decays and classes (indices into `CLASSES`) of OASiS section V."""
    classes = np.searchsorted(np.cumsum(shares), rng.random(count), side="right").astype(np.int64)
    value = rng.uniform(1.0, 100.0, count)
    low = np.array([low for low, _ in _DECAYS])[classes]
    high = np.array([high for _, high in _DECAYS])[classes]
    return value, low + (high - low) * rng.random(count), classes


def _nanoseconds(seconds: Floats) -> Ints:
    return np.asarray(np.rint(np.minimum(seconds, _LATEST) * NANO), dtype=np.int64)


# ------------------------------------------------------------------ work and speed


_MAX_MINIBATCHES: Final = 50  # maximum mini-batches of a chunk in an epoch
_MANY: Final = 50 * _MAX_MINIBATCHES  # from here, rounding to a multiple changes at most 1 %


class JobSpeeds:
    """Work, step time and worker range of every job, so that its GPU-time is as traced.

    ``frame`` has the columns of `records.SCHEMA`. ``traced`` is the number of workers in the trace,
    shape (jobs,). Assumptions are appended to ``notes``. The attributes are columns of `Workload`,
    and ``duration``: seconds with the traced workers, from the trace or implied by the iterations.
    """

    def __init__(
        self,
        frame: pl.DataFrame,
        families: list[Family],
        traced: Ints,
        options: SynthesisOptions,
        notes: list[str],
    ) -> None:
        has_iterations = frame["iterations"].is_not_null().to_numpy()
        iterations = frame["iterations"].fill_null(0).to_numpy().astype(np.int64)
        duration = frame["duration"].fill_null(np.nan).to_numpy().astype(np.float64)
        steps = np.array([family.step_seconds for family in families])
        factor = options.elasticity or 2.0  # 0 means 2, or all measured numbers (`_measure`)
        max_workers = np.clip(np.floor(traced * factor), traced, np.maximum(MAX_WORKERS, traced))
        self.max_workers = max_workers.astype(np.int64)
        self.min_workers = traced.copy() if options.elasticity == 1 else np.ones_like(traced)
        self.curves: list[Curve | None] = [None] * frame.height
        rates = np.zeros(frame.height)
        # Traces with iterations name their models, most of which are measured.
        is_auto = options.speed == "auto"
        wanted = has_iterations if is_auto else np.full_like(has_iterations, True)
        if options.speed != "linear":
            self._measure(families, traced, wanted, has_iterations, options, rates)
        measured = rates > 0
        missing = int((wanted & ~measured).sum()) if options.speed != "linear" else 0
        if missing:
            notes.append(f"{missing} jobs ran with more GPUs than were measured: linear speed")
        # OASiS (2): 2 e / b seconds of communication per mini-batch.
        gradients = np.array([family.gradient for family in families], dtype=np.float64)
        comm = 2 * 8.0 * gradients / options.worker_bandwidth
        # Without a traced duration, the iterations at their speed give one.
        with np.errstate(divide="ignore"):
            implied = np.where(
                measured, iterations / np.where(measured, rates, 1.0), iterations * steps / traced
            )
        self.duration = np.where(np.isnan(duration), implied, duration)
        untimed = np.isnan(duration) & ~measured
        # Linear speed includes communication, which the rates of `implied` lack.
        self.duration[untimed] += (iterations * comm / traced)[untimed]
        batches = np.where(
            measured,
            np.where(
                has_iterations, iterations, np.rint(self.duration * np.where(measured, rates, 1))
            ),
            np.rint(traced * self.duration / (steps + comm)),
        )
        batches = np.maximum(1, batches).astype(np.int64)
        exact = measured & has_iterations
        self.chunks, per_chunk = _split_into_chunks(batches, self.max_workers, exact)
        self.epochs, self.minibatches, per_chunk = _epochs(per_chunk, measured)
        work = self.chunks * per_chunk
        # The computing time absorbs all rounding of the work.
        compute_seconds = traced * self.duration / work - comm
        short = ~measured & (compute_seconds < 1e-9)
        if short.any():
            notes.append(f"{int(short.sum())} jobs are shorter than one mini-batch: each gets one")
        step = np.where(short, 1e-9, compute_seconds)
        self.minibatch_time = np.where(measured, 0, np.rint(step * NANO)).astype(np.int64)
        self.max_workers = np.minimum(self.max_workers, self.chunks)
        self.min_workers = np.minimum(self.min_workers, self.max_workers)

    def _measure(
        self,
        families: list[Family],
        traced: Ints,
        wanted: NDArray[np.bool_],
        has_iterations: NDArray[np.bool_],
        options: SynthesisOptions,
        rates: Floats,
    ) -> None:
        """Set curve, rate and worker range of each job that has a measured speed."""
        for index in np.flatnonzero(wanted):
            workers = int(traced[index])
            curve = _curve_with(families[index], workers)
            if curve is None:
                continue
            self.curves[index], rates[index] = curve, curve[workers]
            if has_iterations[index] and options.elasticity == 0:
                self.max_workers[index] = max(curve)


@cache
def _curve_with(family: Family, workers: int) -> Curve | None:
    """Return a family's curve with a rate for some workers; None outside the measured range."""
    rate = rate_at(family.curve, workers)
    return None if rate is None else dict(sorted({**family.curve, workers: rate}.items()))


def _split_into_chunks(batches: Ints, wanted: Ints, exact: NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """Split mini-batches into at least ``wanted`` chunks, without rounding if ``exact``.

    Returns the number of chunks and of mini-batches per chunk. If not exact, there are ``wanted``
    chunks, and the mini-batches per chunk are rounded to the nearest integer. If exact, the number
    of chunks is the smallest divisor in [wanted, 4 wanted). Without a divisor, every chunk has one
    mini-batch. There are never more chunks than mini-batches.
    """
    chunks = np.minimum(wanted, batches)
    per_chunk = np.maximum(1, np.rint(batches / chunks)).astype(np.int64)
    uneven = exact & (batches % chunks != 0)
    for index in np.flatnonzero(uneven):
        total, low = int(batches[index]), int(chunks[index])
        divisor = next(
            (chunk_count for chunk_count in range(low, 4 * low) if total % chunk_count == 0), total
        )
        chunks[index], per_chunk[index] = divisor, total // divisor
    return chunks, per_chunk


def _epochs(per_chunk: Ints, measured: NDArray[np.bool_]) -> tuple[Ints, Ints, Ints]:
    """Split each chunk's mini-batches into as few epochs as possible, of at most 50 each.

    Returns the epochs, the mini-batches per chunk and epoch, and the product of both. More than
    2,500 mini-batches are first rounded to a multiple of 50 (within 1 %), and the step time absorbs
    the change. ``measured`` jobs aren't rounded, because a measured rate has no step time.
    """
    rounded = np.rint(per_chunk / _MAX_MINIBATCHES) * _MAX_MINIBATCHES
    total = np.where(~measured & (per_chunk > _MANY), rounded, per_chunk).astype(np.int64)
    size = np.ones_like(total)
    for candidate in range(2, _MAX_MINIBATCHES + 1):  # the largest divisor remains
        size[total % candidate == 0] = candidate
    return total // size, size, total
