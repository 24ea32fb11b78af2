"""The exception that executors raise."""

from __future__ import annotations

from shadowprice.core.errors import ShadowpriceError


class ExecutorError(ShadowpriceError):
    """The executor can't be reached or can't store its records.

    The caller doesn't know whether the executor accepted the command, and must send it again.
    """

    code = "executor"
