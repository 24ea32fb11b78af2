"""``shadowprice warm``: compile the policies' kernels ahead of their use."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from shadowprice.cli import options as o
from shadowprice.cli.completion import complete_policy
from shadowprice.cli.console import Output, print_json, print_line
from shadowprice.core.errors import ShadowpriceError


def warm(
    policies: Annotated[
        list[str] | None,
        typer.Argument(
            help="Policies; by default all.", metavar="[POLICY]...", autocompletion=complete_policy
        ),
    ] = None,
    quiet: o.QuietOption = False,
    output: o.OutputOption = Output.TABLE,
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
    took = time.perf_counter() - started
    if output is Output.JSON:
        print_json({"compiled": compiled, "seconds": round(took, 3), "folder": str(folder)})
    elif not missing:
        print_line(f"nothing to compile: everything is kept in {folder}")
    else:
        print_line(f"compiled {compiled} kernels in {took:.1f} s; they are kept in {folder}")
