"""Shell completions of arguments and options.

Completers neither fail nor print, because a shell would show the text in the middle of a line.
An unreadable file gives no completions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, get_args, get_origin

import typer

from shadowprice.core.errors import InputError, ShadowpriceError

if TYPE_CHECKING:
    import polars as pl
    from pydantic import BaseModel

_MAX_COMPLETIONS: Final = 200  # limit of completions; above it, a shell asks whether to show them


def complete_policy(incomplete: str) -> list[str]:
    """Return completions of the last name in a comma-separated list of policies."""
    from shadowprice.policies.registry import policy_names

    return _in_list(policy_names(), incomplete)


def complete_setting(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return completions of a `KEY=VALUE` parameter of the policies on the command line.

    In `compare`, a parameter may have its policy as a prefix: ``oasis.KEY=VALUE``.
    """
    from shadowprice.policies.registry import builtin_policies, policy_info, policy_names

    policies = policy_names()
    named = ctx.params.get("policy") or ()
    texts = [named] if isinstance(named, str) else map(str, named)
    chosen = [name.split("?")[0] for text in texts for name in text.split(",")]
    chosen = [name for name in chosen if name in policies] or list(builtin_policies())
    owner, dot, rest = incomplete.partition(".")
    prefix = ""
    if dot and owner in policies:
        chosen, prefix, incomplete = [owner], f"{owner}.", rest
    key, equals, _ = incomplete.partition("=")
    completions: dict[str, None] = {}  # in order, each once
    models: list[type[BaseModel]] = []
    for name in chosen:
        with suppress(InputError):
            models.append(policy_info(name).parameters)
    for model in models:
        for field, info in model.model_fields.items():
            label = info.alias or field
            if not equals:
                completions[f"{label}="] = None
            elif label == key:
                values = _choices(info.annotation)
                completions |= dict.fromkeys(f"{key}={value}" for value in values)
    return [prefix + completion for completion in _complete_prefix(completions, incomplete)]


def _choices(annotation: object) -> list[str]:
    """Return the allowed values of a boolean or `Literal` annotation, else an empty list."""
    if annotation is bool:
        return ["true", "false"]
    if get_origin(annotation) is Literal:
        return [str(value) for value in get_args(annotation)]
    return [value for part in get_args(annotation) for value in _choices(part)]


def complete_servers(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return completions of an entry of ``servers`` in the cluster file on the command line."""
    from shadowprice.inputs.text import load_yaml

    kinds: list[str] = []
    with suppress(OSError, ShadowpriceError, TypeError, LookupError):
        document = load_yaml(Path(str(ctx.params["cluster"])))
        kinds = [str(entry["name"]) for entry in document["servers"] if "name" in entry]
    return [f"{name}:" for name in _in_list(kinds, incomplete)]


def complete_experiment(incomplete: str) -> list[str]:
    """Return completions of an experiment name."""
    from shadowprice.experiments.framework import experiments

    return _complete_prefix(["list", *experiments()], incomplete)


def complete_trace(incomplete: str) -> list[str]:
    """Return completions of a trace format, then of a file path."""
    from shadowprice.traces.registry import format_names

    name, colon, path = incomplete.partition(":")
    if not colon:
        return _complete_prefix([f"{format_name}:" for format_name in format_names()], name)
    folder, slash, last = path.rpartition("/")
    matches = []
    with suppress(OSError, ValueError):
        for entry in sorted(Path(folder or ("/" if slash else ".")).iterdir()):
            if entry.name.startswith(last) and (last or not entry.name.startswith(".")):
                tail = "/" if entry.is_dir() else ""
                matches.append(f"{name}:{folder}{slash}{entry.name}{tail}")
    return matches[:_MAX_COMPLETIONS]


def complete_job(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return completions of a job name of the run on the command line."""
    return _complete_prefix(_values(ctx, "job"), incomplete)


def complete_value(column: str) -> Callable[[typer.Context, str], list[str]]:
    """Return a completer for the values of a column of the run's jobs."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        return _in_list(_values(ctx, column), incomplete)

    return complete


def complete_column(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return completions of a column of the run's jobs; a leading ``-`` is kept."""
    minus = "-" if incomplete.rpartition(",")[2].startswith("-") else ""
    names = [minus + name for name in _jobs(ctx, None).columns]
    return _in_list(names, incomplete)


def _values(ctx: typer.Context, column: str) -> list[str]:
    jobs = _jobs(ctx, [column])
    return (
        []
        if jobs.is_empty()
        else [str(value) for value in jobs[column].drop_nulls().unique(maintain_order=True)]
    )


def _jobs(ctx: typer.Context, columns: list[str] | None) -> pl.DataFrame:
    """Return the jobs of the run on the command line, or an empty table if it's unreadable."""
    import polars as pl

    # Typer leaves arguments in ctx.args while an option still lacks its value.
    run = ctx.params.get("run") or next(iter(ctx.args), None)
    path = Path(str(run)) / "jobs.parquet"
    unreadable = (OSError, ValueError, TypeError, pl.exceptions.PolarsError)
    with suppress(*unreadable), path.open("rb") as file:
        return pl.read_parquet(file, columns=columns)
    return pl.DataFrame()


def _in_list(names: Iterable[str], incomplete: str) -> list[str]:
    """Return completions of the last entry of a comma-separated list."""
    prefix, comma, last = incomplete.rpartition(",")
    return [prefix + comma + name for name in _complete_prefix(names, last)]


def _complete_prefix(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)][:_MAX_COMPLETIONS]
