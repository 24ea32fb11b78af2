"""``shadowprice warm``: compile what policies need before they are used."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from shadowprice.cli import options as o
from shadowprice.cli.completion import complete_policy
from shadowprice.cli.console import prepare_kernels, stdout
from shadowprice.core.errors import ShadowpriceError


def warm(
    policies: Annotated[
        list[str] | None,
        typer.Argument(
            help="Policies; all of them by default.",
            metavar="[POLICY]...",
            autocompletion=complete_policy,
        ),
    ] = None,
    quiet: o.QuietOption = False,
) -> None:
    """Compile the kernels of policies, on all processors, and keep them for later runs.

    What policies need for bags of tasks is among them. A policy that is run without this compiles
    what it lacks first. Machine code is kept in
    NUMBA_CACHE_DIR where that is set, else beside the installed sources, else in the user's cache
    folder.

    [bold]Example[/bold]

    shadowprice warm oasis drf
    """
    from shadowprice.kernels.warming import folder_for
    from shadowprice.policies.registry import policy_names

    names = [o.policy_choice(name).name for name in policies or policy_names()]
    folder = folder_for(names)
    if folder is None:
        raise ShadowpriceError(
            "no folder for compiled kernels can be written: set NUMBA_CACHE_DIR to one that can; "
            "without it policies run as well, compiling anew each time"
        )
    began = time.perf_counter()
    compiled = prepare_kernels(names, quiet, bags=True, thorough=True)
    if compiled:
        took = time.perf_counter() - began
        stdout().print(
            f"compiled {compiled} kernels in {took:.1f} s; they are kept in {folder}",
            soft_wrap=True,
        )
    else:
        stdout().print(f"nothing to compile: everything is kept in {folder}", soft_wrap=True)
