"""What a shell offers when a word of the command line is completed.

Nothing here may fail or print: a shell would show it in the middle of a line. What cannot be read
is not offered.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

import typer

_MOST: Final = 200
"""Names offered at once; a shell asks before it shows as many."""


def complete_policy(incomplete: str) -> list[str]:
    """Return the policies that a list of names, the last one unfinished, can end in."""
    from shadowprice.policies.registry import policies

    *before, last = incomplete.split(",")
    prefix = "".join(f"{name}," for name in before)
    return [prefix + name for name in policies() if name.startswith(last)]


def complete_setting(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return parameters, or the values of one, of the policies that the line names so far."""
    from shadowprice.policies.registry import policies, policy_info

    named = str(ctx.params.get("policy") or "").split(",")
    chosen = [name.split("?")[0] for name in named]
    chosen = [name for name in chosen if name in policies()] or list(policies())
    key, equals, _ = incomplete.partition("=")
    offered: dict[str, None] = {}
    for name in chosen:
        for field, info in policy_info(name).parameters.model_fields.items():
            label = info.alias or field
            if not equals:
                offered[f"{label}="] = None
            elif label == key:
                values = _choices(info.annotation)
                offered |= dict.fromkeys(f"{key}={value}" for value in values)
    return _starting(offered, incomplete)


def _choices(annotation: object) -> list[str]:
    """Return the values of a parameter that takes one of a few."""
    from typing import Literal, get_args, get_origin

    if annotation is bool:
        return ["true", "false"]
    if get_origin(annotation) is Literal:
        return [str(value) for value in get_args(annotation)]
    return [value for part in get_args(annotation) for value in _choices(part)]


def complete_experiment(incomplete: str) -> list[str]:
    """Return the experiments whose name begins so."""
    from shadowprice.experiments.framework import experiments

    return _starting(["list", *experiments()], incomplete)


def complete_trace(incomplete: str) -> list[str]:
    """Return the formats of traces, then the files that a path can end in."""
    from shadowprice.traces.registry import formats

    name, colon, path = incomplete.partition(":")
    if not colon:
        return _starting([f"{known}:" for known in formats()], name)
    folder, slash, last = path.rpartition("/")
    found = []
    with suppress(OSError, ValueError):
        for entry in sorted(Path(folder or ("/" if slash else ".")).iterdir()):
            if entry.name.startswith(last) and (last or not entry.name.startswith(".")):
                tail = "/" if entry.is_dir() else ""
                found.append(f"{name}:{folder}{slash}{entry.name}{tail}")
    return found[:_MOST]


def complete_job(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the jobs of the run that the line names."""
    import polars as pl

    run = ctx.params.get("run")
    with suppress(OSError, ValueError, TypeError, pl.exceptions.PolarsError):
        with (Path(str(run)) / "jobs.parquet").open("rb") as file:
            table = pl.read_parquet(file, columns=["job"])
        return _starting(table["job"].to_list(), incomplete)
    return []


def _starting(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)][:_MOST]
