"""Options that several commands share, and functions that parse their values."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar, cast, get_type_hints

import typer

from shadowprice.cli.completion import complete_policy, complete_setting, complete_trace
from shadowprice.cli.console import Listing, Output, print_note, reserve_stdout
from shadowprice.core import bounds
from shadowprice.core.errors import Fault, InputError

if TYPE_CHECKING:
    from shadowprice.policies.choice import PolicyChoice
    from shadowprice.policies.registry import PolicyInfo
    from shadowprice.simulator.scenario import Scenario
    from shadowprice.simulator.source import ScenarioSource


MIN_LOAD = 1e-3  # minimum load of a cluster: it has 1,000 times the servers that its jobs need
workload_option: Final = partial(typer.Option, rich_help_panel="Workload")
execution_option: Final = partial(typer.Option, rich_help_panel="Execution")
output_option: Final = partial(typer.Option, rich_help_panel="Output")


SlotOption = Annotated[
    str, workload_option("--slot", help="Slot length of the cluster that is sized to --trace.")
]
PolicyOption = Annotated[
    str,
    execution_option(
        "--policy",
        "-p",
        help="Scheduling policy: a name listed by `shadowprice policies`, or ./file.py:NAME; "
        "parameters may follow, as in oasis?preset=paper.",
        autocompletion=complete_policy,
    ),
]
PoliciesOption = Annotated[
    list[str],
    execution_option(
        "--policy",
        "-p",
        help="Comma-separated policies; repeatable: names listed by `shadowprice "
        "policies`, or ./file.py:NAME. oasis?preset=paper is a variant with its own "
        "parameter value.",
        autocompletion=complete_policy,
    ),
]
SetOption = Annotated[
    list[str] | None,
    execution_option(
        "--set",
        "-s",
        help="Parameter of the policy; repeatable.",
        autocompletion=complete_setting,
        metavar="KEY=VALUE",
    ),
]
ParamsOption = Annotated[
    Path | None,
    execution_option("--params", help="TOML file with parameters of the policy.", metavar="FILE"),
]
LengthsOption = Annotated[
    str,
    execution_option(
        "--lengths",
        help="Lengths of jobs that policies see: known, limits (time limits) or unknown "
        "(predictions from finished jobs); compare takes several, such as known,unknown.",
        metavar="known|limits|unknown",
    ),
]
ValuesOption = Annotated[
    str,
    execution_option(
        "--values",
        help="How values of jobs count: as stated, or relative to those of their tenant's other "
        "jobs.",
        metavar="stated|relative",
    ),
]
SeedOption = Annotated[
    int, execution_option("--seed", min=0, max=bounds.SEED.maximum, help="Random seed.")
]
OutOption = Annotated[
    Path | None,
    output_option(
        "--out", help="Output directory; an earlier result there is replaced.", metavar="DIR"
    ),
]
OutputOption = Annotated[
    Output,
    output_option("--output", "-o", help="Output format on stdout.", callback=reserve_stdout),
]
PlainOutputOption = Annotated[
    Output, typer.Option("--output", "-o", help="Output format.", callback=reserve_stdout)
]
"""``--output`` of commands whose help has no headings."""
PlainSeedOption = Annotated[int, typer.Option(min=0, max=bounds.SEED.maximum, help="Random seed.")]
"""``--seed`` of commands whose help has no headings."""
ListingOption = Annotated[Listing, typer.Option("--output", "-o", help="Output format.")]
RunArgument = Annotated[Path, typer.Argument(help="Run directory.", metavar="RUN")]
ExecutorSetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--executor-set", help="Setting of the executor; repeatable.", metavar="KEY=VALUE"
    ),
]
QuietOption = Annotated[bool, output_option("--quiet", "-q", help="Hide progress and notes.")]


def policy_settings(
    params: Path | None, settings: Sequence[str] | None, chosen: Sequence[PolicyInfo]
) -> dict[str, dict[str, Any]]:
    """Return the parameters of each chosen policy from ``--params`` and ``--set``, by name.

    A key below a policy's name (a TOML table ``[oasis]``, or ``--set oasis.prices=online``) is a
    parameter of that policy. Any other key is a parameter of every policy that has it. ``--set``
    overrides the file. Raises `InputError` if no policy has the parameter.
    """
    from shadowprice.inputs import read_parameters
    from shadowprice.policies.choice import deep_merge, parse_setting
    from shadowprice.policies.registry import policy_names

    models = {info.name: info.parameters.model_fields for info in chosen}
    labels = {
        name: {label for field, info in model.items() for label in (field, info.alias)}
        for name, model in models.items()
    }
    bounds.SETTINGS.check(len(settings or ()), "--set")
    result: dict[str, dict[str, Any]] = {name: {} for name in labels}
    # Later layers override earlier ones.
    layers = [] if params is None else [(str(params), read_parameters(params))]
    layers += [("--set", parse_setting(text)) for text in settings or ()]
    for source, layer in layers:
        tables = {name: _policy_table(layer, name) for name in labels}
        shared = {key: value for key, value in layer.items() if not _is_table(key, value, tables)}
        for key, value in shared.items():
            if key in policy_names() and isinstance(value, dict):
                if source == "--set":
                    raise InputError(Fault(f"{source} {key}", f"{key!r} is not among the policies"))
                continue  # a file may have tables of policies that don't run
            owners = [name for name in labels if key in labels[name]]
            # A single policy reports an unknown name itself, with the closest match.
            owners = owners or ([*labels] if len(labels) == 1 else [])
            if not owners:
                fault = Fault(f"{source} {key}", f"no policy of {', '.join(labels)} has it")
                raise InputError(fault)
            for name in owners:
                deep_merge(result[name], {key: value})
        for name, table in tables.items():
            deep_merge(result[name], table)
    return result


def _policy_table(layer: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the table of a policy, which may be nested: ``[policy.FirstFit]`` for policy.py."""
    table: Any = layer
    for part in name.split("."):
        table = table.get(part) if isinstance(table, Mapping) else None
    return table if isinstance(table, Mapping) else {}


