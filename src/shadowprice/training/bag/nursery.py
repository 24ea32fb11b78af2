"""What the server that processes are forked from has imported before, so that each begins at once.

Its preloading leaves out the main program's own module (CPython, until 3.14), which is where
functions of scripts are, and which may be slow to import.
"""

from __future__ import annotations

import contextlib
import json
import os
from multiprocessing import forkserver, set_forkserver_preload, spawn
from typing import Any, Final

_VARIABLE: Final = "SHADOWPRICE_BAG_PROGRAM"
_PARTS: Final = ("sys_path", "init_main_from_name", "init_main_from_path")


def begin(module: str) -> None:
    """Start the server of this program, unless it runs, with a function's module imported in it.

    One that runs already, of a bag before or of the program's own, is used as it is: processes
    then import by themselves what it lacks.
    """
    told = spawn.get_preparation_data("nursery")
    os.environ[_VARIABLE] = json.dumps({name: told[name] for name in _PARTS if name in told})
    try:
        wanted = [__name__, "shadowprice.training.bag.attempt"]
        set_forkserver_preload([*wanted, module] if module != "__main__" else wanted)
        forkserver.ensure_running()
    finally:
        del os.environ[_VARIABLE]


def _prepare() -> None:
    """Import the main program, in the server."""
    data: dict[str, Any] = json.loads(os.environ.pop(_VARIABLE, "null")) or {}
    with contextlib.suppress(Exception):  # every process tries again, and says what it is
        spawn.prepare(data)


_prepare()
