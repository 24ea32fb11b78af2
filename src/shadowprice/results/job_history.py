"""History of one job from a run directory, and its text for ``explain`` and a run's page."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import polars as pl

from shadowprice.core import bounds
from shadowprice.core.amounts import format_seconds
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.wording import plural_noun, pluralize, quote_for_display
from shadowprice.results import run_directory
from shadowprice.results.run_directory import Fields
from shadowprice.results.server_names import compress_name_list, group_equal_placements

Entry = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class PlacementSpan:
    """A placement that stays unchanged over consecutive slots."""

    first: int
    last: int  # inclusive
    entries: tuple[Entry, ...]  # servers by position in the cluster

    @property
    def workers(self) -> int:
        """Number of workers in each slot."""
        return sum(workers for _, workers, _ in self.entries)

    @property
    def ps(self) -> int:
        """Number of parameter servers in each slot."""
        return sum(ps for _, _, ps in self.entries)


@dataclass(frozen=True, slots=True)
class JobHistory:
    """History of a job in a run."""

    info: Fields  # ``run.json``
    job: Fields  # row of ``jobs.parquet`` with ``worth`` and ``shape`` parsed
    decisions: list[Fields]  # lines of ``decisions.jsonl`` about the job
    ran: list[PlacementSpan]  # actual placements

    def planned(self, decision: Fields) -> list[PlacementSpan]:
        """Return the committed plan of a decision."""
        position = {name: index for index, name in enumerate(run_directory.server_names(self.info))}
        rows = decision.get("plan", ())
        return merge_spans(
            [(slot, position[name], workers, ps) for slot, name, workers, ps in rows]
        )

    def record(self) -> Fields:
        """Return the history as plain values."""
        names = run_directory.server_names(self.info)
        return {
            "policy": self.info["policy"],
            "job": self.job,
            "decisions": self.decisions,
            "ran": [
                {
                    "slots": [span.first, span.last],
                    "placement": [
                        {"server": names[server], "workers": workers, "ps": ps}
                        for server, workers, ps in span.entries
                    ],
                }
                for span in self.ran
            ],
        }


def read_job_history(folder: Path, name: str) -> JobHistory:
    """Read a job's history."""
    info = run_directory.read_info(folder)
    jobs = run_directory.read_table(folder, "jobs")
    row = jobs.filter(pl.col("job") == name)
    if row.is_empty():
        raise InputError(_unknown_job(folder, name, jobs["job"].to_list()))
    job: Fields = row.row(0, named=True)
    for key in ("worth", "shape"):
        job[key] = json.loads(job[key])
    quoted = json.dumps(name, ensure_ascii=False)
    lines = run_directory.read_decisions(folder, containing=f'"job": {quoted}')
    ran = run_directory.read_table(folder, "allocations").filter(pl.col("job") == name)
    rows = ran.select("slot", "server", "workers", "ps").rows()
    return JobHistory(info, job, [line for line in lines if line["job"] == name], merge_spans(rows))


def merge_spans(rows: Sequence[tuple[Any, ...]]) -> list[PlacementSpan]:
    """Merge (slot, server, workers, ps) rows, ordered by slot, into spans of slots."""
    by_slot: dict[int, list[Entry]] = {}
    for slot, server, workers, ps in rows:
        by_slot.setdefault(slot, []).append((server, workers, ps))
    joined: list[PlacementSpan] = []
    for slot, entries in by_slot.items():
        placement = tuple(sorted(entries))
        if joined and joined[-1].last == slot - 1 and joined[-1].entries == placement:
            joined[-1] = PlacementSpan(joined[-1].first, slot, placement)
        else:
            joined.append(PlacementSpan(slot, slot, placement))
    return joined


def _unknown_job(folder: Path, name: str, names: list[str]) -> Fault:
    # Compare at most 2,000 names, because fuzzy matching is slow and a run may be large.
    compared = names[:2_000] if len(name) <= bounds.NAME.maximum else []
    close = difflib.get_close_matches(name, compared, 3, cutoff=0.5)
    close += [other for other in names if name.lower() in other.lower() and other not in close]
    quoted = " or ".join(repr(other) for other in close[:3])
    hint = f"did you mean {quoted}?" if close else f"its jobs are in {folder}/jobs.parquet"
    return Fault(str(folder), f"unknown job {quote_for_display(name)}", hint)