def _is_table(key: str, value: object, tables: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether a key holds the table of a policy, possibly a nested one."""
    names = [name for name, table in tables.items() if table and name.split(".")[0] == key]
    return bool(names) and isinstance(value, Mapping)


def policy_choice(
    text: str, params: Path | None = None, settings: Sequence[str] | None = None
) -> PolicyChoice:
    """Parse the policy of a command for a single policy; see `policy_choices`."""
    from shadowprice.policies.choice import PolicyChoice

    choice = PolicyChoice.parse(text)
    shared = policy_settings(params, settings, [choice.info])[choice.name]
    return replace(choice.merged_over(shared), titled="")  # the label names all parameters


def read_choices(texts: Sequence[str]) -> list[PolicyChoice]:
    """Parse comma-separated policies, each with optional parameters after a ``?``."""
    from shadowprice.policies.choice import PolicyChoice, check_choices

    text = ",".join(texts)
    bounds.POLICIES.check(text.count(",") + 1, "--policy")
    parts = (part.strip() for part in text.split(","))
    choices = [PolicyChoice.parse(part) for part in parts if part]
    check_choices(choices, "--policy", "write --policy oasis,fifo")
    return choices


def policy_choices(
    texts: Sequence[str], params: Path | None, settings: Sequence[str] | None
) -> list[PolicyChoice]:
    """Parse policies; ``--set`` overrides ``--params``, and settings after ``?`` override both."""
    choices = read_choices(texts)
    by_name = {choice.name: choice.info for choice in choices}
    shared = policy_settings(params, settings, [by_name[name] for name in sorted(by_name)])
    return [choice.merged_over(shared[choice.name]) for choice in choices]


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Options that describe a workload."""

    cluster: Annotated[
        Path | None, workload_option("--cluster", "-c", help="Cluster file (YAML).", metavar="FILE")
    ] = None
    jobs: Annotated[
        Path | None,
        workload_option("--jobs", "-j", help="Job file (YAML or JSON Lines).", metavar="FILE"),
    ] = None
    trace: Annotated[
        str | None,
        workload_option(
            help="Cluster trace instead of a job file, such as philly:PATH?limit=1000 or "
            "./file.py:NAME:PATH; without --cluster, the cluster is sized to the trace "
            "(--load, --slot).",
            metavar="FORMAT:PATH",
            autocompletion=complete_trace,
        ),
    ] = None
    columns: Annotated[
        str | None,
        workload_option(
            "--map",
            metavar="MEANING=COLUMN,...",
            help="Columns of a log (format csv), such as submit=Queued,gpus=GPUs; other columns "
            "are guessed.",
        ),
    ] = None
    incidents: Annotated[
        Path | None,
        workload_option(
            help="Incident file (YAML or JSON Lines): server failures, server recoveries and "
            "job cancellations by slot.",
            metavar="FILE",
        ),
    ] = None
    until: Annotated[
        str | None,
        workload_option(
            help="Timespan T, such as '300 slots' or 5d: no job runs in slot T or later; by "
            "default the run ends with the last job."
        ),
    ] = None
    slot: SlotOption = "20min"
    load: Annotated[
        float,
        workload_option(
            min=MIN_LOAD,
            max=bounds.OFFERED_LOAD.maximum,
            help="Load of the cluster that is sized to --trace: requested over available "
            "GPU-time (core-time if no job uses GPUs).",
        ),
    ] = 1.0
    skip_invalid: Annotated[
        bool,
        workload_option("--skip-invalid", help="Skip invalid jobs instead of refusing the file."),
    ] = False

    def source(self, params: Path | None = None) -> ScenarioSource:
        """Return the source of the scenario; ``params`` is recorded as one of its inputs."""
        from shadowprice.simulator.source import ScenarioSource
        from shadowprice.traces.locate import with_columns

        values = {field.name: getattr(self, field.name) for field in fields(self)}
        columns = values.pop("columns")
        if self.trace is not None:
            values["trace"] = with_columns(self.trace, columns)
        elif columns is not None:
            raise InputError(Fault("--map", "maps columns of a trace", "add --trace csv:FILE"))
        return ScenarioSource(**values, params=params)

    def scenario(self, seed: int, params: Path | None = None, *, quiet: bool) -> Scenario:
        """Read all input files, and print notes on omitted or assumed data."""
        return read(self.source(params), seed, quiet=quiet)


def read(source: ScenarioSource, seed: int, *, quiet: bool) -> Scenario:
    """Read the scenario of a source, and print notes on omitted or assumed data."""
    scenario, remarks = source.scenario(seed)
    if not quiet:
        for remark in remarks:
            print_note(f"note: {remark}")
    return scenario


Command = TypeVar("Command", bound=Callable[..., None])


def expand_options(*without: str) -> Callable[[Command], Command]:
    """Return a decorator for commands with dataclasses of options as parameters.

    For Typer, each field of such a dataclass becomes an option, except the fields ``without``.
    """

    def decorate(command: Command) -> Command:
        hints = get_type_hints(command, include_extras=True)
        records: dict[str, tuple[Callable[..., object], list[str]]] = {}
        parameters: list[inspect.Parameter] = []
        for parameter in inspect.signature(command).parameters.values():
            record = hints[parameter.name]
            if not (isinstance(record, type) and is_dataclass(record)):  # an option by itself
                parameters.append(
                    parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=record)
                )
                continue
            options = get_type_hints(record, include_extras=True)
            chosen = [field for field in fields(record) if field.name not in without]
            records[parameter.name] = record, [field.name for field in chosen]
            parameters += [
                inspect.Parameter(
                    field.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=inspect.Parameter.empty if field.default is MISSING else field.default,
                    annotation=options[field.name],
                )
                for field in chosen
            ]

        @functools.wraps(command)
        def wrapper(**values: Any) -> None:
            for name, (record, options) in records.items():
                values[name] = record(**{option: values.pop(option) for option in options})
            command(**values)

        dynamic = cast(Any, wrapper)
        dynamic.__signature__ = inspect.Signature(parameters, return_annotation=None)
        dynamic.__annotations__ = {item.name: item.annotation for item in parameters}
        return cast(Command, wrapper)

    return decorate
