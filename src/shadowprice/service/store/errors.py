"""Errors of the store."""

from __future__ import annotations

from shadowprice.core.errors import ShadowpriceError


class StoreError(ShadowpriceError):
    """The store can't be written or read; the transaction was rolled back."""

    code = "storage"