_BROKEN_PREMISES: Final = {
    "U_covers_all_jobs": "some job's utility per resource exceeds U",
    "constants_known_in_advance": "L and U were learnt during the run",
    "empty_is_priced": "empty=admits lowers L",
    "horizon_reaches_end": "the horizon ends before the timespan",
    "demands_are_small": "one job can take {max_share_of_server:.3g} of a server",
    "schedules_are_optimal": "schedules are optimal only within a gap or in whole chunks",
    "moves_are_free": "some job loses time when it moves, or can't move",
    "undisturbed": "servers, the timespan, jobs or their plans changed",
    "gain_is_theorem_2": "G is not the value of Theorem 2",
    "no_placement_repaired": "some placement was repaired or searched, not rounded",
}
"""Reason why a ratio isn't proved, by the premise of the theorem that is false."""

_BROKEN_LEMMA_3: Final = {
    "theta_is_lemma_3": "theta is not the value of Lemma 3",
    "gangs_are_small": "some gang takes a large part of its pool",
    "utility_covers_slots": "the utility of some gang is below 1 per slot of a process",
    "undisturbed": "servers, jobs or their plans changed",
}

_BROKEN_THEOREM_1: Final = {
    "lemma_3_premises_held": "Lemma 3 isn't proved",
    "lambda_is_lemma_1": "lambda is below the value of Lemma 1",
    "rounds_double": "rounds stopped doubling",
    "all_jobs_completed": "some job was not completed",
}


def history_lines(history: JobHistory, maximum: int | None) -> Iterator[tuple[str, str]]:
    """Yield a job's history as (label, text): request, decisions and placements.

    ``maximum`` limits the placements of a plan or a run: None for all, 0 if the caller draws them.
    An empty label continues the previous line. An empty label and text separate two sections.
    """
    yield from _request_lines(history)
    promise, admitted = None, False
    for decision in history.decisions:
        yield "", ""
        yield from _decision_lines(history, decision, admitted, promise, maximum)
        promise = decision.get("promise", promise)
        admitted |= decision["outcome"] == "admitted"
    yield "", ""
    yield from _result_lines(history, maximum)


def guarantee_text(info: Mapping[str, Any]) -> str:
    """Return the policy's proved guarantee, from ``run.json``; empty without a guarantee."""
    data = info.get("guarantee")
    if not data:
        return ""
    if "sigma" in data:
        return _rounds_guarantee_text(data)
    if data["ratio"] is None:
        return "none: no ratio is proved for these prices"
    answer = {True: "it is", False: "it is not", None: "unknown"}
    text = (
        f"at least 1/{data['ratio']:.3g} of the offline optimum, if demands are small beside a "
        f"server and D0 = {data['D0']:.4g} is at most half of the optimum "
        f"({answer[data['D0_within_half_of_optimum']]}: the optimum lies between "
        f"{data['optimum_at_least']:.4g} and {data['optimum_at_most']:.4g})"
    )
    text += _not_proved(data, _BROKEN_PREMISES)
    if "no_placement_repaired" in data:
        text += "; Theorem 2 holds with probability 1 - delta for each rounding"
    return text


def _rounds_guarantee_text(guarantee: Mapping[str, Any]) -> str:
    text = f"a round's ideal revenue is at least 1/{guarantee['sigma']:.3g} of its best (Lemma 3)"
    text += _not_proved(guarantee, _BROKEN_LEMMA_3)
    if guarantee["loss_at_most"] is not None:
        text += f"; at most {guarantee['loss_at_most']:,.4g} below the offline optimum (Theorem 1)"
    elif guarantee["ratio_at_least"] is not None:
        text += f"; at least {guarantee['ratio_at_least']:.3g} of the offline optimum (Theorem 1)"
    else:
        return f"{text}; Theorem 1 proves nothing for these utilities and arrivals"
    return text + _not_proved(guarantee, _BROKEN_THEOREM_1)


def _not_proved(guarantee: Mapping[str, Any], reasons: Mapping[str, str]) -> str:
    """Return why a claim isn't proved, by its premises that are false; empty if all held."""
    broken = [
        reason.format_map(guarantee)
        for premise, reason in reasons.items()
        if not guarantee.get(premise, True)
    ]
    return f"; not proved here: {', '.join(broken)}" if broken else ""


