"""Test processes that are forked from one that has loaded torch, so that they start at once."""

from __future__ import annotations

import multiprocessing
from typing import Final

CONTEXT: Final = multiprocessing.get_context("forkserver")

# Optimizers and DistributedDataParallel load torch._dynamo when they are first created.
_modules = ["torch._dynamo"]


def preload(*modules: str) -> None:
    """Add modules that the fork server loads; call it before the first process of any test.

    A pytest process has one fork server for all contexts, with one list of modules, which
    `set_forkserver_preload` replaces.
    """
    _modules.extend(name for name in modules if name not in _modules)
    CONTEXT.set_forkserver_preload(_modules)
