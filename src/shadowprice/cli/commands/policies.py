"""``shadowprice policies`` and ``warm``: what each policy is; compile its kernels in advance."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer

from shadowprice.cli import console
from shadowprice.cli import options as o
from shadowprice.cli.completion import complete_policy
from shadowprice.cli.console import SafeText, print_json, print_line
from shadowprice.cli.options import OutputOption
from shadowprice.core.errors import InputError, ShadowpriceError

if TYPE_CHECKING:
    from pydantic import BaseModel

    from shadowprice.policies.registry import PolicyInfo


def policies(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Policy whose parameters to show: a name, or ./file.py:NAME.",
            autocompletion=complete_policy,
        ),
    ] = None,
    output: OutputOption = "table",
) -> None:
    """List the policies, or show a policy with its parameters.

    [bold]Examples[/bold]
        shadowprice policies
        shadowprice policies oasis
        shadowprice policies ./policy.py:FirstFit
    """
    from shadowprice.policies import registry
    from shadowprice.policies.choice import PolicyChoice

    if name is None:
        by_name = registry.policies()
        for broken in registry.installed_policies().keys() - by_name.keys():
            try:
                registry.policy_info(broken)
            except InputError as error:  # list the others
                console.print_note(f"note: {error}")
        if output == "json":
            console.print_json([_record(info) for info in by_name.values()])
        else:
            infos = by_name.values()
            rows = ((SafeText(info.name, "bold"), info.summary, info.paper) for info in infos)
            columns = ("policy", "what it does", "described in")
            console.stdout().print(console.make_table(columns, rows, left=(0, 1, 2)))
        return
    info = PolicyChoice.named(name, location="policies").info
    if output == "json":
        console.print_json(_record(info))
    else:
        _print_one(info)


def _print_one(info: PolicyInfo) -> None:
    screen = console.stdout()
    screen.print(SafeText.assemble((info.name, "bold"), f"  {info.summary}"))
    if info.paper:
        screen.print(f"described in {info.paper}")
    if info.extension is not None:
        origin = " ".join(str(part) for part in info.extension.record().values() if part)
        console.print_line(f"loaded from {origin}")
    if info.details:
        screen.print()
        screen.print(info.details)
    rows = list(parameter_rows(info.parameters))
    screen.print()
    if not rows:
        screen.print("It has no parameters.")
        return
    columns = ("parameter (--set)", "type", "default", "meaning")
    cells = (row.values() for row in rows)
    screen.print(console.make_table(columns, cells, left=range(len(columns))))


def _record(info: PolicyInfo) -> dict[str, object]:
    return {
        "name": info.name,
        "summary": info.summary,
        "paper": info.paper,
        "details": info.details,
        "origin": None if info.extension is None else info.extension.record(),
        "parameters": list(parameter_rows(info.parameters)),
    }


def parameter_rows(model: type[BaseModel], prefix: str = "") -> Iterator[dict[str, str]]:
    """Yield the dotted name, type, default and description of each parameter, as text."""
    paper: Mapping[str, object] = getattr(model, "paper_settings", {})
    for name, field in model.model_fields.items():
        if name == "preset" and not paper:
            continue  # without settings of a paper, the preset has no effect
        inner = _model_in(field.annotation)
        if inner is not None:
            yield from parameter_rows(inner, f"{prefix}{field.alias or name}.")
            continue
        yield {
            "name": prefix + (field.alias or name),
            "type": _type_text(field.annotation),
            "default": "required" if field.is_required() else _plain(field.get_default()),
            "description": _describe(field.description or "", paper if name == "preset" else {}),
        }


def _describe(description: str, paper_settings: Mapping[str, object]) -> str:
    if not paper_settings:
        return description
    settings = ", ".join(f"{name}={value}" for name, value in paper_settings.items())
    return f"{description} ({settings})"


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the model of a nested parameter, which may be optional; None for another type."""
    from pydantic import BaseModel

    for part in (annotation, *get_args(annotation)):
        if isinstance(part, type) and issubclass(part, BaseModel):
            return part
    return None


def _type_text(annotation: Any) -> str:
    if get_origin(annotation) is Annotated:
        return _type_text(get_args(annotation)[0])
    if get_origin(annotation) is Literal:
        return " | ".join(str(choice) for choice in get_args(annotation))
    if isinstance(annotation, type) and not get_args(annotation):
        return annotation.__name__
    parts = [part for part in get_args(annotation) if part is not type(None)]
    if get_origin(annotation) is dict:
        return f"table of {_type_text(parts[-1])}"
    return " | ".join(dict.fromkeys(_type_text(part) for part in parts)) or str(annotation)


def _plain(value: object) -> str:
    if value is None or value == {}:
        return "-"
    return str(value).lower() if isinstance(value, bool) else str(value)


def warm(
    policies: Annotated[
        list[str] | None,
        typer.Argument(
            help="Policies; by default all.", metavar="[POLICY]...", autocompletion=complete_policy
        ),
    ] = None,
    quiet: o.QuietOption = False,
    output: o.OutputOption = "table",
) -> None:
    """Compile the kernels of policies in parallel, and cache them for later runs.

    A kernel that isn't cached is compiled when a policy first calls it. The cache is in
    NUMBA_CACHE_DIR, else next to the installed sources, else in the user's cache directory.

    [bold]Example[/bold]
        shadowprice warm oasis drf
    """
    from shadowprice.kernels.jit import cache_folder, compiling_notice, print_on_stderr
    from shadowprice.policies.registry import policy_names
    from shadowprice.simulator.warm_up import is_warm, warm_up_all

    names = [o.policy_choice(name).name for name in policies or policy_names()]
    folder = cache_folder()
    if folder is None:
        raise ShadowpriceError(
            "no folder for compiled kernels can be written; set NUMBA_CACHE_DIR. Without it, every "
            "process compiles its kernels again"
        )
    missing = [name for name in names if not is_warm(name)]
    if missing and not quiet:
        print_on_stderr(compiling_notice())
    started = time.perf_counter()
    compiled = warm_up_all(missing) if missing else 0
    seconds = time.perf_counter() - started
    if output == "json":
        print_json({"compiled": compiled, "seconds": round(seconds, 3), "folder": str(folder)})
    elif not missing:
        print_line(f"nothing to compile: everything is kept in {folder}")
    else:
        print_line(f"compiled {compiled} kernels in {seconds:.1f} s; they are kept in {folder}")