def _request_lines(history: JobHistory) -> Iterator[tuple[str, str]]:
    job, shape = history.job, history.job["shape"]
    slot = history.info["cluster"]["slot_seconds"]
    tenant = f", tenant {job['tenant']}" if job["tenant"] else ""
    label = "arrives" if job["outcome"] == "not arrived" else "arrived"
    ahead = (job["arrival"] - job["submitted"]) * slot
    submitted = f", submitted {format_seconds(ahead)} before it begins" if ahead else ""
    yield label, f"in slot {job['arrival']}{submitted}{tenant}"
    if "tasks" in shape:
        yield from _bag_request_lines(job, shape, slot)
        return
    minimum, maximum = shape["workers"]
    span = f"{minimum}" if minimum == maximum else f"{minimum} to {maximum}"
    yield "requested", f"{span} {plural_noun(maximum, 'worker')} of {job['demand']}"
    if job["ps_demand"] is not None:
        yield "", f"parameter servers of {job['ps_demand']}"
    work = shape["epochs"] * shape["chunks"] * shape["minibatches"]
    shortest = shape["shortest_slots"]
    factors = ""
    if max(shape["epochs"], shape["minibatches"]) > 1:
        factors = (
            f" ({pluralize(shape['epochs'], 'epoch')} of {pluralize(shape['chunks'], 'chunk')} of "
            f"{shape['minibatches']:,})"
        )
    step = format_seconds(shape["step_seconds"])
    yield "work", f"{pluralize(work, 'mini-batch')}{factors}, {step} each on one worker"
    yield (
        "fastest",
        f"{pluralize(shortest, 'slot')} ({format_seconds(shortest * slot)}), maximum workers",
    )
    yield "worth", _utility_text(job)
    if job["due"] is not None:
        yield "in time", _in_time(job, slot)


def _in_time(job: dict[str, Any], slot: float) -> str:
    last = math.floor(job["due"]) - 1
    if last < job["arrival"]:
        return "never: its target lies before the end of its arrival slot"
    after = format_seconds((job["due"] - job["submitted"]) * slot)
    return f"by the end of slot {last}: its target is {after} after its submission"


def _bag_request_lines(
    job: dict[str, Any], shape: dict[str, Any], slot: float
) -> Iterator[tuple[str, str]]:
    yield "requested", f"{job['demand']} for each copy of a task"
    for number, (count, distribution, mean) in enumerate(shape["tasks"]):
        text = f"{pluralize(count, 'task')}, {distribution}, {format_seconds(mean)} on average"
        yield "tasks" if number == 0 else "", f"group {number}: {text}"
    until = format_seconds((job["arrival"] - job["submitted"] + shape["deadline_slots"]) * slot)
    limit = f"missed with a probability of at most {shape['miss_probability']:g}"
    yield "deadline", f"{until} after its submission, {limit}"
    yield "worth", _utility_text(job)


def _utility_text(job: dict[str, Any]) -> str:
    worth = dict(job["worth"])
    kind = worth.pop("kind")
    numbers = ", ".join(f"{name} {value:g}" for name, value in worth.items())
    return f"{kind} ({numbers}): {job['value']:.4g} if done as early as possible"


def _decision_lines(
    history: JobHistory,
    decision: dict[str, Any],
    admitted: bool,
    before: int | None,
    maximum: int | None,
) -> Iterator[tuple[str, str]]:
    """Yield the lines of a decision.

    ``admitted`` and ``before``, the job's promise, are the state before the decision.
    """
    outcome = decision["outcome"]
    if outcome == "moved":
        promise = decision["promise"]
        label = "promised again" if before is None else "moved"
        label = "promise lost" if promise is None else label
    else:
        suffix = " again" if admitted and outcome == "admitted" else ""
        label = f"{run_directory.display_outcome(outcome)}{suffix}"
    yield label, f"in slot {decision['slot']}"
    refusal = decision.get("refusal")
    if refusal is not None:
        yield "reason", f"{refusal['message']} ({refusal['code']})"
    elif decision["reason"]:
        yield "", decision["reason"]
    if decision["utility"] is not None and decision["cost"] is not None:
        completion = decision["completion"]
        when = "" if completion is None else f", done in slot {completion}"
        value, price, payoff = (decision[key] for key in ("utility", "cost", "payoff"))
        relation = "equals" if payoff == 0 else "exceeds" if payoff > 0 else "is below"
        text = f"value {value:.4g} {relation} price {price:.4g}: payoff {payoff:.4g}"
        yield "numbers", text + when
        bound = decision.get("payoff_bound")
        if bound is not None:
            yield "proved", f"no plan pays more {_compare_bound(bound, payoff)} at these prices"
    # A planner's promise is the end of its plan, so don't print it again.
    planned = decision.get("plan") and decision["promise"] == decision["completion"]
    if decision.get("promise") is not None and not planned:
        yield "promise", f"complete by the end of slot {decision['promise']}"
    if refusal is not None:
        if refusal.get("bottleneck"):
            yield "bottleneck", refusal["bottleneck"]
        for name, value in refusal.get("numbers", {}).items():
            yield name.replace("_", " "), f"{value:.6g}"
    for row, (group, tasks, copies) in enumerate(decision.get("copies", ())):
        each = f"{copies} copies each of " if copies > 1 else "one copy each of "
        yield "copies" if row == 0 else "", f"{each}{pluralize(tasks, 'task')} of group {group}"
    if decision.get("plan") and maximum != 0:
        yield from _placement_lines(history, "plan", history.planned(decision), maximum)


