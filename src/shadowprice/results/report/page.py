"""HTML page of one run: a single file, readable without network, scripts or colours."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import polars as pl

from shadowprice.core.wording import plural_noun, pluralize
from shadowprice.results.output_paths import add_generator_tag, write_atomically
from shadowprice.results.report import inline_assets, sections
from shadowprice.results.report.inline_assets import content_security_policy, text
from shadowprice.results.report.number_format import format_duration, format_number
from shadowprice.results.report.section_colocation import colocation
from shadowprice.results.report.section_job_histories import jobs
from shadowprice.results.run_directory import REPORT, RunData, write_run

Tile = tuple[str, str, str]

SECTIONS: Final[Sequence[tuple[str, Callable[[RunData], str]]]] = (
    ("Outcomes", sections.outcomes),
    ("Jobs", jobs),
    ("Utility over time", sections.utility),
    ("Utilisation", sections.utilisation),
    ("Queue", sections.queue),
    ("Servers", sections.servers),
    ("One server", sections.one_server),
    ("Co-location", colocation),
    ("Prices", sections.prices),
    ("Lateness", sections.lateness),
    ("Tenants", sections.tenants),
    ("Completion times", sections.completion_times),
    ("Refusals", sections.refusals),
    ("What was run", sections.what_was_run),
)
"""Sections of a run's page: title, and function that returns HTML; empty HTML omits it."""


def write_report(run: RunData, path: Path) -> None:
    """Write the page of a run to a file atomically."""
    write_atomically(path, add_generator_tag(render_report(run)))


def write_run_with_report(run: RunData, folder: Path) -> None:
    """Write a run into an existing directory, with its page."""
    write_run(run, folder)
    write_report(run, folder / REPORT)


def render_report(run: RunData) -> str:
    """Return the HTML page of a run."""
    bodies = []
    for title, render in SECTIONS:
        body = render(run)
        if body:
            bodies.append((title, re.sub(r"[^a-z0-9]+", "-", title.lower()), body))
    summary = run.summary
    lead = (
        f"{pluralize(summary['jobs'], 'job')} on {pluralize(len(run.server_names), 'server')}, "
        f"{pluralize(run.slot_count, 'slot')} of "
        f"{format_duration(run.info['cluster']['slot_seconds'])}"
    )
    return page(
        title=f"{run.policy}: {workload_name(run)}",
        lead=lead,
        warning=partial_warning([run]),
        tiles=run_tiles(run),
        bodies=bodies,
        slot_seconds=run.info["cluster"]["slot_seconds"],
        begins=start_time(run),
    )


def page(
    *,
    title: str,
    lead: str,
    warning: str,
    tiles: Sequence[Tile],
    bodies: Sequence[tuple[str, str, str]],
    slot_seconds: float,
    begins: float | None,
) -> str:
    """Return an HTML page.

    ``lead`` is the line below the title, and ``warning`` the text of a banner (empty for none).
    ``tiles`` are key numbers as (label, value, remark), ``bodies`` the sections as (title, anchor,
    HTML). ``begins`` is the Unix time of the start of slot 0 for axes that show dates, or None.
    """
    links = "".join(f'<a href="#{anchor}">{text(name)}</a>' for name, anchor, _ in bodies)
    cards = "".join(
        f'<div class="tile"><span title="{text(label)}">{text(label)}</span><b>{text(value)}</b>'
        f"<small>{text(remark)}</small></div>"
        for label, value, remark in tiles
    )
    parts = "".join(
        f'<section id="{anchor}"><h2>{text(name)}</h2>{body}</section>'
        for name, anchor, body in bodies
    )
    banner = f'<p class="warning">{text(warning)}</p>' if warning else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{content_security_policy()}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{text(title)} · Shadowprice</title>"
        f"<style>{inline_assets.asset('page.css')}</style></head>"
        f'<body><header><p class="brand">Shadowprice</p><h1>{text(title)}</h1>'
        f'<p class="lead">{text(lead)}</p></header>{banner}'
        '<noscript><p class="warning">The charts need JavaScript, which is part of this page. '
        "Without it, the tables below show their first rows.</p></noscript>"
        f'<nav aria-label="Sections"><span class="links">{links}</span></nav>'
        f'<main><div class="tiles">{cards}</div>{parts}</main>'
        f"{inline_assets.data_script({'slot': slot_seconds, 'origin': begins}, 'page-data')}"
        f"{inline_assets.scripts()}</body></html>\n"
    )


