"""The fault that an executor tells of."""

from __future__ import annotations

from shadowprice.core.errors import ShadowpriceError


class ExecutorError(ShadowpriceError):
    """An executor cannot be reached, or cannot keep its records; no order is known to be taken.

    The same order may, and has to, be sent again.
    """

    code = "executor"