def _compare_bound(bound: float, payoff: float) -> str:
    """Compare the bound on payoffs with the payoff; a relative difference of 1e-9 is rounding."""
    if bound <= payoff + 1e-9 * abs(payoff):
        return "than this one"
    above = f", {100 * (bound - payoff) / payoff:.2g} % above," if payoff > 0 else ""
    return f"than {bound:.4g}{above}"


def _result_lines(history: JobHistory, maximum: int | None) -> Iterator[tuple[str, str]]:
    job = history.job
    if history.ran:
        yield from _placement_lines(history, "ran", history.ran, maximum)
        text = f"{pluralize(job['worker_slots'], 'worker-slot')} in all"
        if job.get("cost") is not None:
            text += f", {job['cost']:,.4g} of the servers' cost"
        yield "" if maximum != 0 else "ran", text
    else:
        yield "ran", "never"
    outcome = job["outcome"]
    if outcome == "finished":
        slot = history.info["cluster"]["slot_seconds"]
        after = _span(job["jct"], slot)
        text = f"completed in slot {job['completion']}, {after} after its submission"
        if job["late"] is not None:
            late = job["late"]
            text += (
                ", on its target"
                if late == 0
                else f", {_span(abs(late), slot)} {'past' if late > 0 else 'before'} its target"
            )
        yield "outcome", text
        yield "earned", f"{job['utility']:.4g} of {job['value']:.4g} at best"
        return
    yield "outcome", _outcome(job)
    if job["start"] is not None:
        yield "progress", f"{job['progress'] / job['required']:.1%} of its work"


def _outcome(job: dict[str, Any]) -> str:
    phrases = {
        "running": "still running when the run ended",
        "waiting": "still waiting when the run ended",
        "not arrived": "had not arrived when the run ended",
    }
    text = phrases.get(job["outcome"], job["outcome"])
    return f"{text}: {job['message']}" if job["outcome"] in {"dropped", "cancelled"} else text


def _placement_lines(
    history: JobHistory, name: str, spans: Sequence[PlacementSpan], maximum: int | None
) -> Iterator[tuple[str, str]]:
    if maximum == 0:
        return
    names = run_directory.server_names(history.info)
    for span in spans[:maximum]:
        yield name, f"{_slots(span)}: {_placement_text(span, names)}"
        name = ""
    if maximum is not None and len(spans) > maximum:
        yield "", f"and {len(spans) - maximum} more placements (--full shows them)"


def _slots(span: PlacementSpan) -> str:
    if span.first == span.last:
        return f"slot {span.first}"
    return f"slots {span.first}-{span.last}"


def _placement_text(span: PlacementSpan, names: Sequence[str]) -> str:
    workers = _counts_by_server((names[server], number) for server, number, _ in span.entries)
    text = f"{pluralize(span.workers, 'worker')} ({workers})" if span.workers else ""
    if span.ps:
        ps = _counts_by_server((names[server], number) for server, _, number in span.entries)
        text += f"{' and ' if text else ''}{pluralize(span.ps, 'parameter server')} ({ps})"
    return text


def _counts_by_server(numbers: Iterable[tuple[str, int]]) -> str:
    """Format counts by server: ``4 on gpu-0, 2 each on gpu-[1,3-5]``."""
    parts = []
    for servers, number in group_equal_placements(
        (name, number) for name, number in numbers if number
    ):
        preposition = "each on" if len(servers) > 1 else "on"
        parts.append(f"{number} {preposition} {' and '.join(compress_name_list(servers))}")
    return ", ".join(parts)


def _span(slots: float, slot_seconds: float) -> str:
    """Format a duration in slots and in time units."""
    return f"{slots:.4g} {plural_noun(slots, 'slot')} ({format_seconds(slots * slot_seconds)})"