def start_time(run: RunData) -> float | None:
    """Return the Unix time of slot 0 if the trace defines it; local times count as UTC."""
    for item in run.info["inputs"]:
        if item.get("begins"):
            return datetime.fromisoformat(item["begins"]).replace(tzinfo=UTC).timestamp()
    return None


def run_tiles(run: RunData) -> list[Tile]:
    """Return the key numbers of a run."""
    summary = run.summary
    seconds = run.info["cluster"]["slot_seconds"]
    value = summary["value"]
    share = f"{summary['total_utility'] / value:.1%} of the value on offer" if value else ""
    met = summary["met_target"]
    jct = summary["jct"]
    latency = run.info["timing"]["decision_latency"]
    arrived = pluralize(summary["arrived"], "job")
    tiles = [
        ("total utility", format_number(summary["total_utility"]), share),
        ("finished", f"{summary['finished']:,}", f"of {arrived} that arrived"),
        ("refused", f"{summary['refused']:,}", _refusal_remark(run)),
    ]
    if met["of"]:
        tiles.append(
            ("in time", f"{met['share']:.1%}", f"of all {met['of']:,} that arrived with a target")
        )
    if jct["mean"] is not None:
        remark = (
            f"{format_duration(jct['mean'] * seconds)}, of finished jobs; "
            f"of all, up to the end of the run: {_format_slots(jct['restricted_mean'])}"
        )
        tiles.append(("mean completion", _format_slots(jct["mean"]), remark))
    fairness = summary["finish_time_fairness"]
    if fairness["mean"] is not None:
        remark = (
            f"completion time over that on an equal share; 99 %: "
            f"{format_number(fairness['p99'])}, worst: {format_number(fairness['worst'])}"
        )
        tiles.append(("finish-time fairness", format_number(fairness["mean"]), remark))
    if summary["restarts"]:
        remark = f"{format_number(summary['lost_gpu_hours'])} GPU-hours lost"
        tiles.append(("restarts", f"{summary['restarts']:,}", remark))
    if summary["abandoned_work"]:
        share = f"{summary['abandoned_work']:.1%}"
        tiles.append(("work of unfinished jobs", share, "of all worker-slots"))
    money = summary.get("money")
    if money is not None:
        per = money["utility_per_used"]
        remark = "" if per is None else f"{format_number(per)} utility per cost; "
        remark += f"the whole cluster: {format_number(money['whole'])}"
        tiles.append(("cost of what jobs used", format_number(money["used"]), remark))
    if latency.get("decisions"):
        tiles.append(
            (
                "median decision",
                format_duration(latency["p50"]),
                f"99 %: {format_duration(latency['p99'])}",
            )
        )
    return tiles


def _format_slots(slots: float) -> str:
    return f"{format_number(slots)} {plural_noun(slots, 'slot')}"


def partial_warning(runs: Sequence[RunData]) -> str:
    """Return a warning about interrupted runs; empty if every run is complete."""
    interruptions = [
        f"{run.policy} in slot {run.info['interrupted_in_slot']:,}"
        for run in runs
        if run.info["partial"]
    ]
    if not interruptions:
        return ""
    return (
        f"Partial result: the run was interrupted ({', '.join(interruptions)}); "
        "this page covers the slots before that."
    )


def _refusal_remark(run: RunData) -> str:
    refused = run.jobs.filter(pl.col("outcome") == "refused")["reason"].value_counts()
    if not len(refused):
        return ""
    reason, count = refused.sort(["count", "reason"], descending=[True, False]).row(0)
    return f"{count:,} for {reason}"


def workload_name(run: RunData) -> str:
    """Return the name of the file or trace that a run's jobs came from, else their number."""
    for item in run.info["inputs"]:
        in_memory = f"given as {item['kind']}"
        if item["kind"] in {"jobs", "trace"} and item["name"] != in_memory:
            return Path(item["name"].partition("?")[0]).name
    return pluralize(run.summary["jobs"], "job")
