"""Section on the setup of a run: cluster, parameters, inputs, versions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from shadowprice.results.job_history_text import guarantee_text, pluralize
from shadowprice.results.report.inline_assets import text
from shadowprice.results.report.number_format import format_duration
from shadowprice.results.report.sections import section
from shadowprice.results.run_directory import RunData

MAX_LISTED_KINDS = 6  # maximum number of listed server kinds


@section("What was run", 90)
def what_was_run(run: RunData) -> str | None:
    """Return everything that the result depends on."""
    info = run.info
    cluster = info["cluster"]
    all_kinds = cluster["kinds"]
    kinds = "; ".join(
        f"{kind['servers']:,} of role {kind['role']} ("
        + ", ".join(f"{name} {amount}" for name, amount in kind["capacity"].items())
        + ")"
        for kind in all_kinds[:MAX_LISTED_KINDS]
    )
    if len(all_kinds) > MAX_LISTED_KINDS:
        kinds += f"; and {len(all_kinds) - MAX_LISTED_KINDS:,} more kinds, in run.json"
    facts = {
        "policy": info["policy"],
        "seed": info["seed"],
        "timespan": "until the last job"
        if info["until"] is None
        else pluralize(info["until"], "slot"),
        "slot": format_duration(cluster["slot_seconds"]),
        "planning horizon": pluralize(cluster["horizon"], "slot"),
        "servers": kinds,
        "tenants": ", ".join(cluster["tenants"]),
        **{f"input: {item['kind']}": _input(item) for item in info["inputs"]},
        "decisions took": _latency(info["timing"]["decision_latency"]),
        "guarantee": guarantee_text(info),
        "simulated in": format_duration(info["timing"]["wall_seconds"]),
        "versions": ", ".join(f"{name} {version}" for name, version in info["versions"].items()),
        "state at the end": (info["state_digest"] or "")[:16],
    }
    parameters = dict(flatten(info["parameters"]))
    incidents = [
        f"slot {record['slot']}: {kind.replace('_', ' ')} {subject}"
        for record in info["incidents"]
        for kind, subject in record.items()
        if kind != "slot"
    ]
    parts = [_facts(facts)]
    if incidents:
        more = f"; and {len(incidents) - 40} more" if len(incidents) > 40 else ""
        parts.append(f"<h3>Incidents</h3><p>{text('; '.join(incidents[:40]) + more)}</p>")
    if parameters:
        parts.append(f"<h3>Parameters in force</h3>{_facts(parameters)}")
    return "".join(parts)


def flatten(value: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield nested parameters by their dotted names."""
    for name, inner in value.items():
        if isinstance(inner, Mapping):
            yield from flatten(inner, f"{prefix}{name}.")
        else:
            yield prefix + name, inner


def _input(part: Mapping[str, str]) -> str:
    digest = f" (sha256 {part['sha256'][:16]}…)" if part["sha256"] else ""
    return f"{part['name']}{digest}"


def _latency(record: Mapping[str, float]) -> str:
    if not record.get("decisions"):
        return ""
    spans = {name: format_duration(record[name]) for name in ("p50", "p90", "p99", "max")}
    return (
        f"median {spans['p50']}, 90 % {spans['p90']}, 99 % {spans['p99']}, longest {spans['max']} "
        f"({record['decisions']:,} decisions)"
    )


def _facts(facts: Mapping[str, object]) -> str:
    rows = "".join(
        f"<dt>{text(name)}</dt><dd>{text(_format_parameter(value))}</dd>"
        for name, value in facts.items()
        if value not in ("", None)
    )
    return f"<dl>{rows}</dl>"


def _format_parameter(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
