"""Processes of tests, forked from one that has torch in memory, so that they begin in a moment."""

from __future__ import annotations

import multiprocessing
from typing import Final

CONTEXT: Final = multiprocessing.get_context("forkserver")

# Optimizers and DistributedDataParallel load torch._dynamo when they are first made.
_modules = ["torch._dynamo"]


def preload(*modules: str) -> None:
    """Add modules to those that are loaded once; before the first process of any test.

    A pytest process has one server to fork from, whichever context asks for it, and knows one list
    of modules, which `set_forkserver_preload` replaces.
    """
    _modules.extend(name for name in modules if name not in _modules)
    CONTEXT.set_forkserver_preload(_modules)
