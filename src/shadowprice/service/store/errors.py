"""What goes wrong with the store."""

from __future__ import annotations

from shadowprice.core.errors import ShadowpriceError


class StoreError(ShadowpriceError):
    """The store cannot be written or read; what was being written was not."""

    code = "storage"
