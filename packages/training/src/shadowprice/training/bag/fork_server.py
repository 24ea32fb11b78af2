"""Preloading of the fork server, so that each forked process starts at once.

The fork server imports this module, and with it the main program. CPython before 3.14 doesn't
preload the main program, although scripts define their functions there and may import slowly.
"""

from __future__ import annotations

import contextlib
import json
import os
from multiprocessing import forkserver, set_forkserver_preload, spawn
from typing import Any, Final

_VARIABLE: Final = "SHADOWPRICE_BAG_PROGRAM"  # passes the main program to the fork server
_PARTS: Final = ("sys_path", "init_main_from_name", "init_main_from_path")


def start_fork_server(module: str) -> None:
    """Start the fork server with a function's module preloaded, unless one runs already."""
    data = spawn.get_preparation_data("fork server")
    os.environ[_VARIABLE] = json.dumps({name: data[name] for name in _PARTS if name in data})
    try:
        preload = [__name__, "shadowprice.training.bag.attempt"]
        set_forkserver_preload([*preload, module] if module != "__main__" else preload)
        forkserver.ensure_running()
    finally:
        del os.environ[_VARIABLE]


def _prepare() -> None:
    """Import the main program, in the fork server."""
    data: dict[str, Any] = json.loads(os.environ.pop(_VARIABLE, "null")) or {}
    with contextlib.suppress(Exception):  # every process tries again, and reports the error
        spawn.prepare(data)


_prepare()
